//! Calls as Gemma 4 writes them: JSON but for names, which stand as they are, and for texts, which
//! stand between marks of their own with nothing escaped:
//!
//! ```text
//! <|tool_call>call:read{lines:[1,2],path:<|"|>walden.txt<|"|>}<tool_call|>
//! ```
//!
//! The marks are text in some vocabularies, and in others tokens that are none, which are heard as
//! text here.

use serde_json::Value;

use super::blocks::NamedCall;
use super::head::{Cursor, Unread, begun};
use super::live_tags::escaped;
use super::tags::is_of_name;
use crate::text::scan::{End, Taken};

/// What one call stands between.
pub(super) const BLOCK: (&str, &str) = ("<|tool_call>", "<tool_call|>");
/// What stands before a call's name.
pub(super) const CALL: &str = "call:";
/// What a text stands between.
pub(crate) const QUOTE: &str = "<|\"|>";
/// What ends an answer: the turn's end, and what results of calls begin with.
pub(crate) const ENDS_OF_TURNS: [&str; 2] = ["<turn|>", "<|tool_response>"];
/// What stands between a turn that is over and the assistant's next one: a template that shows
/// words behind results ends the turn there, and begins none.
const NEXT_TURN: (&str, &str) = ("<turn|>\n", "<|turn>model\n");
/// Names, and what is neither a text nor holds others, are short: what is longer is neither.
const WORD_BYTES_MAX: usize = 512;

/// Whether models of this chat template call so.
pub(super) fn are_taught(template: &str) -> bool {
    template.contains(&format!("{}{CALL}", BLOCK.0))
}

/// Whether a token of this name, which is no text, is a part of calls.
pub(super) fn has_mark(name: &str) -> bool {
    [BLOCK.0, BLOCK.1, QUOTE].contains(&name)
}

/// What `prompt` lacks where it asks for an answer.
pub(crate) fn asking(prompt: &str) -> &'static str {
    if prompt.ends_with(NEXT_TURN.0) { NEXT_TURN.1 } else { "" }
}

/// What stands around the arguments of a call of `function`.
pub(super) fn around_arguments(function: &str) -> (String, String) {
    (format!("{}{CALL}{function}", BLOCK.0), BLOCK.1.to_owned())
}

/// Whether an argument may have this name.
pub(super) fn can_name(key: &str) -> bool {
    !key.is_empty() && key.trim() == key && key.chars().all(|c| is_of_key(c) && c != ':')
}

/// Whether a name may have it that no quotes stand around; a colon ends it.
fn is_of_key(c: char) -> bool {
    !"{}[],<\"".contains(c)
}

/// Whether calls may begin with `text`, behind the block's mark.
pub(super) fn may_begin(text: &str) -> bool {
    let text = text.trim_start();
    let Some(behind) = text.strip_prefix(CALL) else { return CALL.starts_with(text) };
    let name = behind.split('{').next().unwrap_or(behind);
    name.len() <= WORD_BYTES_MAX && name.chars().all(|c| is_of_name(c) || c.is_whitespace())
}

/// Whether `text` ends within a text that it has.
pub(super) fn ends_in_text(text: &str) -> bool {
    text.matches(QUOTE).count() % 2 == 1
}

/// The calls that `text` is; `None` where it is something else.
pub(super) fn calls(text: &str) -> Option<Vec<NamedCall>> {
    let (mut rest, mut calls) = (text.trim(), Vec::new());
    while !rest.is_empty() {
        let behind = rest.strip_prefix(CALL)?;
        let (name, behind) = behind.split_at(behind.find('{')?);
        let name = name.trim();
        if name.is_empty() || !name.chars().all(is_of_name) {
            return None;
        }
        let Taken { json, bytes, end } = Braces::default().take(behind, "");
        if end != End::Value {
            return None;
        }
        calls.push((name.to_owned(), serde_json::from_str(&json).ok()?));
        rest = behind[bytes..].trim_start();
    }
    (!calls.is_empty()).then_some(calls)
}

/// The arguments of one call, as JSON while they come.
#[derive(Debug, Clone, Default)]
pub(super) struct Braces {
    /// What ends the lists and objects that are open.
    ends: Vec<char>,
    at: At,
    /// Whether a comma is told before what comes next.
    has_before: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum At {
    /// Before a value; of a list it may be the end as well.
    #[default]
    Value,
    /// Before a name, or an object's end.
    Name,
    /// In a text.
    Text,
    /// Behind a value.
    Behind,
    /// Behind something that is none of these.
    Malformed,
}

impl Braces {
    /// Takes what there is of the arguments, up to their end or to `close`, which stands in none
    /// but in their texts; where it is empty nothing ends them.
    pub(super) fn take(&mut self, held: &str, close: &str) -> Taken {
        let (mut json, mut rest) = (String::new(), held);
        let end = loop {
            let step = match self.at {
                At::Text => self.text(&mut rest, &mut json),
                At::Malformed => Some(malformed(&mut rest, close, &mut json)),
                _ => self.step(&mut rest, close, &mut json),
            };
            if let Some(end) = step {
                break end;
            }
        };
        Taken { json, bytes: held.len() - rest.len(), end }
    }

