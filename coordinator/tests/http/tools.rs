//! Tools that a caller offers, and calls in what a model says.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use aqueduct_coordinator::generation::Generator;
use aqueduct_coordinator::http::ApiOptions;
use aqueduct_coordinator::text::TextModel;
use aqueduct_core::limits;
use serde_json::{Value, json};

use super::client::{
    self, Server, allows, answering, generator, serving, start, text_with_marks, text_with_template,
};
use super::script::Script;

/// The shipped model's words, and one of the templates that teach tools.
pub(crate) fn text_with_tools(template: &str) -> Arc<TextModel> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/openai");
    text_with_template(&fs::read_to_string(folder.join(template)).unwrap())
}

/// Who answers so, and ends there.
async fn saying(answer: &str, template: &str) -> Server {
    client::saying(text_with_tools(template), answer).await
}

/// A block of calls of `f`, as Kimi K2 has it.
fn section(arguments: &[&str]) -> String {
    let call = |(idx, arguments): (usize, &&str)| {
        format!(
            "<|tool_call_begin|>functions.f:{idx}<|tool_call_argument_begin|>{arguments}\
             <|tool_call_end|>"
        )
    };
    let calls: String = arguments.iter().enumerate().map(call).collect();
    format!("<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>")
}

/// The same as DeepSeek V3.1 has it.
fn untold(arguments: &[&str]) -> String {
    let call = |arguments: &&str| {
        format!("<｜tool▁call▁begin｜>f<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")
    };
    let calls: String = arguments.iter().map(call).collect();
    format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
}

/// The same as LFM2 has it.
fn marked(calls: &str) -> String {
    format!("<|tool_call_start|>[{calls}]<|tool_call_end|>")
}

/// A call of `f` with these arguments, as Gemma 4 has it.
fn braced(arguments: &str) -> String {
    format!("<|tool_call>call:f{{{arguments}}}<tool_call|>")
}

