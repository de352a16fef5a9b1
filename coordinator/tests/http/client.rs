//! A server on a real socket, and the plainest of clients.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aqueduct_coordinator::Room;
use aqueduct_coordinator::generation::Generator;
use aqueduct_coordinator::http::{ApiOptions, ApiState, serve};
use aqueduct_coordinator::keys::Keys;
use aqueduct_coordinator::streams::Streams;
use aqueduct_coordinator::text::TextModel;
use aqueduct_core::{Constraint, Form, TokenId};
use aqueduct_grammar::Vocabulary;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::script::Script;

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) script: Arc<Script>,
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

pub(crate) fn text() -> Arc<TextModel> {
    static TEXT: OnceLock<Arc<TextModel>> = OnceLock::new();
    let load = || {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model");
        let text = TextModel::load(&folder).unwrap().with_prompt_tokens_max(1000);
        Arc::new(text)
    };
    TEXT.get_or_init(load).clone()
}

/// The same with another chat template.
pub(crate) fn text_with_template(template: &str) -> Arc<TextModel> {
    let (folder, here) = (tempfile::tempdir().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")));
    for name in ["config.json", "generation_config.json", "tokenizer.json"] {
        fs::copy(here.join("../model").join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    Arc::new(TextModel::load(folder.path()).unwrap().with_prompt_tokens_max(1000))
}

/// The same with `marks` as tokens of their own, of which some end answers.
pub(crate) fn text_with_marks(template: &str, marks: &[&str], ends: &[&str]) -> Arc<TextModel> {
    let (folder, here) = (tempfile::tempdir().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")));
    let model = here.join("../model");
    let json_of = |name: &str| -> Value {
        serde_json::from_str(&fs::read_to_string(model.join(name)).unwrap()).unwrap()
    };
    let (mut tokenizer, mut config) = (json_of("tokenizer.json"), json_of("config.json"));
    let first = config["vocab_size"].as_u64().unwrap();
    config["vocab_size"] = json!(first + marks.len() as u64);
    let marks = || (first..).zip(marks);
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    added.extend(marks().map(|(id, mark)| {
        json!({
            "id": id, "content": mark, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false,
        })
    }));
    let ends = marks().filter(|(_, mark)| ends.contains(mark)).map(|(id, _)| id);
    let ends = json!({ "eos_token_id": ends.collect::<Vec<_>>() });
    for (name, content) in [
        ("tokenizer.json", tokenizer.to_string()),
        ("config.json", config.to_string()),
        ("generation_config.json", ends.to_string()),
        ("chat_template.jinja", template.to_owned()),
    ] {
        fs::write(folder.path().join(name), content).unwrap();
    }
    Arc::new(TextModel::load(folder.path()).unwrap().with_prompt_tokens_max(1000))
}

/// A chat that asks where, and for `more`.
pub(crate) fn asked(more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Where?" }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A script that answers with the tokens of `answer`.
pub(crate) fn answering(answer: &str) -> Script {
    Script { answer: text().encode(answer, false).unwrap(), ..Script::default() }
}

/// What serves the API of a runtime.
pub(crate) fn generator(runtime: Arc<Script>) -> Generator {
    let (metrics, board, streams) = (Arc::default(), Arc::default(), Streams::new(DEADLINE));
    let room = Room::default();
    Generator { text: text(), runtime, metrics, board, streams, room }
}

/// Who answers so in the words of `text`, and ends there.
pub(crate) async fn saying(text: Arc<TextModel>, answer: &str) -> Server {
    let mut script = answering(answer);
    script.answer.extend(text.eos().first());
    let script = Arc::new(script);
    let generator = Generator { text, ..generator(script.clone()) };
    serving(generator, script, ApiOptions::new("tiny"), None).await
}

pub(crate) async fn start(script: Script) -> Server {
    start_with(script, ApiOptions::new("tiny")).await
}

pub(crate) async fn start_with(script: Script, options: ApiOptions) -> Server {
    start_guarded(script, options, None).await
}

pub(crate) async fn start_guarded(
    script: Script,
    options: ApiOptions,
    keys: Option<Keys>,
) -> Server {
    start_at("127.0.0.1:0", script, options, keys).await
}

/// A server that listens elsewhere.
pub(crate) async fn start_at(
    address: &str,
    script: Script,
    options: ApiOptions,
    keys: Option<Keys>,
) -> Server {
    let script = Arc::new(script);
    let listener = TcpListener::bind(address).await.unwrap();
    let state = ApiState::guarded(generator(script.clone()), options, keys);
    listening(listener, state, script)
}

pub(crate) async fn serving(
    generator: Generator,
    script: Arc<Script>,
    options: ApiOptions,
    keys: Option<Keys>,
) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listening(listener, ApiState::guarded(generator, options, keys), script)
}

fn listening(listener: TcpListener, state: ApiState, script: Arc<Script>) -> Server {
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(state, listener, std::future::pending()));
    Server { address, script }
}

impl Server {
    pub(crate) async fn post(&self, path: &str, body: &str) -> Reply {
        self.send(&request("POST", path, body.as_bytes())).await
    }

    pub(crate) async fn completion(&self, body: Value) -> Reply {
        self.post("/v1/completions", &body.to_string()).await
    }

    pub(crate) async fn chat(&self, body: Value) -> Reply {
        self.post("/v1/chat/completions", &body.to_string()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(&request("GET", path, b"")).await
    }

    /// Whatever comes back until the server closes the connection.
    pub(crate) async fn send(&self, bytes: &[u8]) -> Reply {
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            // A server that has heard enough may close before everything is written.
            let _ = stream.write_all(bytes).await;
            let mut reply = Vec::new();
            let _ = stream.read_to_end(&mut reply).await;
            reply
        };
        let reply = tokio::time::timeout(DEADLINE, exchange).await.expect("no answer in time");
        parse(&String::from_utf8(reply).unwrap())
    }
}

pub(crate) fn request(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    request_with("", method, path, body)
}

/// The same with headers, each a line with its end.
pub(crate) fn request_with(headers: &str, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn parse(reply: &str) -> Reply {
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((reply, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunk(body) } else { body.to_owned() };
    Reply { status, head: head.to_lowercase(), body }
}

fn unchunk(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body.push_str(&after[..size]);
        rest = after[size..].trim_start_matches("\r\n");
    }
    body
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.body))
    }

    /// The objects of an event stream, which must end as it should.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        let mut data: Vec<&str> = data.collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.into_iter().map(|one| serde_json::from_str(one).unwrap()).collect()
    }

    /// The events of a stream, each with the name that it was sent under.
    pub(crate) fn named_events(&self) -> Vec<Value> {
        let blocks = self.body.split("\n\n").filter(|block| block.contains("data: "));
        let event = |block: &str| {
            let (name, data) = block.trim().split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
            data
        };
        blocks.map(event).collect()
    }
}

/// Whether what the request that was asked for last wants of answers allows `answer`, to its end.
pub(crate) fn allows(server: &Server, text: &TextModel, answer: &str) -> bool {
    follows(server, &text.encode(answer, false).unwrap())
}

/// The same of tokens.
pub(crate) fn follows(server: &Server, tokens: &[TokenId]) -> bool {
    let seen = server.script.seen.lock().unwrap();
    let Constraint { form, vocabulary } = seen.last().unwrap().constraint.clone().unwrap();
    let mut follower = Vocabulary::new(&vocabulary).unwrap().compile("form", &form).unwrap();
    let allowed =
        |token: &TokenId| follower.mask().unwrap().allows(*token) && follower.take(*token).is_ok();
    tokens.iter().all(allowed) && follower.mask().unwrap().may_end()
}

/// What the request that was asked for last wants of answers.
pub(crate) fn last_form(server: &Server) -> Form {
    let seen = server.script.seen.lock().unwrap();
    seen.last().unwrap().constraint.clone().map_or_else(Form::default, |asked| asked.form)
}
