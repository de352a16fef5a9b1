"""The same without an event loop."""
import pytest
from conftest import PROMPT, metric, wait_for
from serving import Server
from test_generate import ENDLESS, GREEDY, complete

from aqueduct_client import GenerateOptions, InvalidArgumentError, Summary, Token
from aqueduct_client.blocking import Client


def test_calls_and_streams(server: Server, url: str) -> None:
    with Client(url) as client:
        assert client.describe().model == 'model'
        assert client.tokenize(client.tokenize(PROMPT).ids).text == PROMPT
        assert client.complete(PROMPT, GREEDY).completions == complete(url).completions
        events = list(client.generate(PROMPT, GREEDY))
        assert isinstance(events[-1], Summary)
        with client.generate(PROMPT, ENDLESS) as stream:
            assert stream.accepted.prompt_tokens > 0
            for event in stream:
                if isinstance(event, Token):
                    break
        assert list(stream) == []
        wait_for(lambda: metric(server, 'num_requests_running') == 0)
        with pytest.raises(InvalidArgumentError, match='top_p'):
            client.generate(PROMPT, GenerateOptions(top_p=2))
