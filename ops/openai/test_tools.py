"""Tool calls, of models whose templates teach them (like Qwen's, Mistral's, Qwen Coder's, MiniMax',
GLM's, Kimi's, DeepSeek's, Llama 4's and LFM2's) and of one without one."""
import json
import shutil

import jsonschema
import openai
import pytest

from conftest import client_of
from serving import MODEL, serving
from test_completions import MESSAGES, chat

PLACE = {
    'type': 'object',
    'properties': {
        'town': {'type': 'string', 'minLength': 1, 'maxLength': 10},
        'unit': {'enum': ['celsius', 'kelvin']},
    },
    'required': ['town', 'unit'],
    'additionalProperties': False,
}
CLOCK = {'type': 'object', 'properties': {}, 'additionalProperties': False}


def tool(name, parameters):
    function = {'name': name, 'description': f'Tells the {name}.', 'parameters': parameters}
    return {'type': 'function', 'function': function}


TOOLS = [tool('weather', PLACE), tool('time', CLOCK)]
SCHEMAS = {'weather': PLACE, 'time': CLOCK}
NAMED = {'type': 'function', 'function': {'name': 'weather'}}


TEMPLATES = ['tools.jinja', 'listed.jinja', 'parameters.jinja', 'invoke.jinja', 'keys.jinja',
             'sections.jinja', 'untold.jinja', 'python.jinja', 'marks.jinja', 'gemma4.jinja']


@pytest.fixture(scope='module', params=TEMPLATES)
def caller(tmp_path_factory, request):
    """A server of the shipped model with a chat template that teaches tool calls."""
    folder = tmp_path_factory.mktemp('with-tools') / 'model'
    shutil.copytree(MODEL, folder)
    template = MODEL.parent / 'ops/openai' / request.param
    shutil.copy(template, folder / 'chat_template.jinja')
    with serving('--chunk', '64', model=folder) as server:
        client = client_of(server)
        client.template = request.param
        yield client


def check(calls):
    assert calls
    for call in calls:
        assert call.type == 'function'
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    assert len({call.id for call in calls}) == len(calls)


@pytest.mark.parametrize('temperature', [0, 1.5])
def test_required(caller, temperature):
    answer = chat(caller, tools=TOOLS, tool_choice='required', max_tokens=1500, n=3, seed=4,
                  temperature=temperature)
    for choice in answer.choices:
        assert choice.finish_reason == 'tool_calls'
        assert choice.message.content is None
        check(choice.message.tool_calls)


def test_named(caller):
    for seed in range(4):
        answer = chat(caller, tools=TOOLS, tool_choice=NAMED, max_tokens=200, temperature=1.5,
                      seed=seed)
        call, = answer.choices[0].message.tool_calls
        assert call.function.name == 'weather'
        check([call])


def test_a_format_beside_tools_is_that_of_answers_without_calls(caller):
    schema = {'type': 'object', 'properties': {'mood': {'enum': ['good', 'bad']}},
              'required': ['mood'], 'additionalProperties': False}
    form = {'type': 'json_schema', 'json_schema': {'name': 'mood', 'schema': schema}}
    kinds = set()
    for seed in range(12):
        choice = chat(caller, tools=TOOLS, response_format=form, max_tokens=1500, temperature=1.5,
                      seed=seed).choices[0]
        kinds.add(choice.finish_reason)
        if choice.message.tool_calls:
            check(choice.message.tool_calls)
        else:
            jsonschema.validate(json.loads(choice.message.content), schema)
    assert kinds <= {'tool_calls', 'stop'}
    answer = chat(caller, tools=TOOLS, response_format=form, tool_choice='required',
                  max_tokens=1500, temperature=1.5, seed=1)
    check(answer.choices[0].message.tool_calls)


def test_one_call_only(caller):
    answer = chat(caller, tools=TOOLS, tool_choice='required', parallel_tool_calls=False,
                  max_tokens=200, temperature=1.5, seed=1)
    assert len(answer.choices[0].message.tool_calls) == 1


def joined(chunks):
    """The calls of a stream: each is begun once, and goes on while no other is begun."""
    calls = []
    for chunk in chunks:
        deltas = chunk.choices[0].delta.tool_calls or []
        assert len({delta.index for delta in deltas}) == len(deltas)
        for delta in deltas:
            if delta.index == len(calls):
                calls.append({'id': delta.id, 'name': delta.function.name, 'arguments': '',
                              'pieces': 0})
            else:
                assert (delta.index, delta.id) == (len(calls) - 1, None)
                assert delta.function.name is None
            calls[-1]['arguments'] += delta.function.arguments
            calls[-1]['pieces'] += 1
    return calls


