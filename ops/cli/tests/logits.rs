//! The central promise: the same logits, bit for bit, for any number of workers and any link.

mod binary;

use std::path::Path;
use std::process::{Command, Output};

use aqueduct_kernels::IsaLevel;
use binary::{aqueduct, changed_model, model, rows, stderr};
use serde_json::Value;

/// C, small so that many chunks are few tokens.
const CHUNK: usize = 16;

/// Lengths around the edges of the grid.
const LENGTHS: [usize; 6] = [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 7 * CHUNK + 3];

/// How a prompt is read.
#[derive(Debug, Clone, Copy)]
struct Eval<'a> {
    /// Another model than the shipped one.
    model: Option<&'a Path>,
    chunk: usize,
    policy: &'a str,
    workers: usize,
    link: &'a str,
    threads: usize,
    kv: &'a str,
    isa: Option<IsaLevel>,
    exchange: &'a str,
    pool_tokens: usize,
    pool_bytes: usize,
}

impl<'a> Eval<'a> {
    fn new(policy: &'a str, workers: usize, link: &'a str) -> Self {
        Self {
            model: None,
            chunk: CHUNK,
            policy,
            workers,
            link,
            threads: 0,
            kv: "f32",
            isa: None,
            exchange: "auto",
            pool_tokens: 1 << 20,
            pool_bytes: 1 << 30,
        }
    }

    /// Writes a prompt of `tokens` ids and gives the logits file of a run over it.
    fn logits(self, folder: &Path, tokens: usize) -> Vec<u8> {
        let out = folder.join("logits.safetensors");
        let rows = rows(&self.run(folder, tokens, &out));
        assert_eq!(rows[0]["tokens"], tokens);
        assert_eq!(rows[0]["vocab"], 4096);
        std::fs::read(out).unwrap()
    }

    fn run(self, folder: &Path, tokens: usize, out: &Path) -> Output {
        let prompt = folder.join(format!("{tokens}.txt"));
        let ids = (0..tokens).map(|idx| ((idx * 2654435761) % 4096).to_string());
        std::fs::write(&prompt, ids.collect::<Vec<_>>().join("\n")).unwrap();
        let model = self.model.map_or_else(model, Path::to_owned);
        let [model, prompt] = [&model, &prompt].map(|path| path.to_str().unwrap());
        let numbers = [self.workers, self.chunk, self.threads, self.pool_tokens, self.pool_bytes];
        let [workers, chunk, threads, pool_tokens, pool_bytes] = numbers.map(|n| n.to_string());
        let mut args = vec!["eval", "logits", "--model", model, "--tokens-file", prompt];
        args.extend(["--policy", self.policy, "--sinks", "2", "--local", "4", "--heavy", "6"]);
        args.extend(["--chunk", &chunk, "--workers", &workers, "--link", self.link]);
        args.extend(["--threads", &threads, "--kv", self.kv]);
        args.extend(["--exchange", self.exchange, "--pool-tokens", &pool_tokens]);
        args.extend(["--pool-bytes", &pool_bytes]);
        args.extend(["--out", out.to_str().unwrap(), "--json"]);
        with_isa(self.isa).args(args).output().unwrap()
    }
}

/// The binary, its instruction set forced by the environment.
fn with_isa(isa: Option<IsaLevel>) -> Command {
    let mut command = aqueduct();
    command.envs(isa.map(|isa| ("AQUEDUCT_ISA", isa.as_str())));
    command
}

