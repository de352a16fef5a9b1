//! `/v1/chat/completions`: shapes, streams, log probabilities.

use aqueduct_coordinator::http::{ApiError, ApiOptions, ChatRequest, Usual, parse_chat};
use serde_json::{Value, json};

use super::client::{answering, start, start_with, text};

#[tokio::test]
async fn a_whole_answer() {
    let server = start(answering("At Walden")).await;
    let messages = json!([
        { "role": "developer", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "Where?" }] },
    ]);
    let reply = server.chat(json!({ "messages": messages, "max_completion_tokens": 8 })).await;
    let body = reply.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["id"], "chatcmpl-r0000000000000007");
    assert_eq!(
        body["choices"],
        json!([{
            "index": 0,
            "message": { "role": "assistant", "content": "At Walden", "refusal": null },
            "logprobs": null,
            "finish_reason": "length",
        }])
    );
    assert!(body["aqueduct"]["warnings"][0].as_str().unwrap().contains("no chat template"));
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    let want = "system: Be brief.\nuser: Where?\nassistant:";
    assert_eq!(text().decode(&seen.prompt), want);
    assert_eq!((seen.max_tokens, seen.sampling.logprobs), (8, None));
}

/// Whoever says nothing gets what the server says, as far as the model has positions.
#[tokio::test]
async fn an_answer_has_a_bound_that_fits() {
    for (most, want) in [(4096, 4096), (u32::MAX, 65_536)] {
        let options = ApiOptions { chat_max_tokens: most, ..ApiOptions::new("tiny") };
        let server = start_with(answering("x"), options).await;
        let asked = json!({ "messages": [{ "role": "user", "content": "Where?" }] });
        assert_eq!(server.chat(asked).await.status, 200);
        let seen = server.script.seen.lock().unwrap().pop().unwrap();
        assert_eq!(seen.max_tokens, want.min(65_536 - seen.prompt.len() as u32));
    }
}

fn parsed(said: &Value) -> Result<ChatRequest, ApiError> {
    let body = json!({ "messages": [said] }).to_string();
    parse_chat(body.as_bytes(), &Usual::default())
}

#[test]
fn a_call_without_arguments_may_be_told_as_nothing() {
    let check = |arguments: serde_json::Value, want: Option<serde_json::Value>| {
        let function = json!({ "name": "now", "arguments": arguments });
        let call = json!({ "id": "1", "type": "function", "function": function });
        let said = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
        let parsed = parsed(&said);
        let told = parsed.ok().map(|it| it.chat.messages[0].tool_calls[0].arguments.clone());
        assert_eq!(told, want, "{arguments:?}");
    };
    let nothing = [json!("{}"), json!(""), json!(" \n"), json!(null), json!({})];
    nothing.into_iter().for_each(|nothing| check(nothing, Some(json!({}))));
    check(json!("{\"a\": 1}"), Some(json!({ "a": 1 })));
    check(json!({ "a": 1 }), Some(json!({ "a": 1 })));
    check(json!([]), None);
    // What a model wrote that is no object was told to the caller, who sends it back.
    for text in ["[]", "{", "{\"x\": [1", "5"] {
        check(json!(text), Some(json!({ "arguments": text })));
    }
    let said = json!({ "role": "assistant", "tool_calls": [{ "function": { "name": "now" } }] });
    let parsed = parsed(&said).unwrap();
    assert_eq!(parsed.chat.messages[0].tool_calls[0].arguments, json!({}));
}

#[test]
fn a_call_in_older_words_is_refused() {
    let said = json!({
        "role": "assistant", "content": null, "function_call": { "name": "f", "arguments": "{}" },
    });
    let error = parsed(&said).err().unwrap().body();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("messages[0].function_call: is not supported"), "{message}");
    assert!(parsed(&json!({ "role": "user", "content": "a", "function_call": null })).is_ok());
}

#[test]
fn a_refusal_is_what_the_assistant_said() {
    let content = json!([{ "type": "text", "text": "No:" }, { "type": "refusal", "refusal": "x" }]);
    let check = |said: serde_json::Value, want: &str| {
        let parsed = parsed(&said).unwrap();
        assert_eq!(parsed.chat.messages[0].content, want, "{said}");
    };
    check(json!({ "role": "assistant", "content": content }), "No:\nx");
    check(json!({ "role": "assistant", "content": null, "refusal": "No." }), "No.");
    check(json!({ "role": "assistant", "content": "Yes.", "refusal": null }), "Yes.");
    check(json!({ "role": "user", "content": null, "refusal": "No." }), "");
}

#[test]
fn a_call_of_a_tool_that_takes_a_text_has_it_for_its_input() {
    let call = |call: serde_json::Value| {
        parsed(&json!({ "role": "assistant", "content": null, "tool_calls": [call] }))
    };
    let custom = json!({ "name": "run", "input": "ls" });
    let said = call(json!({ "id": "1", "type": "custom", "custom": custom })).unwrap();
    let made = &said.chat.messages[0].tool_calls[0];
    assert_eq!((&*made.name, &made.arguments), ("run", &json!({ "input": "ls" })));
    let error = call(json!({ "id": "1", "type": "custom" })).err().unwrap().body();
    let param = error["error"]["param"].as_str().unwrap();
    assert_eq!(param, "messages[0].tool_calls[0].function");
}

