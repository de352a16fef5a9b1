//! Streams that callers come back to, here and with a server that was started again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aqueduct_coordinator::generation::Generator;
use aqueduct_coordinator::http::ApiOptions;
use aqueduct_coordinator::streams::Streams;
use aqueduct_coordinator::submit::RequestError;
use aqueduct_coordinator::text::TextModel;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{DEADLINE, Reply, Server, generator, request, serving, text};
use super::script::Script;
use super::service::until;
use super::tools::text_with_tools;

const ANSWER: &str = "/v1/requests/r0000000000000007";
const CALL: &str = "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, 2], \
                    \"y\": \"é — \\\"so\\\"\"}}\n</tool_call> — é";
const PARAMETERS: &str = "Let me see.\n<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n\
                          <parameter=y>\né — so\n</parameter>\n</function>\n</tool_call> — é";

/// An event of a stream: its id and its data.
type Told = (String, String);

fn script(answer: &str) -> Script {
    Script { answer: text().encode(answer, false).unwrap(), ..Script::default() }
}

/// A server whose answers wait so long for their callers.
async fn start(script: Script, text: Arc<TextModel>, grace: Duration) -> Server {
    let streams = Streams::new(grace);
    let script = Arc::new(script);
    let generator = Generator { text, streams, ..generator(script.clone()) };
    serving(generator, script, ApiOptions::new("tiny"), None).await
}

async fn serve(script: Script) -> Server {
    start(script, text(), DEADLINE).await
}

/// A call, with where its caller stands.
fn call(method: &str, path: &str, last: &str, body: &str) -> Vec<u8> {
    let plain = String::from_utf8(request(method, path, body.as_bytes())).unwrap();
    let head = format!("HTTP/1.1\r\nlast-event-id: {last}\r\n");
    plain.replacen("HTTP/1.1\r\n", &head, 1).into_bytes()
}

fn told(reply: &Reply) -> Vec<Told> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let field = |event: &str, name: &str| {
        let line = event.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().to_owned()
    };
    let events = reply.body.split_terminator("\n\n");
    events.map(|event| (field(event, "id: "), field(event, "data: "))).collect()
}

/// What each completion comes to: every delta, log probability and end, in order.
fn completions(told: &[Told]) -> Vec<Vec<Value>> {
    let mut all = vec![Vec::new(); 2];
    for (_, data) in told.iter().filter(|(_, data)| data != "[DONE]") {
        let chunk: Value = serde_json::from_str(data).unwrap();
        for choice in chunk["choices"].as_array().unwrap() {
            all[choice["index"].as_u64().unwrap() as usize].push(choice.clone());
        }
    }
    all
}

/// Cuts an answer behind each of its events: what follows is the rest, from who has told it and
/// from who was started since and goes through the completions in another order.
async fn any_cut_gives_the_same_whole(
    path: &str,
    body: Value,
    script: Script,
    text: Arc<TextModel>,
) {
    let tokens = script.answer.clone();
    let server = start(script, text.clone(), DEADLINE).await;
    let whole = told(&server.post(path, &body.to_string()).await);
    assert_eq!(whole.last().unwrap().1, "[DONE]");
    let asked = server.script.seen.lock().unwrap()[0].clone();
    let next = Script { answer: tokens, remembers: Some(asked), ..Script::default() };
    let next = start(next, text, DEADLINE).await;
    for cut in 0..whole.len() - 1 {
        let (before, after) = whole.split_at(cut + 1);
        let last = &before[cut].0;
        let rest = server.send(&call("GET", &format!("{ANSWER}/events"), last, "")).await;
        assert_eq!(told(&rest), after, "behind {last}");
        let again = server.send(&call("POST", path, last, &body.to_string())).await;
        assert_eq!(told(&again), after, "the same call once more, behind {last}");
        let rest = told(&next.send(&call("GET", &format!("{ANSWER}/events"), last, "")).await);
        let joined = [before, &rest].concat();
        assert_eq!(completions(&joined), completions(&whole), "elsewhere, behind {last}");
        assert_eq!(joined.last(), whole.last());
        let is_usage = |told: &&Told| told.1.contains("\"choices\":[]");
        assert_eq!(joined.iter().filter(is_usage).count(), 1, "behind {last}");
    }
    let from_the_beginning = server.get(&format!("{ANSWER}/events")).await;
    assert_eq!(told(&from_the_beginning), whole);
}

fn resumable(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    body["aqueduct"] = json!({ "resumable": true });
    body["n"] = json!(2);
    body["max_tokens"] = json!(200);
    body
}

#[tokio::test]
async fn any_cut_of_a_completion() {
    let body = json!({ "prompt": "a", "logprobs": 1, "stop": ["Walden Pond", "zz"] });
    let script = script("I went — é — to the woods, to Walden Po, to Walden Pond and home");
    any_cut_gives_the_same_whole("/v1/completions", resumable(body), script, text()).await;
}