fn identical(policy: &str) {
    let folder = tempfile::tempdir().unwrap();
    for tokens in LENGTHS {
        let want = Eval::new(policy, 1, "loopback").logits(folder.path(), tokens);
        assert!(want.len() >= tokens * 4096 * 4);
        for (workers, link) in [
            (2, "loopback"),
            (4, "loopback"),
            (8, "loopback"),
            (1, "grpc"),
            (2, "grpc"),
            (4, "grpc"),
        ] {
            let got = Eval::new(policy, workers, link).logits(folder.path(), tokens);
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

/// On every instruction set there is; AMX by its emulator where the processor lacks it.
#[test]
fn bf16_is_the_same_for_any_number_of_threads_and_workers() {
    let folder = tempfile::tempdir().unwrap();
    for isa in IsaLevel::available() {
        let doctor = with_isa(Some(isa)).args(["doctor", "--json"]).output().unwrap();
        assert_eq!(rows(&doctor)[0]["instruction_set"], isa.as_str(), "it is forced");
        let eval = Eval { kv: "bf16", isa: Some(isa), ..Eval::new("h2o", 1, "loopback") };
        let want = Eval { threads: 1, ..eval }.logits(folder.path(), 2 * CHUNK + 3);
        for other in [
            Eval { threads: 2, ..eval },
            Eval { workers: 2, threads: 3, ..eval },
            Eval { workers: 2, link: "grpc", ..eval },
        ] {
            assert!(other.logits(folder.path(), 2 * CHUNK + 3) == want, "{other:?}");
        }
    }
}

/// Where rows do not see far, chunks keep few of their keys, and pools hold more of them: here 64
/// tokens take as much room as 24, as five layers of six keep a page of four.
#[test]
fn dense_prompts_of_a_model_with_windows_take_less_room() {
    let windowed = changed_model(|folder| {
        let path = folder.join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        (config["sliding_window"], config["use_sliding_window"]) = (9.into(), true.into());
        let layers = config["layer_types"].as_array_mut().unwrap();
        layers[1..].fill("sliding_attention".into());
        std::fs::write(&path, config.to_string()).unwrap();
    });
    let folder = tempfile::tempdir().unwrap();
    let (tokens, token_bytes) = (14 * 64, 6 * 2 * 2 * 64 * 4);
    let one = Eval { chunk: 64, ..Eval::new("dense", 1, "loopback") };
    let want = Eval { model: Some(windowed.path()), ..one }.logits(folder.path(), tokens);
    for (link, exchange) in [("grpc", "auto"), ("loopback", "stay"), ("loopback", "move")] {
        let (workers, pool_bytes) = (4, 4 * 24 * token_bytes);
        let four = Eval { workers, pool_bytes, exchange, link, ..one };
        let got = Eval { model: Some(windowed.path()), ..four }.logits(folder.path(), tokens);
        assert!(got == want, "{exchange} over {link}");
        let refused = stderr(&four.run(folder.path(), tokens, &folder.path().join("none")));
        assert!(refused.contains("prompt_tokens = 896: must be at most 288"), "{refused}");
    }
}

/// The workers' pools are one: a prompt that no worker could hold alone gives the logits that
/// one of unbounded memory gives.
#[test]
fn dense_prompts_may_fill_all_pools() {
    let folder = tempfile::tempdir().unwrap();
    let (pool_tokens, tokens) = (4 * CHUNK, 14 * CHUNK);
    let want = Eval::new("dense", 1, "loopback").logits(folder.path(), tokens);
    for (link, exchange) in [("grpc", "auto"), ("loopback", "stay"), ("loopback", "move")] {
        let four = Eval { pool_tokens, exchange, ..Eval::new("dense", 4, link) };
        assert!(four.logits(folder.path(), tokens) == want, "{exchange} over {link}");
    }
}

/// Keys that stay with their workers, and are given up there, give the bits of a set that travels.
#[test]
fn what_travels_changes_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = 7 * CHUNK + 3;
    for (policy, kv) in [("h2o", "bf16"), ("window", "bf16"), ("h2o", "f32")] {
        let eval = Eval { kv, exchange: "move", ..Eval::new(policy, 1, "loopback") };
        let want = eval.logits(folder.path(), tokens);
        let stays = Eval { exchange: "stay", ..eval };
        for (workers, link) in
            [(1, "loopback"), (2, "grpc"), (3, "grpc"), (4, "loopback"), (8, "loopback")]
        {
            let got = Eval { workers, link, ..stays }.logits(folder.path(), tokens);
            assert!(got == want, "{policy}, {kv} keys, {workers} workers over {link}");
        }
    }
}

#[test]
fn a_prompt_that_no_pool_could_hold_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let alone = Eval { pool_tokens: 4 * CHUNK, ..Eval::new("dense", 1, "grpc") };
    let out = folder.path().join("none");
    let output = alone.run(folder.path(), 14 * CHUNK, &out);
    let said = stderr(&output);
    assert_eq!((output.status.code(), out.exists()), (Some(2), false), "{said}");
    let why =
        "prompt_tokens = 224: must be at most 64, what the pools of 1 worker (64 tokens) hold";
    assert!(said.contains(why), "{said}");
}

#[test]
fn policies_differ_once_something_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let of = |tokens, policy| Eval::new(policy, 1, "loopback").logits(folder.path(), tokens);
    assert!(of(CHUNK, "dense") == of(CHUNK, "h2o"), "nothing has been forgotten yet");
    let long = 7 * CHUNK + 3;
    let [dense, window, h2o] = ["dense", "window", "h2o"].map(|policy| of(long, policy));
    assert!(dense != window && window != h2o && dense != h2o);
}
