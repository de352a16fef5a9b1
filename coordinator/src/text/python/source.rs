//! A template's source as the engine takes it.
//!
//! The engine's operator `%` is for numbers alone and cannot be given another meaning, so
//! `left % right` is written as a filter of `left`, over what Jinja takes for its two sides.

use std::ops::Range;

/// The filter that stands for the operator.
pub(super) const PERCENT: &str = "aqueduct_percent";
/// Operators of one tag that are looked at, each of which is a walk over the tag.
const PERCENTS_MAX: usize = 256;
/// What an expression goes on with or ends at, so that nothing before it belongs to a `%`.
const BOUNDS: [&str; 14] =
    ["+", "-", "~", "==", "!=", "<", ">", "<=", ">=", ",", ":", "=", "(", "{"];
/// Operators of two characters.
const DOUBLE: [&str; 6] = ["**", "//", "==", "!=", "<=", ">="];
/// Words of the language, which are no names.
const KEYWORDS: [&str; 7] = ["and", "or", "not", "in", "if", "else", "elif"];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Number,
    Name,
    Open,
    Close,
    Operator,
}

struct Token<'a> {
    kind: Kind,
    text: &'a str,
    place: Range<usize>,
}

/// Jinja reads any line ending as `\n`, also inside of strings. The `transformers` library has a
/// block besides that marks what an assistant said, for training. What stands in it is shown,
/// and what is set in it is not seen outside: as in a `with` of nothing.
pub(super) fn in_jinja(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut parts = source.split("{%");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let tag = part.split_once("%}").map_or(part, |(tag, _)| tag);
        let name = tag.trim_matches(['-', '+']).trim();
        plain.push_str("{%");
        match name {
            "generation" => plain.push_str(&part.replacen(name, "with", 1)),
            "endgeneration" => plain.push_str(&part.replacen(name, "endwith", 1)),
            _ => plain.push_str(part),
        }
    }
    plain
}

/// The same with a filter for each `%`; `None` where there is none, or where it is not understood.
pub(super) fn with_percent(source: &str) -> Option<String> {
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    let mut at = 0;
    while let Some(open) = source[at..].find("{").map(|open| at + open) {
        at = match source[open..].get(..2) {
            Some("{#") => open + source[open..].find("#}")? + 2,
            Some(tag @ ("{{" | "{%")) => {
                let is_block = tag == "{%";
                let (tokens, end) = tokens(source, open + 2, if is_block { "%}" } else { "}}" })?;
                let first = tokens.first().map(|token| token.text);
                if is_block && first == Some("raw") {
                    end_of_raw(source, end)?
                } else {
                    edit(&tokens, is_block, &mut edits);
                    end
                }
            }
            _ => open + 1,
        };
    }
    edits.sort_by_key(|(place, _)| place.start);
    let (mut hooked, mut done) = (String::new(), 0);
    for (place, text) in &edits {
        hooked.push_str(&source[done..place.start]);
        hooked.push_str(text);
        done = place.end;
    }
    (!edits.is_empty()).then(|| hooked + &source[done..])
}

/// Where what stands behind the tag that ends a raw block begins.
fn end_of_raw(source: &str, from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let open = at + source[at..].find("{%")? + 2;
        let tag = source[open..].trim_start_matches(['-', '+']).trim_start();
        if let Some(rest) = tag.strip_prefix("endraw") {
            let behind = rest.find("%}")? + 2;
            return Some(source.len() - rest.len() + behind);
        }
        at = open;
    }
}

/// The tokens from `from` to the end of the tag, and where that is.
fn tokens<'a>(source: &'a str, from: usize, end: &str) -> Option<(Vec<Token<'a>>, usize)> {
    let (mut tokens, mut depth, mut at) = (Vec::new(), 0_usize, from);
    loop {
        let rest = source.get(at..)?;
        let c = rest.chars().next()?;
        if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        }
        if depth == 0 {
            let bare = rest.strip_prefix(['-', '+']).unwrap_or(rest);
            if bare.starts_with(end) {
                return Some((tokens, at + rest.len() - bare.len() + end.len()));
            }
        }
        let until = |is_in: fn(char) -> bool| rest.find(|c: char| !is_in(c)).unwrap_or(rest.len());
        let (kind, length) = match c {
            '"' | '\'' => (Kind::Text, length_of_text(rest, c)?),
            '0'..='9' => (Kind::Number, length_of_number(rest)),
            '(' | '[' | '{' => (Kind::Open, 1),
            ')' | ']' | '}' => (Kind::Close, 1),
            _ if c.is_alphabetic() || c == '_' => {
                (Kind::Name, until(|c| c.is_alphanumeric() || c == '_'))
            }
            _ => {
                let is_double = DOUBLE.iter().any(|double| rest.starts_with(double));
                (Kind::Operator, if is_double { 2 } else { c.len_utf8() })
            }
        };
        match kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.checked_sub(1)?,
            _ => {}
        }
        tokens.push(Token { kind, text: &rest[..length], place: at..at + length });
        at += length;
    }
}

fn length_of_text(rest: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    let is_end = |&(_, c): &(usize, char)| {
        let is_end = c == quote && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    };
    rest.char_indices().skip(1).find(is_end).map(|(at, _)| at + 1)
}

/// Of an exponent's sign too; a name behind a point is none of a number.
fn length_of_number(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let goes_on = match byte {
            b'.' => is_digit(at + 1),
            b'+' | b'-' => at > 0 && matches!(bytes[at - 1], b'e' | b'E') && is_digit(at + 1),
            _ => byte.is_ascii_alphanumeric() || byte == b'_',
        };
        if !goes_on {
            break;
        }
        at += 1;
    }
    at
}

