//! The README's tour of one request: every `file::function` it names must exist.

use syn::visit::{self, Visit};

use crate::{Finding, RustFile};

const RULE: &str = "tour";

/// Where the tour stands in the README.
const HEADING: &str = "## Follow one request";

/// Stops that the tour has.
const STOPS: usize = 10;

/// Breaches in the README.
pub fn check(readme: &str, files: &[RustFile]) -> Vec<Finding> {
    let stops = stops(readme);
    let finding = |line, reason: String| Finding::new("README.md", line, RULE, reason);
    let missing = stops.iter().filter(|stop| !exists(stop, files));
    let mut findings: Vec<Finding> = missing
        .map(|stop| finding(stop.line, format!("no `{}` in `{}`", stop.function, stop.file)))
        .collect();
    let rows: std::collections::BTreeSet<usize> = stops.iter().map(|stop| stop.line).collect();
    if rows.len() != STOPS {
        findings.push(finding(1, format!("`{HEADING}` has {} stops of {STOPS}", rows.len())));
    }
    findings
}

struct Stop<'a> {
    line: usize,
    file: &'a str,
    function: &'a str,
}

fn stops(readme: &str) -> Vec<Stop<'_>> {
    let mut stops = Vec::new();
    let after = readme.lines().enumerate().skip_while(|(_, line)| *line != HEADING).skip(1);
    for (idx, line) in after.take_while(|(_, line)| !line.starts_with("## ")) {
        for quoted in line.split('`').skip(1).step_by(2).filter(|_| line.starts_with('|')) {
            if let Some((file, function)) = quoted.split_once(".rs::") {
                let file = &quoted[..file.len() + ".rs".len()];
                stops.push(Stop { line: idx + 1, file, function });
            }
        }
    }
    stops
}

fn exists(stop: &Stop<'_>, files: &[RustFile]) -> bool {
    let Some(file) = files.iter().find(|file| file.path == stop.file) else { return false };
    let mut search = Search { name: stop.function, found: false };
    search.visit_file(&file.syntax);
    search.found
}

struct Search<'a> {
    name: &'a str,
    found: bool,
}

impl<'ast> Visit<'ast> for Search<'_> {
    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.found |= signature.ident == self.name;
        visit::visit_signature(self, signature);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_readme(rows: usize, named: &str, expected: usize) {
        let file = RustFile::parse("a/b.rs", "//! B.\nimpl B { fn c(&self) {} }\n").unwrap();
        let row = format!("| n | `{named}` | `--flag` |\n");
        let readme = format!("# A\n\n{HEADING}\n\n{}\n## Next\n{row}", row.repeat(rows));
        let findings = check(&readme, &[file]);
        assert_eq!(findings.len(), expected, "{rows} {named}: {findings:?}");
    }

    #[test]
    fn every_stop_exists() {
        check_readme(STOPS, "a/b.rs::c", 0);
        check_readme(STOPS, "a/b.rs::d", STOPS);
        check_readme(STOPS, "a/z.rs::c", STOPS);
        check_readme(STOPS - 1, "a/b.rs::c", 1);
        check_readme(STOPS, "a/b.rs", 1);
    }
}
