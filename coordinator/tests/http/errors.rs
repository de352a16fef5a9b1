//! What is wrong is refused, by name, and the next request works.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_coordinator::Room;
use aqueduct_coordinator::generation::Generator;
use aqueduct_coordinator::http::{
    ApiOptions, Usual, parse_chat, parse_completion, parse_message, parse_response,
};
use aqueduct_coordinator::submit::{Busy, RequestError};
use aqueduct_core::work::FailureKind;
use aqueduct_core::{Refusal, limits};
use proptest::prelude::*;
use serde_json::{Value, json};
use tonic_health::pb::health_client::HealthClient;

use super::client::{answering, generator, request, request_with, serving, start, start_with};
use super::script::Script;

#[tokio::test]
async fn wrong_fields_are_named() {
    let server = start(answering("x")).await;
    let check = async |field: &str, value: Value, param: &str| {
        let mut body = json!({ "prompt": "a" });
        body[field] = value;
        let reply = server.completion(body.clone()).await;
        assert_eq!(reply.status, 400, "{body}");
        let error = &reply.json()["error"];
        assert_eq!(error["param"], param, "{body} gave {error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["code"].is_null());
    };
    check("tools", json!([{ "type": "function" }]), "tools").await;
    check("response_format", json!({ "type": "yaml" }), "response_format.type").await;
    let wizard =
        json!({ "type": "json_schema", "json_schema": { "schema": { "type": "wizard" } } });
    check("response_format", wizard, "response_format").await;
    let wizard = json!({ "type": "wizard" });
    for name in ["schema", "value"] {
        let beside = json!({ "type": "json_object", name: wizard });
        check("response_format", beside, "response_format").await;
        let text = json!({ "type": "text", name: wizard });
        check("response_format", text, &format!("response_format.{name}")).await;
    }
    let inside = json!({ "type": "json_object", "json_schema": { "schema": wizard } });
    check("response_format", inside, "response_format").await;
    check("skip_special_tokens", json!(false), "skip_special_tokens").await;
    check("max_tokens", json!(1.5), "max_tokens").await;
    check("return_progress", json!(true), "return_progress").await;
    check("logit_bias", json!({ "five": 1 }), "logit_bias").await;
    check("logit_bias", json!({ "5": 101 }), "logit_bias[5]").await;
    check("logit_bias", json!({ "5": "high" }), "logit_bias").await;
    let many: serde_json::Map<_, _> =
        (0..=limits::LOGIT_BIAS_MAX).map(|id| (id.to_string(), json!(1))).collect();
    check("logit_bias", json!(many), "logit_bias").await;
    check("presence_penalty", json!(2.1), "presence_penalty").await;
    check("frequency_penalty", json!(-2.1), "frequency_penalty").await;
    check("repetition_penalty", json!(0), "repetition_penalty").await;
    check("min_p", json!(1.1), "min_p").await;
    check("best_of", json!(3), "best_of").await;
    check("suffix", json!("end"), "suffix").await;
    check("temperature", json!("hot"), "temperature").await;
    check("temperature", json!(3), "temperature").await;
    check("top_p", json!(0), "top_p").await;
    check("top_k", json!(-2), "top_k").await;
    check("n", json!(0), "n").await;
    check("n", json!(65), "n").await;
    check("logprobs", json!(21), "logprobs").await;
    check("logprobs", json!(true), "logprobs").await;
    check("max_tokens", json!(-1), "max_tokens").await;
    check("max_tokens", json!(1u64 << 40), "max_tokens").await;
    check("stop", json!(vec!["x"; 17]), "stop").await;
    check("stop", json!(5), "stop").await;
    check("stop_token_ids", json!([4096]), "stop_token_ids").await;
    check("stop_token_ids", json!("x"), "stop_token_ids").await;
    let many = json!((1..65).collect::<Vec<_>>());
    check("stop_token_ids", many, "stop_token_ids").await;
    check("min_tokens", json!(-1), "min_tokens").await;
    check("seed", json!(1.5), "seed").await;
    check("stream", json!("yes"), "stream").await;
    check("prompt", json!(null), "prompt").await;
    check("prompt", json!(""), "prompt").await;
    check("prompt", json!([]), "prompt").await;
    check("prompt", json!([[1], []]), "prompt").await;
    check("prompt", json!(["a", 5]), "prompt").await;
    check("prompt", json!([1, -5]), "prompt").await;
    check("prompt", json!([4096]), "prompt").await;
    check("prompt", json!(vec!["a"; limits::CALL_CHOICES_MAX + 1]), "prompt").await;
    check("prompt", json!(vec!["a"; 1001]), "prompt").await; // never so many at once
    check("allowed_token_ids", json!([1]), "allowed_token_ids").await;
    check("prompt_logprobs", json!(1), "prompt_logprobs").await;
    check("truncate_prompt_tokens", json!(5), "truncate_prompt_tokens").await;
    check("return_token_ids", json!(true), "return_token_ids").await;
    check("return_token_offsets", json!(true), "return_token_offsets").await;
    check("verbosity", json!("none"), "verbosity").await;
    check("include_stop_str_in_output", json!(true), "include_stop_str_in_output").await;
    check("cache_salt", json!(5), "cache_salt").await;
    check("add_special_tokens", json!("no"), "add_special_tokens").await;
    check("guided_regex", json!("("), "guided_regex").await;
    check("structured_outputs", json!({ "regex": "(" }), "structured_outputs.regex").await;
    let tag = json!({ "structural_tag": {} });
    check("structured_outputs", tag, "structured_outputs.structural_tag").await;
    check("structured_outputs", json!({ "json": { "type": "wizard" } }), "structured_outputs.json")
        .await;
    check("grammar", json!("root ::= \"a\""), "grammar").await;
    check("priority", json!("high"), "priority").await;
    check("tempreature", json!(0), "tempreature").await;
    check("stream_options", json!({ "usage": true }), "stream_options.usage").await;
    check("aqueduct", json!({ "policy": "lru" }), "aqueduct.policy").await;
    check("aqueduct", json!({ "heavvy": 5 }), "aqueduct.heavvy").await;
    check("aqueduct", json!({ "heavy": -5 }), "aqueduct.heavy").await;
    check("aqueduct", json!({ "chunk_tokens": 0 }), "aqueduct.chunk_tokens").await;
    check("aqueduct", json!({ "decay": 2 }), "aqueduct.decay").await;
    check("aqueduct", json!({ "max_tokens": 99, "local": 5 }), "aqueduct.max_tokens").await;
    check("aqueduct", json!({ "max_tokens": 99, "policy": "dense" }), "aqueduct.max_tokens").await;
    check("aqueduct", json!({ "exchange": "push" }), "aqueduct.exchange").await;
    check("aqueduct", json!({ "wire": "int8" }), "aqueduct.wire").await;
    check("aqueduct", json!({ "quality": "best" }), "aqueduct.quality").await;
    check("aqueduct", json!({ "quality": "exact", "policy": "h2o" }), "aqueduct.policy").await;
    check("aqueduct", json!({ "quality": "exact", "max_tokens": 64 }), "aqueduct.max_tokens").await;
    check(
        "aqueduct",
        json!({ "quality": "exact", "below_floor": "report" }),
        "aqueduct.below_floor",
    )
    .await;
    check("aqueduct", json!({ "min_retained_mass": 0 }), "aqueduct.min_retained_mass").await;
    check("aqueduct", json!({ "min_retained_mass": 1.01 }), "aqueduct.min_retained_mass").await;
    check("aqueduct", json!({ "below_floor": "escalate" }), "aqueduct.below_floor").await;
    check("aqueduct", json!({ "wire": 16 }), "aqueduct.wire").await;
    check("aqueduct", json!({ "memory_map": 1 }), "aqueduct.memory_map").await;
    check("aqueduct", json!([]), "aqueduct").await;
    assert!(server.script.seen.lock().unwrap().is_empty());
    assert_eq!(server.completion(json!({ "prompt": "a" })).await.status, 200);
}

#[tokio::test]
async fn what_is_wanted_is_said_in_words_of_the_api() {
    let server = start(answering("x")).await;
    let said = |reply: Value| reply["error"]["message"].as_str().unwrap().to_owned();
    let stop = said(server.completion(json!({ "prompt": "a", "stop": 5 })).await.json());
    assert!(stop.starts_with("stop: must be a text or a list of texts"), "{stop}");
    let messages = json!([{ "role": "user", "content": 5 }]);
    let content = said(server.chat(json!({ "messages": messages })).await.json());
    let want = "messages[0]: content must be a text or a list of parts";
    assert!(content.starts_with(want), "{content}");
    let grammar = json!({ "prompt": "a", "grammar": "root ::= \"a\"" });
    let grammar = said(server.completion(grammar).await.json());
    assert!(grammar.contains("dialect of Lark") && grammar.contains("not in GBNF"), "{grammar}");
}

#[tokio::test]
async fn a_body_that_is_encoded_is_not_read() {
    let server = start(answering("x")).await;
    for (encoding, want) in [("gzip", 415), ("identity", 200)] {
        let headers = format!("Content-Encoding: {encoding}\r\n");
        let call = request_with(&headers, "POST", "/v1/completions", b"{\"prompt\": \"a\"}");
        let reply = server.send(&call).await;
        assert_eq!(reply.status, want, "{}", reply.body);
    }
}

#[tokio::test]
async fn prompts_that_are_too_long_have_a_code_of_their_own() {
    let server = start(answering("x")).await;
    for prompt in [json!("word ".repeat(2000)), json!("x".repeat(100_000)), json!(vec![1; 1001])] {
        let reply = server.completion(json!({ "prompt": prompt })).await;
        assert_eq!(reply.status, 400);
        let error = &reply.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["code"], "context_length_exceeded", "{error}");
        assert_eq!(error["param"], "prompt_tokens");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("must be at most 1000."), "{error}");
        assert!(message.contains("This model's maximum context length is"), "{error}");
    }
}

