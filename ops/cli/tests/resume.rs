//! A server that is killed and started again in the middle of streams: whoever reads them sees
//! one stream each, of the bits that there would have been.

mod binary;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use binary::{Running, aqueduct, model, wait_for};
use serde_json::{Value, json};

/// The shipped model, with a chat template that teaches tools.
fn model_with_tools(folder: &Path) -> PathBuf {
    let folder = folder.join("model");
    std::fs::create_dir(&folder).unwrap();
    for name in ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"] {
        std::fs::copy(model().join(name), folder.join(name)).unwrap();
    }
    let template = model().join("../ops/openai/tools.jinja");
    std::fs::copy(template, folder.join("chat_template.jinja")).unwrap();
    folder
}

/// A server that keeps a journal, always at the same ports.
struct Server {
    folder: tempfile::TempDir,
    model: PathBuf,
    /// `None` between two lives.
    running: Option<Running>,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = model_with_tools(folder.path());
        let mut server = Self { folder, model, running: None };
        server.run("127.0.0.1:0", "127.0.0.1:0");
        server
    }

    fn run(&mut self, http: &str, grpc: &str) {
        let mut command = aqueduct();
        // What was computed is to be computed again.
        command.args(["serve", "--workers", "2", "--threads", "1", "--snapshot-bytes", "0"]);
        command.args(["--chunk", "64", "--local", "16", "--heavy", "16"]);
        command.args(["--http", http, "--grpc", grpc, "--model"]).arg(&self.model);
        command.arg("--data-dir").arg(self.folder.path().join("data"));
        let running = Running::start(&mut command);
        running.wait_until_ready();
        self.running = Some(running);
    }

    fn get(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    fn address(&self, field: &str) -> String {
        self.get().address(field).to_owned()
    }

    /// kill -9, and started again.
    fn kill(&mut self) {
        let (http, grpc) = (self.address("http"), self.address("grpc"));
        let killed = self.running.take().unwrap();
        killed.signal("KILL");
        killed.ended();
        self.run(&http, &grpc);
    }
}

fn book(characters: usize) -> String {
    let book = std::fs::read_to_string(model().join("../ops/demo/walden.txt")).unwrap();
    book.chars().take(characters).collect()
}

/// What the SDK is told, but for figures and progress; `fault` happens when it `is_time`.
fn told(server: &mut Server, is_time: fn(&Value) -> bool, fault: fn(&mut Server)) -> Vec<Value> {
    let file = server.folder.path().join("prompt.txt");
    std::fs::write(&file, book(12_000)).unwrap();
    let url = format!("http://{}", server.address("grpc"));
    let mut caller = aqueduct()
        .args(["generate", "--server", &url, "--json", "--temperature", "0.8", "--seed", "11"])
        .args(["--chunk", "64", "--local", "16", "--heavy", "16", "--max-tokens", "300"])
        .args(["--stop", "no such words", "--file"])
        .arg(&file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut told, mut fault) = (Vec::new(), Some(fault));
    for line in BufReader::new(caller.stdout.take().unwrap()).lines() {
        let row: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if let Some(fault) = fault.take_if(|_| is_time(&row)) {
            fault(server);
        }
        match row["event"].as_str().unwrap() {
            "progress" => {}
            "accepted" => told.push(json!(["accepted", row["prompt_tokens"], row["seed"]])),
            "summary" => told.push(json!(["summary", row["output_tokens"], row["retained_mass"]])),
            _ => told.push(row),
        }
    }
    assert!(caller.wait().unwrap().success());
    told
}

#[test]
fn the_sdk_goes_on_where_it_was() {
    let mut server = Server::start();
    let want = told(&mut server, |_| false, |_| {});
    assert!(want.len() > 100, "{want:?}");
    let in_prefill: fn(&Value) -> bool =
        |row| row["event"] == "progress" && row["chunks_done"].as_u64() > Some(4);
    let in_decode: fn(&Value) -> bool =
        |row| row["event"] == "token" && row["token_idx"].as_u64() > Some(10);
    for is_time in [in_prefill, in_decode] {
        assert_eq!(told(&mut server, is_time, Server::kill), want);
        assert!(server.get().metric("streams_resumed_total") >= 1.0, "it was not cut");
    }
}

/// An event of a stream: its id and its data.
type Event = (String, String);

