"""Models that think before they answer, and must answer in a certain way."""
import json
import shutil

import jsonschema
import openai
import pytest

from conftest import client_of
from serving import MODEL, serving
from test_completions import chat
from test_json import PERSON, schema
from test_tools import TOOLS, check


@pytest.fixture(scope='module')
def thinker(tmp_path_factory):
    """A server of the shipped model with a chat template that begins thoughts."""
    folder = tmp_path_factory.mktemp('with-thoughts') / 'model'
    shutil.copytree(MODEL, folder)
    shutil.copy(MODEL.parent / 'ops/openai/thoughts.jinja', folder / 'chat_template.jinja')
    with serving('--workers', '2', '--chunk', '64', model=folder) as server:
        yield client_of(server)


def thought(answer):
    return answer.usage.completion_tokens_details.reasoning_tokens


@pytest.mark.parametrize('temperature', [0, 1.5])
def test_a_schema_is_that_of_what_follows_thoughts(thinker, temperature):
    for seed in range(3):
        answer = chat(thinker, response_format=schema(PERSON), temperature=temperature, seed=seed,
                      max_tokens=300)
        message = answer.choices[0].message
        jsonschema.validate(json.loads(message.content), PERSON)
        assert message.reasoning_content and '</think>' not in message.reasoning_content
        # A model that never ends its thoughts has them ended, so that it can answer.
        assert 100 < thought(answer) <= 150 + 10


def test_a_call_that_must_come_comes_behind_thoughts(thinker):
    fields = {'tools': TOOLS, 'tool_choice': 'required', 'parallel_tool_calls': False,
              'temperature': 1.5, 'seed': 3, 'max_tokens': 300}
    answer = chat(thinker, **fields)
    message = answer.choices[0].message
    check(message.tool_calls)
    assert message.reasoning_content
    chunks = list(chat(thinker, stream=True, **fields))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    told = ''.join(getattr(delta, 'reasoning_content', None) or '' for delta in deltas)
    assert told == message.reasoning_content


def test_a_budget_is_for_thoughts(thinker):
    def asked(budget, **more):
        body = {'thinking_token_budget': budget}
        return chat(thinker, seed=1, temperature=1.5, max_tokens=60, extra_body=body, **more)
    for budget in (1, 20):
        answer = asked(budget)
        assert budget <= thought(answer) <= budget + 10
        assert answer.choices[0].message.content
    at_once = asked(0, response_format=schema({'enum': ['yes', 'no']}))
    assert json.loads(at_once.choices[0].message.content) in ('yes', 'no')
    unbounded = asked(-1, response_format=schema(PERSON))
    assert unbounded.choices[0].finish_reason == 'length'
    assert not unbounded.choices[0].message.content


def test_where_nobody_thinks_a_budget_is_refused(client):
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, extra_body={'thinking_token_budget': 5})
    assert refused.value.param == 'thinking_token_budget'
