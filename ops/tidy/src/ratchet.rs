//! What was already too large when a rule came: excused with a reason, and only while it is
//! exactly that large, so that the file can shrink and cannot grow unseen.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::Finding;

/// Where the excuses stand.
pub const PATH: &str = "ops/tidy/ratchet.toml";

/// The excuses.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ratchet {
    /// One excuse each.
    #[serde(default)]
    pub allow: Vec<Allow>,
}

/// One excuse.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allow {
    /// The rule that is broken.
    pub rule: String,
    /// The file in which.
    pub path: String,
    /// The function, trait or crate; empty for a whole file.
    #[serde(default)]
    pub item: String,
    /// The size that is excused.
    pub value: usize,
    /// Why it may stay.
    pub reason: String,
}

impl Ratchet {
    /// Parses `ratchet.toml`.
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).with_context(|| format!("parsing {PATH}"))
    }

    /// Of the findings of the rules named in `rules`, those that are not excused, and the
    /// excuses of these rules that are no longer needed in full.
    pub fn apply(&self, rules: &[&str], findings: Vec<Finding>) -> Vec<Finding> {
        let mut left: Vec<Finding> =
            findings.iter().filter(|finding| !self.excuses(finding)).cloned().collect();
        for allow in self.allow.iter().filter(|allow| rules.contains(&allow.rule.as_str())) {
            if allow.reason.trim().is_empty() {
                left.push(complaint(allow, "has no reason"));
            }
            if !findings.iter().any(|finding| allow.matches(finding) == Some(allow.value)) {
                left.push(complaint(allow, "is not what is there now: shrink or remove it"));
            }
        }
        left
    }

    fn excuses(&self, finding: &Finding) -> bool {
        self.allow.iter().any(|allow| allow.matches(finding).is_some_and(|v| v <= allow.value))
    }
}

impl Allow {
    /// The size of a finding that this excuse is about.
    fn matches(&self, finding: &Finding) -> Option<usize> {
        let measure = finding.measure.as_ref()?;
        let same =
            self.rule == finding.rule && self.path == finding.file && self.item == measure.item;
        same.then_some(measure.value)
    }
}

fn complaint(allow: &Allow, wrong: &str) -> Finding {
    let Allow { rule, path, item, value, .. } = allow;
    Finding::new(PATH, 1, "ratchet", format!("{rule} {path} {item} = {value} {wrong}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(allowed: usize, reason: &str, found: Option<usize>, complaints: usize) {
        let ratchet = Ratchet {
            allow: vec![Allow {
                rule: "file-lines".into(),
                path: "a.rs".into(),
                item: String::new(),
                value: allowed,
                reason: reason.into(),
            }],
        };
        let findings = found
            .map(|value| Finding::new("a.rs", 1, "file-lines", "too long").measured("", value))
            .into_iter()
            .collect();
        let left = ratchet.apply(&["file-lines"], findings);
        assert_eq!(left.len(), complaints, "{allowed} {found:?}: {left:?}");
    }

    #[test]
    fn an_excuse_holds_for_exactly_one_size_and_needs_a_reason() {
        check(420, "one table", Some(420), 0);
        check(420, "one table", Some(421), 2);
        check(420, "one table", Some(410), 1);
        check(420, "one table", None, 1);
        check(420, " ", Some(420), 1);
    }

    #[test]
    fn excuses_of_other_rules_are_left_alone() {
        let ratchet = Ratchet::parse(
            "[[allow]]\nrule = \"parameters\"\npath = \"a.rs\"\nitem = \"f\"\nvalue = 6\n\
             reason = \"r\"\n",
        );
        assert!(ratchet.unwrap().apply(&["file-lines"], Vec::new()).is_empty());
        assert!(Ratchet::parse("[[allow]]\nrule = \"x\"\n").is_err());
    }
}