#[tokio::test]
async fn any_cut_of_a_chat() {
    let messages = json!([{ "role": "user", "content": "?" }]);
    let body = json!({ "messages": messages, "logprobs": true, "top_logprobs": 1 });
    let script = script("At Walden — é.");
    any_cut_gives_the_same_whole("/v1/chat/completions", resumable(body), script, text()).await;
}

#[tokio::test]
async fn any_cut_of_a_chat_with_tools() {
    let properties = json!({ "x": { "type": "number" }, "y": { "type": "string" } });
    let parameters = json!({ "type": "object", "properties": properties });
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": parameters } });
    let mut body = json!({ "messages": [{ "role": "user", "content": "?" }], "tools": [tool] });
    for (template, answer) in [("tools.jinja", CALL), ("parameters.jinja", PARAMETERS)] {
        for parallel in [true, false] {
            body["parallel_tool_calls"] = json!(parallel);
            let (text, script) = (text_with_tools(template), script(answer));
            let body = resumable(body.clone());
            any_cut_gives_the_same_whole("/v1/chat/completions", body, script, text).await;
        }
    }
}

/// Whoever reads an answer whose server stops has not heard all of it, whatever came last.
#[tokio::test]
async fn an_error_is_no_place_to_come_back_to() {
    let path = "/v1/chat/completions";
    let body = resumable(json!({ "messages": [{ "role": "user", "content": "?" }] }));
    let whole = serve(script("At Walden — é.")).await;
    let whole = told(&whole.post(path, &body.to_string()).await);
    for fail in [RequestError::Stopping, RequestError::TakenOver] {
        let first = serve(Script { fail: Some(fail), ..script("At Walden — é.") }).await;
        let mut before = told(&first.post(path, &body.to_string()).await);
        let last: Vec<_> = before.split_off(before.len() - 2);
        assert!(last[0].1.contains("\"error\""), "{last:?}");
        assert_eq!(last[1].1, "[DONE]");
        assert_eq!([&last[0].0, &last[1].0], ["", ""], "neither has an id");
        let (id, _) = before.last().expect("who speaks was said");
        let asked = first.script.seen.lock().unwrap()[0].clone();
        let next = Script { remembers: Some(asked), ..script("At Walden — é.") };
        let next = serve(next).await;
        let rest = told(&next.send(&call("GET", &format!("{ANSWER}/events"), id, "")).await);
        assert_eq!(completions(&[before, rest].concat()), completions(&whole));
    }
}

/// What was counted when it was told first is not counted again, and took no time here.
#[tokio::test]
async fn of_an_answer_that_is_told_again_only_what_is_new_is_counted() {
    let mut body = resumable(json!({ "prompt": "a" }));
    body["n"] = json!(1);
    let text = "I went to the woods";
    let first = serve(script(text)).await;
    told(&first.completion(body).await);
    let asked = first.script.seen.lock().unwrap()[0].clone();
    let check = async |late: usize, counts: [&str; 3]| {
        let next = Script { remembers: Some(asked.clone()), late, ..script(text) };
        let next = serve(next).await;
        told(&next.get(&format!("{ANSWER}/events")).await);
        let metrics = next.get("/metrics").await.body;
        let samples = ["time_to_first_token", "e2e_request_latency", "request_prefill_time"];
        let none = samples.map(|name| format!("{name}_seconds_count 0"));
        let none = none.iter().map(String::as_str);
        let none = none.chain(["prompt_tokens_total 0", "prefix_cache_queries_total 0"]);
        let wanted = none.chain(["retained_mass_count 0", "streams_resumed_total 1"]).chain(counts);
        for want in wanted {
            let is_there = metrics.lines().any(|line| line.ends_with(want));
            assert!(is_there, "{want} of {late} updates: {metrics}");
        }
        let is_counted = metrics.contains("outcome=\"Finished\"} 1");
        assert_eq!(is_counted, late > 0, "{metrics}");
    };
    let latency = "inter_token_latency_seconds_count";
    let none = format!("{latency} 0");
    check(0, ["generation_tokens_total 0", &none, "clamps_total 0"]).await;
    let one = format!("{latency} 1");
    check(3, ["generation_tokens_total 2", &one, "clamps_total 0"]).await;
}

/// Begins a stream that never ends, and reads its first byte.
async fn begin(server: &Server) -> TcpStream {
    let body = resumable(json!({ "messages": [{ "role": "user", "content": "?" }] })).to_string();
    let mut caller = TcpStream::connect(server.address).await.unwrap();
    let request = request("POST", "/v1/chat/completions", body.as_bytes());
    caller.write_all(&request).await.unwrap();
    caller.read_u8().await.unwrap();
    caller
}

async fn status(server: &Server, method: &str, path: &str) -> u16 {
    server.send(&request(method, path, b"")).await.status
}

