//! One breach of one house rule.

use std::fmt;

/// Where a house rule is broken, and why the rule exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Path from the repository root.
    pub file: String,
    /// Line, counted from one.
    pub line: usize,
    /// The rule's name, as `ratchet.toml` spells it.
    pub rule: &'static str,
    /// What is too large and by how much, for the rules that the ratchet can excuse.
    pub measure: Option<Measure>,
    /// What is wrong and why that matters.
    pub reason: String,
}

/// A size that a budget limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measure {
    /// The function, trait or crate that is measured; empty for a whole file.
    pub item: String,
    /// Its size, in the rule's unit.
    pub value: usize,
}

impl Finding {
    /// A breach that nothing excuses.
    pub fn new(file: &str, line: usize, rule: &'static str, reason: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, rule, measure: None, reason: reason.into() }
    }

    /// The same breach, with a size that an entry of the ratchet may excuse.
    pub fn measured(mut self, item: impl Into<String>, value: usize) -> Self {
        self.measure = Some(Measure { item: item.into(), value });
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.file, self.line, self.rule, self.reason)
    }
}
