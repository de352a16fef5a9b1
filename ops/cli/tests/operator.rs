//! What those who look after a cluster see of it, and what they can do: against processes.

mod binary;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Output, Stdio};

use binary::{Running, aqueduct, coordinator, model, run, stderr, wait_for, worker};
use serde_json::{Value, json};

/// Four workers and their coordinator.
struct Cluster {
    workers: Vec<Running>,
    coordinator: Running,
}

impl Cluster {
    fn start(more: &[&str]) -> Self {
        let workers: Vec<_> = (0..4).map(|_| worker()).collect();
        let coordinator = coordinator(&workers.iter().collect::<Vec<_>>(), more);
        Self { workers, coordinator }
    }

    /// Runs a command against it.
    fn run(&self, args: &[&str]) -> Output {
        let url = format!("http://{}", self.coordinator.address("grpc"));
        aqueduct().args(args).env("AQUEDUCT_SERVER", url).output().unwrap()
    }

    /// What a command prints, which must go well.
    fn text(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[args, &["-o", "json"]].concat())).unwrap()
    }

    fn url(&self, worker: usize) -> &str {
        self.workers[worker].address("url")
    }

    /// A table without what differs from run to run: who is who, and how long things took.
    fn table(&self, args: &[&str], id: &str) -> String {
        let mut text = self.text(args).replace(id, "ID");
        for idx in 0..4 {
            text = text.replace(self.url(idx), &format!("w{idx}"));
        }
        let line = |line: &str| line.split_whitespace().map(timeless).collect::<Vec<_>>().join(" ");
        text.lines().map(|it| line(it) + "\n").collect()
    }
}

/// A word of a table, unless it says how long something took.
fn timeless(word: &str) -> &str {
    let is_time = word.strip_suffix('s').is_some_and(|it| it.parse::<f64>().is_ok());
    if is_time { "TIME" } else { word }
}

const PROMPT: &str = "I went to the woods because I wished to live deliberately, to front only";

/// An answer that goes on until somebody ends it, of which a token has come.
struct Answer {
    lines: std::io::Lines<BufReader<TcpStream>>,
    /// As its caller knows it.
    id: String,
    /// What the first token said.
    first: String,
}

impl Answer {
    fn begin(coordinator: &Running) -> Self {
        Self::of(coordinator, &json!({ "chunk_tokens": 8 }))
    }

    fn of(coordinator: &Running, memory: &Value) -> Self {
        let body = json!({
            "prompt": PROMPT, "max_tokens": 50_000, "temperature": 0, "stream": true,
            "ignore_eos": true, "aqueduct": memory,
        });
        let stream = coordinator.send("POST", "/v1/completions", &body.to_string());
        let mut answer =
            Self { lines: BufReader::new(stream).lines(), id: String::new(), first: String::new() };
        while !answer.first.starts_with("data: ") {
            answer.first = answer.next();
        }
        answer.first = Self::text_of(&answer.first);
        answer
    }

    /// What an event says.
    fn text_of(line: &str) -> String {
        let event =
            line.strip_prefix("data: ").map(|it| serde_json::from_str::<Value>(it).unwrap());
        let text = event.and_then(|event| Some(event["choices"][0]["text"].as_str()?.to_owned()));
        text.unwrap_or_default()
    }

    fn next(&mut self) -> String {
        let line = self.lines.next().expect("the stream broke").unwrap();
        if let Some(id) = line.strip_prefix("x-request-id: ") {
            self.id = id.to_owned();
        }
        line
    }
}

fn check_code(output: &Output, code: i32, said: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", stderr(output));
    assert!(stderr(output).contains(said), "{}", stderr(output));
}