/// What changes the operators `%` of a tag. One whose sides are not plain is left as it is.
fn edit(tokens: &[Token<'_>], is_block: bool, edits: &mut Vec<(Range<usize>, String)>) {
    let percents = tokens.iter().enumerate().filter(|(_, token)| token.text == "%");
    for (idx, token) in percents.take(PERCENTS_MAX) {
        // The first name of a block says which it is.
        let least = usize::from(is_block);
        let sides = (left_of(tokens, idx, least), right_of(tokens, idx + 1));
        let (Some(left), Some(right)) = sides else { continue };
        let (start, end) = (tokens[left].place.start, tokens[right - 1].place.end);
        edits.push((start..start, "((".to_owned()));
        edits.push((token.place.clone(), format!(")|{PERCENT}(")));
        edits.push((end..end, "))".to_owned()));
    }
}

/// Whether the token is a word of the language: a name is none behind a point or a bar, and
/// behind `is` there are names of tests.
fn is_keyword(tokens: &[Token<'_>], idx: usize) -> bool {
    let before = |back: usize| idx.checked_sub(back).map(|idx| tokens[idx].text);
    let is_named = match before(1) {
        Some("." | "|" | "is") => true,
        Some("not") => before(2) == Some("is"),
        _ => false,
    };
    tokens[idx].kind == Kind::Name && KEYWORDS.contains(&tokens[idx].text) && !is_named
}

/// The first token of what stands before the operator at `idx` and binds as strongly.
fn left_of(tokens: &[Token<'_>], idx: usize, least: usize) -> Option<usize> {
    let ends_one = |idx: usize| match tokens[idx].kind {
        Kind::Text | Kind::Number | Kind::Close => true,
        Kind::Name => !is_keyword(tokens, idx),
        Kind::Open | Kind::Operator => false,
    };
    let (mut first, mut depth) = (idx, 0_usize);
    while first > least {
        let before = first - 1;
        let token = &tokens[before];
        match token.kind {
            Kind::Close => depth += 1,
            Kind::Open if depth == 0 => break,
            Kind::Open => depth -= 1,
            _ if depth > 0 => {}
            _ => {
                // A sign binds more strongly than `%`, and the sum of two less.
                let is_sum = before > least && ends_one(before - 1);
                let is_sign = matches!(token.text, "-" | "+") && !is_sum;
                let is_bound = BOUNDS.contains(&token.text) || is_keyword(tokens, before);
                if is_bound && !is_sign {
                    break;
                }
            }
        }
        first = before;
    }
    (first < idx && ends_one(idx - 1)).then_some(first)
}

/// The token behind what stands from `idx` on and binds more strongly than an operator `%`.
fn right_of(tokens: &[Token<'_>], idx: usize) -> Option<usize> {
    let mut at = unary(tokens, idx)?;
    while text_at(tokens, at) == "**" {
        at = unary(tokens, at + 1)?;
    }
    Some(at)
}

fn text_at<'a>(tokens: &[Token<'a>], idx: usize) -> &'a str {
    tokens.get(idx).map_or("", |token| token.text)
}

/// A value with what signs, filters and tests it has.
fn unary(tokens: &[Token<'_>], mut idx: usize) -> Option<usize> {
    while matches!(text_at(tokens, idx), "-" | "+") {
        idx += 1;
    }
    idx = primary(tokens, idx)?;
    loop {
        idx = match text_at(tokens, idx) {
            "|" => called(tokens, dotted(tokens, idx + 1)?)?,
            "is" => {
                let test = idx + 1 + usize::from(text_at(tokens, idx + 1) == "not");
                tested(tokens, dotted(tokens, test)?)?
            }
            _ => return Some(idx),
        };
    }
}

/// The name of a filter or a test.
fn dotted(tokens: &[Token<'_>], mut idx: usize) -> Option<usize> {
    let is_name = |idx: usize| tokens.get(idx).is_some_and(|token| token.kind == Kind::Name);
    while is_name(idx) && text_at(tokens, idx + 1) == "." {
        idx += 2;
    }
    is_name(idx).then_some(idx + 1)
}

fn called(tokens: &[Token<'_>], idx: usize) -> Option<usize> {
    if text_at(tokens, idx) == "(" { group(tokens, idx) } else { Some(idx) }
}

/// What a test is told stands in brackets, or is one value.
fn tested(tokens: &[Token<'_>], idx: usize) -> Option<usize> {
    match tokens.get(idx) {
        Some(token) if token.text == "(" => group(tokens, idx),
        Some(token) if token.kind == Kind::Name => {
            let is_next = is_keyword(tokens, idx) || token.text == "is";
            if is_next { Some(idx) } else { primary(tokens, idx) }
        }
        Some(token) if matches!(token.kind, Kind::Text | Kind::Number | Kind::Open) => {
            primary(tokens, idx)
        }
        _ => Some(idx),
    }
}

/// A value with the fields, places and calls behind it.
fn primary(tokens: &[Token<'_>], idx: usize) -> Option<usize> {
    let mut at = match tokens.get(idx)?.kind {
        Kind::Open => group(tokens, idx)?,
        Kind::Text => {
            let others = tokens[idx..].iter().take_while(|token| token.kind == Kind::Text);
            idx + others.count()
        }
        Kind::Name if is_keyword(tokens, idx) => return None,
        Kind::Name | Kind::Number => idx + 1,
        Kind::Close | Kind::Operator => return None,
    };
    loop {
        at = match text_at(tokens, at) {
            "." => at + 2,
            "(" | "[" => group(tokens, at)?,
            _ => return (at <= tokens.len()).then_some(at),
        };
    }
}

/// The token behind the bracket that closes the one at `idx`.
fn group(tokens: &[Token<'_>], idx: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(idx) {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}