def test_streamed(caller):
    fields = {'tools': TOOLS, 'tool_choice': 'required', 'max_tokens': 1500, 'seed': 3,
              'temperature': 1.5}
    chunks = list(chat(caller, stream=True, **fields))
    assert chunks[-1].choices[0].finish_reason == 'tool_calls'
    whole = chat(caller, **fields).choices[0].message.tool_calls
    calls = joined(chunks)
    assert [(call['name'], call['arguments']) for call in calls] == [
        (call.function.name, call.function.arguments) for call in whole]
    assert len({call['id'] for call in calls}) == len(calls)


def test_arguments_come_bit_by_bit(caller):
    fields = {'tools': TOOLS, 'tool_choice': NAMED, 'max_tokens': 200, 'temperature': 1.5}
    chunks = list(chat(caller, stream=True, seed=2, **fields))
    call, = joined(chunks)
    jsonschema.validate(json.loads(call['arguments']), PLACE)
    # As Python has calls they are told when they are whole.
    is_whole = call['pieces'] == 1
    assert is_whole == (caller.template in ['python.jinja', 'marks.jinja'])


def test_a_call_may_be_cut_off(caller):
    fields = {'tools': TOOLS, 'tool_choice': NAMED, 'temperature': 1.5, 'seed': 2}
    for most in range(1, 40, 3):
        choice = chat(caller, max_tokens=most, **fields).choices[0]
        chunks = list(chat(caller, max_tokens=most, stream=True, **fields))
        assert [call['arguments'] for call in joined(chunks)] == [
            call.function.arguments for call in choice.message.tool_calls or []]
        said = ''.join(chunk.choices[0].delta.content or '' for chunk in chunks)
        assert said == (choice.message.content or '')
        assert chunks[-1].choices[0].finish_reason == choice.finish_reason


def test_auto_and_none_may_just_talk(caller):
    for fields in [{}, {'tool_choice': 'auto'}, {'tool_choice': 'none'}]:
        choice = chat(caller, tools=TOOLS, **fields).choices[0]
        assert choice.message.content
        assert choice.message.tool_calls is None
        assert choice.finish_reason == 'length'
    with_tools = chat(caller, tools=TOOLS).usage.prompt_tokens
    without = chat(caller).usage.prompt_tokens
    assert with_tools > without
    assert chat(caller, tools=TOOLS, tool_choice='none').usage.prompt_tokens == without


def test_results_go_back(caller):
    asked = chat(caller, tools=TOOLS, tool_choice=NAMED, max_tokens=200, temperature=1.5, seed=1)
    said = asked.choices[0].message
    messages = [
        *MESSAGES,
        said.model_dump(exclude_none=True),
        {'role': 'tool', 'tool_call_id': said.tool_calls[0].id, 'content': '281'},
    ]
    answer = chat(caller, messages=messages, tools=TOOLS)
    assert answer.usage.prompt_tokens > chat(caller, tools=TOOLS).usage.prompt_tokens
    assert answer.choices[0].message.content


def refused(client, param, *words, **fields):
    with pytest.raises(openai.BadRequestError) as raised:
        chat(client, **fields)
    assert raised.value.param == param
    for word in words:
        assert word in raised.value.message


def test_bad_tools_are_named(caller):
    refused(caller, 'tools[0].function.name', 'a b', tools=[tool('a b', CLOCK)])
    refused(caller, 'tools[0].type', tools=[{'type': 'retrieval'}])
    refused(caller, 'tool_choice', 'weather', tool_choice=NAMED)
    refused(caller, 'tool_choice', 'sometimes', tools=TOOLS, tool_choice='sometimes')
    refused(caller, 'tools[0].function.parameters', 'wizard', tools=[tool('x', {'type': 'object', 'properties': {
        'y': {'type': 'wizard'}}})], tool_choice='required')
    call = {'id': '1', 'type': 'function', 'function': {'name': 'f', 'arguments': 5}}
    refused(caller, 'messages[0].tool_calls[0].function.arguments',
            messages=[{'role': 'assistant', 'tool_calls': [call]}])


def test_a_template_without_tools_refuses_them(client):
    refused(client, 'tools', 'chat template', tools=TOOLS)
    refused(client, 'messages[0].role', 'tool',
            messages=[{'role': 'tool', 'tool_call_id': '1', 'content': '5'}])