#[tokio::test]
async fn values_that_ask_for_nothing_are_fine() {
    let server = start(answering("x")).await;
    let body = json!({
        "prompt": "a", "tools": [], "tool_choice": "none", "response_format": { "type": "text" },
        "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0, "best_of": 1,
        "suffix": null, "user": "u", "metadata": { "a": [1] }, "stop": null, "seed": -1,
        "prompt_logprobs": null, "chat_template": null, "skip_special_tokens": true,
        "length_penalty": 1.0, "include_stop_str_in_output": false, "max_tokens": 5.0,
        "include_reasoning": true, "add_special_tokens": true, "request_id": "mine",
        "spaces_between_special_tokens": false, "allowed_token_ids": null, "guided_json": null,
        "structured_outputs": { "json_object": false }, "grammar": "", "verbosity": "low",
        "prediction": { "type": "content", "content": "x" }, "return_token_offsets": false,
        "return_mm_kwargs": true, "routed_experts_prompt_start": 0,
    });
    let reply = server.completion(body.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let marked = format!("\u{feff}{body}");
    assert_eq!(server.post("/v1/completions", &marked).await.status, 200);
}

#[tokio::test]
async fn wrong_messages_are_named() {
    let server = start(answering("x")).await;
    let check = async |messages: Value, param: &str| {
        let reply = server.chat(json!({ "messages": messages })).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)));
    };
    check(json!([]), "messages").await;
    check(json!("hello"), "messages").await;
    check(json!([{ "content": "no role" }]), "messages[0]").await;
    check(json!([{ "role": "user", "content": "?" }, 5]), "messages[1]").await;
    let called = |call: Value| json!([{ "role": "assistant", "tool_calls": [call] }]);
    check(called(json!({ "id": "1" })), "messages[0].tool_calls[0].function").await;
    let function = json!({ "name": "f", "arguments": 5 });
    let arguments = "messages[0].tool_calls[0].function.arguments";
    check(called(json!({ "id": "1", "function": function })), arguments).await;
    let refusal = json!([{ "type": "refusal", "refusal": "No." }]);
    check(json!([{ "role": "user", "content": refusal }]), "messages[0].content").await;
    check(json!([{ "role": "tool", "content": "x" }]), "messages[0].role").await;
    let image = json!([{ "type": "image_url", "image_url": {} }]);
    check(json!([{ "role": "user", "content": image }]), "messages[0].content").await;
    let top =
        |top: u32| json!({ "messages": [{ "role": "user", "content": "" }], "top_logprobs": top });
    assert_eq!(server.chat(top(2)).await.json()["error"]["param"], "top_logprobs");
    assert_eq!(server.chat(top(0)).await.status, 200, "some clients always send it");
}