fn offered(more: Value) -> Value {
    let parameters = json!({ "type": "object", "properties": { "x": { "type": "number" } } });
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": parameters } });
    let messages = json!([{ "role": "user", "content": "?" }]);
    let mut body = json!({ "messages": messages, "tools": [tool], "max_tokens": 200 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn one_call_where_no_more_are_wanted() {
    let call = r#"{"name": "f", "arguments": {"x": 1}}"#;
    let tagged = format!("<tool_call>\n{call}\n</tool_call>");
    let tagged = format!("See:\n{tagged}\n{tagged}\nThere.");
    let listed = format!("[{call}, {call}]");
    let parameters = "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n\
        </tool_call>";
    let invoke = "<invoke name=\"f\">\n<parameter name=\"x\">1</parameter>\n</invoke>\n";
    let block = format!("<minimax:tool_call>\n{invoke}{invoke}</minimax:tool_call>");
    let keys = "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>";
    for (template, answer, text) in [
        ("tools.jinja", tagged, json!("See:")),
        ("listed.jinja", listed, Value::Null),
        ("parameters.jinja", format!("See:\n{parameters}\n{parameters}"), json!("See:")),
        ("invoke.jinja", block, Value::Null),
        ("keys.jinja", format!("See:\n{keys}\n{keys}"), json!("See:")),
        ("sections.jinja", format!("See:\n{}", section(&["{\"x\": 1}"; 2])), json!("See:")),
        ("untold.jinja", format!("See:\n{}", untold(&["{\"x\": 1}"; 2])), json!("See:")),
        ("python.jinja", "[f(x=1), f(x=1)]".to_owned(), Value::Null),
        ("marks.jinja", format!("See:\n{}\nThere.", marked("f(x=1), f(x=1)")), json!("See:")),
        ("gemma4.jinja", format!("See:\n{}", braced("x:1").repeat(2)), json!("See:")),
    ] {
        let server = saying(&answer, template).await;
        let reply = server.chat(offered(json!({}))).await.json();
        let calls = &reply["choices"][0]["message"]["tool_calls"];
        assert_eq!(calls.as_array().map(Vec::len), Some(2), "{template}: {reply}");

        let asked = offered(json!({ "parallel_tool_calls": false }));
        let reply = server.chat(asked.clone()).await.json();
        let choice = &reply["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{template}");
        assert_eq!(choice["message"]["content"], text, "{template}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1, "{template}: {reply}");
        assert_eq!(calls[0]["function"], json!({ "name": "f", "arguments": r#"{"x":1}"# }));

        let events = server.chat(streamed(&asked)).await.events();
        assert_eq!(&streamed_calls(&events).0, calls, "{template}");
    }
}

/// The mark that ends a call may stand within a text of it, and so may what a caller stops at.
#[tokio::test]
async fn what_ends_a_choice_within_a_call() {
    let call = "{\"name\": \"f\", \"arguments\": {\"x\": \"a</tool_call>b\"}}";
    let answer = format!("<tool_call>{call}</tool_call> So.");
    let check = async |server: &Server, more: Value, arguments: &str, finish: &str| {
        let choice = server.chat(offered(more)).await.json()["choices"][0].take();
        let function = &choice["message"]["tool_calls"][0]["function"];
        assert_eq!(function["arguments"], arguments, "{choice}");
        assert_eq!(choice["finish_reason"], finish, "{choice}");
    };
    let (whole, cut) = ("{\"x\":\"a</tool_call>b\"}", "{\"x\":\"a</tool");
    let server = saying(&answer, "tools.jinja").await;
    let one = || json!({ "parallel_tool_calls": false });
    check(&server, one(), whole, "tool_calls").await;
    check(&server, json!({ "stop": ["_call>b"] }), cut, "stop").await;
    check(&server, json!({ "stop": ["So"] }), whole, "tool_calls").await;
    // One that goes on until it is cut off has made its only call all the same.
    let goes_on = cut_off_behind(&answer).await;
    check(&goes_on, one(), whole, "tool_calls").await;
    check(&goes_on, json!({}), whole, "length").await;
}

/// The calls of a stream's first choice, as a whole answer has them, and in how many pieces each
/// came.
pub(crate) fn streamed_calls(events: &[Value]) -> (Vec<Value>, Vec<usize>) {
    let (mut calls, mut pieces) = (Vec::<Value>::new(), Vec::new());
    for event in events {
        let deltas = event["choices"][0]["delta"]["tool_calls"].as_array();
        for delta in deltas.into_iter().flatten() {
            let idx = delta["index"].as_u64().unwrap() as usize;
            let Some(call) = calls.get_mut(idx) else {
                assert_eq!(idx, calls.len(), "{delta}");
                let mut call = delta.clone();
                call.as_object_mut().unwrap().remove("index");
                calls.push(call);
                pieces.push(1);
                continue;
            };
            assert_eq!((delta.get("id"), delta["function"].get("name")), (None, None), "{delta}");
            assert_eq!(idx + 1, pieces.len(), "the last call is the one that goes on");
            let [before, more] = [&call["function"], &delta["function"]]
                .map(|function| function["arguments"].as_str().unwrap());
            call["function"]["arguments"] = json!(format!("{before}{more}"));
            pieces[idx] += 1;
        }
    }
    (calls, pieces)
}

fn streamed(body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = json!(true);
    body
}

/// The content of a stream's first choice, and why it ended.
fn content(events: &[Value]) -> (String, Value) {
    let choices = || events.iter().map(|event| &event["choices"][0]);
    let texts = choices().filter_map(|choice| choice["delta"]["content"].as_str());
    let finish = choices().map(|choice| &choice["finish_reason"]).find(|it| !it.is_null());
    (texts.collect(), finish.cloned().unwrap_or_default())
}

/// Calls of `f` with these arguments, twice, in the words of each template.
fn twice(text: &str) -> [(&'static str, String); 8] {
    let arguments = json!({ "x": 1, "text": text }).to_string();
    let both = [arguments.as_str(); 2];
    let object = format!("{{\"name\": \"f\", \"arguments\": {arguments}}}");
    let tagged = format!("<tool_call>\n{object}\n</tool_call>");
    let parameters = format!(
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=text>\n{text}\n\
         </parameter>\n</function>\n</tool_call>"
    );
    let invoke = format!(
        "<invoke name=\"f\">\n<parameter name=\"x\">1</parameter>\n<parameter name=\"text\">\
         {text}</parameter>\n</invoke>\n"
    );
    let keys = format!(
        "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n<arg_key>text</arg_key>\n\
         <arg_value>{text}</arg_value>\n</tool_call>"
    );
    let braced = braced(&format!("x:1,text:<|\"|>{text}<|\"|>"));
    [
        ("tools.jinja", format!("See:\n{tagged}\n{tagged}")),
        ("parameters.jinja", format!("See:\n{parameters}\n{parameters}")),
        (
            "invoke.jinja",
            format!("See:\n<minimax:tool_call>\n{invoke}{invoke}</minimax:tool_call>"),
        ),
        ("keys.jinja", format!("See:\n{keys}\n{keys}")),
        ("sections.jinja", format!("See:\n{}", section(&both))),
        ("untold.jinja", format!("See:\n{}", untold(&both))),
        ("gemma4.jinja", format!("See:\n{}", braced.repeat(2))),
        ("listed.jinja", format!("[TOOL_CALLS][{object}, {object}]")),
    ]
}

/// A request that offers `f`, which has a number and a text.
fn offered_text() -> Value {
    let properties = json!({ "x": { "type": "number" }, "text": { "type": "string" } });
    let parameters = json!({ "type": "object", "properties": properties });
    let function = json!({ "name": "f", "parameters": parameters });
    let tools = json!([{ "type": "function", "function": function }]);
    offered(json!({ "tools": tools, "max_tokens": 1500 }))
}

/// Who waits for a long argument hears of it while it is written.
#[tokio::test]
async fn calls_are_streamed_as_they_come() {
    let text = "I went to the \"woods\" because I wished\nto live deliberately.";
    for (template, answer) in twice(text) {
        let server = saying(&answer, template).await;
        let body = offered_text();
        let choice = server.chat(body.clone()).await.json()["choices"][0].take();
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!((calls.len(), &choice["finish_reason"]), (2, &json!("tool_calls")));
        for call in calls {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            let want = json!({ "x": 1, "text": text }).to_string();
            assert_eq!(arguments, want, "{template}");
        }
        let events = server.chat(streamed(&body)).await.events();
        let (told, pieces) = streamed_calls(&events);
        assert_eq!(&told, calls, "{template}");
        assert!(pieces.iter().all(|pieces| *pieces > 5), "{template}: {pieces:?}");
        let (content, finish) = content(&events);
        assert_eq!(finish, "tool_calls", "{template}");
        assert_eq!(content, choice["message"]["content"].as_str().unwrap_or(""), "{template}");
    }
}

/// Wherever an answer is cut off, both ways tell the same of it, and the call that was begun.
#[tokio::test]
async fn what_is_cut_off_is_told_as_far_as_it_came() {
    for (template, answer) in twice("by the pond") {
        let text = text_with_tools(template);
        let tokens = text.encode(&answer, false).unwrap();
        let server = saying(&answer, template).await;
        for most in (1..=tokens.len()).step_by(7) {
            let mut body = offered_text();
            body["max_tokens"] = json!(most);
            let choice = server.chat(body.clone()).await.json()["choices"][0].take();
            let message = &choice["message"];
            assert_eq!(choice["finish_reason"], "length", "{template} {most}: {choice}");
            let events = server.chat(streamed(&body)).await.events();
            let (calls, _) = streamed_calls(&events);
            let empty = Vec::new();
            let whole = message["tool_calls"].as_array().unwrap_or(&empty);
            assert_eq!(&calls, whole, "{template} {most}");
            let told = (message["content"].as_str().unwrap_or("").to_owned(), json!("length"));
            assert_eq!(content(&events), told, "{template} {most}");
        }
    }
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}";
    for cut in ["", "\n</tool", "\n</tool_call"] {
        let server = cut_off_behind(&format!("{call}{cut}")).await;
        let choice = server.chat(offered(json!({}))).await.json()["choices"][0].take();
        let function = &choice["message"]["tool_calls"][0]["function"];
        assert_eq!(function, &json!({ "name": "f", "arguments": "{\"x\":1}" }), "{cut:?}");
        let ends = (&choice["message"]["content"], &choice["finish_reason"]);
        assert_eq!(ends, (&Value::Null, &json!("length")), "{cut:?}");
    }
}

/// Who answers so, and is cut off there.
async fn cut_off_behind(answer: &str) -> Server {
    let script = Arc::new(answering(answer));
    let text = text_with_tools("tools.jinja");
    let generator = Generator { text, ..generator(script.clone()) };
    serving(generator, script, ApiOptions::new("tiny"), None).await
}

/// What was told of a call stays told, whatever follows.
#[tokio::test]
async fn calls_that_are_no_calls_after_all() {
    let call = "See: <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": [1</tool_call> So.";
    let server = saying(call, "tools.jinja").await;
    let choice = server.chat(offered(json!({}))).await.json()["choices"][0].take();
    let message = &choice["message"];
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"x\":[1", "{choice}");
    assert_eq!(
        (&message["content"], &choice["finish_reason"]),
        (&json!("See: So."), &json!("tool_calls"))
    );
    let events = server.chat(streamed(&offered(json!({})))).await.events();
    assert_eq!(&streamed_calls(&events).0, message["tool_calls"].as_array().unwrap());

    // What no tool is called is text until it turns out to be a call.
    let unknown = call.replace("\"f\"", "\"g\"");
    let server = saying(&unknown, "tools.jinja").await;
    let choice = server.chat(offered(json!({}))).await.json()["choices"][0].take();
    assert_eq!(choice["message"]["content"], unknown, "{choice}");
}

/// The events of `/v1/responses` in their order.
#[tokio::test]
async fn calls_are_items_that_come_bit_by_bit() {
    let call = r#"{"name": "f", "arguments": {"x": [1, 2, 3], "y": "by the pond"}}"#;
    let call = format!("<tool_call>{call}</tool_call>");
    let server = saying(&format!("See: {call}\n{call} So."), "tools.jinja").await;
    let tool = json!({ "type": "function", "name": "f", "parameters": { "type": "object" } });
    let body = json!({ "input": "?", "tools": [tool], "max_output_tokens": 500 });
    let whole = server.post("/v1/responses", &body.to_string()).await.json();
    let reply = server.post("/v1/responses", &streamed(&body).to_string()).await;
    let data = reply.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let numbers = events.iter().map(|event| event["sequence_number"].as_u64().unwrap());
    assert!(numbers.eq(0..events.len() as u64));
    assert_eq!(events.last().unwrap()["response"]["output"], whole["output"]);
    for idx in [1, 2] {
        let own = |event: &&Value| event["output_index"] == idx;
        let own: Vec<&Value> = events.iter().filter(own).collect();
        let kinds: Vec<_> = own.iter().filter_map(|event| event["type"].as_str()).collect();
        let [first, deltas @ .., said, done] = kinds.as_slice() else { panic!("{kinds:?}") };
        assert_eq!(*first, "response.output_item.added");
        assert!(deltas.len() > 5, "{kinds:?}");
        assert!(deltas.iter().all(|it| *it == "response.function_call_arguments.delta"));
        assert_eq!(*said, "response.function_call_arguments.done");
        assert_eq!(*done, "response.output_item.done");
        let joined: String = own.iter().filter_map(|event| event["delta"].as_str()).collect();
        assert_eq!(own[own.len() - 2]["arguments"], joined);
        assert_eq!(own[own.len() - 1]["item"], whole["output"][idx]);
        assert_eq!(joined, r#"{"x":[1,2,3],"y":"by the pond"}"#);
    }
}

/// Arguments that are written as texts have the types of the schema.
#[tokio::test]
async fn what_looks_like_a_number_may_be_a_text() {
    let call = "<tool_call>\n<function=f>\n<parameter=text>\n1\n</parameter>\n<parameter=x>\n1\n\
        </parameter>\n</function>\n</tool_call>";
    let server = saying(call, "parameters.jinja").await;
    let properties = json!({ "text": { "type": "string" }, "x": { "type": "number" } });
    let parameters = json!({ "type": "object", "properties": properties });
    let function = json!({ "name": "f", "parameters": parameters });
    let tools = json!([{ "type": "function", "function": function }]);
    let reply = server.chat(offered(json!({ "tools": tools }))).await.json();
    let call = &reply["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"]["arguments"], r#"{"text":"1","x":1}"#, "{reply}");

    // What would be read otherwise than it is written is refused.
    let named = json!({ "type": "object", "properties": { "a>b": { "type": "number" } } });
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": named } }]);
    let reply = server.chat(offered(json!({ "tools": tools }))).await;
    let want = (400, json!("tools[0].function.parameters.properties"));
    assert_eq!((reply.status, reply.json()["error"]["param"].clone()), want, "{}", reply.body);

    // A text between tags follows no pattern: who insists is refused, others are told.
    let pattern = json!({ "type": "object", "properties": {
        "x": { "type": "string", "pattern": "^a$" },
    }, "required": ["x"], "additionalProperties": false });
    let reply = server.chat(required(&pattern, true)).await;
    let want = (400, json!("tools[0].function.parameters"));
    assert_eq!((reply.status, reply.json()["error"]["param"].clone()), want, "{}", reply.body);
    let reply = server.chat(required(&pattern, false)).await.json();
    let warning = reply["aqueduct"]["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.contains("properties.x.pattern is not followed"), "{reply}");
}

#[tokio::test]
async fn what_a_model_cannot_call_is_passed_over() {
    let server = start(answering("At Walden")).await;
    let tools = json!([{ "type": "web_search" }, { "type": "namespace", "tools": [] }]);
    let body = json!({ "input": "Where?", "tools": tools, "max_output_tokens": 8 });
    let reply = server.post("/v1/responses", &body.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply = reply.json();
    assert_eq!(reply["tools"], tools);
    let warnings = reply["aqueduct"]["warnings"].as_array().unwrap();
    let want = "tools of type namespace, web_search: the model is offered functions only";
    assert!(warnings.contains(&json!(want)), "{warnings:?}");

    let required = json!({ "input": "Where?", "tools": tools, "tool_choice": "required" });
    let reply = server.post("/v1/responses", &required.to_string()).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tool_choice")));
}

/// A request that must call `f`, whose parameters are these.
fn required(parameters: &Value, strict: bool) -> Value {
    let function = json!({ "name": "f", "parameters": parameters, "strict": strict });
    let tools = json!([{ "type": "function", "function": function }]);
    offered(json!({ "tools": tools, "tool_choice": "required" }))
}

/// The words with which the grammar of a request begins: its first alternative.
async fn grammar(server: &Server, body: Value) -> String {
    let reply = server.chat(body).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    seen.constraint.unwrap().form.grammar.unwrap().text().to_owned()
}

#[tokio::test]
async fn calls_that_must_be_follow_their_notation() {
    let properties = json!({
        "x": { "type": "integer" }, "unit": { "enum": ["a", "b"] }, "on": { "type": "boolean" },
    });
    let parameters = json!({
        "type": "object", "properties": properties, "required": ["unit"],
        "additionalProperties": false,
    });
    let (good, bad) = ([r#"{"unit": "a"}"#, r#"{"x": 1, "unit": "b"}"#], r#"{"x": 1}"#);
    for (template, allowed, refused) in [
        (
            "sections.jinja",
            vec![section(&good), section(&good[..1])],
            vec![
                section(&[bad]),
                section(&good[..1]).replace(":0", ""),
                section(&good[..1]).replace("functions.f", "functions.g"),
                "Hm.".to_owned(),
            ],
        ),
        (
            "untold.jinja",
            vec![untold(&good), untold(&good[..1])],
            vec![untold(&[bad]), untold(&[]), untold(&good[..1]) + "Hm."],
        ),
        (
            "python.jinja",
            [
                r#"[f(unit="a")]"#,
                r#"[f(x=1, unit="b", on=True)]"#,
                r#"[f(unit="a", on=False), f(x=1, unit="b")]"#,
            ]
            .map(str::to_owned)
            .to_vec(),
            [
                "[f(x=1)]",
                "[f()]",
                "[]",
                r#"[f(unit="c")]"#,
                r#"[f(unit="a", x=1)]"#,
                r#"[f(unit="a", on=1)]"#,
                r#"[f(unit="a",)]"#,
                r#"f(unit="a")"#,
            ]
            .map(str::to_owned)
            .to_vec(),
        ),
        (
            "marks.jinja",
            vec![
                marked(r#"f(unit="a")"#),
                marked(r#"f(unit="a", on=False), f(x=1, unit="b", on=True)"#),
            ],
            vec![
                marked("f(x=1)"),
                marked(""),
                marked(r#"f(unit="a")"#) + "Hm.",
                r#"[f(unit="a")]"#.to_owned(),
            ],
        ),
    ] {
        let server = saying("There.", template).await;
        let reply = server.chat(required(&parameters, true)).await;
        assert_eq!(reply.status, 200, "{template}: {}", reply.body);
        let text = text_with_tools(template);
        for answer in allowed {
            assert!(allows(&server, &text, &answer), "{answer}");
        }
        for answer in refused {
            assert!(!allows(&server, &text, &answer), "{answer}");
        }
    }
    // None of its arguments must be there, and one cannot be.
    let server = saying("There.", "python.jinja").await;
    let parameters = json!({ "type": "object", "properties": { "x": { "type": "number" } } });
    assert_eq!(server.chat(required(&parameters, false)).await.status, 200);
    let text = text_with_tools("python.jinja");
    assert!(allows(&server, &text, "[f()]") && allows(&server, &text, "[f(x=1.5)]"));
    let parameters = json!({ "type": "object", "properties": { "a b": { "type": "number" } } });
    let reply = server.chat(required(&parameters, false)).await;
    let want = (400, json!("tools[0].function.parameters.properties"));
    assert_eq!((reply.status, reply.json()["error"]["param"].clone()), want, "{}", reply.body);
}

/// As Gemma 4's files have them. Texts and objects within others follow the schema too, and fields
/// stand in the order in which its template shows them.
#[tokio::test]
async fn calls_in_braces_follow_the_schema_with_marks_as_tokens_or_text() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/openai");
    let template = fs::read_to_string(folder.join("gemma4.jinja")).unwrap();
    let marks = [
        "<|tool_call>",
        "<tool_call|>",
        "<|\"|>",
        "<|channel>",
        "<channel|>",
        "<turn|>",
        "<|tool_response>",
    ];
    let inner = json!({
        "type": "object", "properties": { "z": { "type": "string" } },
        "additionalProperties": false,
    });
    let parameters = json!({ "type": "object", "properties": {
        "x": { "type": "integer" },
        "unit": { "enum": ["a", "b"] },
        "Of": { "type": "array", "items": inner, "maxItems": 2 },
        "on": { "type": "boolean" },
        "text": { "type": "string", "maxLength": 3 },
    }, "required": ["unit"], "additionalProperties": false });
    let quoted = |text: &str| format!("<|\"|>{text}<|\"|>");
    let unit = format!("unit:{}", quoted("a"));
    let (z, text) = (quoted("by \"}\n"), quoted("}\","));
    let whole = format!("Of:[{{z:{z}}},{{}}],on:true,text:{text},{unit},x:-1");
    let allowed = [braced(&unit), braced(&whole), braced(&unit).repeat(2)];
    let refused = [
        braced("x:1"),
        braced(""),
        braced("unit:a"),
        braced("unit:\"a\""),
        braced(&unit.replace('a', "c")),
        braced(&format!("x:1,{unit}")),
        braced(&format!("{unit},")),
        braced(&format!("Of:[{{y:{z}}}],{unit}")),
        braced(&format!("Of:[{{}},{{}},{{}}],{unit}")),
        braced(&format!("text:{},{unit}", quoted("abcd"))),
        braced(&unit).replace(":f", ":g"),
        braced(&unit) + "Hm.",
        "Hm.".to_owned(),
    ];
    let answer = format!("<|channel>thought\nHm.\n<channel|>See:\n{}", braced(&whole));
    let arguments = r#"{"Of":[{"z":"by \"}\n"},{}],"on":true,"text":"}\",","unit":"a","x":-1}"#;
    for text in [text_with_template(&template), text_with_marks(&template, &marks, &[])] {
        // What a turn, or a call, ends with is known by its name.
        let ends: Vec<_> = marks[5..].iter().map(|end| text.encode(end, false).unwrap()).collect();
        let are_tokens = ends.iter().all(|end| end.len() == 1);
        assert!(!are_tokens || ends.iter().all(|end| text.eos().contains(&end[0])));
        let mut script = answering("");
        script.answer = text.encode(&answer, false).unwrap();
        script.answer.extend(text.eos().last());
        let script = Arc::new(script);
        let generator = Generator { text: text.clone(), ..generator(script.clone()) };
        let server = serving(generator, script, ApiOptions::new("tiny"), None).await;

        let function = json!({ "name": "f", "parameters": parameters });
        let thinks = json!({ "enable_thinking": true });
        let more = json!({
            "tools": [{ "type": "function", "function": function }], "max_tokens": 1500,
            "chat_template_kwargs": thinks,
        });
        let choice = server.chat(offered(more)).await.json()["choices"][0].take();
        let message = &choice["message"];
        assert_eq!(
            (&message["content"], &message["reasoning_content"]),
            (&json!("See:"), &json!("Hm.")),
            "{choice}"
        );
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], arguments, "{choice}");

        let reply = server.chat(required(&parameters, true)).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        for answer in &allowed {
            assert!(allows(&server, &text, answer), "{answer}");
        }
        for answer in &refused {
            assert!(!allows(&server, &text, answer), "{answer}");
        }
        // Of what no schema says more, anything is taken.
        let open = json!({ "type": "object" });
        assert_eq!(server.chat(required(&open, true)).await.status, 200);
        for any in ["", "a:1", "a:[null,{b:<|\"|>c<|\"|>,d:{}}],e:true"] {
            assert!(allows(&server, &text, &braced(any)), "{any}");
        }
        assert!(!allows(&server, &text, &braced("a:b")));
        let mixed =
            json!({ "type": "object", "properties": { "a": { "type": ["string", "integer"] } } });
        let reply = server.chat(required(&mixed, true)).await;
        let want = (400, json!("tools[0].function.parameters"));
        assert_eq!((reply.status, reply.json()["error"]["param"].clone()), want, "{}", reply.body);
    }
}

/// As the first files of LFM2.5 have it, whose templates tell nothing of how tools are called.
#[tokio::test]
async fn marks_of_calls_may_be_known_by_the_vocabulary() {
    let marks = ["<|tool_call_start|>", "<|tool_call_end|>", "<|stop|>"];
    let template = "{% if tools %}List of tools: {{ tools | tojson }};{% endif %}\
        {% for message in messages %}{{ message.content }};{% endfor %}";
    assert_eq!(text_with_template(template).template().notation(), None);
    let text = text_with_marks(template, &marks, &marks[2..]);
    let answer = format!("{}There.{}", marked("f(x=1)"), marks[2]);
    let answer = text.encode(&answer, false).unwrap();
    let script = Arc::new(Script { answer, ..Script::default() });
    let generator = Generator { text: text.clone(), ..generator(script.clone()) };
    let server = serving(generator, script, ApiOptions::new("tiny"), None).await;

    let reply = server.chat(offered(json!({}))).await.json();
    let message = &reply["choices"][0]["message"];
    assert_eq!(message["content"], "There.", "{reply}");
    let function = json!({ "name": "f", "arguments": r#"{"x":1}"# });
    assert_eq!(message["tool_calls"][0]["function"], function, "{reply}");
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");

    let parameters = json!({ "type": "object", "properties": { "x": { "type": "number" } } });
    let reply = server.chat(required(&parameters, false)).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(allows(&server, &text, &marked("f(x=1)")) && !allows(&server, &text, "[f(x=1)]"));
}

/// As in files of llama.cpp's, which says of all such names that they are no text.
#[tokio::test]
async fn marks_of_calls_may_be_tokens() {
    let marks = [
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|stop|>",
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/openai");
    let template = fs::read_to_string(folder.join("sections.jinja")).unwrap();
    let call = section(&["{\"x\": 1}"]);
    let (end, stop) = (marks[1], marks[5]);
    // What ends answers is not heard: a call may be whole without, and its grammar has no more.
    for (ends, answer, allowed) in [
        (stop, format!("See:\n{call}{stop}"), call.as_str()),
        (end, format!("See:\n{call}"), call.strip_suffix(end).unwrap()),
    ] {
        let text = text_with_marks(&template, &marks, &[ends]);
        let answer = text.encode(&answer, false).unwrap();
        let script = Arc::new(Script { answer, ..Script::default() });
        let generator = Generator { text: text.clone(), ..generator(script.clone()) };
        let server = serving(generator, script, ApiOptions::new("tiny"), None).await;

        let reply = server.chat(offered(json!({}))).await.json();
        let message = &reply["choices"][0]["message"];
        assert_eq!(message["content"], "See:", "{reply}");
        let function = json!({ "name": "f", "arguments": r#"{"x":1}"# });
        assert_eq!(message["tool_calls"][0]["function"], function, "{reply}");
        assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");

        // Who offers none is told no marks.
        let body = json!({ "messages": [{ "role": "user", "content": "?" }], "max_tokens": 200 });
        let reply = server.chat(body).await.json();
        let content = &reply["choices"][0]["message"]["content"];
        assert_eq!(content, "See:\nfunctions.f:0{\"x\": 1}", "{reply}");

        let parameters = json!({ "type": "object", "properties": { "x": { "type": "number" } } });
        let reply = server.chat(required(&parameters, false)).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert!(allows(&server, &text, allowed), "{ends}");
        assert!(!allows(&server, &text, "See"), "{ends}");
    }
}

#[tokio::test]
async fn of_tools_that_are_allowed_the_others_are_not_there() {
    let server = saying("There.", "tools.jinja").await;
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let asked = |choice: Value| {
        let tools = json!([tool("first"), tool("second"), tool("third")]);
        offered(json!({ "tools": tools, "tool_choice": choice }))
    };
    let of = |mode: &str, tools: Value| {
        asked(json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": tools } }))
    };
    let seen = grammar(&server, of("required", json!([tool("third"), tool("first")]))).await;
    assert!(seen.contains("first") && seen.contains("third"), "{seen}");
    assert!(!seen.contains("second"), "{seen}");
    // Who may choose is told of these alone, and need call none of them.
    let reply = server.chat(of("auto", json!([tool("second")]))).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    let prompt = text_with_tools("tools.jinja").decode(&seen.prompt);
    assert!(seen.constraint.is_none(), "{prompt}");
    assert!(prompt.contains("second") && !prompt.contains("third"), "{prompt}");

    for wrong in [
        of("required", json!([tool("fourth")])),
        of("required", json!([])),
        of("any", json!([tool("first")])),
        of("auto", json!([{ "type": "web_search" }])),
        asked(json!({ "type": "allowed_tools" })),
    ] {
        let reply = server.chat(wrong).await;
        assert_eq!(reply.status, 400, "{}", reply.body);
        let field = reply.json()["error"]["param"].clone();
        assert!(field.as_str().unwrap().starts_with("tool_choice"), "{}", reply.body);
    }
    let flat = json!({ "type": "function", "name": "second" });
    let tools = json!([{ "type": "function", "name": "first" }, flat]);
    let choice = json!({ "type": "allowed_tools", "mode": "required", "tools": [flat] });
    let body = json!({ "input": "Where?", "tools": tools, "tool_choice": choice });
    let reply = server.post("/v1/responses", &body.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    let seen = seen.constraint.unwrap().form.grammar.unwrap();
    assert!(seen.text().contains("second") && !seen.text().contains("first"));
}

#[tokio::test]
async fn a_tool_that_does_not_say_its_type_is_a_function() {
    let server = saying("There.", "tools.jinja").await;
    let mut asked = required(&json!({}), false);
    let typed = grammar(&server, asked.clone()).await;
    asked["tools"][0].as_object_mut().unwrap().remove("type");
    assert_eq!(grammar(&server, asked.clone()).await, typed);
    for (tool, param) in [
        (json!({ "type": null }), "tools[0].type"),
        (json!({ "type": "function", "function": 5 }), "tools[0].function"),
    ] {
        asked["tools"][0] = tool;
        let error = server.chat(asked.clone()).await.json()["error"].take();
        let message = error["message"].as_str().unwrap();
        assert_eq!(error["param"], param);
        assert!(!message.contains("struct"), "{message}");
    }
}

#[tokio::test]
async fn arguments_are_objects() {
    let server = saying("There.", "tools.jinja").await;
    for parameters in [
        json!({}),
        json!({ "properties": { "a": { "type": "boolean" } }, "required": ["a"] }),
        json!({ "type": ["object", "null"] }),
        json!({ "type": null }),
    ] {
        let grammar = grammar(&server, required(&parameters, true)).await;
        assert!(grammar.contains(r#""type":"object""#), "{parameters}: {grammar}");
    }
    for kind in [json!("string"), json!(["array"]), json!(5)] {
        let reply = server.chat(required(&json!({ "type": kind }), false)).await;
        let param = &reply.json()["error"]["param"];
        assert_eq!((reply.status, param), (400, &json!("tools[0].function.parameters.type")));
    }
}

#[tokio::test]
async fn what_no_grammar_can_follow_is_refused_or_told() {
    let server = saying("There.", "tools.jinja").await;
    let list = json!({ "type": "array", "items": { "type": "string" }, "uniqueItems": true });
    let parameters = json!({ "type": "object", "properties": { "a": list } });
    let field = "tools[0].function.parameters";
    let refused = server.chat(required(&parameters, true)).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(field)));
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("uniqueItems") && !message.contains("start:"), "{message}");
    let reply = server.chat(required(&parameters, false)).await.json();
    let warning = reply["aqueduct"]["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with(field) && warning.contains("uniqueItems"), "{warning}");

    let format = |strict: bool| {
        let schema = json!({ "schema": list, "strict": strict });
        let format = json!({ "type": "json_schema", "json_schema": schema });
        json!({ "messages": [{ "role": "user", "content": "?" }], "response_format": format })
    };
    let refused = server.chat(format(true)).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("response_format"))
    );
    let reply = server.chat(format(false)).await.json();
    let warning = reply["aqueduct"]["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("response_format is not followed"), "{warning}");
}

#[tokio::test]
async fn text_behind_a_call_stays_behind_it() {
    let call = r#"<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>"#;
    let server = saying(&format!("See: {call} Done <tool_call> now."), "tools.jinja").await;
    let tool = json!({ "type": "function", "name": "f", "parameters": { "type": "object" } });
    let body = json!({ "input": "?", "tools": [tool], "max_output_tokens": 200 });
    let reply = server.post("/v1/responses", &body.to_string()).await.json();
    let item = |item: &Value| match item["type"].as_str() {
        Some("function_call") => item["arguments"].as_str().unwrap().to_owned(),
        _ => item["content"][0]["text"].as_str().unwrap().to_owned(),
    };
    let items: Vec<_> = reply["output"].as_array().unwrap().iter().map(item).collect();
    assert_eq!(items, ["See:", r#"{"x":1}"#, " Done <tool_call> now."]);
}

/// What no grammar follows is one thing whatever it is: who is strict is refused, others are told.
#[tokio::test]
async fn schemas_that_are_not_followed_are_refused_or_told_of() {
    let server = saying("There.", "tools.jinja").await;
    for unfollowed in [
        json!({ "type": "string", "pattern": "a\\" }),
        json!({ "type": "string", "pattern": r"(a)\1" }),
        json!({ "type": "string", "pattern": r"^.\b.$" }),
        json!({ "type": "string", "pattern": "^(?!a)" }),
        json!({ "type": "integer", "multipleOf": 3_000_017 }),
        json!({ "type": "number", "multipleOf": 1e-9, "minimum": 0, "maximum": 1 }),
        json!({ "const": i64::MIN }),
    ] {
        let schema = json!({ "type": "object", "properties": { "a": unfollowed } });
        let format = |strict: bool| {
            let described = json!({ "schema": schema, "strict": strict });
            let format = json!({ "type": "json_schema", "json_schema": described });
            json!({ "messages": [{ "role": "user", "content": "?" }], "response_format": format })
        };
        let reply = server.chat(format(true)).await;
        assert_eq!(reply.status, 400, "{unfollowed}: {}", reply.body);
        assert!(!reply.body.contains("panic"), "{}", reply.body);
        let reply = server.chat(format(false)).await;
        assert_eq!(reply.status, 200, "{unfollowed}: {}", reply.body);
        let warnings = reply.json()["aqueduct"]["warnings"].to_string();
        assert!(warnings.contains("not followed in all"), "{unfollowed}: {warnings}");
        let reply = server.chat(required(&schema, true)).await;
        assert_eq!(reply.status, 400, "{unfollowed}: {}", reply.body);
        let reply = server.chat(required(&schema, false)).await;
        assert_eq!(reply.status, 200, "{unfollowed}: {}", reply.body);
    }
}

/// To try one pattern after another would hold a turn for as long as there are any.
#[tokio::test]
async fn what_is_too_long_for_a_grammar_is_not_looked_into() {
    let server = saying("There.", "tools.jinja").await;
    let schema = |bytes: usize| {
        let unfollowed = format!("{}\\", "a".repeat(bytes));
        json!({ "type": "object", "properties": { "a": { "pattern": unfollowed } } })
    };
    let described = json!({ "schema": schema(limits::GRAMMAR_BYTES_MAX) });
    let format = json!({ "type": "json_schema", "json_schema": described });
    let messages = json!([{ "role": "user", "content": "?" }]);
    let reply = server.chat(json!({ "messages": messages, "response_format": format })).await;
    assert_eq!(reply.status, 400, "{}", reply.body);
    // Each of the two would fit.
    let tool = |name: &str| {
        let parameters = schema(limits::GRAMMAR_BYTES_MAX / 2);
        json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
    };
    let tools = json!([tool("a"), tool("b")]);
    let reply = server.chat(offered(json!({ "tools": tools, "tool_choice": "required" }))).await;
    let param = &reply.json()["error"]["param"];
    assert_eq!((reply.status, param), (400, &json!("tools")), "{}", reply.body);
}

#[tokio::test]
async fn calls_of_custom_tools_are_shown_as_others_are() {
    let server = saying("There.", "tools.jinja").await;
    let body = json!({ "max_output_tokens": 8, "input": [
        { "role": "user", "content": "?" },
        { "type": "custom_tool_call", "call_id": "1", "name": "run", "input": "ls -l" },
        { "type": "custom_tool_call_output", "call_id": "1", "output": "two files" },
        { "type": "function_call", "call_id": "2", "name": "f" },
        { "type": "function_call_output", "call_id": "2", "output": "5" },
    ] });
    let reply = server.post("/v1/responses", &body.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    let prompt = text_with_tools("tools.jinja").decode(&seen.prompt);
    for part in [
        "\"name\": \"run\"",
        "\"ls -l\"}",
        "<tool_response>\ntwo files\n</tool_response>",
        "\"name\": \"f\", \"arguments\": {}",
    ] {
        assert!(prompt.contains(part), "{part}: {prompt}");
    }
}

/// What is no JSON cannot be told apart from a call, or leaves none.
#[tokio::test]
async fn a_form_that_is_no_schema_stands_beside_no_calls() {
    let server = saying("There.", "tools.jinja").await;
    let check = async |more: Value, want: Option<&str>| {
        let mut asked = offered(json!({ "guided_choice": ["There.", "Here."] }));
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.chat(asked).await;
        let param = want.map_or(Value::Null, |_| reply.json()["error"]["param"].clone());
        assert_eq!(param.as_str(), want, "{more}: {}", reply.body);
        assert_eq!(reply.status, if want.is_some() { 400 } else { 200 }, "{}", reply.body);
    };
    check(json!({}), Some("guided_choice")).await;
    check(json!({ "tool_choice": "none" }), None).await;
    assert!(allows(&server, &text_with_tools("tools.jinja"), "There."));
    let named = json!({ "type": "function", "function": { "name": "f" } });
    for choice in [json!("required"), named] {
        check(json!({ "tool_choice": choice }), Some("guided_choice")).await;
    }
}