    /// Goes on outside texts, where space means nothing; `None`: with what comes next.
    fn step(&mut self, rest: &mut &str, close: &str, json: &mut String) -> Option<End> {
        *rest = rest.trim_start();
        let text = *rest;
        let Some(first) = text.chars().next() else { return Some(End::Open) };
        let is_begun = |mark: &str| mark.len() > text.len() && mark.starts_with(text);
        if is_begun(close) || is_begun(QUOTE) {
            return Some(End::Open);
        }
        if !close.is_empty() && text.starts_with(close) {
            return Some(End::Mark);
        }
        let taken = match (self.at, first) {
            (At::Behind, ',') => {
                self.at = if self.ends.last() == Some(&'}') { At::Name } else { At::Value };
                Ok(1)
            }
            (_, '}' | ']') if self.may_end(first) => {
                self.ends.pop();
                json.push(first);
                self.end_value();
                Ok(1)
            }
            (At::Value, '{' | '[') => {
                self.begin_value(json);
                json.push(first);
                let (end, at) = if first == '{' { ('}', At::Name) } else { (']', At::Value) };
                self.ends.push(end);
                (self.at, self.has_before) = (at, false);
                Ok(1)
            }
            (At::Value, _) if text.starts_with(QUOTE) => {
                self.begin_value(json);
                json.push('"');
                self.at = At::Text;
                Ok(QUOTE.len())
            }
            (At::Value, _) => self.plain(text, json),
            (At::Name, _) => self.name(text, json),
            _ => Err(Unread::Ever),
        };
        match taken {
            Ok(bytes) => *rest = &text[bytes..],
            Err(Unread::Yet) => return Some(End::Open),
            Err(Unread::Ever) => self.at = At::Malformed,
        }
        self.ends.is_empty().then_some(End::Value).filter(|_| self.at == At::Behind)
    }

    /// Whether `end` may end what is open: an object not behind a name, which wants a value.
    fn may_end(&self, end: char) -> bool {
        self.ends.last() == Some(&end) && (self.at != At::Value || end == ']')
    }

    fn begin_value(&self, json: &mut String) {
        json.push_str(if self.has_before { "," } else { "" });
    }

    fn end_value(&mut self) {
        (self.at, self.has_before) = (At::Behind, true);
    }

    /// Takes what is neither a text nor holds others.
    fn plain(&mut self, text: &str, json: &mut String) -> Result<usize, Unread> {
        let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)));
        let bytes = end.unwrap_or(text.len());
        if bytes > WORD_BYTES_MAX {
            return Err(Unread::Ever);
        }
        end.ok_or(Unread::Yet)?;
        // The template writes Python's word for what is none.
        let word = match &text[..bytes] {
            "true" | "True" => "true",
            "false" | "False" => "false",
            "null" | "None" => "null",
            number if is_number(number) => number,
            _ => return Err(Unread::Ever),
        };
        self.begin_value(json);
        json.push_str(word);
        self.end_value();
        Ok(bytes)
    }

    /// Takes a name and the colon behind it.
    fn name(&mut self, text: &str, json: &mut String) -> Result<usize, Unread> {
        let (name, bytes) = match name_of(text) {
            Ok(found) if found.1 <= WORD_BYTES_MAX => found,
            Err(Unread::Yet) if text.len() <= WORD_BYTES_MAX => return Err(Unread::Yet),
            _ => return Err(Unread::Ever),
        };
        self.begin_value(json);
        json.push_str(&Value::from(name).to_string());
        json.push(':');
        (self.at, self.has_before) = (At::Value, false);
        Ok(bytes)
    }

    /// Goes on in a text.
    fn text(&mut self, rest: &mut &str, json: &mut String) -> Option<End> {
        let text = *rest;
        let end = text.find(QUOTE);
        let bytes = end.unwrap_or(text.len() - begun(text, QUOTE));
        json.push_str(&escaped(&text[..bytes]));
        if end.is_none() {
            *rest = &text[bytes..];
            return Some(End::Open);
        }
        json.push('"');
        *rest = &text[bytes + QUOTE.len()..];
        self.end_value();
        None
    }
}

