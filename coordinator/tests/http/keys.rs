//! Who shows a key may call, as much as the key allows.

use std::path::PathBuf;

use aqueduct_coordinator::http::ApiOptions;
use aqueduct_coordinator::keys::{KeyFile, KeyLimits, Keys, Secret};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{DEADLINE, Reply, Server, answering, request_with, start_guarded};
use super::script::Script;

/// A server, and the file of those who may call.
struct Guarded {
    server: Server,
    file: KeyFile,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

/// With a key for each of `limits`.
async fn start(script: Script, limits: &[KeyLimits]) -> (Guarded, Vec<Secret>) {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut file) = (folder.path().join("keys.json"), KeyFile::default());
    let make = |limits: &KeyLimits| {
        let secret = Secret::draw().unwrap();
        file.add(&secret, "alice", false, *limits).unwrap();
        secret
    };
    let secrets = limits.iter().map(make).collect();
    file.write(&path).unwrap();
    let keys = Keys::open(&path).unwrap();
    let server = start_guarded(script, ApiOptions::new("tiny"), Some(keys)).await;
    (Guarded { server, file, path, _folder: folder }, secrets)
}

fn call(authorization: &str, method: &str, path: &str, body: &Value) -> Vec<u8> {
    request_with(authorization, method, path, body.to_string().as_bytes())
}

fn bearer(key: &str) -> String {
    format!("Authorization: Bearer {key}\r\n")
}

impl Guarded {
    async fn complete(&self, authorization: &str, body: Value) -> Reply {
        self.server.send(&call(authorization, "POST", "/v1/completions", &body)).await
    }

    async fn rejected(&self, reason: &str) -> String {
        let metrics = self.server.get("/metrics").await.body;
        let line = format!("requests_rejected_total{{reason=\"{reason}\"}} ");
        let found = metrics.lines().find_map(|seen| seen.strip_prefix(&line));
        found.unwrap_or("0").to_owned()
    }
}

#[tokio::test]
async fn nobody_calls_without_a_key_that_is_good() {
    let (mut guarded, secrets) = start(answering("words"), &[KeyLimits::default(); 2]).await;
    let (good, other) = (secrets[0].reveal(), secrets[1].reveal());
    let ask = json!({ "prompt": "a" });
    assert_eq!(guarded.complete(&bearer(good), ask.clone()).await.status, 200);
    assert_eq!(guarded.complete(&bearer(good).to_lowercase(), ask.clone()).await.status, 200);

    let mut said = Vec::new();
    let mut check = async |authorization: String| {
        let reply = guarded.complete(&authorization, ask.clone()).await;
        assert_eq!(reply.status, 401, "{authorization}");
        assert!(reply.head.contains("www-authenticate: bearer"), "{}", reply.head);
        assert!(reply.head.contains("x-request-id: "), "{}", reply.head);
        let error = reply.json()["error"].clone();
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["code"], "invalid_api_key");
        assert!(!reply.body.contains(good), "the key is not said again");
        said.push(error["message"].clone());
    };
    check(String::new()).await;
    check(format!("Authorization: Basic {good}\r\n")).await;
    check(bearer("none")).await;
    check(bearer("")).await;
    // The right id with another secret, and the reverse; one digit too few, and one too many.
    let (head, _) = good.rsplit_once('_').unwrap();
    let (_, tail) = other.rsplit_once('_').unwrap();
    check(bearer(&format!("{head}_{tail}"))).await;
    check(bearer(&good[..good.len() - 1])).await;
    check(bearer(&format!("{good}0"))).await;
    check(bearer(&"x".repeat(10_000))).await;
    assert_eq!(guarded.rejected("key_missing").await, "3");
    assert_eq!(guarded.rejected("key_wrong").await, "5");
    let models = async |key: String| {
        guarded.server.send(&call(&key, "GET", "/v1/models", &json!({}))).await.status
    };
    assert_eq!((models(String::new()).await, models(bearer(good)).await), (401, 200));
    assert_eq!(guarded.server.get("/health").await.status, 200, "probes have no keys");

    guarded.file.revoke(secrets[0].id().unwrap()).unwrap();
    guarded.file.write(&guarded.path).unwrap();
    let revoked = async {
        loop {
            let reply = guarded.complete(&bearer(good), ask.clone()).await;
            if reply.status == 401 {
                return reply;
            }
        }
    };
    let reply = tokio::time::timeout(DEADLINE, revoked).await.expect("the file is read again");
    assert_eq!(reply.json()["error"]["message"], said[4], "the caller cannot tell why");
    assert_eq!(guarded.rejected("key_revoked").await, "1");
    assert_eq!(guarded.complete(&bearer(other), ask.clone()).await.status, 200);

    std::fs::write(&guarded.path, "half a f").unwrap();
    assert_eq!(guarded.complete(&bearer(other), ask).await.status, 200);
}

