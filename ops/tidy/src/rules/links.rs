//! Links between documents: what a page points at must be there.

use crate::Finding;

/// Breaches in one Markdown file; `paths` are all files of the tree.
pub fn check(path: &str, text: &str, paths: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (idx, line) in text.lines().enumerate() {
        for target in targets(line).filter(|target| !exists(path, target, paths)) {
            let reason = format!("the link to `{target}` leads nowhere");
            findings.push(Finding::new(path, idx + 1, "links", reason));
        }
    }
    findings
}

fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// Whether a link inside the repository has a file or a folder at its end.
fn exists(path: &str, target: &str, paths: &[String]) -> bool {
    let file = target.split('#').next().unwrap_or_default();
    if file.is_empty() || target.contains("://") {
        return true;
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in file.trim_end_matches('/').split('/') {
        match part {
            ".." if parts.pop().is_none() => return false,
            "." | ".." => {}
            name => parts.push(name),
        }
    }
    let resolved = parts.join("/");
    paths.iter().any(|path| {
        path.strip_prefix(&resolved).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_link(target: &str, is_there: bool) {
        let paths = ["README.md", "docs/A.md", "model/config.json"].map(str::to_owned);
        let text = format!("see [a]({target}) and [b](A.md#words)");
        assert_eq!(check("docs/B.md", &text, &paths).is_empty(), is_there, "{target}");
    }

    #[test]
    fn links_lead_somewhere() {
        check_link("A.md", true);
        check_link("../README.md#status", true);
        check_link("../model/", true);
        check_link("#status", true);
        check_link("https://example.org/x", true);
        check_link("README.md", false);
        check_link("../mod", false);
        check_link("../../README.md", false);
    }
}
