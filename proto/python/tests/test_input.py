"""What a caller gives is checked where it is given: each error names field, value and bound."""
import math
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from conftest import PROMPT
from test_generate import GREEDY
from test_generate import run as run_on
from test_resume import ACCEPTED, SUMMARY, Told, run

import aqueduct_client
from aqueduct_client import (
    BusyError, ChatMessage, Client, ClientError, ClientOptions, GenerateOptions, Grammar,
    GrammarKind, InvalidArgumentError, MemoryPolicy, Quality, TlsFiles, fields, routes, wire,
)

ANSWER = ([ACCEPTED, SUMMARY], grpc.StatusCode.OK, ())
# What types forbid, and programs without types have.
FOO: Any = 'foo'


class Integer:
    """As numpy's are."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Array:
    """As numpy's are: no sequence, and without a truth."""

    def __init__(self, *values: int) -> None:
        self.values = values

    def __getitem__(self, idx: int) -> Integer:
        return Integer(self.values[idx])

    def __len__(self) -> int:
        return len(self.values)

    def __bool__(self) -> bool:
        raise ValueError('the truth of an array is ambiguous')


def refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        call()
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize('prompt, words', [
    ([1, 'a', 2], "prompt[1] = 'a': must be a token id"),
    (['Hello', 'world'], "prompt[0] = 'Hello': must be a token id"),
    ([1, None], 'prompt[1] = None: must be a token id'),
    ([1.0, 2.0], 'prompt[0] = 1.0: must be a token id'),
    ([1, -1], 'prompt[1] = -1: must be a token id, an integer between 0 and 4294967295'),
    ([2**32], 'prompt[0] = 4294967296: must be a token id'),
    ([1, ChatMessage('user', 'x')], 'prompt[1] = ChatMessage('),
    ([ChatMessage('user', 'x'), 1], 'prompt[1] = 1: must be of class ChatMessage'),
    ([ChatMessage('user', 'x\ud800')], r"prompt[0].content = 'x\ud800': must be text"),
    (b'bytes', "prompt = b'bytes': must be text, token ids or the turns of a chat"),
    (bytearray(b'x'), 'prompt = bytearray('),
    (None, 'prompt = None: must be text, token ids or the turns of a chat'),
    ('\ud800', r"prompt = '\ud800': must be text in valid Unicode"),
])
def test_prompts(prompt: Any, words: str) -> None:
    refused(lambda: wire.tokenize_request(prompt), words)
    refused(lambda: wire.request(prompt, GREEDY), words)


@pytest.mark.parametrize('prompt', [
    [1, 2, 3], (1, 2, 3), range(1, 4), [1, Integer(2), 3], Array(1, 2, 3)])
def test_integers_of_all_kinds_are_token_ids(prompt: Any) -> None:
    assert list(wire.request(prompt, GREEDY).tokens.ids) == [1, 2, 3]


@pytest.mark.parametrize('options, words', [
    ({'max_tokens': -1}, 'max_tokens = -1: must be an integer between 0 and 4294967295'),
    ({'max_tokens': 2.5}, 'max_tokens = 2.5: must be an integer'),
    ({'thinking_token_budget': -1}, 'thinking_token_budget = -1: must be an integer between 0'),
    ({'seed': -1}, 'seed = -1: must be an integer between 0 and 18446744073709551615'),
    ({'priority': 2**31}, 'priority = 2147483648: must be an integer'),
    ({'temperature': 'hot'}, "temperature = 'hot': must be a number"),
    ({'logit_bias': {-1: 1.0}}, 'logit_bias = -1: must be a token id'),
    ({'logit_bias': {5: 'x'}}, "logit_bias[5] = 'x': must be a number"),
    ({'logit_bias': [5]}, 'logit_bias = [5]: must be numbers by token id'),
    ({'stop': [b'x', 5]}, 'stop[1] = 5: must be text'),
    ({'stop': 5}, 'stop = 5: must be a sequence'),
    ({'stop_tokens': ['x']}, "stop_tokens[0] = 'x': must be a token id"),
    ({'session': 5}, 'session = 5: must be text'),
    ({'policy': MemoryPolicy(kind=FOO)},
     "policy.kind = 'foo': must be one of dense, window, h2o"),
    ({'policy': MemoryPolicy(sinks=-1)}, 'policy.sinks = -1: must be an integer'),
    ({'policy': 'dense'}, "policy = 'dense': must be of class MemoryPolicy"),
    ({'quality': 1.0}, 'quality = 1.0: must be of class Quality'),
    ({'quality': Quality(below_floor=FOO)},
     "quality.below_floor = 'foo': must be one of escalate, report"),
    ({'exchange': 'x'}, "exchange = 'x': must be one of move, stay, auto"),
    ({'wire': 'x'}, "wire = 'x': must be one of f32, bf16, f16"),
    ({'grammar': Grammar(FOO, 'x')},
     "grammar.kind = 'foo': must be one of json_schema, regex, lark"),
    ({'grammar': Grammar(GrammarKind.REGEX, '\ud800')}, r"grammar.text = '\ud800': must be text"),
    ({'grammar': '[0-9]'}, "grammar = '[0-9]': must be of class Grammar"),
    ({'idempotency_key': 'a b'}, "idempotency_key = 'a b': must be 1 to 255 visible ASCII"),
    ({'idempotency_key': ''}, "idempotency_key = '': must be 1 to 255 visible ASCII"),
    ({'idempotency_key': 'mine', 'prompt_logprobs': True},
     "idempotency_key = 'mine': must be None beside prompt_logprobs"),
])
def test_options(options: dict[str, Any], words: str) -> None:
    refused(lambda: wire.request(PROMPT, GenerateOptions(**options)), words)


