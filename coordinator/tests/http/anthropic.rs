//! `/v1/messages`: the objects, the events, the errors and what becomes the prompt.

use aqueduct_coordinator::submit::RequestError;
use aqueduct_coordinator::text::Start;
use serde_json::{Value, json};

use super::client::{Reply, Server, answering, saying, start, text, text_with_template};
use super::script::Script;
use super::tools::text_with_tools;

/// Thinks between tags, where it is told to.
const THINKING: &str = "\
    {%- for message in messages %}<{{ message.role }}>\
    {%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}\
    {{- message.content }}{% endfor %}\
    {%- if add_generation_prompt %}<assistant>\
    {%- if enable_thinking is defined %}{{ enable_thinking }}<think>\n{% endif %}{% endif %}";

async fn asked(server: &Server, fields: Value) -> Reply {
    let messages = json!([{ "role": "user", "content": "Where?" }]);
    let mut body = json!({ "model": "tiny", "max_tokens": 8, "messages": messages });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    server.post("/v1/messages?beta=true", &body.to_string()).await
}

/// What the model was given last.
fn prompt(server: &Server) -> String {
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    text().spell(&seen.prompt, Start::Text)
}

/// The message that a stream's events make, as Anthropic's clients join them.
fn joined(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut inputs = vec![String::new(); events.len()];
    for event in &events[1..] {
        let idx = event["index"].as_u64().unwrap_or_default() as usize;
        let content = message["content"].as_array_mut().unwrap();
        let more = |field: &str| event["delta"][field].as_str().unwrap().to_owned();
        let add =
            |to: &mut Value, more: String| *to = json!(to.as_str().unwrap().to_owned() + &more);
        match (event["type"].as_str().unwrap(), event["delta"]["type"].as_str()) {
            ("content_block_start", _) => {
                assert_eq!(idx, content.len());
                content.push(event["content_block"].clone());
            }
            (_, Some("text_delta")) => add(&mut content[idx]["text"], more("text")),
            (_, Some("thinking_delta")) => add(&mut content[idx]["thinking"], more("thinking")),
            (_, Some("signature_delta")) => add(&mut content[idx]["signature"], more("signature")),
            (_, Some("input_json_delta")) => inputs[idx].push_str(&more("partial_json")),
            ("content_block_stop", _) if content[idx]["type"] == "tool_use" => {
                content[idx]["input"] = serde_json::from_str(&inputs[idx]).unwrap();
            }
            ("message_delta", _) => {
                for field in ["stop_reason", "stop_sequence"] {
                    message[field] = event["delta"][field].clone();
                }
                message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

/// The same answer as one object and as a stream; gives it.
async fn both(server: &Server, fields: Value) -> Value {
    let reply = asked(server, fields.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let mut whole = reply.json();
    assert!(whole["aqueduct"].is_object(), "{whole}");
    whole.as_object_mut().unwrap().remove("aqueduct");
    let mut streamed = fields;
    streamed["stream"] = json!(true);
    let reply = asked(server, streamed).await;
    let events = reply.named_events();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["message_start", "ping"]);
    assert_eq!(kinds[kinds.len() - 2..], ["message_delta", "message_stop"]);
    assert_eq!(joined(&events), whole);
    whole
}

#[tokio::test]
async fn a_message_at_once_and_as_events() {
    let server = start(answering("At Walden")).await;
    let message = both(&server, json!({ "temperature": 0.5, "top_k": 3 })).await;
    assert_eq!(message["content"], json!([{ "type": "text", "text": "At Walden" }]));
    assert_eq!(message["id"], "msg_r0000000000000007");
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(
        (&message["model"], &message["stop_reason"]),
        (&json!("tiny"), &json!("max_tokens"))
    );
    let usage = &message["usage"];
    let read = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    assert_eq!(read, seen.prompt.len() as u64);
    assert_eq!((seen.max_tokens, seen.sampling.temperature, seen.sampling.top_k), (8, 0.5, 3));
    assert!(usage["output_tokens"].as_u64().unwrap() > 0, "{message}");
}

#[tokio::test]
async fn why_an_answer_ended() {
    let server = saying(text(), "At Walden").await;
    let message = both(&server, json!({ "max_tokens": 20 })).await;
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("end_turn"), &json!(null))
    );
    let message = both(&server, json!({ "max_tokens": 20, "stop_sequences": ["x", "Wal"] })).await;
    assert_eq!(message["content"][0]["text"], "At ");
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("stop_sequence"), &json!("Wal"))
    );
}

