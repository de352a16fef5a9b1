"""What the package raises, and what it surfaces of an error's fields."""
import openai
import pytest

from test_completions import PROMPT, chat, complete


def check(call, kind, status, code, param, *words):
    with pytest.raises(kind) as raised:
        call()
    error = raised.value
    assert error.status_code == status
    assert (error.code, error.param) == (code, param)
    for word in words:
        assert word in error.message, error.message


def test_unknown_model(client):
    check(lambda: complete(client, model='gpt'), openai.NotFoundError, 404, 'model_not_found',
          'model', "gpt", 'model')
    check(lambda: client.models.retrieve('gpt'), openai.NotFoundError, 404, 'model_not_found',
          'model')


@pytest.mark.parametrize('field, value, word', [
    ('temperature', 2.5, '2'),
    ('temperature', -1, '0'),
    ('top_p', 0, 'above 0'),
    ('n', 0, '1'),
    ('n', 65, '64'),
    ('max_tokens', -1, 'u32'),
    ('stop', ['x'] * 17, '16'),
    ('seed', 'seven', 'number'),
])
def test_bounds(client, field, value, word):
    for call in (complete, chat):
        check(lambda: call(client, **{field: value}), openai.BadRequestError, 400, None, field,
              field, word)


def test_logprobs(client):
    check(lambda: complete(client, logprobs=21), openai.BadRequestError, 400, None, 'logprobs')
    check(lambda: chat(client, logprobs=True, top_logprobs=21), openai.BadRequestError, 400, None,
          'top_logprobs')
    check(lambda: chat(client, top_logprobs=1), openai.BadRequestError, 400, None, 'top_logprobs')


def test_a_prompt_that_is_too_long(client):
    for tokens, bound in [(65537, '65536'), (65530, '65524')]:
        call = lambda: complete(client, prompt=[1] * tokens)
        check(call, openai.BadRequestError, 400, 'context_length_exceeded', 'prompt_tokens',
              str(tokens), bound)


def test_tokens_outside_the_vocabulary(client):
    check(lambda: complete(client, prompt=[1, 4096]), openai.BadRequestError, 400, None,
          'prompt', '4096')


def test_unknown_fields(client):
    for call in (complete, chat):
        check(lambda: call(client, extra_body={'tempreature': 1}), openai.BadRequestError, 400,
              None, 'tempreature', 'not a known field')
        check(lambda: call(client, extra_body={'aqueduct': {'sink': 1}}), openai.BadRequestError,
              400, None, 'aqueduct.sink')


def test_roles(client):
    check(lambda: chat(client, messages=[{'role': 'wizard', 'content': 'x'}]),
          openai.BadRequestError, 400, None, 'messages[0].role', 'wizard')
    check(lambda: chat(client, messages=[]), openai.BadRequestError, 400, None, 'messages')


def test_the_server_lives_on(client):
    assert complete(client, prompt=PROMPT).choices[0].text