#[tokio::test]
async fn what_is_not_json_is_refused() {
    let server = start(answering("x")).await;
    let deep = format!("{{\"prompt\": {}", "[".repeat(100_000));
    let nested = format!("{{\"x\": {}1{}}}", "[".repeat(5000), "]".repeat(5000));
    for body in ["", "{", "[]", "null", "5", "{\"prompt\": \"a\"} x", &deep] {
        let reply = server.post("/v1/completions", body).await;
        assert_eq!(reply.status, 400);
        assert!(reply.json()["error"]["message"].is_string());
    }
    assert_eq!(server.post("/v1/completions", &nested).await.json()["error"]["param"], "prompt");
    let reply =
        server.send(&request("POST", "/v1/completions", b"{\"prompt\": \"\xff\xfe\"}")).await;
    assert_eq!(reply.status, 400);
}

#[tokio::test]
async fn errors_of_the_runtime_have_their_status() {
    let failed = |kind| RequestError::Failed { kind, message: "why".into() };
    let busy = Busy::Tokens { queued_tokens: 90, prompt_tokens: 1, most: 90 };
    let busy = RequestError::Busy { busy, retry_after: Duration::from_millis(6001) };
    for (error, status) in [
        (RequestError::Refused(Refusal::new("prompt", "x", "shorter")), 400),
        (busy, 429),
        (RequestError::Unavailable("no worker".into()), 503),
        (RequestError::Deadline(Duration::from_secs(1)), 504),
        (failed(FailureKind::Internal), 500),
        (failed(FailureKind::Peer), 503),
    ] {
        let server = start(Script { refuse: Some(error.clone()), ..Script::default() }).await;
        let reply = server.completion(json!({ "prompt": "a", "stream": true })).await;
        assert_eq!(reply.status, status, "{}", reply.body);
        assert_eq!(reply.head.contains("retry-after: 7"), status == 429);
        assert_eq!(reply.json()["error"]["message"], error.to_string());
        if status == 429 {
            let error = &reply.json()["error"];
            let kind = (&error["type"], &error["code"]);
            assert_eq!(kind, (&json!("tokens"), &json!("rate_limit_exceeded")));
        }

        let server = start(Script { fail: Some(error.clone()), ..Script::default() }).await;
        assert_eq!(server.completion(json!({ "prompt": "a" })).await.status, status);
        let events = server.completion(json!({ "prompt": "a", "stream": true })).await.events();
        assert_eq!(events.last().unwrap()["error"]["message"], error.to_string());
    }
}