#[tokio::test]
async fn a_key_has_so_many_requests_at_once() {
    let limits = KeyLimits { requests: Some(1), ..KeyLimits::default() };
    let script = Script { hang: true, ..Script::default() };
    let (guarded, secrets) = start(script, &[limits, limits]).await;
    let open = async |key: &str| {
        let ask = json!({ "prompt": "a", "stream": true });
        let mut stream = TcpStream::connect(guarded.server.address).await.unwrap();
        stream.write_all(&call(&bearer(key), "POST", "/v1/completions", &ask)).await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        (stream, String::from_utf8(head.to_vec()).unwrap())
    };
    let (first, head) = open(secrets[0].reveal()).await;
    assert_eq!(head, "HTTP/1.1 200");
    let reply = guarded.complete(&bearer(secrets[0].reveal()), json!({ "prompt": "a" })).await;
    assert_eq!(reply.status, 429);
    assert!(reply.head.contains("retry-after: 1"), "{}", reply.head);
    let error = &reply.json()["error"];
    let shape = (&error["code"], &error["type"]);
    assert_eq!(shape, (&json!("rate_limit_exceeded"), &json!("requests")));
    let (_second, head) = open(secrets[1].reveal()).await;
    assert_eq!(head, "HTTP/1.1 200", "another key is another account");
    drop(first);
    let again = async { while open(secrets[0].reveal()).await.1 != "HTTP/1.1 200" {} };
    tokio::time::timeout(DEADLINE, again).await.expect("its place is free again");
    assert_ne!(guarded.rejected("key_requests").await, "0");
}

#[tokio::test]
async fn a_key_has_so_many_tokens() {
    let tokens = KeyLimits { tokens_per_minute: Some(20), ..KeyLimits::default() };
    let prompts = KeyLimits { prompt_tokens: Some(4), ..KeyLimits::default() };
    let (guarded, secrets) = start(answering("some words more"), &[tokens, prompts]).await;
    let ask = |count: usize| json!({ "prompt": vec![5; count], "max_tokens": 3 });
    let key = bearer(secrets[0].reveal());
    let reply = guarded.complete(&key, ask(16)).await;
    assert_eq!((reply.status, &reply.json()["usage"]["total_tokens"]), (200, &json!(19)));
    let reply = guarded.complete(&key, ask(10)).await;
    assert_eq!(reply.status, 429, "{}", reply.body);
    let error = &reply.json()["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("tokens"), &json!("rate_limit_exceeded")));
    // Nine too many, of which one comes back in three seconds.
    let after = reply.head.lines().find_map(|line| line.strip_prefix("retry-after: ")).unwrap();
    assert!((20..=27).contains(&after.trim().parse::<u32>().unwrap()), "{after}");
    assert_eq!(guarded.rejected("key_tokens").await, "1");

    // What is paid for is told again, whatever is owed.
    let (guarded, secrets) = start(answering("some words more"), &[tokens, prompts]).await;
    let key = bearer(secrets[0].reveal());
    let keyed = async |key: &str, more: &str, count: usize| {
        guarded.complete(&format!("{key}{more}"), ask(count)).await
    };
    let mine = "idempotency-key: mine\r\n";
    let first = keyed(&key, mine, 19).await;
    assert_eq!(first.status, 200, "{}", first.body);
    assert_eq!(keyed(&key, "", 1).await.status, 429, "more is owed than a minute brings");
    let again = keyed(&key, mine, 19).await;
    assert_eq!((again.status, again.body), (200, first.body));

    let key = bearer(secrets[1].reveal());
    assert_eq!(guarded.complete(&key, ask(4)).await.status, 200);
    let reply = guarded.complete(&key, ask(5)).await;
    assert_eq!(reply.status, 400, "no other time would be better");
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
    assert!(reply.body.contains("at most 4, the limit of this API key"), "{}", reply.body);
}

#[tokio::test]
async fn an_answer_is_its_callers_alone() {
    let (guarded, secrets) = start(answering("words"), &[KeyLimits::default(); 2]).await;
    let (own, other) = (bearer(secrets[0].reveal()), bearer(secrets[1].reveal()));
    let asked = json!({ "prompt": "a", "stream": true, "aqueduct": { "resumable": true } });
    let reply = guarded.complete(&own, asked).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let answer = "/v1/requests/r0000000000000007";
    let ask = async |key: &str, method: &str, path: &str| {
        guarded.server.send(&call(key, method, path, &json!({}))).await.status
    };
    let events = format!("{answer}/events");
    assert_eq!(ask(&other, "GET", &events).await, 404);
    assert_eq!(ask(&other, "DELETE", answer).await, 404);
    assert_eq!(ask("", "GET", &events).await, 401);
    assert_eq!(ask(&own, "GET", &events).await, 200);
    let seen = guarded.server.script.seen.lock().unwrap()[0].clone();
    assert_eq!(Some(seen.telling.holder.as_str()), secrets[0].id());
}

#[tokio::test]
async fn a_list_of_prompts_begins_as_a_whole_or_not_at_all() {
    let most = |requests: Option<u32>, tokens_per_minute: Option<u64>| KeyLimits {
        requests,
        tokens_per_minute,
        ..KeyLimits::default()
    };
    let limits = [most(Some(1), None), most(None, Some(8)), most(Some(2), None)];
    let (guarded, keys) = start(answering("x"), &limits).await;
    let prompts = json!({ "prompt": [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]], "max_tokens": 1 });
    let ask =
        async |key: usize| guarded.complete(&bearer(keys[key].reveal()), prompts.clone()).await;
    let reply = ask(0).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("prompt")));
    // More than a minute brings is let in when nothing is owed, as one prompt is.
    assert_eq!(ask(1).await.status, 200);
    assert_eq!(ask(2).await.status, 200);
    let seen = guarded.server.script.seen.lock().unwrap().len();
    assert_eq!(ask(1).await.status, 429);
    assert_eq!(guarded.server.script.seen.lock().unwrap().len(), seen, "none of them began");
}
