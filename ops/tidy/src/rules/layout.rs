//! How a file begins and what it is called.

use crate::{Finding, RustFile};

/// Names that say nothing about what is inside.
const VAGUE: &[&str] = &["util", "utils", "helper", "helpers", "common", "misc", "shared"];

/// Breaches in one file.
pub fn check(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.text.starts_with("//!") {
        let reason = "opens without a `//!` line that says what the module is for";
        findings.push(Finding::new(&file.path, 1, "module-doc", reason));
    }
    if is_crate_root(&file.path) && !forbids_unsafe(file) && !file.path.starts_with("kernels/") {
        let reason = "a crate root other than kernels' says `#![forbid(unsafe_code)]`";
        findings.push(Finding::new(&file.path, 1, "forbid-unsafe", reason));
    }
    if let Some(name) = vague_name(&file.path) {
        let reason = format!("`{name}` does not say what is inside: name it after its subject");
        findings.push(Finding::new(&file.path, 1, "vague-name", reason));
    }
    findings
}

fn is_crate_root(path: &str) -> bool {
    path.ends_with("src/lib.rs") || path.ends_with("src/main.rs") || path.contains("/src/bin/")
}

fn forbids_unsafe(file: &RustFile) -> bool {
    !file.lines_with("# ! [ forbid ( unsafe_code ) ]").is_empty()
}

fn vague_name(path: &str) -> Option<&str> {
    path.trim_end_matches(".rs").split('/').find(|part| VAGUE.contains(part))
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
    fn modules_say_what_they_are_for() {
        check_rules("worker/src/a.rs", "//! A.\n", &[]);
        check_rules("worker/src/a.rs", "use b;\n", &["module-doc"]);
        check_rules("worker/tests/a.rs", "fn a() {}\n", &["module-doc"]);
    }

    #[test]
    fn roots_forbid_unsafe() {
        check_rules("worker/src/lib.rs", "//! A.\n#![forbid(unsafe_code)]\n", &[]);
        check_rules("worker/src/lib.rs", "//! A.\n", &["forbid-unsafe"]);
        check_rules("ops/cli/src/main.rs", "//! A.\n", &["forbid-unsafe"]);
        check_rules("kernels/src/lib.rs", "//! A.\n", &[]);
    }

    #[test]
    fn names_say_what_is_inside() {
        check_rules("worker/src/utils.rs", "//! A.\n", &["vague-name"]);
        check_rules("worker/src/common/mod.rs", "//! A.\n", &["vague-name"]);
        check_rules("worker/src/uncommon.rs", "//! A.\n", &[]);
    }
}