#[test]
fn operators_see_what_a_cluster_is_at_and_end_it() {
    let cluster = Cluster::start(&[]);
    let mut answer = Answer::begin(&cluster.coordinator);
    let status = cluster.json(&["status"]);
    assert_eq!((&status["model"], &status["workers_up"]), (&json!("model"), &json!(4)));
    assert_eq!((&status["running"], &status["nodes"][3]["state"]), (&json!(1), &json!("up")));
    let table = cluster.text(&["status", "-o", "wide"]);
    assert!(table.contains("open, 4 of 4 workers up"), "{table}");

    let listed = cluster.json(&["request", "list"]);
    let request = &listed["requests"][0];
    assert_eq!((&request["state"], &request["chunks_done"]), (&json!("decode"), &json!(3)));
    assert_eq!(request["caller_id"], json!(answer.id));
    let id = request["id"].as_str().unwrap();
    let home = request["home"].as_str().unwrap();
    assert_eq!(home, cluster.url(2), "the last of three chunks is its");
    assert_eq!(cluster.json(&["request", "show", &answer.id])["request"]["id"], json!(id));
    let node = cluster.json(&["node", "show", home]);
    assert_eq!(
        (&node["work"][0]["request"], &node["work"][0]["role"]),
        (&json!(id), &json!("home"))
    );
    let yaml = cluster.text(&["node", "show", home, "-o", "yaml"]);
    assert!(yaml.starts_with("node:\n  name: \"http://127.0.0.1:"), "{yaml}");
    let nodes = cluster.table(&["node", "list"], id);
    assert!(nodes.starts_with("NAME STATE THREADS POOL\nw0 up 1 "), "{nodes}");
    assert_eq!(cluster.text(&["request", "list", "--state", "queued"]).lines().count(), 1);

    assert_eq!(cluster.text(&["request", "cancel", id]), format!("request {id} cancelled\n"));
    while !answer.next().contains("cancelled by an operator") {}
    assert_eq!(cluster.json(&["request", "list"])["requests"], json!([]));
    let ended = cluster.json(&["request", "list", "--all"]);
    assert_eq!(ended["requests"][0]["state"], json!("cancelled"));
    check_code(&cluster.run(&["request", "cancel", id]), 1, id);
}

