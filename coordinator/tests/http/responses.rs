//! `/v1/responses`: the objects, the events and their order.

use aqueduct_coordinator::submit::RequestError;
use serde_json::{Value, json};

use super::client::{Reply, Server, answering, start, text};
use super::script::Script;

async fn responded(server: &Server, fields: Value) -> Reply {
    let mut body = json!({ "input": "Where?", "instructions": "Be brief." });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    server.post("/v1/responses", &body.to_string()).await
}

#[tokio::test]
async fn a_whole_response() {
    let server = start(answering("At Walden")).await;
    let asked = json!({
        "max_output_tokens": 8, "metadata": { "a": "b" }, "top_p": 0.7,
        "parallel_tool_calls": false, "model": "tiny", "aqueduct": { "chunk_tokens": 512 },
    });
    let reply = responded(&server, asked).await.json();
    let part = json!(
        { "type": "output_text", "text": "At Walden", "annotations": [], "logprobs": [] });
    assert_eq!(
        reply["output"],
        json!([{
            "id": "msg_r0000000000000007_0", "type": "message", "role": "assistant",
            "status": "incomplete", "content": [part],
        }])
    );
    assert_eq!(reply["id"], "resp_r0000000000000007");
    assert_eq!((&reply["object"], &reply["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(reply["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    assert_eq!((&reply["metadata"], &reply["top_p"]), (&json!({ "a": "b" }), &json!(0.7)));
    assert_eq!((&reply["instructions"], &reply["tools"]), (&json!("Be brief."), &json!([])));
    assert_eq!(reply["aqueduct"]["chunk_tokens"], 512);
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    assert_eq!(text().decode(&seen.prompt), "system: Be brief.\nuser: Where?\nassistant:");
    assert_eq!((seen.max_tokens, seen.sampling.top_p), (8, 0.7));
}

#[tokio::test]
async fn a_stream_of_events() {
    let server = start(answering("At Walden")).await;
    let reply = responded(
        &server,
        json!({ "stream": true, "input": [
        { "role": "user", "content": "Where?" },
        { "type": "reasoning", "summary": [] },
        { "role": "assistant", "content": [{ "type": "output_text", "text": "Near " }] },
    ] }),
    )
    .await;
    let events = reply.named_events();
    for (idx, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], idx, "{event}");
    }
    let said = |event: &&Value| event["type"] == "response.output_text.delta";
    let text: String =
        events.iter().filter(said).map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(text, "At Walden");
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], "At Walden");
    assert_eq!(events[0]["response"]["status"], "in_progress");
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    let want = "system: Be brief.\nuser: Where?\nassistant: Near \nassistant:";
    assert_eq!(super::client::text().decode(&seen.prompt), want);
}

#[tokio::test]
async fn a_failure_is_the_last_event() {
    let fail = Some(RequestError::Unavailable("all workers are gone".into()));
    let server = start(Script { fail, ..answering("At Walden") }).await;
    let reply = responded(&server, json!({ "stream": true })).await;
    assert_eq!(reply.status, 200);
    let events = reply.named_events();
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.failed"), &json!("failed"))
    );
    assert!(last["response"]["error"]["message"].as_str().unwrap().contains("gone"), "{last}");
}

#[tokio::test]
async fn what_clients_send_by_themselves_is_taken() {
    let server = start(answering("At Walden")).await;
    let hosted = |kind: &str| json!({ "type": kind, "id": "x", "status": "completed" });
    let refusal = json!([{ "type": "refusal", "refusal": "No." }]);
    let asked = json!({
        "include": [
            "web_search_call.action.sources", "web_search_call.results",
            "code_interpreter_call.outputs", "computer_call_output.output.image_url",
            "file_search_call.results", "message.input_image.image_url",
            "reasoning.encrypted_content",
        ],
        "truncation": "auto", "max_tool_calls": 5, "max_output_tokens": 8,
        "input": [
            { "role": "user", "content": "Where?" },
            hosted("web_search_call"),
            hosted("mcp_list_tools"),
            { "role": "assistant", "content": refusal },
        ],
    });
    let reply = responded(&server, asked).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply = reply.json();
    let warnings = reply["aqueduct"]["warnings"].as_array().unwrap();
    let want = "input items of type mcp_list_tools, web_search_call: the model is shown none";
    assert!(warnings.contains(&json!(want)), "{warnings:?}");
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    let want = "system: Be brief.\nuser: Where?\nassistant: No.\nassistant:";
    assert_eq!(text().decode(&seen.prompt), want);

    let check = async |fields: Value, param: &str| {
        let reply = responded(&server, fields).await;
        let seen = &reply.json()["error"]["param"];
        assert_eq!((reply.status, seen), (400, &json!(param)), "{}", reply.body);
    };
    check(json!({ "include": ["file_search_call.secrets"] }), "include").await;
    check(json!({ "truncation": "always" }), "truncation").await;
    check(json!({ "input": [hosted("wizard_call")] }), "input[0].type").await;
    let call = json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": [] });
    check(json!({ "input": [call] }), "input[0].arguments").await;
    let format = json!({ "format": { "type": "json_object" } });
    check(json!({ "text": format, "guided_regex": "a" }), "guided_regex").await;
}