#[tokio::test]
async fn a_caller_that_goes_may_come_back_or_cancel() {
    let server = serve(Script { hang: true, ..Script::default() }).await;
    let mut caller = begin(&server).await;
    let mut head = vec![0; 512];
    let bytes = caller.read(&mut head).await.unwrap();
    let head = String::from_utf8_lossy(&head[..bytes]).into_owned();
    let name = ANSWER.strip_prefix("/v1/requests/").unwrap();
    assert!(head.contains(&format!("aqueduct-answer-id: chatcmpl-{name}\r\n")), "{head}");
    drop(caller);
    let mut back = TcpStream::connect(server.address).await.unwrap();
    back.write_all(&request("GET", &format!("{ANSWER}/events"), b"")).await.unwrap();
    let mut head = [0; 12];
    back.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    assert_eq!(server.script.cancelled.load(Ordering::SeqCst), 0);
    assert_eq!(status(&server, "DELETE", ANSWER).await, 204);
    until(&server.script.cancelled, 1).await;
    let mut rest = String::new();
    back.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("request_not_found"), "{rest}");
    assert_eq!(status(&server, "GET", &format!("{ANSWER}/events")).await, 404);
    assert_eq!(status(&server, "DELETE", ANSWER).await, 404);
    let metrics = server.get("/metrics").await.body;
    assert!(metrics.contains("streams_resumed_total 1"), "{metrics}");
}

/// Also one of which more is known than is on the tape.
#[tokio::test]
async fn an_answer_that_has_ended_is_forgotten_when_it_is_cancelled() {
    let first = serve(script("At Walden")).await;
    told(&first.completion(resumable(json!({ "prompt": "a" }))).await);
    let asked = first.script.seen.lock().unwrap()[0].clone();
    let written = serve(Script { remembers: Some(asked), ..script("At Walden") }).await;
    for server in [first, written] {
        assert_eq!(status(&server, "GET", &format!("{ANSWER}/events")).await, 200);
        assert_eq!(status(&server, "DELETE", ANSWER).await, 204);
        assert_eq!(status(&server, "GET", &format!("{ANSWER}/events")).await, 404);
        assert_eq!(status(&server, "DELETE", ANSWER).await, 404);
    }
}

#[tokio::test]
async fn who_does_not_come_back_in_time_has_cancelled() {
    let script = Script { hang: true, ..Script::default() };
    let server = start(script, text(), Duration::from_millis(1)).await;
    drop(begin(&server).await);
    until(&server.script.cancelled, 1).await;
    assert_eq!(status(&server, "GET", &format!("{ANSWER}/events")).await, 404);
}

#[tokio::test]
async fn the_later_reader_takes_over() {
    let server = serve(Script { hang: true, ..Script::default() }).await;
    let mut first = begin(&server).await;
    let mut second = TcpStream::connect(server.address).await.unwrap();
    second.write_all(&request("GET", &format!("{ANSWER}/events"), b"")).await.unwrap();
    let mut rest = String::new();
    let read = first.read_to_string(&mut rest);
    tokio::time::timeout(DEADLINE, read).await.expect("both read").unwrap();
    assert!(rest.contains("\"code\":\"taken_over\""), "{rest}");
    assert!(rest.contains("[DONE]"), "{rest}");
    assert_eq!(server.script.cancelled.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn what_cannot_be_come_back_to_is_refused() {
    let server = serve(script("x")).await;
    let check = async |body: Value, param: &str| {
        let reply = server.completion(body).await;
        assert_eq!((reply.status, reply.json()["error"]["param"].as_str()), (400, Some(param)));
    };
    let asked = json!({ "resumable": true });
    check(json!({ "prompt": "a", "aqueduct": asked }), "aqueduct.resumable").await;
    let two = json!({ "prompt": ["a", "b"], "stream": true, "aqueduct": asked });
    check(two, "prompt").await;
    let echo = json!({ "prompt": "a", "stream": true, "echo": true, "aqueduct": asked });
    check(echo, "echo").await;

    let body = resumable(json!({ "prompt": "a" }));
    told(&server.completion(body).await);
    let path = format!("{ANSWER}/events");
    let check = async |path: &str, last: &str, status: u16, code: Value| {
        let reply = server.send(&call("GET", path, last, "")).await;
        assert_eq!(reply.status, status, "{}", reply.body);
        assert_eq!(reply.json()["error"]["code"], code);
    };
    check(&path, "7", 400, Value::Null).await;
    check(&path, "cmpl-r0000000000000007:1", 400, Value::Null).await;
    let reply = server.send(&call("GET", &path, "cmpl-r0000000000000007:1", "")).await;
    assert_eq!(reply.json()["error"]["param"], "last-event-id", "{}", reply.body);
    // Both have ended, with one token and their ends: there is no event behind the third.
    check(&path, "cmpl-r0000000000000007:999999.1", 400, Value::Null).await;
    check(&path, "cmpl-r0000000000000007:1.4", 400, Value::Null).await;
    let last = call("GET", &path, "cmpl-r0000000000000007:1.3", "");
    assert_eq!(server.send(&last).await.status, 200);
    check(&path, "cmpl-r0000000000000008:1.1", 400, Value::Null).await;
    check("/v1/requests/7/events", "", 400, Value::Null).await;
    let unknown = "/v1/requests/cmpl-r0000000000000008/events";
    check(unknown, "", 404, json!("request_not_found")).await;
}