#[test]
fn what_has_ended_can_still_be_looked_at() {
    let cluster = Cluster::start(&[]);
    let body = json!({
        "prompt": "Simplify, simplify", "max_tokens": 4, "temperature": 0, "ignore_eos": true,
        "aqueduct": { "chunk_tokens": 4 },
    });
    let (status, answer) = cluster.coordinator.http("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let listed = || cluster.json(&["request", "list", "--all"]);
    let request =
        wait_for("the end", || Some(listed()["requests"][0].clone()).filter(Value::is_object));
    let id = request["id"].as_str().unwrap();
    let table = |args: &[&str]| cluster.table(args, id);
    assert_eq!(
        table(&["request", "list", "-a"]),
        "ID STATE PROMPT CHUNKS TOKENS HOME AGE\nID finished 8 2/2 4/4 w1 TIME\n"
    );
    let show = table(&["request", "show", id]);
    assert!(show.contains("\nChunks: 2 of 2 done, 0 again\nGenerated: 4/4\n"), "{show}");
    let chunks =
        "CHUNK EPOCH STATE LAYERS BUSY WORKER\n0 0 done 6/6 TIME w0\n1 0 done 6/6 TIME w1\n";
    assert!(show.contains(chunks), "{show}");
    assert!(show.contains("COMPLETION STATE TOKENS\n0 length 4\n"), "{show}");
    let steps: Vec<_> = cluster.json(&["request", "trace", id])["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["step"].as_str().unwrap().to_owned())
        .collect();
    let count = |step: &str| steps.iter().filter(|it| *it == step).count();
    assert_eq!((count("assigned"), count("chunk done"), count("prefilled")), (2, 2, 1));
    assert_eq!(steps[steps.len() - 2..], ["completion ended", "ended"]);
    assert!(table(&["request", "trace", id]).starts_with("AT STEP WORKER ABOUT\nTIME assigned w0"));
}

#[test]
fn operators_see_what_a_request_remembers_and_disturb_nothing() {
    let server = Running::serve(&["--workers", "2"]);
    server.wait_until_ready();
    let url = format!("http://{}", server.address("grpc"));
    let memory = json!({ "chunk_tokens": 8, "sinks": 2, "local": 3, "heavy": 2 });
    let body = json!({
        "prompt": PROMPT, "max_tokens": 40, "temperature": 0, "ignore_eos": true,
        "aqueduct": memory,
    });
    let (status, alone) = server.http("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{alone}");
    let alone: Value = serde_json::from_str(&alone).unwrap();
    let alone = alone["choices"][0]["text"].as_str().unwrap();

    let mut answer = Answer::of(&server, &memory);
    let show = |args: &[&str]| {
        run(["cache", "show", "--server", &url, &answer.id].iter().chain(args).copied())
    };
    let views: Vec<Value> = (0..6)
        .map(|layer| {
            let layer = (layer % 4).to_string();
            let output = show(&["--layer", &layer, "--head", "1", "-o", "json"]);
            assert!(output.status.success(), "{}", stderr(&output));
            serde_json::from_slice(&output.stdout).unwrap()
        })
        .collect();
    for view in &views {
        let keys = view["keys"].as_array().unwrap();
        let kinds: Vec<_> = keys.iter().map(|key| key["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["sink", "sink", "heavy", "heavy", "local", "local", "local"]);
        let positions: Vec<_> = keys.iter().map(|key| key["position"].as_u64().unwrap()).collect();
        let end = view["tokens"].as_u64().unwrap();
        assert!(positions.is_sorted() && positions[0] == 0 && positions[6] + 1 == end, "{view}");
        assert!(keys.iter().all(|key| key["text"] != ""), "{view}");
        assert!(keys[2]["score"].as_f64().unwrap() > 0.0, "{view}");
        let said: String = keys[..2].iter().map(|key| key["text"].as_str().unwrap()).collect();
        assert!(PROMPT.starts_with(said.trim_start()), "{said:?}");
    }
    let table = String::from_utf8(show(&[]).stdout).unwrap();
    assert!(table.contains("2 sink, 2 heavy, 3 local"), "{table}");
    check_code(&show(&["--layer", "99"]), 2, "layer = 99: must be below");
    check_code(&show(&["--head", "99"]), 2, "kv_head = 99: must be below");
    check_code(&show(&["--layer", "512"]), 2, "layer = 512");
    check_code(&run(["cache", "show", "--server", &url, "nobody"]), 1, "request = nobody");
    check_code(&run(["cache", "show", "--server", &url]), 2, "--snapshot");

    let mut text = answer.first.clone();
    while text.len() < alone.len() {
        text += &Answer::text_of(&answer.next());
    }
    assert!(text.starts_with(alone), "{text:?} and {alone:?}");
}

#[test]
fn snapshots_are_listed_kept_evicted_and_carried_elsewhere() {
    let cluster = Cluster::start(&[]);
    let body = json!({
        "prompt": PROMPT, "max_tokens": 1, "temperature": 0,
        "aqueduct": { "chunk_tokens": 8, "sinks": 2, "local": 3, "heavy": 2 },
    });
    let (status, answer) = cluster.coordinator.http("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let listed = || cluster.json(&["cache", "list"])["snapshots"].as_array().unwrap().clone();
    let held = wait_for("two snapshots", || Some(listed()).filter(|held| held.len() == 2));
    let mut tokens: Vec<_> = held.iter().map(|held| held["tokens"].as_u64().unwrap()).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [8, 16]);
    assert_eq!(held[0]["request"], cluster.json(&["request", "list", "-a"])["requests"][0]["id"]);
    let (name, at) = (held[0]["snapshot"].as_str().unwrap(), held[0]["worker"].as_str().unwrap());
    let short = &name[..8];
    let table = cluster.text(&["cache", "list", "--worker", at]);
    assert!(table.starts_with("SNAPSHOT") && table.contains(&name[..16]), "{table}");

    let show = || cluster.json(&["cache", "show", "--snapshot", short, "--head", "1"]);
    let before = show();
    assert_eq!((&before["key_count"], &before["keys"][0]["kind"]), (&json!(7), &json!("sink")));
    assert_ne!(before["keys"][6]["text"], json!(""));
    assert_eq!(cluster.text(&["cache", "pin", short]), format!("snapshot {name} pinned at {at}\n"));
    assert_eq!(listed()[0]["pinned"], json!(true));
    cluster.text(&["cache", "unpin", name, "--worker", at]);
    assert_eq!(listed()[0]["pinned"], json!(false));

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.snapshot");
    let file = file.to_str().unwrap();
    cluster.text(&["cache", "export", short, file]);
    assert!(cluster.text(&["cache", "evict", short]).contains("evicted at"));
    assert_eq!(listed().len(), 1);
    check_code(&cluster.run(&["cache", "evict", short]), 1, &format!("snapshot = {short}"));
    check_code(&cluster.run(&["cache", "pin", "some"]), 2, "snapshot = some");
    let elsewhere = (0..4).map(|idx| cluster.url(idx)).find(|url| *url != at).unwrap();
    assert_eq!(
        cluster.text(&["cache", "import", file, "--worker", elsewhere]),
        format!("snapshot {name} kept at {elsewhere}\n")
    );
    let numbers = |view: &Value| {
        let keys = view["keys"].as_array().unwrap().iter();
        keys.map(|key| (key["position"].clone(), key["score"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&show()), numbers(&before));
    let mut bytes = std::fs::read(file).unwrap();
    let piped = cluster.run(&["cache", "export", name, "-"]).stdout;
    assert_eq!(piped, bytes, "a pipe has the same");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(file, &bytes).unwrap();
    check_code(&cluster.run(&["cache", "import", file]), 2, "its checksum is wrong");
    check_code(&cluster.run(&["cache", "import", "nowhere"]), 2, "file = nowhere");
}

#[test]
fn what_is_wrong_and_what_is_not_there_have_codes_of_their_own() {
    let server = Running::serve(&[]);
    server.wait_until_ready();
    let url = format!("http://{}", server.address("grpc"));
    let check = |args: &[&str], code, said: &str| {
        check_code(&run(args.iter().chain(&["--server", &url])), code, said);
    };
    check(&["request", "show", "r0000000000000001"], 1, "request = r0000000000000001");
    check(&["request", "trace", "nobody's"], 1, "request = nobody's");
    check(&["request", "cancel", "this", "that"], 1, "error: not found: request = this");
    check(&["request", "show", ""], 2, "request_bytes = 0");
    check(&["request", "list", "--state", "lost"], 2, "state = lost");
    check(&["request", "list", "--chunk-size", "0"], 2, "--chunk-size");
    check(&["node", "show", "nobody"], 1, "worker = nobody");
    check(&["node", "undrain", "nobody"], 1, "worker = nobody");
    check(&["status", "-o", "xml"], 2, "xml");
    check(&["status", "--watch", "--interval", "0"], 2, "interval = 0");
    let away = run(["status", "--server", "http://127.0.0.1:1"]);
    check_code(&away, 3, "127.0.0.1:1");
}

/// As an operator finds them who looks because nothing works.
#[test]
fn workers_that_never_came_are_listed() {
    let mut command = aqueduct();
    command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    let coordinator = Running::start(command.arg(model()).args(["--worker", "http://127.0.0.1:1"]));
    let url = format!("http://{}", coordinator.address("grpc"));
    let listed = wait_for("it is tried", || {
        let output = run(["node", "list", "--json", "--server", &url]);
        assert!(output.status.success(), "{}", stderr(&output));
        let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
        (listed["state"] == "down").then_some(listed)
    });
    assert_eq!(listed["worker"], "http://127.0.0.1:1");
}

#[test]
fn who_watches_sees_what_is_new() {
    let server = Running::serve(&[]);
    server.wait_until_ready();
    let url = format!("http://{}", server.address("grpc"));
    let watch = ["request", "list", "--watch", "--interval", "0.1", "--server", &url];
    let mut child = aqueduct().args(watch).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("ID   STATE"));
    let answer = Answer::begin(&server);
    let seen = lines.find(|line| line.contains("decode"));
    assert!(seen.is_some_and(|line| line.starts_with('r')), "{}", answer.id);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn contexts_say_whom_to_ask_and_how() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (config, keys) = (path("config.json"), path("keys.json"));
    let key = |more: &[&str]| {
        let args = ["keys", "new", "--name", "someone", "--api-keys", &keys];
        String::from_utf8(run(args.iter().chain(more)).stdout).unwrap()
    };
    let files = [("admin", key(&["--admin"])), ("caller", key(&[]))].map(|(name, key)| {
        std::fs::write(path(name), key).unwrap();
        path(name)
    });
    let server = Running::serve(&["--api-keys", &keys]);
    server.wait_until_ready();
    let url = format!("http://{}", server.address("grpc"));
    let ask =
        |args: &[&str]| aqueduct().args(args).env("AQUEDUCT_CONFIG", &config).output().unwrap();
    let go = |args: &[&str]| {
        let output = ask(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    go(&["context", "set", "mine", "--server", &url, "--api-key-file", &files[0]]);
    go(&["context", "set", "theirs", "--server", &url, "--api-key-file", &files[1]]);
    assert!(go(&["status"]).contains("open, 1 of 1 workers up"));
    check_code(&ask(&["status", "--context", "theirs"]), 2, "--admin");
    check_code(&ask(&["status", "--context", "ours"]), 1, "context = ours");
    check_code(&ask(&["status", "--server", &url]), 2, "denied");
    go(&["context", "use", "theirs"]);
    let answer = go(&["generate", "Simplify", "--max-tokens", "2", "--json"]);
    assert!(answer.contains("\"summary\""), "{answer}");
    let both = ask(&["generate", "--server", &url, "--model", "model", "Simplify"]);
    check_code(&both, 2, "'--server <URL>' cannot be used with '--model <PATH>'");
    let table = go(&["context", "list"]);
    let rows: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1..], [vec!["-", "mine", &url], vec!["*", "theirs", &url]]);
    check_code(&ask(&["request", "list"]), 2, "--admin");
    go(&["context", "delete", "theirs"]);
    check_code(&ask(&["context", "use", "theirs"]), 1, "context = theirs");
    check_code(&ask(&["context", "delete", "theirs"]), 1, "context = theirs");
    check_code(&ask(&["context", "set", "x", "--server", "https://a:1"]), 2, "server");
}

#[test]
fn shells_complete_commands() {
    let script = |shell: &str| String::from_utf8(run(["completion", shell]).stdout).unwrap();
    assert!(script("zsh").starts_with("#compdef aqueduct"));
    assert!(script("fish").contains("complete -c aqueduct"));
    check_code(&run(["completion", "tcsh"]), 2, "tcsh");
    let ask = "COMP_WORDS=(aqueduct request ca); COMP_CWORD=2; _aqueduct aqueduct ca request; \
               echo \"${COMPREPLY[@]}\"";
    let mut bash = std::process::Command::new("bash");
    let bash = bash.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut bash = bash.expect("bash is on every machine that builds this");
    let said = format!("{}\n{ask}\n", script("bash"));
    bash.stdin.take().unwrap().write_all(said.as_bytes()).unwrap();
    let mut completed = String::new();
    bash.stdout.take().unwrap().read_to_string(&mut completed).unwrap();
    assert!(bash.wait().unwrap().success());
    assert_eq!(completed.trim(), "cancel");
}
