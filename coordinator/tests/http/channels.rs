//! Models that answer in channels: what is for the caller, what they thought, and what they call.

use std::sync::Arc;

use aqueduct_coordinator::generation::Generator;
use aqueduct_coordinator::http::ApiOptions;
use aqueduct_coordinator::text::{Start, TextModel};
use serde_json::{Value, json};

use super::client::{
    Reply, Server, allows, answering, asked, generator, last_form, serving, start, text_with_marks,
};
use super::script::Script;
use super::tools::streamed_calls;

const MARKS: [&str; 7] = [
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|return|>",
    "<|call|>",
];
/// The gist of gpt-oss' own.
const TEMPLATE: &str = "\
    <|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|end|>\
    {%- if tools %}{{ tools | length }} tools{% endif %}\
    {%- for message in messages %}\
    {%- if message.tool_calls and message.content and message.thinking %}\
    {{ raise_exception('both') }}{% endif %}\
    {%- if message.thinking %}<|channel|>analysis<|message|>\
    {{- message.thinking }}<|end|>{% endif %}\
    <|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>\
    {%- endfor %}\
    {%- if add_generation_prompt %}<|start|>assistant{% endif %}";
const THOUGHT: &str = "<|channel|>analysis<|message|>By the pond.<|end|>";
const SAID: &str = "<|start|>assistant<|channel|>final<|message|>At Walden.<|return|>";
const CALL: &str = "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json\
    <|message|>{\"x\": 1}<|call|>";

/// The shipped model's words, and the marks as tokens of their own.
fn text() -> Arc<TextModel> {
    text_with_marks(TEMPLATE, &MARKS, &["<|return|>", "<|call|>"])
}

/// Who answers so; where that is an end token, of itself.
async fn saying(answer: &str) -> Server {
    let text = text();
    let answer = text.encode(answer, false).unwrap();
    let script = Arc::new(Script { answer, ..Script::default() });
    let generator = Generator { text, ..generator(script.clone()) };
    serving(generator, script, ApiOptions::new("tiny"), None).await
}

fn with_tools(more: Value) -> Value {
    let mut body = asked(more);
    body["tools"] = json!([{ "type": "function", "function": { "name": "f" } }]);
    body
}

/// The prompt that was asked for last.
fn prompt(server: &Server) -> String {
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    text().spell(&seen.prompt, Start::Text)
}

/// All deltas of a stream, joined.
fn joined(reply: &Reply, field: &str) -> String {
    let events = reply.events();
    let deltas = events.iter().map(|event| event["choices"][0]["delta"][field].as_str());
    deltas.flatten().collect()
}

#[tokio::test]
async fn what_was_thought_stands_beside_what_was_said() {
    let server = saying(&format!("{THOUGHT}{SAID}")).await;
    let reply = server.chat(asked(json!({}))).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["message"]["content"], "At Walden.", "{reply}");
    assert_eq!(choice["message"]["reasoning_content"], "By the pond.");
    assert_eq!(choice["finish_reason"], "stop");

    let reply = server.chat(asked(json!({ "stream": true }))).await;
    assert_eq!(joined(&reply, "content"), "At Walden.", "{}", reply.body);
    assert_eq!(joined(&reply, "reasoning_content"), "By the pond.");

    // A stop string is looked for in what is said.
    let reply = server.chat(asked(json!({ "stop": ["pond", " Wal"] }))).await.json();
    let message = &reply["choices"][0]["message"];
    assert_eq!((&message["content"], &message["refusal"]), (&json!("At"), &Value::Null));
    assert_eq!(message["reasoning_content"], "By the pond.");

    // Log probabilities are those of what is said.
    let reply = server.chat(asked(json!({ "logprobs": true }))).await.json();
    let entries = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let told: String = entries.iter().filter_map(|entry| entry["token"].as_str()).collect();
    assert_eq!(told, "At Walden.", "{reply}");

    // Nothing begins in one message and ends in another.
    let both = "<|channel|>commentary<|message|>Look:\n<|end|><|start|>assistant<|channel|>final\
        <|message|>\nThere.<|return|>";
    let apart = saying(both).await;
    let reply = apart.chat(asked(json!({ "stop": ["\n\n"] }))).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], "Look:\n\nThere.", "{reply}");

    // Who has a text gone on with speaks in none.
    let body = json!({ "prompt": "Where?", "max_tokens": 50 });
    let reply = server.completion(body).await.json();
    let plain = "analysisBy the pond.assistantfinalAt Walden.";
    assert_eq!(reply["choices"][0]["text"], plain);
}

