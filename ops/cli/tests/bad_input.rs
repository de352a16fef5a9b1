//! Whatever is wrong is one clear line that names it, and the right exit code.

mod binary;

use std::path::Path;

use binary::{Running, aqueduct, changed_model, model, run, stderr};

/// Runs `eval logits` with one thing wrong and checks what it says.
fn refused(model: &Path, tokens: &str, more: &[&str], code: i32, said: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let prompt = folder.path().join("tokens.txt");
    std::fs::write(&prompt, tokens).unwrap();
    let out = folder.path().join("logits.safetensors");
    let output = aqueduct()
        .args(["eval", "logits", "--model"])
        .arg(model)
        .arg("--tokens-file")
        .arg(&prompt)
        .arg("--out")
        .arg(&out)
        .args(more)
        .output()
        .unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    for word in said {
        assert!(text.contains(word), "{word:?} in {text:?}");
    }
    assert!(!out.exists(), "nothing was written");
}

#[test]
fn wrong_tokens() {
    refused(&model(), "", &[], 2, &["tokens", "at least one"]);
    refused(&model(), "1,2,3", &[], 2, &["tokens[0]", "1,2,3", "white space"]);
    refused(&model(), "1 two 3", &[], 2, &["tokens[1]", "two"]);
    refused(&model(), "1 2 4096", &[], 2, &["[2]", "4096", "below"]);
    refused(&model(), "1 2 4096", &["--link", "grpc"], 2, &["[2]", "4096", "below"]);
    let long = "1 ".repeat(65_537);
    refused(&model(), &long, &[], 2, &["65537", "65536"]);
    // Logits of as many would not fit any memory; nothing may be set aside before the check.
    let longest = "1 ".repeat((1 << 24) + 1);
    refused(&model(), &longest, &[], 2, &["prompt_tokens = 16777217", "16777216"]);
}

#[test]
fn wrong_numbers() {
    refused(&model(), "1", &["--workers", "0"], 2, &["workers = 0", "between 1 and"]);
    refused(&model(), "1", &["--chunk", "0"], 2, &["chunk_tokens = 0", "between 1 and"]);
    refused(&model(), "1", &["--pool-tokens", "0"], 2, &["pool_tokens = 0", "between 1 and"]);
    refused(&model(), "1", &["--pool-bytes", "0"], 2, &["pool_bytes = 0", "between 1 and"]);
    refused(&model(), "1", &["--decay", "0"], 2, &["decay = 0", "above 0"]);
    refused(&model(), "1", &["--threads", "1025"], 2, &["threads = 1025", "and 1024"]);
}

/// What processes that stay up refuse before they begin.
#[test]
fn wrong_options() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let check = |args: &[&str], said: &str| {
        let mut command = aqueduct();
        command.args(&args[..1]).arg("--model").arg(model()).args(&args[1..]);
        let output = command.output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(said), "{args:?}: {text}");
    };
    let serve = ["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let serve = |more: &[&str], said| check(&[&serve[..], more].concat(), said);
    serve(&["--max-running", "0"], "--max-running = 0: must be");
    serve(&["--max-batch", "65"], "--max-batch = 65: must be between 1 and 64");
    serve(&["--chunk", "0"], "--chunk = 0");
    serve(&["--pool-tokens", "0"], "--pool-tokens = 0");
    serve(&["--threads", "1025"], "--threads = 1025");
    serve(&["--monitor", "x"], "--monitor = x");
    serve(&["--resume-grace-s", "0"], "--resume-grace-s");
    serve(&["--deadline-s", "0"], "--deadline-s = 0 s");
    serve(&["--data-dir", file], &format!("--data-dir = {file}: must be a folder"));
    let worker =
        |more: &[&str], said| check(&[&["worker", "--listen", "127.0.0.1:0"], more].concat(), said);
    worker(&["--max-batch", "0"], "--max-batch = 0");
    worker(&["--pool-bytes", "1"], "--pool-bytes");
    worker(&["--advertise", "http://::1:7001"], "--advertise = http://::1:7001");
    check(&["generate", "--json-schema", "nowhere.json", "x"], "json_schema = nowhere.json");
}

#[test]
fn wrong_models() {
    let nowhere = Path::new("/nowhere/model");
    refused(nowhere, "1", &[], 2, &["/nowhere/model"]);
    refused(nowhere, "1", &["--link", "grpc", "--workers", "2"], 2, &["/nowhere/model"]);

    let truncated = changed_model(|folder| {
        let path = folder.join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    });
    refused(truncated.path(), "1", &[], 2, &["model.safetensors"]);

    let unknown = changed_model(|folder| {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.replace("Qwen3ForCausalLM", "MambaForCausalLM");
        std::fs::write(&path, text.replace("\"qwen3\"", "\"mamba\"")).unwrap();
    });
    refused(unknown.path(), "1", &[], 2, &["config.json", "amba", "not supported"]);

    let narrow = changed_model(|folder| {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"hidden_size\": 256", "\"hidden_size\": 255"))
            .unwrap();
    });
    refused(narrow.path(), "1", &[], 2, &["255"]);
}

#[test]
fn a_place_that_cannot_be_written_is_refused_first() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = folder.path().join("tokens.txt");
    std::fs::write(&prompt, "1 2 3").unwrap();
    for out in [folder.path().to_owned(), folder.path().join("missing/logits.safetensors")] {
        // No model: it would be asked for only after the place to write.
        let flags = ["eval", "logits", "--model", "/nowhere", "--tokens-file"];
        let output = aqueduct().args(flags).arg(&prompt).arg("--out").arg(&out).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("out = "), "{}", stderr(&output));
    }
}