#[tokio::test]
async fn other_models_paths_and_methods() {
    let server = start(answering("x")).await;
    let reply = server.completion(json!({ "prompt": "a", "model": "gpt-9" })).await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(server.get("/v1/nothing").await.status, 404);
    for (path, to) in [
        ("/v1/completions/?a=b", Some("/v1/completions?a=b")),
        ("/v1/nothing/", Some("/v1/nothing")),
        ("//elsewhere.org/", None), // would be another host
        ("/\\elsewhere.org/", None),
    ] {
        let reply = server.post(path, "{}").await;
        let location = to.map(|to| format!("location: {to}\r\n"));
        assert_eq!(reply.status, if to.is_some() { 307 } else { 404 }, "{path}: {}", reply.head);
        let is_there = reply.head.contains("location: ");
        assert_eq!(location.is_some(), is_there, "{path}: {}", reply.head);
        assert!(location.is_none_or(|to| reply.head.contains(&to)), "{path}: {}", reply.head);
    }
    assert_eq!(server.get("/v1/nothing").await.json()["error"]["type"], "invalid_request_error");
    assert_eq!(server.get("/v1/completions").await.status, 405);
    assert!(server.get("/v1/completions").await.json()["error"]["message"].is_string());
}

#[tokio::test]
async fn bodies_are_bounded_and_must_come() {
    let options = ApiOptions {
        body_bytes_max: 1000,
        read_timeout: Duration::from_millis(100),
        ..ApiOptions::new("tiny")
    };
    let server = start_with(answering("x"), options).await;
    let reply = server.completion(json!({ "prompt": "a".repeat(2000) })).await;
    assert_eq!(reply.status, 413);
    let mut slow = request("POST", "/v1/completions", &[b'{'; 500]);
    slow.truncate(slow.len() - 100);
    assert_eq!(server.send(&slow).await.status, 408);
    // A head that never ends: the connection is closed, here by the bound on its time.
    server.send(b"POST /v1/completions HTTP/1.1\r\nHost:").await;
    assert_eq!(server.completion(json!({ "prompt": "a" })).await.status, 200);
}