#[tokio::test]
async fn calls_are_told_of() {
    let server = saying(&format!("{THOUGHT}{CALL}")).await;
    let reply = server.chat(with_tools(json!({}))).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{reply}");
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(choice["message"]["reasoning_content"], "By the pond.");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({ "name": "f", "arguments": "{\"x\": 1}" }));
    assert!(call["id"].as_str().unwrap().starts_with("call_"), "{call}");

    let reply = server.chat(with_tools(json!({ "stream": true }))).await;
    let (calls, pieces) = streamed_calls(&reply.events());
    let function = json!({ "name": "f", "arguments": "{\"x\": 1}" });
    assert_eq!((calls.len(), &calls[0]["function"]), (1, &function), "{}", reply.body);
    assert!(pieces[0] > 1, "{}", reply.body);

    // Who offers none is told what the model says.
    let reply = server.chat(asked(json!({}))).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], "{\"x\": 1}");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");

    let goes_on = saying(&format!("{CALL}{THOUGHT}{SAID}")).await;
    for (parallel, content) in [(true, json!("At Walden.")), (false, Value::Null)] {
        let asked = with_tools(json!({ "parallel_tool_calls": parallel }));
        let reply = goes_on.chat(asked).await.json();
        let message = &reply["choices"][0]["message"];
        assert_eq!(message["content"], content, "{reply}");
        assert_eq!(message["tool_calls"].as_array().map(Vec::len), Some(1));
    }

    // One that must come is one that may be thought about, and has the schema's arguments.
    let required = with_tools(json!({ "tool_choice": "required" }));
    let reply = server.chat(required).await.json();
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls", "{reply}");
    let head = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>";
    let next = "<|start|>assistant";
    for (answer, is_allowed) in [
        (format!("{THOUGHT}{next}{head}{{}}"), true),
        (format!("{head}{{}}"), true),
        (format!("{THOUGHT}{next}{head}{{\"x\": 1}}"), false),
        (format!("{THOUGHT}{SAID}"), false),
        (format!("{THOUGHT}{head}{{}}"), false),
    ] {
        assert_eq!(allows(&server, &text(), &answer), is_allowed, "{answer}");
    }
    let format = json!({ "type": "json_object" });
    let reply = server.chat(with_tools(json!({ "response_format": format }))).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let said = format!("{THOUGHT}{next}<|channel|>final<|message|>{{\"y\": 2}}");
    assert!(allows(&server, &text(), &said));
    assert!(allows(&server, &text(), &format!("{THOUGHT}{next}{head}{{}}")));
    assert!(!allows(&server, &text(), &format!("{THOUGHT}{SAID}")));
}

#[tokio::test]
async fn items_of_a_response() {
    let server = saying(&format!("{THOUGHT}{SAID}")).await;
    let body = json!({ "input": "Where?", "reasoning": { "effort": "high" } });
    let reply = server.post("/v1/responses", &body.to_string()).await.json();
    let [thought, said] = reply["output"].as_array().unwrap().as_slice() else {
        panic!("two items: {reply}");
    };
    assert_eq!(
        thought["content"],
        json!([{ "type": "reasoning_text", "text": "By the pond." }]),
        "{reply}"
    );
    assert_eq!((&thought["type"], &thought["summary"]), (&json!("reasoning"), &json!([])));
    assert_eq!(said["content"][0]["text"], "At Walden.");
    assert_eq!(reply["reasoning"]["effort"], "high");
    let details = &reply["usage"]["output_tokens_details"];
    assert!(details["reasoning_tokens"].as_u64().is_some_and(|count| count > 0), "{details}");
    let mut weighed = body.clone();
    weighed["include"] = json!(["message.output_text.logprobs"]);
    let reply = server.post("/v1/responses", &weighed.to_string()).await.json();
    let items = reply["output"].as_array().unwrap();
    let kinds: Vec<_> = items.iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message"], "{reply}");
    assert!(!items[1]["content"][0]["logprobs"].as_array().unwrap().is_empty());

    let mut streamed = body;
    streamed["stream"] = json!(true);
    let reply = server.post("/v1/responses", &streamed.to_string()).await;
    let place = |kind: &str| reply.body.find(&format!("event: {kind}\n")).expect(kind);
    let order = [
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.completed",
    ]
    .map(place);
    assert!(order.is_sorted(), "{order:?}: {}", reply.body);
}