/// What was told cannot be taken back, so the rest of the call is told as it is.
fn malformed(rest: &mut &str, close: &str, json: &mut String) -> End {
    let text = *rest;
    let end = text.find(close).filter(|_| !close.is_empty());
    let (told, left) = text.split_at(end.unwrap_or(text.len() - begun(text, close)));
    json.push_str(told);
    *rest = left;
    if end.is_some() { End::Mark } else { End::Open }
}

/// The name that `text` begins with, and the bytes before its value.
fn name_of(text: &str) -> Result<(&str, usize), Unread> {
    let mut cursor = Cursor { text, at: 0 };
    if text.starts_with(QUOTE) {
        cursor.take(QUOTE)?;
        let name = cursor.until(QUOTE, |_| true)?;
        cursor.take(":")?;
        return Ok((name, cursor.at));
    }
    let name = cursor.until(":", is_of_key)?.trim_end();
    if name.is_empty() { Err(Unread::Ever) } else { Ok((name, cursor.at)) }
}

/// Whether JSON has `word` as a number.
fn is_number(word: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = word.strip_prefix('-').unwrap_or(word);
    let parts = unsigned.split_once(['e', 'E']);
    let (number, power) = parts.map_or((unsigned, None), |(number, power)| (number, Some(power)));
    let parts = number.split_once('.');
    let (whole, fraction) = parts.map_or((number, None), |(whole, part)| (whole, Some(part)));
    let power = power.map(|power| power.strip_prefix(['+', '-']).unwrap_or(power));
    let is_whole = digits(whole) && (whole == "0" || !whole.starts_with('0'));
    is_whole && fraction.is_none_or(digits) && power.is_none_or(digits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, json};

    use super::*;

    /// What is told of arguments that come in pieces of `cut` characters, and what is left.
    fn told(written: &str, cut: usize) -> (String, String, Option<End>) {
        let (mut braces, mut held, mut json) = (Braces::default(), String::new(), String::new());
        let characters: Vec<char> = written.chars().collect();
        let mut end = None;
        for piece in characters.chunks(cut) {
            held.extend(piece);
            if end.is_none() {
                let taken = braces.take(&held, BLOCK.1);
                json += &taken.json;
                held.drain(..taken.bytes);
                end = Some(taken.end).filter(|end| *end != End::Open);
            }
        }
        (json, held, end)
    }

    fn check(written: &str, json: &str, behind: &str) {
        for cut in [1, 2, 3, 1000] {
            let (seen, left, end) = told(&format!("{written}{behind}"), cut);
            let seen = (seen.as_str(), left.as_str(), end);
            assert_eq!(seen, (json, behind, Some(End::Value)), "{written:?} by {cut}");
        }
    }

    #[test]
    fn arguments_are_told_as_json() {
        check("{}", "{}", BLOCK.1);
        check("{ }", "{}", "}");
        check("{x:1,y : -0.50e+3 }", r#"{"x":1,"y":-0.50e+3}"#, "");
        let long = "{n:123456789012345678901234567890,m:1e999}";
        check(long, r#"{"n":123456789012345678901234567890,"m":1e999}"#, "");
        let plain = "{a:true,b:false,c:null,d:None,e:True}";
        check(plain, r#"{"a":true,"b":false,"c":null,"d":null,"e":true}"#, "");
        check("{x:[],y:{},z:[[1,2],[{}]]}", r#"{"x":[],"y":{},"z":[[1,2],[{}]]}"#, " ");
        check(
            "{o:{a:[<|\"|>b<|\"|>, {c:<|\"|><|\"|>}],d:1},\n\tp:2,}",
            r#"{"o":{"a":["b",{"c":""}],"d":1},"p":2}"#,
            "<tool_call|>",
        );
        check("{<|\"|>a: b<|\"|> : 1,größe:2}", r#"{"a: b":1,"größe":2}"#, "");
    }

    #[test]
    fn texts_may_have_anything() {
        for text in [
            "a \"b\" 'c' \\n \\",
            "{x:1}, [y]: <tool_call|> <|tool_call>call:g{",
            "line\r\n\tnext\u{1}é😀",
            "<|\"| <| < |>",
            "null",
        ] {
            let want = json!({ "x": text, "y": [text] }).to_string();
            let written = format!("{{x:{QUOTE}{text}{QUOTE},y:[{QUOTE}{text}{QUOTE}]}}");
            check(&written, &want, BLOCK.1);
        }
    }

    #[test]
    fn what_is_none_is_told_as_it_is() {
        for (written, want) in [
            ("{x}", "{x}"),
            ("{x:}", "{\"x\":}"),
            ("{x:1 y:2}", "{\"x\":1y:2}"),
            ("{x:[1}", "{\"x\":[1}"),
            ("{x:a b}", "{\"x\":a b}"),
            ("{x:1,,y:2}", "{\"x\":1,y:2}"),
            ("{x:01}", "{\"x\":01}"),
            ("{:1}", "{:1}"),
            ("{\"x\":1}", "{\"x\":1}"),
            ("{x:1", "{\"x\":1"),
        ] {
            for cut in [1, 2, 1000] {
                let (seen, left, end) = told(&format!("{written}{}", BLOCK.1), cut);
                let seen = (seen.as_str(), left.as_str(), end);
                assert_eq!(seen, (want, BLOCK.1, Some(End::Mark)), "{written:?} by {cut}");
            }
        }
        // Nothing that is too long is held.
        for long in ["1", "a"] {
            let written = format!("{{x:{}", long.repeat(WORD_BYTES_MAX + 1));
            assert_eq!(told(&written, 1).1, "");
        }
    }

    #[test]
    fn calls_are_read() {
        let check = |text: &str, want: Option<Value>| {
            let got = calls(text).map(|calls| {
                let list = calls.into_iter().map(|(name, arguments)| json!([name, arguments]));
                list.collect::<Value>()
            });
            assert_eq!(got, want, "{text:?}");
        };
        check("call:f{}", Some(json!([["f", {}]])));
        check(
            "\ncall:f{x:1}\ncall: g-1.h {y:<|\"|>}<|\"|>}",
            Some(json!([["f", { "x": 1 }], ["g-1.h", { "y": "}" }]])),
        );
        for bad in [
            "",
            "f{}",
            "call:{}",
            "call:f",
            "call:a b{}",
            "call:f{}x",
            "call:f{x:1",
            "call:f{x:<|\"|>a}",
            "call:f{x:y}",
            "call:f[1]",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn a_word_and_a_name_come_first() {
        for begun in ["", "\n", "ca", "call:", "call: f", "call:f{x", "call:g-1.h{}}"] {
            assert!(may_begin(begun), "{begun:?}");
        }
        for words in ["f", "call f", "call:f(", "<", "call:<", "call:f:{"] {
            assert!(!may_begin(words), "{words:?}");
        }
        assert!(!may_begin(&format!("call:{}", "a".repeat(WORD_BYTES_MAX + 1))));
        assert!(ends_in_text("call:f{x:<|\"|>a") && !ends_in_text("call:f{x:<|\"|><|\"|>"));
    }

    #[test]
    fn names_end_with_a_colon() {
        for name in ["x", "a b", "größe", "$ref", "a.b-c"] {
            assert!(can_name(name), "{name}");
            check(&format!("{{{name}:1}}"), &json!({ name: 1 }).to_string(), "");
        }
        for name in ["", " x", "x ", "a:b", "a,b", "{", "<|\"|>", "\"x\""] {
            assert!(!can_name(name), "{name}");
        }
    }

    /// As the template writes them.
    fn written(value: &Value) -> String {
        match value {
            Value::String(text) => format!("{QUOTE}{text}{QUOTE}"),
            Value::Array(list) => {
                format!("[{}]", list.iter().map(written).collect::<Vec<_>>().join(","))
            }
            Value::Object(fields) => {
                let field = |(key, value): (&String, &Value)| format!("{key}:{}", written(value));
                format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(","))
            }
            plain => plain.to_string(),
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            key in "[a-z][a-z ]{0,3}[a-z]",
            text in "(\\PC|\n|\"|\\\\|\\{|<tool_call\\|>|<\\|){0,12}",
            number: f64,
            flag: bool,
            cut in 1usize..9,
        ) {
            prop_assume!(format!("{text}{QUOTE}").find(QUOTE) == Some(text.len()));
            let mut fields = Map::new();
            fields.insert(key, json!([text, { "n": number, "no": null }, [], flag]));
            let value = Value::Object(fields);
            let (json, left, end) = told(&written(&value), cut);
            let want = (value.to_string(), String::new(), Some(End::Value));
            prop_assert_eq!((json, left, end), want);
        }

        #[test]
        fn cuts_do_not_matter(
            written in "\\{(<\\|\"\\|>|<tool_call\\||x|:|1|-|e|,|\\{|\\}|\\[|\\]| |é|\"|<\\|)\
                {0,14}",
            cut in 1usize..6,
        ) {
            prop_assert_eq!(told(&written, cut), told(&written, 1000));
        }
    }
}
