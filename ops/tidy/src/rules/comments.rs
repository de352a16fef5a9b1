//! What a comment may not be: code that was switched off, or a wish without an owner.

use syn::Stmt;

use crate::{Finding, RustFile};

/// Spelled in halves, so that this file does not break its own rule.
const WISHES: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];

/// Breaches in one Rust file.
pub fn check(file: &RustFile) -> Vec<Finding> {
    let is_dead = |line: &&str| plain_comment(line).is_some_and(is_code);
    let dead = file.text.lines().enumerate().filter(|(_, line)| is_dead(line));
    let mut findings: Vec<Finding> = dead
        .map(|(idx, _)| {
            let reason = "commented-out code: git remembers it, the reader need not";
            Finding::new(&file.path, idx + 1, "dead-code", reason)
        })
        .collect();
    findings.extend(check_text(&file.path, &file.text));
    findings
}

/// Wishes without an owner, in any text.
pub fn check_text(path: &str, text: &str) -> Vec<Finding> {
    let finding = |idx: usize, wish: &str| {
        let reason = format!("a {wish} names its owner, as in `{wish}(name)`, or does not land");
        Finding::new(path, idx + 1, "ownerless", reason)
    };
    let lines = text.lines().enumerate();
    lines.filter_map(|(idx, line)| ownerless(line).map(|wish| finding(idx, wish))).collect()
}

/// The text of a `//` comment that is not documentation.
fn plain_comment(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("//")?;
    (!rest.starts_with(['/', '!'])).then(|| rest.trim())
}

/// Whether a comment's text is a whole statement, or the lone end of one. Prose that happens to
/// end in a semicolon does not parse.
fn is_code(comment: &str) -> bool {
    if matches!(comment, "}" | "};" | "})" | "});") {
        return true;
    }
    let looks_like = comment.ends_with(';') && comment.contains(['(', '=', '.', ':', '!']);
    let begins = comment.ends_with('{')
        && ["fn ", "pub ", "if ", "for ", "let ", "match ", "impl ", "while "]
            .iter()
            .any(|word| comment.starts_with(word));
    begins || looks_like && syn::parse_str::<Statements>(comment).is_ok()
}

struct Statements;

impl syn::parse::Parse for Statements {
    fn parse(input: syn::parse::ParseStream<'_>) -> syn::Result<Self> {
        let statements: Vec<Stmt> = syn::Block::parse_within(input)?;
        if statements.is_empty() { Err(input.error("no statement")) } else { Ok(Self) }
    }
}

fn ownerless(line: &str) -> Option<&'static str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    WISHES.iter().copied().find(|wish| {
        line.match_indices(*wish).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + wish.len()..]);
            !before.ends_with(is_word) && !after.starts_with(is_word) && !after.starts_with('(')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_rules(text: &str, expected: &[&str]) {
        let file = RustFile::parse("worker/src/a.rs", text).unwrap();
        let rules: Vec<_> = check(&file).iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, expected, "{text}");
    }

    #[test]
    fn switched_off_code_is_found_and_prose_is_not() {
        check_rules("// let a = b();\n", &["dead-code"]);
        check_rules("// self.a.push(b);\n", &["dead-code"]);
        check_rules("// if a == b {\n//     c();\n// }\n", &["dead-code"; 3]);
        check_rules("// The sum is taken first (see merge); then it is divided.\n", &[]);
        check_rules("// keys are rotated once, at their own position;\n", &[]);
        check_rules("// x = a / b, so that rows add up to 1\n", &[]);
        check_rules("/// let a = b();\nfn a() {}\n", &[]);
    }

    #[test]
    fn wishes_name_their_owner() {
        for wish in WISHES {
            check_rules(&format!("// {wish}: later\n"), &["ownerless"]);
            check_rules(&format!("// {wish}(ada): later\n"), &[]);
            check_rules(&format!("// a{wish}b\n"), &[]);
        }
    }
}
