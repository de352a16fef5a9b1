"""Who shows a key may call."""
import openai
import pytest

from conftest import client_of
from serving import new_key, serving


def test_a_key_opens_the_door_and_has_limits(tmp_path):
    file = tmp_path / 'keys.json'
    limits = ['--tokens-per-minute', '8', '--max-prompt-tokens', '6']
    key = new_key(file, '--name', 'alice', *limits)
    with serving('--api-keys', file) as server:
        stranger = client_of(server)
        ask = {'model': 'model', 'prompt': [5, 6, 7, 8, 9, 10], 'max_tokens': 2}
        with pytest.raises(openai.AuthenticationError) as error:
            stranger.completions.create(**ask)
        assert error.value.code == 'invalid_api_key'
        alice = stranger.with_options(api_key=key)
        assert alice.completions.create(**ask).usage.total_tokens == 8
        with pytest.raises(openai.RateLimitError) as error:
            alice.completions.create(**ask)
        assert error.value.code == 'rate_limit_exceeded'
        assert int(error.value.response.headers['retry-after']) > 0
        with pytest.raises(openai.BadRequestError) as error:
            alice.completions.create(**{**ask, 'prompt': [5] * 7})
        assert error.value.code == 'context_length_exceeded'
