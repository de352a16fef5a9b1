"""Bias, penalties and min_p."""
import openai
import pytest

from test_completions import chat, complete


def tokens(client, **fields):
    """The tokens of a completion, by their text."""
    return complete(client, logprobs=0, max_tokens=24, **fields).choices[0].logprobs.tokens


def test_bias_forces_and_bars(client):
    assert len(set(tokens(client, logit_bias={'300': 100}))) == 1
    plain = complete(client, max_tokens=1)
    first = complete(client, max_tokens=1, logprobs=1).choices[0].logprobs.tokens[0]
    # Which id the first token has: the one whose ban changes it.
    changed = [
        token for token in range(4096 // 512)
        if complete(client, max_tokens=1, logit_bias={
            str(id): -100 for id in range(token * 512, token * 512 + 512)}).choices != plain.choices]
    assert len(changed) == 1, f'one range of ids has {first!r}'


def test_penalties(client):
    plain = tokens(client)
    assert len(set(plain)) < len(plain), 'something repeats'
    for fields in [{'frequency_penalty': 2}, {'extra_body': {'repetition_penalty': 10}}]:
        assert len(set(tokens(client, **fields))) > len(set(plain)), fields
    said = tokens(client, presence_penalty=2, temperature=1, seed=3)
    assert said != tokens(client, temperature=1, seed=3)
    assert said == tokens(client, presence_penalty=2, temperature=1, seed=3)


def test_min_p(client):
    greedy = tokens(client)
    assert tokens(client, temperature=2, seed=1, extra_body={'min_p': 1}) == greedy
    assert tokens(client, temperature=2, seed=1, extra_body={'min_p': 0.001}) != greedy


@pytest.mark.parametrize('fields, param', [
    ({'logit_bias': {'5': 101}}, 'logit_bias[5]'),
    ({'logit_bias': {'4096': 1}}, 'logit_bias'),
    ({'logit_bias': {'the': 1}}, 'logit_bias'),
    ({'presence_penalty': 3}, 'presence_penalty'),
    ({'frequency_penalty': -3}, 'frequency_penalty'),
    ({'extra_body': {'repetition_penalty': 0}}, 'repetition_penalty'),
    ({'extra_body': {'min_p': 2}}, 'min_p'),
])
def test_bounds(client, fields, param):
    for call in (complete, chat):
        with pytest.raises(openai.BadRequestError) as raised:
            call(client, **fields)
        assert raised.value.param == param