#[test]
fn a_broken_tokenizer_is_wrong_input() {
    let broken =
        changed_model(|folder| std::fs::write(folder.join("tokenizer.json"), "{").unwrap());
    let output = aqueduct().args(["generate", "hi", "--model"]).arg(broken.path()).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("tokenizer.json"), "{}", stderr(&output));
}

#[test]
fn usage() {
    let check = |args: &[&str], said: &str| {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(said), "{args:?}: {}", stderr(&output));
    };
    check(&[], "Usage");
    check(&["no-such-command"], "no-such-command");
    check(&["generate"], "<PROMPT>");
    let both = ["generate", "hello", "--server", "http://127.0.0.1:1", "--model", "model"];
    check(&both, "'--server <URL>' cannot be used with '--model <PATH>'");
    check(&["eval", "ppl", "--policy", "lru"], "lru");
    check(&["doctor", "--log", "aqueduct=loud"], "log = aqueduct=loud");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let server = Running::serve(&[]);
    let taken = server.address("grpc");
    let output =
        aqueduct().args(["worker", "--listen", taken, "--model"]).arg(model()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains(taken), "{}", stderr(&output));
}

#[test]
fn who_asks_the_port_of_the_http_api_is_told_so() {
    let server = Running::serve(&[]);
    let output = run(["status", "--server", &format!("http://{}", server.address("http"))]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("gRPC has one of its own"), "{}", stderr(&output));
}

#[test]
fn a_variable_that_is_empty_is_not_there() {
    let check = |args: &[&str], names: &[&str]| {
        let mut command = aqueduct();
        command.args(args).env("AQUEDUCT_CONFIG", "/nowhere/config.json");
        let output = command.envs(names.iter().map(|name| (name, ""))).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    };
    let doctor = ["doctor", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let doctor = [&doctor[..], &["--listen", "127.0.0.1:0"]].concat();
    check(
        &doctor,
        &[
            "AQUEDUCT_CONTEXT",
            "AQUEDUCT_DATA_DIR",
            "AQUEDUCT_DEVICE",
            "AQUEDUCT_ETCD",
            "AQUEDUCT_ETCD_PREFIX",
            "AQUEDUCT_ID",
            "AQUEDUCT_LOG",
            "AQUEDUCT_LOG_FORMAT",
            "AQUEDUCT_PEERS",
            "AQUEDUCT_SERVER",
            "AQUEDUCT_TLS_CA",
            "AQUEDUCT_TLS_CERT",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "OTEL_METRIC_EXPORT_INTERVAL",
        ],
    );
    let model = model();
    let generate =
        ["generate", "--max-tokens", "1", "--model", model.to_str().unwrap(), "Once upon a time"];
    check(&generate, &["AQUEDUCT_SERVER", "AQUEDUCT_ISA", "AQUEDUCT_TLS_KEY"]);
}

#[test]
fn a_server_is_not_open_because_a_variable_is_empty() {
    for (name, flag) in [
        ("AQUEDUCT_API_KEYS", "--api-keys"),
        ("AQUEDUCT_TLS_CA", "--tls-ca"),
        ("AQUEDUCT_TLS_CERT", "--tls-cert"),
        ("AQUEDUCT_TLS_KEY", "--tls-key"),
        ("AQUEDUCT_CLUSTER_TLS_CERT", "--cluster-tls-cert"),
        ("AQUEDUCT_ETCD_TLS_CA", "--etcd-tls-ca"),
    ] {
        let mut command = aqueduct();
        command.args(["coordinator", "--model", "/nowhere"]).env(name, "");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}");
        let said = format!("a value is required for '{name} ({flag} ");
        assert!(stderr(&output).contains(&said), "{name}: {}", stderr(&output));
    }
}

#[test]
fn a_variable_that_is_wrong_is_named() {
    let check = |name: &str, value: &str, args: &[&str], said: &str| {
        let mut command = aqueduct();
        command.args(["worker", "--listen", "127.0.0.1:0", "--model"]).arg(model()).args(args);
        let output = command.env(name, value).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{name}: {text}");
        assert!(text.contains(said), "{name}: {text}");
    };
    check("AQUEDUCT_GRACE_S", "soon", &[], "'soon' for 'AQUEDUCT_GRACE_S (--grace-s <S>)'");
    check("AQUEDUCT_GRACE_S", "5", &["--grace-s", "soon"], "'soon' for '--grace-s <S>'");
    check("AQUEDUCT_ETCD", "there", &[], "error: AQUEDUCT_ETCD = there: must be");
    check("AQUEDUCT_ETCD", "there", &["--etcd", "here"], "error: --etcd = here: must be");
}

#[test]
fn every_command_has_a_help_with_an_example() {
    for command in [
        "demo",
        "serve",
        "coordinator",
        "worker",
        "generate",
        "doctor",
        "status",
        "top",
        "node list",
        "node show",
        "node drain",
        "node undrain",
        "request list",
        "request show",
        "request cancel",
        "request trace",
        "cache list",
        "cache show",
        "cache pin",
        "cache export",
        "cache import",
        "context list",
        "context set",
        "context use",
        "completion",
        "eval logits",
        "eval ppl",
        "bench prefill",
    ] {
        let output = run(command.split(' ').chain(["--help"]));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("Example"), "{command}: {text}");
    }
    let text = String::from_utf8(run(["--help"]).stdout).unwrap();
    assert!(text.contains("Exit codes"), "{text}");
}
