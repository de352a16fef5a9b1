//! Paths of one machine, which mean nothing on another.

use crate::Finding;

/// Spelled in halves, so that this file does not break its own rule.
const PATHS: &[&str] = &[concat!("../", "shared"), concat!("/", "work/")];

/// Breaches in one file of any kind.
pub fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (idx, line) in text.lines().enumerate() {
        if let Some(found) = PATHS.iter().find(|found| begins_a_path(line, found)) {
            let reason = format!("`{found}` is a path of one machine");
            findings.push(Finding::new(path, idx + 1, "local-path", reason));
        }
    }
    findings
}

fn begins_a_path(line: &str, path: &str) -> bool {
    let is_inside = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}');
    line.match_indices(path).any(|(at, _)| !line[..at].ends_with(is_inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(text: &str, count: usize) {
        assert_eq!(check("README.md", text).len(), count, "{text}");
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for path in PATHS {
            check_one(&format!("see {path}a and\n`{path}b`"), 2);
        }
        check_one("see a/work/b and frame/work/", 0);
    }
}