/// Reads events of a stream, `most` at most.
fn events(stream: impl Read, most: usize) -> Vec<Event> {
    let (mut events, mut event) = (Vec::new(), Event::default());
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { break };
        if let Some(id) = line.strip_prefix("id: ") {
            event.0 = id.to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            event.1 = data.to_owned();
        } else if line.is_empty() && !event.1.is_empty() {
            events.push(std::mem::take(&mut event));
            if events.len() == most {
                break;
            }
        }
    }
    events
}

/// What each of two completions was told, in order, and what was told of both.
fn by_completion(events: &[Event]) -> Vec<Vec<Value>> {
    let mut all = vec![Vec::new(); 3];
    for (_, data) in events {
        let mut chunk = serde_json::from_str(data).unwrap_or_else(|_| json!({ "end": data }));
        let calls = chunk.pointer_mut("/choices/0/delta/tool_calls");
        for call in calls.and_then(Value::as_array_mut).into_iter().flatten() {
            call["id"] = Value::Null; // each request has its own
        }
        match chunk["choices"][0]["index"].as_u64() {
            Some(index) => all[index as usize].push(chunk["choices"].clone()),
            None => all[2].push(json!([chunk["end"], chunk["usage"]["completion_tokens"]])),
        }
    }
    all
}

fn go_on(server: &Server, last: &Event) -> Vec<Event> {
    let answer = last.0.split(':').next().unwrap();
    let mut stream = TcpStream::connect(server.address("http")).unwrap();
    write!(
        stream,
        "GET /v1/requests/{answer}/events HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         last-event-id: {}\r\n\r\n",
        last.0
    )
    .unwrap();
    events(stream, usize::MAX)
}

/// A stream whose server is killed, as if nothing had happened; and one whose caller comes back
/// when everything is over, to a server that has read of it.
fn check(path: &str, body: Value) {
    let mut server = Server::start();
    let body = body.to_string();
    let whole = events(server.get().send("POST", path, &body), usize::MAX);
    assert!(whole.len() > 60, "{whole:?}");
    let want = by_completion(&whole);
    for cut in [2, 25] {
        let stream = server.get().send("POST", path, &body);
        let before = events(stream.try_clone().unwrap(), cut);
        assert_eq!(before.len(), cut);
        server.kill();
        let after = go_on(&server, before.last().unwrap());
        assert_eq!(by_completion(&[before.clone(), after].concat()), want, "cut behind {cut}");
        server.kill();
        let after = go_on(&server, before.last().unwrap());
        assert_eq!(by_completion(&[before, after].concat()), want, "read again behind {cut}");
    }
}

#[test]
fn completions_go_on_behind_the_last_event() {
    check(
        "/v1/completions",
        json!({
            "prompt": book(6_000), "max_tokens": 60, "n": 2, "seed": 5, "logprobs": 1,
            "temperature": 0.8, "stop": ["no such words"], "ignore_eos": true, "stream": true,
            "stream_options": { "include_usage": true }, "aqueduct": { "resumable": true },
        }),
    );
}

#[test]
fn calls_of_tools_go_on_behind_the_last_event() {
    let place = json!({
        "type": "object",
        "properties": { "place": { "type": "string", "maxLength": 60, "minLength": 60 } },
        "required": ["place"],
        "additionalProperties": false,
    });
    let tool =
        json!({ "type": "function", "function": { "name": "weather", "parameters": place } });
    check(
        "/v1/chat/completions",
        json!({
            "messages": [{ "role": "user", "content": book(3_000) }], "max_tokens": 300, "n": 2,
            "tools": [tool], "tool_choice": "required", "seed": 5, "temperature": 0.8,
            "logprobs": true, "stream": true, "stream_options": { "include_usage": true },
            "aqueduct": { "resumable": true },
        }),
    );
}

#[test]
fn nobody_comes_back_for_ever() {
    let server = Running::serve(&["--policy", "dense", "--chunk", "256", "--resume-grace-s", "1"]);
    let body = json!({
        "prompt": book(200_000), "max_tokens": 4, "stream": true, "aqueduct": { "resumable": true },
    });
    let stream = server.send("POST", "/v1/completions", &body.to_string());
    wait_for("the request", || (server.metric("num_requests_running") > 0.0).then_some(()));
    drop(stream);
    wait_for("its end", || (server.metric("num_requests_running") == 0.0).then_some(()));
}
