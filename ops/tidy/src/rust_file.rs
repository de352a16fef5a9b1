//! One Rust file: its text, its syntax, its tokens, and which of its lines are test code.

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A parsed Rust file.
pub struct RustFile {
    /// Path from the repository root.
    pub path: String,
    /// The text.
    pub text: String,
    /// The syntax tree.
    pub syntax: syn::File,
    /// All tokens in order; delimiters are tokens, comments are not, doc comments are literals.
    pub tokens: Vec<Token>,
    test_lines: Vec<bool>,
}

/// A token and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its text.
    pub text: String,
    /// Its line, counted from one.
    pub line: usize,
}

impl RustFile {
    /// Parses `text`.
    pub fn parse(path: &str, text: &str) -> Result<Self> {
        let syntax = syn::parse_file(text).with_context(|| format!("parsing {path}"))?;
        let stream: TokenStream = text
            .parse()
            .map_err(|error| anyhow::anyhow!("reading the tokens of {path}: {error}"))?;
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        let test_lines = test_lines(path, text.lines().count(), &syntax);
        Ok(Self { path: path.to_owned(), text: text.to_owned(), syntax, tokens, test_lines })
    }

    /// Whether `line`, counted from one, belongs to test code.
    pub fn is_test_line(&self, line: usize) -> bool {
        self.test_lines.get(line.wrapping_sub(1)).copied().unwrap_or(false)
    }

    /// Lines that are not test code.
    pub fn code_lines(&self) -> usize {
        self.test_lines.iter().filter(|test| !**test).count()
    }

    /// Lines on which `sequence` (tokens separated by spaces) begins.
    pub fn lines_with(&self, sequence: &str) -> Vec<usize> {
        let wanted: Vec<&str> = sequence.split(' ').collect();
        self.tokens
            .windows(wanted.len())
            .filter(|found| {
                found.iter().map(|token| token.text.as_str()).eq(wanted.iter().copied())
            })
            .map(|found| found[0].line)
            .collect()
    }
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        let mut push = |text: &str, line| tokens.push(Token { text: text.to_owned(), line });
        let TokenTree::Group(group) = tree else {
            push(&tree.to_string(), line);
            continue;
        };
        let (open, close) = match group.delimiter() {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::None => ("", ""),
        };
        push(open, line);
        flatten(group.stream(), tokens);
        tokens.push(Token { text: close.to_owned(), line: group.span_close().start().line });
    }
}

fn test_lines(path: &str, lines: usize, syntax: &syn::File) -> Vec<bool> {
    let is_test_file = ["/tests/", "/benches/", "/fuzz/"].iter().any(|part| path.contains(part))
        || path.ends_with("/tests.rs")
        || syntax.attrs.iter().any(is_cfg_test);
    let mut spans = TestSpans { lines: vec![is_test_file; lines] };
    spans.visit_file(syntax);
    spans.lines
}

struct TestSpans {
    lines: Vec<bool>,
}

impl<'ast> Visit<'ast> for TestSpans {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if attributes(item).iter().any(is_cfg_test) {
            let span = item.span();
            self.lines[span.start().line - 1..span.end().line].fill(true);
        } else {
            visit::visit_item(self, item);
        }
    }
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[cfg(test)]`, alone or in an `all`; not `#[cfg(not(test))]`.
fn is_cfg_test(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    if !list.path.is_ident("cfg") {
        return false;
    }
    let mut tokens = Vec::new();
    flatten(list.tokens.clone(), &mut tokens);
    let has = |word: &str| tokens.iter().any(|token| token.text == word);
    has("test") && !has("not") && !has("any")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_items_do_not_count_as_code() {
        let text = "//! A.\nfn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n";
        let file = RustFile::parse("kernels/src/a.rs", text).unwrap();
        assert_eq!(file.code_lines(), 3);
        assert!(file.is_test_line(4) && file.is_test_line(7) && !file.is_test_line(2));
        let all = RustFile::parse("kernels/tests/a.rs", text).unwrap();
        assert_eq!(all.code_lines(), 0);
        let not = text.replace("cfg(test)", "cfg(not(test))");
        assert_eq!(RustFile::parse("kernels/src/a.rs", &not).unwrap().code_lines(), 7);
    }

    #[test]
    fn sequences_are_found_in_code_but_not_in_text() {
        let text =
            "/// todo!()\nfn a() {\n    // todo!()\n    let _ = \"todo!()\";\n    todo!()\n}\n";
        let file = RustFile::parse("a.rs", text).unwrap();
        assert_eq!(file.lines_with("todo ! ( )"), [5]);
    }
}
