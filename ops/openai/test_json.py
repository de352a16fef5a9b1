"""Answers that must be JSON: they parse and validate, whatever the model would rather say."""
import json

import jsonschema
import openai
import pytest

from test_completions import MESSAGES, chat, complete

PERSON = {
    'type': 'object',
    'properties': {
        'name': {'type': 'string', 'minLength': 1, 'maxLength': 12},
        'age': {'type': 'integer', 'minimum': 0, 'maximum': 120},
        'mood': {'enum': ['glad', 'sad', None]},
        'tags': {'type': 'array', 'items': {'$ref': '#/$defs/tag'}, 'minItems': 1, 'maxItems': 3},
    },
    'required': ['name', 'age', 'mood', 'tags'],
    'additionalProperties': False,
    '$defs': {'tag': {'type': 'string', 'pattern': '^[a-z]{1,8}$'}},
}


def schema(schema, name='answer'):
    return {'type': 'json_schema', 'json_schema': {'name': name, 'schema': schema, 'strict': True}}


def check(text, schema):
    jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize('temperature', [0, 1, 1.5])
def test_schema(client, temperature):
    answer = chat(client, response_format=schema(PERSON), n=4, temperature=temperature, seed=5,
                  max_tokens=200)
    for choice in answer.choices:
        assert choice.finish_reason == 'stop'
        check(choice.message.content, PERSON)
    if temperature:
        assert len({choice.message.content for choice in answer.choices}) > 1


def test_schema_of_a_completion(client):
    answer = complete(client, max_tokens=200, temperature=1.5, seed=2,
                      extra_body={'response_format': schema(PERSON)})
    check(answer.choices[0].text, PERSON)


def test_a_stream_is_the_same(client):
    fields = {'response_format': schema(PERSON), 'temperature': 1.5, 'seed': 9, 'max_tokens': 200}
    chunks = list(chat(client, stream=True, **fields))
    text = ''.join(chunk.choices[0].delta.content or '' for chunk in chunks)
    assert text == chat(client, **fields).choices[0].message.content
    check(text, PERSON)


def test_many_seeds(client):
    for seed in range(12):
        answer = chat(client, response_format=schema(PERSON), n=2, temperature=1.5, seed=seed,
                      max_tokens=200, logprobs=True)
        for choice in answer.choices:
            check(choice.message.content, PERSON)


def test_object(client):
    answer = chat(client, response_format={'type': 'json_object'}, max_tokens=400, temperature=0)
    choice = answer.choices[0]
    assert choice.message.content.startswith('{')
    if choice.finish_reason == 'stop':
        assert isinstance(json.loads(choice.message.content), dict)


def test_pydantic(client):
    import pydantic

    class Step(pydantic.BaseModel):
        ready: bool
        count: int = pydantic.Field(ge=0, le=9)

    answer = client.chat.completions.parse(
        model='model', messages=MESSAGES, response_format=Step, max_tokens=60, temperature=1.5)
    assert isinstance(answer.choices[0].message.parsed, Step)


def test_a_budget_that_is_too_small(client):
    choice = chat(client, response_format=schema(PERSON), max_tokens=3).choices[0]
    assert choice.finish_reason == 'length'
    assert '{"name": "'.startswith(choice.message.content[:10])


@pytest.mark.parametrize('bad, param, word', [
    ({'type': 'yaml'}, 'response_format.type', 'json_schema'),
    ({'type': 'json_schema', 'json_schema': {'name': 'x'}}, 'response_format.json_schema.schema',
     'object'),
    (schema({'type': 'wizard'}), 'response_format', 'wizard'),
    (schema({'type': 'object', 'not': {'type': 'string'}}), 'response_format', 'not'),
    (schema({'enum': ['x' * 200_000]}), 'response_format', '131072'),
    (schema({'$ref': 'http://localhost/schema'}), 'response_format', ''),
])
def test_schemas_that_cannot_be_followed(client, bad, param, word):
    with pytest.raises(openai.BadRequestError) as raised:
        chat(client, response_format=bad)
    assert raised.value.param == param
    assert word in raised.value.message
