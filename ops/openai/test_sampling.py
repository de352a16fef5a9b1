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


def test_an_answer_does_not_end_before_it_may(client):
    ends = {'max_tokens': 6, 'logit_bias': {'0': 100}}
    for call in (complete, chat):
        at_once = call(client, **ends)
        assert (at_once.usage.completion_tokens, at_once.choices[0].finish_reason) == (1, 'stop')
        later = call(client, extra_body={'min_tokens': 4}, **ends)
        assert (later.usage.completion_tokens, later.choices[0].finish_reason) == (5, 'stop')
        never = call(client, extra_body={'min_tokens': 6}, **ends)
        assert (never.usage.completion_tokens, never.choices[0].finish_reason) == (6, 'length')
    text = complete(client, max_tokens=12).choices[0].text
    stop = text[len(text) // 3]
    early = complete(client, max_tokens=12, stop=stop).choices[0].text
    assert text.startswith(early) and len(early) < len(text)
    whole = complete(client, max_tokens=12, stop=stop, extra_body={'min_tokens': 12})
    assert whole.choices[0].text == text[:len(whole.choices[0].text)]
    assert whole.usage.completion_tokens == 12


def test_tokens_that_end_an_answer(client):
    forced = {'max_tokens': 6, 'logit_bias': {'300': 100}}
    for ignores in (True, False):
        body = {'stop_token_ids': [300], 'ignore_eos': ignores}
        answer = complete(client, extra_body=body, **forced)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ('', 'stop')
    assert complete(client, **forced).choices[0].finish_reason == 'length'


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
    ({'max_tokens': 4, 'extra_body': {'min_tokens': 5}}, 'min_tokens'),
    ({'extra_body': {'stop_token_ids': [4096]}}, 'stop_token_ids'),
])
def test_bounds(client, fields, param):
    for call in (complete, chat):
        with pytest.raises(openai.BadRequestError) as raised:
            call(client, **fields)
        assert raised.value.param == param
