//! What computes: chosen by a flag or by the environment, and said by the doctor.

mod binary;

use std::process::{Command, Output};

use binary::{Running, aqueduct, model, rows, stderr};

/// The binary on a machine whose devices, if it has any, are hidden.
fn without_devices() -> Command {
    let mut command = aqueduct();
    command.env("CUDA_VISIBLE_DEVICES", "");
    command
}

fn generate(command: &mut Command) -> Output {
    command
        .args(["generate", "hello", "--max-tokens", "2", "--model"])
        .arg(model())
        .output()
        .unwrap()
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    let check = |output: &Output, said: &str| {
        let text = stderr(output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(said), "{said:?} in {text:?}");
    };
    let refused = "device = cuda:0: no CUDA device (";
    let output = generate(without_devices().env("AQUEDUCT_DEVICE", "cuda"));
    check(&output, refused);
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    // A flag counts for more than the environment, and no machine has as many devices.
    let mut flagged = aqueduct();
    flagged.env("AQUEDUCT_DEVICE", "cpu").args(["worker", "--device", "cuda:99", "--model"]);
    check(&flagged.arg(model()).output().unwrap(), "device = cuda:99: no CUDA device ");
    let mut wrong = aqueduct();
    wrong.args(["worker", "--device", "gpu", "--model"]);
    check(&wrong.arg(model()).output().unwrap(), "must be auto, cpu, cuda or cuda:N");
    let mut none = aqueduct();
    none.args(["worker", "--device-memory-mib", "0", "--model"]);
    check(&none.arg(model()).output().unwrap(), "'0' for '--device-memory-mib <MIB>'");
}

#[test]
fn workers_of_their_own_are_told_of_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let (tokens, out) = (folder.path().join("tokens.txt"), folder.path().join("out.safetensors"));
    std::fs::write(&tokens, "1 2 3").unwrap();
    let mut command = without_devices();
    command.args(["eval", "logits", "--link", "grpc", "--device", "cuda", "--model"]).arg(model());
    let output = command.arg("--tokens-file").arg(&tokens).arg("--out").arg(&out).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("worker: --device = cuda:0: no CUDA device ("), "{text}");
}

#[test]
fn the_processor_serves_where_there_is_no_device() {
    let mut command = without_devices();
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    let server = Running::start(command.arg(model()));
    server.wait_until_ready();
    let answer = server.complete("I went to the woods because");
    assert_eq!(answer["usage"]["completion_tokens"], 4, "{answer}");

    let output = generate(without_devices().args(["--log", "info"]));
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    let said = text.lines().filter(|line| line.contains("the processor computes"));
    assert_eq!(said.count(), 1, "{text}");
    assert!(text.contains("no CUDA device ("), "{text}");
}

#[test]
fn the_doctor_says_whether_there_are_devices() {
    let output = without_devices().args(["doctor", "--json"]).output().unwrap();
    let machine = &rows(&output)[0];
    assert_eq!(machine["cuda_devices"], serde_json::json!([]));
    let missing = machine["cuda_missing"].as_str().unwrap();
    assert!(missing.starts_with("no CUDA device ("), "{missing}");
    let output = without_devices().args(["doctor", "--model"]).arg(model()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("CUDA          {missing}\n")), "{text}");
    assert!(text.contains(": ok on cpu, fingerprint "), "{text}");
}
