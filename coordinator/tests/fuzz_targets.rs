//! What `ops/fuzz` fuzzes holds for the inputs that it begins with. It is a workspace of its own,
//! whose build is the last thing that `ops/test` does: here its targets compile as well.

/// What stands for it here.
extern crate self as libfuzzer_sys;

use std::fs;
use std::path::Path;

macro_rules! targets {
    ($($name:ident at $path:literal)*) => {
        $(
            #[allow(unused_attributes, reason = "it is a crate for libFuzzer")]
            #[path = $path]
            mod $name;

            #[test]
            fn $name() {
                holds_for_seeds(stringify!($name), $name::run);
            }
        )*
    };
}

targets! {
    exchange at "../../ops/fuzz/targets/exchange.rs"
    frames at "../../ops/fuzz/targets/frames.rs"
    gguf at "../../ops/fuzz/targets/gguf.rs"
    http at "../../ops/fuzz/targets/http.rs"
    journal at "../../ops/fuzz/targets/journal.rs"
    messages at "../../ops/fuzz/targets/messages.rs"
    torch at "../../ops/fuzz/targets/torch.rs"
}

/// Each seed whole, and cut off anywhere in its first bytes.
fn holds_for_seeds(target: &str, run: fn(&[u8])) {
    const CUTS: usize = 256;
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/fuzz/seeds").join(target);
    let mut tried = 0;
    for seed in fs::read_dir(seeds).unwrap() {
        let bytes = fs::read(seed.unwrap().path()).unwrap();
        (0..bytes.len().min(CUTS)).for_each(|cut| run(&bytes[..cut]));
        run(&bytes);
        tried += 1;
    }
    assert!(tried > 0, "no seeds");
}

#[test]
fn every_target_is_here() {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/fuzz/targets");
    let here = include_str!("fuzz_targets.rs");
    for target in fs::read_dir(targets).unwrap() {
        let name = target.unwrap().file_name().into_string().unwrap();
        assert!(here.contains(&format!("at \"../../ops/fuzz/targets/{name}\"")), "{name}");
    }
}

/// A target is a function of the bytes. It stands behind the targets, which import it.
#[macro_export]
macro_rules! fuzz_target {
    (|$bytes:ident: &[u8]| $body:block) => {
        pub(crate) fn run($bytes: &[u8]) {
            $body
        }
    };
}
