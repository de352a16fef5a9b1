"""`/v1/messages` with the official `anthropic` package: whole, as a stream, with tools, thoughts and
a form."""
import json

import anthropic
import jsonschema
import pytest

from test_completions import MESSAGES, chat
from test_thoughts import thinker  # noqa: F401 (a fixture)
from test_tools import CLOCK, PLACE, SCHEMAS, caller  # noqa: F401 (a fixture)

SYSTEM, ASKED = MESSAGES[0]['content'], MESSAGES[1:]
TOOLS = [{'name': name, 'description': f'Tells the {name}.', 'input_schema': schema}
         for name, schema in [('weather', PLACE), ('time', CLOCK)]]


def of(client):
    """A client of the same server."""
    url = str(client.base_url).removesuffix('/v1/')
    return anthropic.Anthropic(base_url=url, api_key='none', max_retries=0, timeout=60)


def fields_of(**fields):
    return {'model': 'model', 'system': SYSTEM, 'messages': ASKED, 'max_tokens': 12, **fields}


def ask(client, temperature=0, seed=0, **fields):
    body = {'temperature': temperature, 'seed': seed, **fields.pop('extra_body', {})}
    return of(client).messages.create(**fields_of(extra_body=body, **fields))


def test_it_says_what_a_chat_says(client):
    answer = ask(client)
    assert (answer.type, answer.role, answer.model) == ('message', 'assistant', 'model')
    assert answer.stop_reason == 'max_tokens' and answer.id.startswith('msg_')
    told = chat(client)
    assert [block.text for block in answer.content] == [told.choices[0].message.content]
    usage = answer.usage
    assert usage.output_tokens == 12
    assert usage.input_tokens + usage.cache_read_input_tokens == told.usage.prompt_tokens
    assert answer._request_id
    ends = ask(client, extra_body={'logit_bias': {'0': 100}})
    assert (ends.stop_reason, ends.content) == ('end_turn', [])


def test_streamed(client):
    whole = ask(client, max_tokens=40)
    with of(client).messages.stream(**fields_of(max_tokens=40, extra_body={'temperature': 0})) as told:
        text = ''.join(told.text_stream)
        last = told.get_final_message()
    assert text == whole.content[0].text == last.content[0].text
    assert (last.stop_reason, last.usage.output_tokens) == ('max_tokens', 40)


def test_a_stop_sequence_is_named(client):
    text = ask(client, max_tokens=40).content[0].text
    stop = text[5:9]
    answer = ask(client, max_tokens=40, stop_sequences=['never said', stop])
    assert (answer.stop_reason, answer.stop_sequence) == ('stop_sequence', stop)
    assert answer.content[0].text == text[:text.index(stop)]


def test_an_answer_goes_on(client):
    whole = ask(client, max_tokens=12)
    begun = [*ASKED, {'role': 'assistant', 'content': whole.content}]
    more = ask(client, max_tokens=12, messages=begun)
    assert more.content[0].text == ask(client, max_tokens=24).content[0].text[
        len(whole.content[0].text):]


def test_tokens_are_counted(client):
    fields = fields_of()
    del fields['max_tokens']
    counted = of(client).messages.count_tokens(**fields).input_tokens
    usage = ask(client).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_a_form(client):
    form = {'format': {'type': 'json_schema', 'schema': PLACE}}
    answer = ask(client, max_tokens=200, temperature=1.5, extra_body={'output_config': form})
    jsonschema.validate(json.loads(answer.content[0].text), PLACE)


def test_calls(caller):  # noqa: F811
    asked = {'tools': TOOLS, 'tool_choice': {'type': 'any'}, 'max_tokens': 1500,
             'temperature': 1.5, 'seed': 4}
    answer = ask(caller, **asked)
    assert answer.stop_reason == 'tool_use' and answer.content
    for call in answer.content:
        assert call.type == 'tool_use'
        jsonschema.validate(call.input, SCHEMAS[call.name])
    named = ask(caller, **{**asked, 'tool_choice': {'type': 'tool', 'name': 'weather'}})
    assert [call.name for call in named.content] == ['weather']
    body = {'temperature': asked.pop('temperature'), 'seed': asked.pop('seed')}
    with of(caller).messages.stream(**fields_of(extra_body=body, **asked)) as told:
        last = told.get_final_message()
    calls = [(call.name, call.input) for call in answer.content]
    assert [(call.name, call.input) for call in last.content] == calls
    results = [{'type': 'tool_result', 'tool_use_id': call.id, 'content': '281'}
               for call in answer.content]
    messages = [*ASKED, {'role': 'assistant', 'content': answer.content},
                {'role': 'user', 'content': results}]
    after = ask(caller, messages=messages, tools=TOOLS)
    assert after.usage.input_tokens > named.usage.input_tokens and after.content


def test_thoughts_are_blocks(thinker):  # noqa: F811
    thinking = {'type': 'enabled', 'budget_tokens': 20}
    fields = {'thinking': thinking, 'max_tokens': 60, 'temperature': 1.5, 'seed': 1}
    thought, said = ask(thinker, **fields).content
    assert (thought.type, said.type) == ('thinking', 'text') and thought.thinking
    body = {'temperature': 1.5, 'seed': 1}
    fields = fields_of(thinking=thinking, max_tokens=60, extra_body=body)
    with of(thinker).messages.stream(**fields) as told:
        streamed, answered = told.get_final_message().content
    assert (streamed.thinking, answered.text) == (thought.thinking, said.text)


@pytest.mark.parametrize('fields, words', [
    ({'messages': []}, 'messages: must have at least one message'),
    ({'messages': [{'role': 'wizard', 'content': 'x'}]}, 'messages[0].role = "wizard"'),
    ({'tools': TOOLS}, 'tools'),
    ({'max_tokens': 0}, 'max_tokens = 0'),
    ({'extra_body': {'typo': 2}}, 'typo'),
    ({'system': 'word ' * 3_000_000}, 'prompt is too long'),
])
def test_what_is_wrong_is_named(client, fields, words):
    with pytest.raises(anthropic.BadRequestError) as raised:
        ask(client, **fields)
    assert words in raised.value.message
    assert raised.value.body['error']['type'] == 'invalid_request_error'


def test_another_model_is_not_found(client):
    with pytest.raises(anthropic.NotFoundError) as raised:
        of(client).messages.create(**{**fields_of(), 'model': 'claude'})
    assert raised.value.body['error']['type'] == 'not_found_error'
