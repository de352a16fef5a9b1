"""Completions, chat, streams, log probabilities, stop strings, seeds, n and token counts."""
import math

import pytest

PROMPT = 'I went to the woods because I wished to live deliberately, '
MESSAGES = [
    {'role': 'system', 'content': 'Be brief.'},
    {'role': 'user', 'content': 'Why did you go to the woods?'},
]


def complete(client, **fields):
    fields = {'model': 'model', 'prompt': PROMPT, 'max_tokens': 12, 'temperature': 0, **fields}
    return client.completions.create(**fields)


def chat(client, **fields):
    fields = {'model': 'model', 'messages': MESSAGES, 'max_tokens': 12, 'temperature': 0, **fields}
    return client.chat.completions.create(**fields)


def test_models(client):
    assert [model.id for model in client.models.list()] == ['model']
    assert client.models.retrieve('model').owned_by == 'aqueduct'


def test_completion(client):
    answer = complete(client)
    assert answer.object == 'text_completion'
    assert answer.id.startswith('cmpl-')
    choice, = answer.choices
    assert choice.text
    assert choice.finish_reason == 'length'
    usage = answer.usage
    assert usage.completion_tokens == 12
    assert usage.total_tokens == usage.prompt_tokens + 12


def test_prompts_in_a_list(client):
    answer = complete(client, prompt=[PROMPT, 'Simplify, '], n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == complete(client).choices[0].text
    assert answer.usage.completion_tokens == 48


def test_chat(client):
    answer = chat(client)
    assert answer.object == 'chat.completion'
    choice, = answer.choices
    assert choice.message.role == 'assistant'
    assert choice.message.content
    assert choice.message.refusal is None
    assert choice.finish_reason == 'length'


def test_content_in_parts(client):
    def said(content):
        return [{**MESSAGES[0], 'role': 'developer'}, {'role': 'user', 'content': content}]

    parts = [{'type': 'text', 'text': 'Why did you go'}, {'type': 'text', 'text': 'to the woods?'}]
    lines = chat(client, messages=said('Why did you go\nto the woods?'))
    assert chat(client, messages=said(parts)).choices[0] == lines.choices[0]


def test_streams_are_the_whole_answer(client):
    whole = complete(client).choices[0].text
    chunks = list(complete(client, stream=True))
    assert ''.join(chunk.choices[0].text for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == 'length'
    assert len({chunk.id for chunk in chunks}) == 1

    whole = chat(client).choices[0].message.content
    chunks = list(chat(client, stream=True))
    assert chunks[0].choices[0].delta.role == 'assistant'
    assert ''.join(chunk.choices[0].delta.content or '' for chunk in chunks) == whole
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_of_a_stream(client):
    chunks = list(chat(client, stream=True, stream_options={'include_usage': True}))
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage == chat(client).usage


def test_logprobs_of_chat(client):
    content = chat(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(content) == 12
    for entry in content:
        assert [entry.token, entry.logprob] == [
            entry.top_logprobs[0].token, entry.top_logprobs[0].logprob], 'greedy takes the best'
        assert len(entry.top_logprobs) == 3
        assert bytes(entry.bytes).decode(errors='replace') == entry.token
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1.0001
    streamed = [
        entry for chunk in chat(client, logprobs=True, top_logprobs=3, stream=True)
        if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert streamed == content


def test_logprobs_of_completions(client):
    logprobs = complete(client, logprobs=2, echo=True).choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    assert all(logprob <= 0 for logprob in logprobs.token_logprobs[1:])
    assert ''.join(logprobs.tokens).startswith(PROMPT)
    assert len(logprobs.tokens) == len(logprobs.text_offset) == len(logprobs.top_logprobs)


def test_stop(client):
    text = complete(client).choices[0].text
    stop = text[3:6]
    for fields in [{'stop': stop}, {'stop': ['no such text', stop]}]:
        choice = complete(client, **fields).choices[0]
        assert choice.finish_reason == 'stop'
        assert choice.text == text[:text.index(stop)]
    chunks = complete(client, stop=stop, stream=True)
    assert ''.join(chunk.choices[0].text for chunk in chunks) == text[:text.index(stop)]


def test_seeds(client):
    def draw(seed):
        return [choice.text for choice in complete(client, temperature=1, seed=seed, n=3).choices]

    first = draw(7)
    assert draw(7) == first
    assert draw(8) != first
    assert len(set(first)) == 3, 'each choice draws for itself'


@pytest.mark.parametrize('stream', [False, True])
def test_n(client, stream):
    answer = chat(client, n=3, temperature=1.2, seed=1, stream=stream)
    if stream:
        texts = ['', '', '']
        for chunk in answer:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ''
    else:
        texts = [choice.message.content for choice in answer.choices]
    again = chat(client, n=3, temperature=1.2, seed=1).choices
    assert texts == [choice.message.content for choice in again]


def test_progress(client):
    prompt = PROMPT * 40
    chunks = list(complete(client, prompt=prompt, stream=True, max_tokens=3,
                           extra_body={'return_progress': True}))
    told = [chunk.model_extra['prompt_progress'] for chunk in chunks
            if 'prompt_progress' in chunk.model_extra]
    processed = [progress['processed'] for progress in told]
    assert processed == sorted(processed)
    total = complete(client, prompt=prompt, max_tokens=1).usage.prompt_tokens
    assert told[-1]['total'] == processed[-1] == total
    assert {'total', 'cache', 'processed', 'time_ms'} == set(told[-1])
    whole = complete(client, prompt=prompt, max_tokens=3).choices[0].text
    assert ''.join(chunk.choices[0].text for chunk in chunks) == whole
