//! Words that may not stand in code, or only in one place.

use crate::{Finding, RustFile};

/// One ban.
struct Ban {
    rule: &'static str,
    /// Tokens, separated by spaces.
    sequence: &'static str,
    /// Where the words may stand all the same.
    may_stand: fn(&RustFile, usize) -> bool,
    reason: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        rule: "unsafe",
        sequence: "unsafe",
        may_stand: |file, _| file.path.starts_with("kernels/"),
        reason: "unsafe code stands in kernels only, each use with a `SAFETY` line",
    },
    Ban::everywhere("unfinished", "todo !", "unfinished code does not land"),
    Ban::everywhere("unfinished", "unimplemented !", "unfinished code does not land"),
    Ban::everywhere("unfinished", "# [ ignore", "a test that does not run proves nothing"),
    Ban::everywhere("unfinished", "dbg !", "a leftover of debugging; use `tracing`"),
    Ban::everywhere("channels", "unbounded_channel", UNBOUNDED),
    Ban::everywhere("channels", "UnboundedSender", UNBOUNDED),
    Ban::everywhere("channels", "UnboundedReceiver", UNBOUNDED),
    Ban::everywhere("channels", "unbounded", UNBOUNDED),
    Ban::outside_config("env : : var"),
    Ban::outside_config("env : : var_os"),
    Ban::outside_config("env : : vars"),
    Ban::outside_config("env : : vars_os"),
];

const UNBOUNDED: &str = "every queue is bounded: a slow reader must slow its writer";

impl Ban {
    const fn everywhere(rule: &'static str, sequence: &'static str, reason: &'static str) -> Self {
        Self { rule, sequence, may_stand: |_, _| false, reason }
    }

    const fn outside_config(sequence: &'static str) -> Self {
        Self {
            rule: "environment",
            sequence,
            may_stand: |file, line| {
                file.path.ends_with("config.rs")
                    || file.path.starts_with("ops/cli/")
                    || file.is_test_line(line)
            },
            reason: "configuration is read once, in a config.rs or by the command line",
        }
    }
}

/// Breaches in one file.
pub fn check(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ban in BANS {
        for line in file.lines_with(ban.sequence) {
            if !(ban.may_stand)(file, line) {
                findings.push(Finding::new(&file.path, line, ban.rule, ban.reason));
            }
        }
    }
    findings.extend(channels_without_capacity(file));
    findings
}

/// `mpsc::channel()` and `mpsc::channel::<T>()`: the standard library's, which is unbounded.
fn channels_without_capacity(file: &RustFile) -> Vec<Finding> {
    let start: Vec<&str> = "mpsc : : channel".split(' ').collect();
    let texts: Vec<&str> = file.tokens.iter().map(|token| token.text.as_str()).collect();
    let mut findings = Vec::new();
    for (idx, window) in texts.windows(start.len()).enumerate() {
        let rest = &texts[idx + start.len()..];
        let open = rest.iter().position(|text| *text == "(").unwrap_or(rest.len());
        let is_call = open == 0 || rest.first() == Some(&":");
        if window == start && is_call && rest.get(open + 1) == Some(&")") {
            findings.push(Finding::new(&file.path, file.tokens[idx].line, "channels", UNBOUNDED));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_rules(path: &str, text: &str, expected: &[&str]) {
        let file = RustFile::parse(path, text).unwrap();
        let rules: Vec<_> = check(&file).iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, expected, "{path}: {text}");
    }

    #[test]
    fn unsafe_stands_in_kernels_only() {
        check_rules("kernels/src/cpu/a.rs", "fn a() { unsafe { b() } }", &[]);
        check_rules("worker/src/a.rs", "fn a() { unsafe { b() } }", &["unsafe"]);
        check_rules("worker/src/a.rs", "fn a() { m!(unsafe { b() }) }", &["unsafe"]);
        check_rules("worker/src/a.rs", "#![forbid(unsafe_code)] // unsafe", &[]);
    }

    #[test]
    fn unfinished_code_does_not_land() {
        check_rules("a.rs", "fn a() { todo!() }", &["unfinished"]);
        check_rules("a.rs", "fn a() { unimplemented!(\"b\") }", &["unfinished"]);
        check_rules("a.rs", "fn a() { dbg!(1); }", &["unfinished"]);
        check_rules("a.rs", "#[test] #[ignore = \"slow\"] fn a() {}", &["unfinished"]);
        check_rules("a.rs", "fn todo() { ignore(); }", &[]);
    }

    #[test]
    fn channels_are_bounded() {
        check_rules("a.rs", "fn a() { mpsc::channel(4); oneshot::channel(); }", &[]);
        check_rules("a.rs", "fn a() { mpsc::channel::<u8>(4); b(); }", &[]);
        check_rules("a.rs", "fn a() { std::sync::mpsc::channel(); }", &["channels"]);
        check_rules("a.rs", "fn a() { mpsc::channel::<Vec<u8>>(); }", &["channels"]);
        check_rules("a.rs", "fn a() { mpsc::unbounded_channel(); }", &["channels"]);
        check_rules("a.rs", "fn a() { crossbeam::unbounded(); }", &["channels"]);
    }

    #[test]
    fn the_environment_is_read_in_one_place() {
        let text = "fn a() { std::env::var(\"B\"); }";
        check_rules("worker/src/config.rs", text, &[]);
        check_rules("ops/cli/src/a.rs", text, &[]);
        check_rules("worker/tests/a.rs", text, &[]);
        check_rules("worker/src/a.rs", text, &["environment"]);
        check_rules("worker/src/a.rs", "fn a() { env!(\"B\"); std::env::temp_dir(); }", &[]);
    }
}