#[tokio::test]
async fn what_is_thought_is_a_block() {
    let server = saying(text_with_template(THINKING), "By the pond.</think>At Walden.").await;
    let thinking = json!({ "type": "enabled", "budget_tokens": 64 });
    let message = both(&server, json!({ "max_tokens": 80, "thinking": thinking })).await;
    let [thought, said] = message["content"].as_array().unwrap().as_slice() else {
        panic!("{message}");
    };
    assert_eq!(
        *thought,
        json!({ "type": "thinking", "thinking": "By the pond.", "signature": "" })
    );
    assert_eq!(*said, json!({ "type": "text", "text": "At Walden." }));
    assert!(prompt(&server).ends_with("<assistant>True<think>\n"));
    // What it thought goes back as it came.
    let messages = json!([
        { "role": "user", "content": "Where?" },
        { "role": "assistant", "content": [thought, said] },
        { "role": "user", "content": "When?" },
    ]);
    let fields = json!({ "messages": messages, "thinking": { "type": "disabled" } });
    assert_eq!(asked(&server, fields).await.status, 200);
    let want =
        "<assistant><think>By the pond.</think>At Walden.<user>When?<assistant>False<think>\n";
    let prompt = prompt(&server);
    assert!(prompt.ends_with(want), "{prompt}");
}

#[tokio::test]
async fn calls_are_blocks_that_come_bit_by_bit() {
    let call = r#"{"name": "f", "arguments": {"x": [1, 2, 3], "y": "by the pond"}}"#;
    let said = format!("See: <tool_call>{call}</tool_call>\n<tool_call>{call}</tool_call>");
    let server = saying(text_with_tools("tools.jinja"), &said).await;
    let tools = json!([
        { "name": "f", "description": "Looks.", "input_schema": { "type": "object" } },
        { "type": "web_search_20250305", "name": "web_search", "max_uses": 5 },
    ]);
    let message = both(&server, json!({ "tools": tools, "max_tokens": 500 })).await;
    let content = message["content"].as_array().unwrap();
    let kinds: Vec<_> = content.iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text", "tool_use", "tool_use"], "{message}");
    assert_eq!(content[1]["input"], json!({ "x": [1, 2, 3], "y": "by the pond" }));
    assert_eq!((&content[1]["name"], &message["stop_reason"]), (&json!("f"), &json!("tool_use")));
    assert_ne!(content[1]["id"], content[2]["id"]);
    let reply = asked(&server, json!({ "tools": tools, "max_tokens": 500, "stream": true })).await;
    let deltas =
        reply.named_events().into_iter().filter(|it| it["delta"]["type"] == "input_json_delta");
    assert!(deltas.count() > 10, "{}", reply.body);
    let reply = asked(&server, json!({ "tools": tools })).await.json();
    let want = "tools of type web_search_20250305: the model is offered those with an input_schema";
    assert_eq!(reply["aqueduct"]["warnings"], json!([want]));

    let single = json!({ "type": "tool", "name": "f", "disable_parallel_tool_use": true });
    for (choice, want) in [
        (json!({ "type": "any" }), 200),
        (single, 200),
        (json!({ "type": "none" }), 200),
        (json!({ "type": "tool", "name": "g" }), 400),
        (json!({ "type": "tool" }), 400),
        (json!({ "type": "all" }), 400),
    ] {
        let reply = asked(&server, json!({ "tools": tools, "tool_choice": choice })).await;
        assert_eq!(reply.status, want, "{choice}: {}", reply.body);
    }
}

