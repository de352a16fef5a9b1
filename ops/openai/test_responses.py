"""`/v1/responses`: whole, as a stream, with tools and with a form."""
import json

import jsonschema
import openai
import pytest

from test_completions import MESSAGES, chat
from test_tools import CLOCK, PLACE, SCHEMAS, caller  # noqa: F401 (a fixture)

TOOLS = [{'type': 'function', 'name': name, 'description': f'Tells the {name}.',
          'parameters': parameters} for name, parameters in [('weather', PLACE), ('time', CLOCK)]]


def respond(client, **fields):
    fields = {'model': 'model', 'input': MESSAGES, 'max_output_tokens': 12, 'temperature': 0,
              **fields}
    return client.responses.create(**fields)


def test_it_says_what_a_chat_says(client):
    answer = respond(client)
    assert (answer.object, answer.status) == ('response', 'incomplete')
    assert answer.incomplete_details.reason == 'max_output_tokens'
    assert answer.output_text == chat(client).choices[0].message.content
    message, = answer.output
    assert (message.type, message.role, message.status) == ('message', 'assistant', 'incomplete')
    usage = answer.usage
    assert (usage.output_tokens, usage.total_tokens) == (12, usage.input_tokens + 12)
    assert usage.input_tokens == chat(client).usage.prompt_tokens
    assert answer.id.startswith('resp_') and answer.temperature == 0
    ends = respond(client, extra_body={'logit_bias': {'0': 100}})
    assert (ends.status, ends.output_text, ends.incomplete_details) == ('completed', '', None)


def test_input_has_many_forms(client):
    asked = respond(client, instructions=MESSAGES[0]['content'], input=MESSAGES[1]['content'])
    assert asked.output_text == respond(client).output_text
    assert asked.instructions == MESSAGES[0]['content']
    part = {'type': 'input_text', 'text': MESSAGES[1]['content']}
    items = [{'role': 'developer', 'content': MESSAGES[0]['content']},
             {'type': 'message', 'role': 'user', 'content': [part]}]
    assert respond(client, input=items).output_text == asked.output_text
    more = [*items, *asked.output, {'role': 'user', 'content': 'Go on.'}]
    assert respond(client, input=more).usage.input_tokens > asked.usage.total_tokens


def test_streamed(client):
    whole = respond(client)
    events = list(respond(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = kinds.count('response.output_text.delta')
    assert kinds == [
        'response.created', 'response.in_progress', 'response.output_item.added',
        'response.content_part.added', *['response.output_text.delta'] * deltas,
        'response.output_text.done', 'response.content_part.done', 'response.output_item.done',
        'response.incomplete']
    text = ''.join(event.delta for event in events if event.type.endswith('text.delta'))
    assert text == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage.output_tokens == 12
    assert events[0].response.status == 'in_progress'
    ends = {'extra_body': {'logit_bias': {'0': 100}, 'min_tokens': 3}}
    with client.responses.stream(model='model', input='Why?', **ends) as stream:
        assert stream.get_final_response().usage.output_tokens == 4


def test_log_probabilities(client):
    include = ['message.output_text.logprobs']
    answer = respond(client, include=include, top_logprobs=2)
    entries = answer.output[0].content[0].logprobs
    assert len(entries) == 12 and all(len(entry.top_logprobs) == 2 for entry in entries)
    assert ''.join(entry.token for entry in entries) == answer.output_text


def test_a_form(client):
    schema = {'name': 'place', 'schema': PLACE, 'strict': True}
    answer = respond(client, text={'format': {'type': 'json_schema', **schema}},
                     max_output_tokens=200, temperature=1.5)
    jsonschema.validate(json.loads(answer.output_text), PLACE)
    assert answer.text.format.name == 'place'


def test_calls(caller):  # noqa: F811
    asked = {'tools': TOOLS, 'tool_choice': 'required', 'max_output_tokens': 1500, 'temperature': 1.5}
    answer = respond(caller, **asked, extra_body={'seed': 4})
    assert answer.status == 'completed' and answer.output
    for call in answer.output:
        assert call.type == 'function_call'
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    named = respond(caller, **{**asked, 'tool_choice': {'type': 'function', 'name': 'weather'}})
    assert [call.name for call in named.output] == ['weather']
    events = list(respond(caller, **asked, extra_body={'seed': 4}, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    told = [(event.name, event.arguments) for event in events
            if event.type == 'response.function_call_arguments.done']
    assert told == [(call.name, call.arguments) for call in answer.output]
    for at, call in enumerate(answer.output):
        own = [event for event in events if getattr(event, 'output_index', None) == at]
        kinds = [event.type for event in own]
        assert kinds == ['response.output_item.added',
                         *['response.function_call_arguments.delta'] * (len(own) - 3),
                         'response.function_call_arguments.done', 'response.output_item.done']
        assert ''.join(event.delta for event in own[1:-2]) == call.arguments
    results = [{'type': 'function_call_output', 'call_id': call.call_id, 'output': '281'}
               for call in answer.output]
    after = respond(caller, input=[*MESSAGES[1:], *answer.output, *results], tools=TOOLS)
    assert after.usage.input_tokens > named.usage.input_tokens and after.output_text


@pytest.mark.parametrize('fields, param', [
    ({'input': []}, 'input'),
    ({'input': [{'role': 'wizard', 'content': 'x'}]}, 'input[0].role'),
    ({'input': [{'type': 'item_reference', 'id': 'x'}]}, 'input[0].type'),
    ({'input': [{'role': 'user', 'content': [{'type': 'input_image'}]}]}, 'input[0].content'),
    ({'previous_response_id': 'resp_1'}, 'previous_response_id'),
    ({'background': True}, 'background'),
    ({'truncation': 'always'}, 'truncation'),
    ({'reasoning': {'effort': 'minimal'}}, 'reasoning.effort'),
    ({'include': ['file_search_call.secrets']}, 'include'),
    ({'text': {'verbosity': 'none'}}, 'text.verbosity'),
    ({'text': {'format': {'type': 'json_schema', 'name': 'x', 'schema': 5}}}, 'text.format.schema'),
    ({'tool_choice': {'type': 'web_search'}}, 'tool_choice'),
    ({'tools': TOOLS}, 'tools'),
    ({'max_output_tokens': 0}, 'max_output_tokens'),
    ({'extra_body': {'n': 2}}, 'n'),
    ({'extra_body': {'aqueduct': {'resumable': True}}, 'stream': True}, 'aqueduct.resumable'),
    ({'extra_body': {'typo': 2}}, 'typo'),
])
def test_what_is_wrong_is_named(client, fields, param):
    with pytest.raises(openai.BadRequestError) as raised:
        respond(client, **fields)
    assert raised.value.param == param