#[test]
fn parts_are_texts_by_whatever_name_clients_have_for_them() {
    let check = |parts: serde_json::Value, want: &str| {
        let parsed = parsed(&json!({ "role": "user", "content": parts })).unwrap();
        assert_eq!(parsed.chat.messages[0].content, want, "{parts}");
    };
    check(json!(["a", "b"]), "a\nb");
    let input = json!({ "type": "input_text", "text": "a" });
    let output = json!({ "type": "output_text", "text": "b" });
    check(json!([input, "x", output]), "a\nx\nb");
    let nothing = json!({ "type": "text", "text": null });
    check(json!(["a", nothing, "b"]), "a\nb");
}

/// As vLLM and llama.cpp have it: joined without anything, words would run into each other.
#[tokio::test]
async fn texts_of_one_message_are_lines_of_it() {
    let server = start(answering("x")).await;
    let part = |kind: &str, text: &str| json!({ "type": kind, "text": text });
    let parts = |kind: &str| json!([part(kind, "Where?"), part(kind, "And when?")]);
    let check = async |path: &str, body: serde_json::Value| {
        let reply = server.post(path, &body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        let prompt = server.script.seen.lock().unwrap().pop().unwrap().prompt;
        let prompt = text().decode(&prompt);
        assert!(prompt.contains("Where?\nAnd when?"), "{prompt}");
    };
    let said = json!({ "role": "user", "content": parts("text") });
    check("/v1/chat/completions", json!({ "messages": [said] })).await;
    let said = json!({ "role": "user", "content": parts("input_text") });
    check("/v1/responses", json!({ "input": [said] })).await;
}

#[tokio::test]
async fn a_message_may_be_gone_on_with() {
    let server = start(answering("x")).await;
    let check = async |fields: serde_json::Value, want: &str| {
        let mut body = json!({ "messages": [
            { "role": "user", "content": "Where?" },
            { "role": "assistant", "content": "At " },
        ] });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let reply = server.chat(body).await;
        match server.script.seen.lock().unwrap().pop() {
            Some(seen) => assert_eq!(text().decode(&seen.prompt), want),
            None => assert_eq!(reply.json()["error"]["param"], want, "{}", reply.body),
        }
    };
    check(json!({}), "user: Where?\nassistant: At \nassistant:").await;
    check(json!({ "add_generation_prompt": false }), "user: Where?\nassistant: At \n").await;
    let goes_on = json!({ "add_generation_prompt": false, "continue_final_message": true });
    check(goes_on, "user: Where?\nassistant: At ").await;
    let both = json!({ "add_generation_prompt": true, "continue_final_message": true });
    check(both, "continue_final_message").await;
    let asked = json!([{ "role": "user", "content": "Where?" }]);
    let theirs = json!({ "continue_final_message": true, "messages": asked });
    check(theirs, "continue_final_message").await;
}

#[tokio::test]
async fn a_stream_begins_with_the_role() {
    let server = start(answering("At Walden")).await;
    let body = json!({ "messages": [{ "role": "user", "content": "?" }], "stream": true, "n": 2 });
    let events = server.chat(body).await.events();
    for choice in 0..2 {
        assert_eq!(events[choice]["object"], "chat.completion.chunk");
        assert_eq!(events[choice]["choices"][0]["index"], choice);
        let delta = &events[choice]["choices"][0]["delta"];
        assert_eq!(*delta, json!({ "role": "assistant", "content": "" }));
        let mine = || {
            let all = events[2..].iter().map(|event| &event["choices"][0]);
            all.filter(move |one| one["index"] == choice)
        };
        let texts = mine().filter_map(|one| one["delta"]["content"].as_str());
        assert_eq!(texts.collect::<String>(), "At Walden");
        let last = mine().next_back().unwrap();
        assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("length")));
    }
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    // Not before the prompt has been read.
    let body = json!({
        "messages": [{ "role": "user", "content": "?" }], "stream": true, "return_progress": true,
    });
    let events = server.chat(body).await.events();
    let role = events.iter().position(|event| event["choices"][0]["delta"]["role"].is_string());
    let read = events.iter().rposition(|event| event.get("prompt_progress").is_some());
    assert!(read.is_some() && role > read, "{events:?}");
}

#[tokio::test]
async fn log_probabilities_have_bytes() {
    let server = start(answering("é—")).await;
    let messages = json!([{ "role": "user", "content": "?" }]);
    let body = json!({ "messages": messages, "logprobs": true, "top_logprobs": 1 });
    let reply = server.chat(body).await.json();
    let content = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let bytes = content.iter().flat_map(|entry| entry["bytes"].as_array().unwrap());
    let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
    assert_eq!(bytes, "é—".as_bytes());
    assert_eq!(content[0]["top_logprobs"][0]["bytes"], content[0]["bytes"]);
    assert_eq!(content[0]["logprob"], -0.5);
}