/// What of a conversation a model without a template of its own is given.
#[tokio::test]
async fn blocks_are_messages() {
    let server = start(answering("At Walden")).await;
    let image = json!({ "type": "image", "source": { "type": "url", "url": "http://a/b.png" } });
    let pond = json!([{ "type": "text", "text": "A pond." }]);
    let found = json!(
        { "type": "search_result", "title": "Walden", "source": "a/b", "content": pond });
    let user = |content: Value| json!([{ "role": "user", "content": content }]);
    let document = |source: Value| user(json!([{ "type": "document", "source": source }]));
    let text = |text: &str| json!({ "type": "text", "text": text });
    for (system, messages, want) in [
        (
            json!("Be brief."),
            user(json!("Where?")),
            Ok("system: Be brief.\nuser: Where?\nassistant:"),
        ),
        (
            json!([
                text("x-anthropic-billing-header: cc_version=2.1; cch=1"),
                text("Be brief."),
                text("Be kind.")
            ]),
            user(json!([text("In Concord"), text("where?")])),
            Ok("system: Be brief.\nBe kind.\nuser: In Concord\nwhere?\nassistant:"),
        ),
        // One role's messages are one.
        (
            json!(null),
            json!([{ "role": "user", "content": "A" }, { "role": "user", "content": [text("B")] }]),
            Ok("user: A\n\nB\nassistant:"),
        ),
        // What the assistant has begun to say goes on.
        (
            json!(null),
            json!([
                { "role": "user", "content": "A" },
                { "role": "assistant", "content": "At Wal" },
            ]),
            Ok("user: A\nassistant: At Wal"),
        ),
        (
            json!(null),
            document(json!({ "type": "text", "media_type": "text/plain", "data": "A pond." })),
            Ok("user: A pond.\nassistant:"),
        ),
        (
            json!(null),
            document(json!({ "type": "content", "content": [text("A"), text("pond.")] })),
            Ok("user: A\npond.\nassistant:"),
        ),
        (
            json!(null),
            user(json!([found, text("?")])),
            Ok("user: Walden\na/b\nA pond.\n?\nassistant:"),
        ),
        (
            json!(null),
            json!([{ "role": "user", "content": "A" }, { "role": "assistant", "content": [
                { "type": "redacted_thinking", "data": "x" },
                { "type": "server_tool_use", "id": "a", "name": "web_search", "input": {} },
                { "type": "web_search_tool_result", "tool_use_id": "a", "content": [] },
                text("B"),
            ] }, { "role": "user", "content": "C" }]),
            Ok("user: A\nassistant: B\nuser: C\nassistant:"),
        ),
        (json!(null), user(json!([text("A"), image])), Err("messages[0].content[1].type")),
        (
            json!(null),
            document(json!({ "type": "url", "url": "http://a" })),
            Err("messages[0].content[0].source.type"),
        ),
        (json!(null), user(json!(7)), Err("messages[0].content")),
        (json!(null), user(json!([{ "type": "text" }])), Err("messages[0].content[0].text")),
        (json!(null), json!([{ "role": "robot", "content": "A" }]), Err("messages[0].role")),
        (json!(null), json!([]), Err("messages")),
        (json!(7), user(json!("A")), Err("system")),
    ] {
        let reply = asked(&server, json!({ "system": system, "messages": messages })).await;
        match want {
            Ok(want) => {
                assert_eq!(reply.status, 200, "{}", reply.body);
                assert_eq!(prompt(&server), want);
            }
            Err(field) => {
                assert_eq!(reply.status, 400, "{messages}");
                let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
                assert!(message.starts_with(field), "{message}");
            }
        }
    }
}

#[tokio::test]
async fn calls_and_their_results_are_messages() {
    let server = saying(text_with_tools("tools.jinja"), "At Walden").await;
    let tools = json!([{ "name": "f", "input_schema": { "type": "object" } }]);
    let call = json!({ "type": "tool_use", "id": "toolu_1", "name": "f", "input": { "x": 1 } });
    let result = json!({ "type": "tool_result", "tool_use_id": "toolu_1", "is_error": false,
        "content": [{ "type": "text", "text": "A pond." }] });
    let messages = json!([
        { "role": "user", "content": "Where?" },
        { "role": "assistant", "content": [{ "type": "text", "text": "I look." }, call] },
        { "role": "user", "content": [result, { "type": "text", "text": "So?" }] },
    ]);
    let body = json!({ "tools": tools, "messages": messages });
    assert_eq!(asked(&server, body).await.status, 200);
    let own = prompt(&server);
    // The same conversation in OpenAI's words.
    let function = json!({ "name": "f", "arguments": "{\"x\": 1}" });
    let call = json!({ "id": "toolu_1", "type": "function", "function": function });
    let messages = json!([
        { "role": "user", "content": "Where?" },
        { "role": "assistant", "content": "I look.", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "toolu_1", "content": "A pond." },
        { "role": "user", "content": "So?" },
    ]);
    let function = json!({ "name": "f", "parameters": { "type": "object" } });
    let tools = json!([{ "type": "function", "function": function }]);
    let reply = server.chat(json!({ "tools": tools, "messages": messages })).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(own, prompt(&server));
}

