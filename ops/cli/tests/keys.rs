//! Keys from the file to the caller: made, used over both APIs, limited, revoked, never logged.

mod binary;

use std::path::{Path, PathBuf};

use binary::{Running, aqueduct, model, rows, run, stderr, wait_for};

struct File {
    folder: tempfile::TempDir,
}

impl File {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("keys.json")
    }

    fn flag(&self) -> [String; 2] {
        ["--api-keys".into(), self.path().to_str().unwrap().to_owned()]
    }

    /// A new key.
    fn key(&self, name: &str, limits: &[&str]) -> String {
        let mut command = aqueduct();
        command.args(["keys", "new", "--name", name]).args(self.flag()).args(limits);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let key = std::str::from_utf8(&output.stdout).unwrap().trim();
        assert!(!stderr(&output).contains(key));
        key.to_owned()
    }
}

fn id(key: &str) -> &str {
    key.split('_').nth(1).unwrap()
}

/// `generate` at the most talkative, asking `server` with `key`; and all that it said.
fn generate(server: &Running, key: Option<&str>, prompt: &str) -> (Option<i32>, String) {
    let url = format!("http://{}", server.address("grpc"));
    let mut command = aqueduct();
    command.args(["generate", "--server", &url, "--log", "trace", "--deadline-s", "30"]);
    command.args(["--max-tokens", "2", "--temperature", "0", prompt]);
    command.env_remove("AQUEDUCT_API_KEY").envs(key.map(|key| ("AQUEDUCT_API_KEY", key)));
    let output = command.output().unwrap();
    (output.status.code(), stderr(&output))
}

fn serve(file: &File, log: &Path) -> Running {
    let mut command = aqueduct();
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    command.arg(model()).args(["--log", "trace"]).args(file.flag());
    Running::start(command.stderr(std::fs::File::create(log).unwrap()))
}

#[test]
fn keys_are_made_used_limited_and_ended() {
    let file = File::new();
    let (alice, bob) = (file.key("alice", &[]), file.key("bob", &["--max-prompt-tokens", "4"]));
    let carol = file.key("carol", &["--tokens-per-minute", "5", "--admin"]);
    let log = file.folder.path().join("log");
    let server = serve(&file, &log);

    let (code, said) = generate(&server, Some(&alice), "Simplify, simplify");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains(&alice), "the caller's own log has the key");
    let refused = [None, Some("aq_1_2"), Some(&alice[..alice.len() - 1])];
    for key in refused {
        let (code, said) = generate(&server, key, "Simplify");
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("denied: "), "{said}");
    }
    let long = "I went to the woods because I wished to live deliberately";
    let (code, said) = generate(&server, Some(&bob), long);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("the limit of this API key"), "{said}");
    assert_eq!(generate(&server, Some(&carol), long).0, Some(0), "nothing was owed");
    let (code, said) = generate(&server, Some(&carol), long);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("over the limit of this API key: 5 tokens in a minute"), "{said}");

    let mut list = vec!["keys".to_owned(), "list".into(), "--json".into()];
    list.extend(file.flag());
    let listed = rows(&run(&list));
    assert_eq!(listed.len(), 3);
    let of_bob = listed.iter().find(|row| row["name"] == "bob").unwrap();
    assert_eq!((&of_bob["id"], &of_bob["limits"]["prompt_tokens"]), (&id(&bob).into(), &4.into()));
    let output = run(["keys", "revoke", id(&alice)].map(str::to_owned).iter().chain(&file.flag()));
    assert!(output.status.success(), "{}", stderr(&output));
    wait_for("its end", || {
        (generate(&server, Some(&alice), "Simplify").0 == Some(2)).then_some(())
    });

    let metrics = server.http("GET", "/metrics", "").1;
    for reason in ["key_missing", "key_wrong", "key_revoked", "key_tokens"] {
        let line = format!("requests_rejected_total{{reason=\"{reason}\"}}");
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
    assert_eq!(server.terminate(), Some(0));
    let text = std::fs::read_to_string(log).unwrap();
    assert!(text.contains("TRACE"), "it was asked to say everything");
    for key in [&alice, &bob, &carol] {
        let secret = key.rsplit('_').next().unwrap();
        assert!(!text.contains(secret), "a key stands in the log");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let file = File::new();
    let check = |args: &[&str], said: &str| {
        let output = run(args.iter().map(|arg| (*arg).to_owned()).chain(file.flag()));
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(said), "{said:?} in {}", stderr(&output));
    };
    check(&["keys", "list"], "api_keys = ");
    check(&["keys", "new", "--name", "a", "--requests", "0"], "requests = 0");
    file.key("alice", &[]);
    check(&["keys", "revoke", "nobody"], "id = nobody");
    std::fs::write(file.path(), "{}").unwrap();
    check(&["keys", "list"], "missing field `keys`");
    let model = model();
    check(&["serve", "--model", model.to_str().unwrap()], "--api-keys = ");
}