#[tokio::test]
async fn the_template_is_told_how_long_to_think_and_what_was_thought() {
    let server = saying(SAID).await;
    for (fields, want) in [
        (json!({}), "medium"),
        (json!({ "reasoning_effort": "high" }), "high"),
        (json!({ "chat_template_kwargs": { "reasoning_effort": "low" } }), "low"),
    ] {
        server.chat(asked(fields)).await;
        let prompt = prompt(&server);
        assert!(prompt.contains(&format!("Reasoning: {want}<|end|>")), "{prompt}");
    }
    let before = json!({ "role": "assistant", "content": "a", "reasoning_content": "Hm." });
    let again = json!({ "role": "user", "content": "b" });
    server.chat(json!({ "messages": [before, again] })).await;
    let prompt = prompt(&server);
    assert!(prompt.contains("<|channel|>analysis<|message|>Hm.<|end|>"), "{prompt}");

    // Of what is said beside a call and a thought, the thought is what such templates take.
    let function = json!({ "name": "f", "arguments": "{}" });
    let call = json!({ "id": "call_1", "type": "function", "function": function });
    let both = json!({
        "role": "assistant", "content": "I look.", "reasoning_content": "Hm.",
        "tool_calls": [call],
    });
    let result = json!({ "role": "tool", "content": "1", "tool_call_id": "call_1" });
    let reply = server.chat(json!({ "messages": [both, result] })).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let thought = json!({ "type": "reasoning_text", "text": "Hm." });
    let body = json!({ "input": [
        { "type": "message", "role": "user", "content": "Where?" },
        { "type": "reasoning", "summary": [], "content": [thought] },
        { "type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "call_1", "output": "1" },
    ] });
    let reply = server.post("/v1/responses", &body.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let prompt = self::prompt(&server);
    assert!(prompt.contains("<|channel|>analysis<|message|>Hm.<|end|>"), "{prompt}");

    // What was thought between words and a call is thought beside what was thought before.
    let thought = |text: &str| {
        let thought = json!({ "type": "reasoning_text", "text": text });
        json!({ "type": "reasoning", "summary": [], "content": [thought] })
    };
    let body = json!({ "input": [
        { "type": "message", "role": "user", "content": "Where?" },
        thought("Hm."),
        { "type": "message", "role": "assistant", "content": "I look." },
        thought("There."),
        { "type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "call_1", "output": "1" },
    ] });
    let reply = server.post("/v1/responses", &body.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let prompt = self::prompt(&server);
    assert!(prompt.contains("<|channel|>analysis<|message|>Hm.\n\nThere.<|end|>"), "{prompt}");

    // A message of two calls is two, each of which its result stands behind.
    let call = |id: &str| {
        let function = json!({ "name": id, "arguments": "{}" });
        json!({ "id": id, "type": "function", "function": function })
    };
    let both = json!({
        "role": "assistant", "content": null, "tool_calls": [call("first"), call("second")],
    });
    let result = |id: &str| json!({ "role": "tool", "content": id, "tool_call_id": id });
    let messages = json!([both, result("second"), result("first")]);
    server.chat(json!({ "messages": messages })).await;
    let prompt = self::prompt(&server);
    let order = ["assistant", "first", "assistant", "second"];
    let mut rest = prompt.as_str();
    for word in order {
        rest = rest
            .split_once(&format!("{word}<|"))
            .map_or_else(|| panic!("{word}: {prompt}"), |(_, rest)| rest);
    }

    // What follows a grammar is the message that is for the caller.
    let format = json!({ "type": "json_object" });
    let reply = server.chat(asked(json!({ "response_format": format }))).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let head = "<|start|>assistant<|channel|>final<|message|>";
    assert!(allows(&server, &text(), &format!("{THOUGHT}{head}{{}}")));
    assert!(!allows(&server, &text(), "{}"));
    assert!(self::prompt(&server).ends_with("<|start|>assistant"));
    let at_once = asked(json!({ "response_format": format, "thinking_token_budget": 0 }));
    let reply = server.chat(at_once).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(allows(&server, &text(), "{}"));
    assert!(self::prompt(&server).ends_with(head));
    // Thoughts that are too long are ended, and words or a call follow.
    for (tools, channel) in
        [(json!([]), "final"), (with_tools(json!({}))["tools"].take(), "comment")]
    {
        let most = asked(json!({ "thinking_token_budget": 1, "tools": tools }));
        server.chat(most).await;
        let ending = last_form(&server).thinking.unwrap().ending;
        let ending = text().spell(&ending, Start::Continuation);
        assert!(ending.starts_with(&format!("<|end|><|start|>assistant<|channel|>{channel}")));
    }

    // A model that is asked for no effort makes none.
    let server = start(answering("There.")).await;
    for (effort, status, is_told) in [
        ("high", 200, true),
        ("low", 200, true),
        ("none", 200, false),
        ("minimal", 400, false),
        ("hard", 400, false),
    ] {
        let reply = server.chat(asked(json!({ "reasoning_effort": effort }))).await;
        assert_eq!(reply.status, status, "{effort}: {}", reply.body);
        let warning = "reasoning_effort is passed over";
        assert_eq!(reply.body.contains(warning), is_told, "{effort}: {}", reply.body);
    }
    let body = json!({ "input": "Where?", "reasoning": { "effort": "medium" } });
    let reply = server.post("/v1/responses", &body.to_string()).await;
    let is_told = reply.body.contains("reasoning.effort is passed over");
    assert!(reply.status == 200 && is_told, "{}", reply.body);
    for effort in ["xhigh", "hard"] {
        let body = json!({ "input": "Where?", "reasoning": { "effort": effort } });
        let reply = server.post("/v1/responses", &body.to_string()).await;
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert!(reply.body.contains("\"param\":\"reasoning.effort\""), "{}", reply.body);
    }
}
