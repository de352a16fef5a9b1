//! The central promise: the same logits, bit for bit, for any number of workers and any link.

mod binary;

use std::path::Path;

use binary::{model, rows, run};

/// C, small so that many chunks are few tokens.
const CHUNK: usize = 16;

/// Lengths around the edges of the grid.
const LENGTHS: [usize; 6] = [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 7 * CHUNK + 3];

/// Writes a prompt of `tokens` ids and gives the logits file of a run over it.
fn logits(folder: &Path, tokens: usize, policy: &str, workers: usize, link: &str) -> Vec<u8> {
    let prompt = folder.join(format!("{tokens}.txt"));
    let ids = (0..tokens).map(|idx| ((idx * 2654435761) % 4096).to_string());
    std::fs::write(&prompt, ids.collect::<Vec<_>>().join("\n")).unwrap();
    let out = folder.join(format!("{tokens}-{policy}-{workers}-{link}.safetensors"));
    let model = model();
    let [model, prompt] = [&model, &prompt].map(|path| path.to_str().unwrap());
    let (workers, chunk) = (workers.to_string(), CHUNK.to_string());
    let output = run([
        "eval",
        "logits",
        "--model",
        model,
        "--tokens-file",
        prompt,
        "--policy",
        policy,
        "--sinks",
        "2",
        "--local",
        "4",
        "--heavy",
        "6",
        "--chunk",
        &chunk,
        "--workers",
        &workers,
        "--link",
        link,
        "--kv",
        "f32",
        "--out",
        out.to_str().unwrap(),
        "--json",
    ]);
    let rows = rows(&output);
    assert_eq!(rows[0]["tokens"], tokens);
    assert_eq!(rows[0]["vocab"], 4096);
    std::fs::read(out).unwrap()
}

fn identical(policy: &str) {
    let folder = tempfile::tempdir().unwrap();
    for tokens in LENGTHS {
        let want = logits(folder.path(), tokens, policy, 1, "loopback");
        assert!(want.len() >= tokens * 4096 * 4);
        for (workers, link) in [
            (2, "loopback"),
            (4, "loopback"),
            (8, "loopback"),
            (1, "grpc"),
            (2, "grpc"),
            (4, "grpc"),
        ] {
            let got = logits(folder.path(), tokens, policy, workers, link);
            assert!(got == want, "{policy}, {tokens} tokens, {workers} workers over {link}");
        }
    }
}

#[test]
fn dense_is_the_same_everywhere() {
    identical("dense");
}

#[test]
fn window_is_the_same_everywhere() {
    identical("window");
}

#[test]
fn h2o_is_the_same_everywhere() {
    identical("h2o");
}

#[test]
fn policies_differ_once_something_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let of = |tokens, policy| logits(folder.path(), tokens, policy, 1, "loopback");
    assert!(of(CHUNK, "dense") == of(CHUNK, "h2o"), "nothing has been forgotten yet");
    let long = 7 * CHUNK + 3;
    let [dense, window, h2o] = ["dense", "window", "h2o"].map(|policy| of(long, policy));
    assert!(dense != window && window != h2o && dense != h2o);
}