#[tokio::test]
async fn bodies_share_room() {
    let script = Arc::new(answering("x"));
    let generator = Generator { room: Room::new(128 << 10), ..generator(script.clone()) };
    let server = serving(generator, script, ApiOptions::new("tiny"), None).await;
    let prompt = |bytes: usize| json!({ "prompt": "a".repeat(bytes), "model": "another" });
    for _ in 0..3 {
        let reply = server.completion(prompt(150 << 10)).await;
        assert_eq!(reply.status, 404, "it has room, of which nothing is left behind");
    }
    let reply = server.completion(prompt(250 << 10)).await;
    assert!(reply.status == 503 && reply.head.contains("retry-after: 1"), "{}", reply.head);
    let message = &reply.json()["error"]["message"];
    assert!(message.as_str().unwrap().ends_with("that other calls leave of 131072"), "{message}");
    assert_eq!(server.completion(prompt(50 << 10)).await.status, 404, "short ones always fit");
    let figures = server.get("/metrics").await.body;
    assert!(figures.contains("requests_rejected_total{reason=\"bodies_bytes\"} 1"), "{figures}");
}

#[tokio::test]
async fn garbage_on_the_port_harms_nobody() {
    let server = start(answering("x")).await;
    let mut noise = 1u32;
    for length in [1, 10, 1000, 100_000] {
        let bytes: Vec<u8> = (0..length)
            .map(|_| {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (noise >> 24) as u8
            })
            .chain(*b"\r\n\r\n")
            .collect();
        assert_ne!(server.send(&bytes).await.status, 200);
    }
    assert_eq!(server.completion(json!({ "prompt": "a" })).await.status, 200);
}

/// Told by the answer, not by how a connection happens to break: each caller is told the same.
#[tokio::test]
async fn who_speaks_grpc_is_told_where_it_is_served() {
    let server = start(answering("x")).await;
    let url = format!("http://{}", server.address);
    for _ in 0..50 {
        let channel = tonic::transport::Endpoint::new(url.clone()).unwrap().connect_lazy();
        let asked = tonic_health::pb::HealthCheckRequest::default();
        let refused = HealthClient::new(channel).check(asked).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unimplemented, "{refused}");
        assert!(refused.message().contains("gRPC has one of its own"), "{refused}");
    }
    assert_eq!(server.completion(json!({ "prompt": "a" })).await.status, 200);
}

fn parse_all(body: &[u8]) {
    let usual = Usual::default();
    let _ = (parse_completion(body, &usual), parse_chat(body, &usual));
    let _ = (parse_response(body, &usual), parse_message(body, &usual));
}

proptest! {
    #[test]
    fn no_body_makes_the_parsers_fall(
        bytes in proptest::collection::vec(any::<u8>(), 0..80),
        name in "(prompt|messages|input|text|system|thinking|tools|stop|aqueduct|logit_bias)",
        value in "[\\[\\]{}\":,0-9a-z.\\-]{0,24}",
    ) {
        parse_all(&bytes);
        let body = format!("{{\"prompt\": \"a\", \"{name}\": {value}}}");
        parse_all(body.as_bytes());
    }
}