@pytest.mark.parametrize('request_id', ['a\nb', 'two words', 'é', '', 'x' * 129, 5])
def test_request_ids(request_id: Any) -> None:
    refused(lambda: wire.caller_id(request_id), 'request_id = ')


def test_a_text_to_stop_at_is_one_text() -> None:
    assert list(wire.request(PROMPT, GenerateOptions(stop='END')).stop) == ['END']


@pytest.mark.parametrize('options', [
    GenerateOptions(deadline_s=0), GenerateOptions(deadline_s=-1),
    GenerateOptions(deadline_s=math.nan), GenerateOptions(request_id='a\nb')])
def test_what_is_wrong_is_not_sent(options: GenerateOptions) -> None:
    told = Told()

    async def work(client: Client) -> None:
        with pytest.raises(InvalidArgumentError, match='^(deadline_s|request_id) = '):
            await client.generate(PROMPT, options)

    run(told, work)
    assert told.asked == []


@pytest.mark.parametrize('deadline_s', [1e10, math.inf, 1e300])
def test_for_ever_is_a_year(deadline_s: float) -> None:
    options = ClientOptions(call_deadline_s=deadline_s, resume_within_s=deadline_s)

    async def work(client: Client) -> None:
        await client.complete(PROMPT, GenerateOptions(deadline_s=deadline_s))

    run(Told(ANSWER), work, options)


@pytest.mark.parametrize('name, value', [
    ('call_deadline_s', 0), ('call_deadline_s', math.nan), ('resume_within_s', -1)])
def test_times_of_a_client(name: str, value: float) -> None:
    options: Any = {name: value}
    refused(lambda: ClientOptions(**options), f'{name} = ')
    assert ClientOptions(resume_within_s=0)


@pytest.mark.parametrize('url', [
    'http://127.0.0.1:7070/api', 'http://127.0.0.1:7070?a=b', 'http://127.0.0.1',
    'http://user@127.0.0.1:7070', 'http://127.0.0.1:70707', 'http://127.0.0.1:x', 'http://:7070',
    'http://127.0.0.1:7070,'])
def test_urls(url: str) -> None:
    refused(lambda: Client(url), 'url = ')


def test_what_is_of_another_kind() -> None:
    other: Any = {'max_tokens': 1}
    refused(lambda: Client(other), "url = {'max_tokens': 1}: must be of class str")
    refused(lambda: wire.request(PROMPT, other), "options = {'max_tokens': 1}: must be of class")


def test_urls_that_are_right() -> None:
    for url in ('http://127.0.0.1:7070/', 'HTTP://[::1]:7070', 'http://a:1, http://b:2'):
        assert Client(url)


def test_files_are_read_when_a_client_is_made() -> None:
    options = ClientOptions(tls=TlsFiles('no such file'))
    refused(lambda: Client('https://127.0.0.1:7070', options), 'tls: ')


def test_a_prompt_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, 'MESSAGE_BYTES_MAX', 1000)
    for prompt in ('x' * 1001, [5000] * 600):
        refused(lambda: wire.request(prompt, GREEDY), 'prompt = ')
    assert wire.request('x' * 900, GREEDY)


def test_what_grpc_finds_too_large_is_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, 'MESSAGE_BYTES_MAX', 1000)

    async def work(client: Client) -> None:
        with pytest.raises(InvalidArgumentError, match='prompt: .*larger than max'):
            await client.complete('x' * 1001)

    run(Told(), work)


def test_a_real_server_takes_what_is_checked_here(url: str) -> None:
    async def work(client: Client) -> None:
        ids = (await client.tokenize(PROMPT)).ids
        options = GenerateOptions(
            max_tokens=4, stop='no such words', request_id='mine', logit_bias={5: 1},
            policy=MemoryPolicy(local=64), prompt_logprobs=True, resumable=False)
        answer = await client.complete([Integer(id) for id in ids], options)
        assert answer.summary.prompt_tokens == len(ids)
        nothing = await client.complete(PROMPT, GenerateOptions(max_tokens=0, choices=2))
        assert [each.text for each in nothing.completions] == ['', '']

    run_on(url, work)


def test_errors_go_to_other_processes_and_back() -> None:
    kinds = [kind for name in aqueduct_client.__all__
             if isinstance(kind := getattr(aqueduct_client, name), type)
             and issubclass(kind, ClientError)]
    assert len(kinds) == 12
    for kind in kinds:
        error = kind('full', 2.5) if kind is BusyError else kind('full')
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.args) == (kind, str(error), error.args)
    busy = pickle.loads(pickle.dumps(BusyError('full', 2.5)))
    assert busy.retry_after_s == 2.5 and str(busy) == 'busy: full; retry after 2.5 s'