#[tokio::test]
async fn tokens_are_counted_as_they_are_read() {
    let server = start(answering("At Walden")).await;
    let messages = json!([{ "role": "user", "content": "Where?" }]);
    let body = json!({ "model": "tiny", "system": "Be brief.", "messages": messages });
    let counted = server.post("/v1/messages/count_tokens", &body.to_string()).await;
    assert_eq!(counted.status, 200, "{}", counted.body);
    assert_eq!(asked(&server, json!({ "system": "Be brief." })).await.status, 200);
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    assert_eq!(counted.json(), json!({ "input_tokens": seen.prompt.len() }));
}

#[tokio::test]
async fn errors_are_in_its_words() {
    let server = start(answering("At Walden")).await;
    let long = "pond ".repeat(4000);
    for (fields, status, kind, words) in [
        (json!({ "max_tokens": 0 }), 400, "invalid_request_error", "max_tokens"),
        (json!({ "model": "claude" }), 404, "not_found_error", "\"claude\" is not served here"),
        (json!({ "n": 2 }), 400, "invalid_request_error", "n = 2"),
        (json!({ "unheard": 1 }), 400, "invalid_request_error", "unheard: is not a known field"),
        (json!({ "thinking": { "type": "long" } }), 400, "invalid_request_error", "thinking.type"),
        (
            json!({ "output_config": { "effort": "x" } }),
            400,
            "invalid_request_error",
            "output_config.effort",
        ),
        (
            json!({ "output_config": { "format": { "type": "json_schema" } } }),
            400,
            "invalid_request_error",
            "output_config.format.schema",
        ),
        (json!({ "stop_sequences": 7 }), 400, "invalid_request_error", "stop_sequences"),
        (json!({ "mcp_servers": [{ "url": "x" }] }), 400, "invalid_request_error", "mcp_servers"),
        (json!({ "system": long }), 400, "invalid_request_error", "prompt is too long: "),
    ] {
        let reply = asked(&server, fields).await;
        let error = reply.json();
        assert_eq!(
            (reply.status, error["type"].as_str()),
            (status, Some("error")),
            "{}",
            reply.body
        );
        assert_eq!(error["error"]["type"], kind, "{error}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        let id = error["request_id"].as_str().unwrap();
        assert!(reply.head.contains(&format!("\r\nrequest-id: {id}\r\n")), "{}", reply.head);
        let length = format!("content-length: {}\r\n", reply.body.len());
        assert!(format!("{}\r\n", reply.head).contains(&length), "{}", reply.head);
    }
    // Those of other paths are in OpenAI's.
    let other = server.completion(json!({ "n": 0 })).await.json();
    assert!(other.get("type").is_none() && other["error"]["param"] == "n", "{other}");
    let astray = server.post("/v1/messages/batches", "{}").await;
    assert_eq!((astray.status, &astray.json()["error"]["type"]), (404, &json!("not_found_error")));
}

#[tokio::test]
async fn a_failure_is_the_last_event() {
    let fail = Some(RequestError::Unavailable("all workers are gone".into()));
    let server = start(Script { fail, ..answering("At Walden") }).await;
    let reply = asked(&server, json!({ "stream": true })).await;
    assert_eq!(reply.status, 200);
    let last = reply.named_events().pop().unwrap();
    assert_eq!(
        (&last["type"], &last["error"]["type"]),
        (&json!("error"), &json!("overloaded_error"))
    );
    assert!(last["error"]["message"].as_str().unwrap().contains("gone"), "{last}");
}

#[tokio::test]
async fn what_clients_send_by_themselves_is_taken() {
    let server = start(answering("At Walden")).await;
    let cached = json!({ "type": "ephemeral", "ttl": "1h" });
    let content = json!([{ "type": "text", "text": "Where?", "cache_control": cached }]);
    let fields = json!({
        "metadata": { "user_id": "u" }, "service_tier": "auto", "container": null,
        "mcp_servers": [],
        "cache_control": cached, "betas": ["a"], "stream": false,
        "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
        "thinking": { "type": "adaptive", "display": "summarized" },
        "output_config": { "effort": "high" },
        "messages": [{ "role": "user", "content": content }],
    });
    let reply = asked(&server, fields).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let warnings = reply.json()["aqueduct"]["warnings"].to_string();
    assert!(warnings.contains("context_management is passed over"), "{warnings}");
    assert!(warnings.contains("thinking is passed over"), "{warnings}");
    let fields = json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } });
    assert_eq!(asked(&server, fields).await.status, 200);
    assert_eq!(prompt(&server), "user: Where?\nassistant:");
}
