//! Calls that are written as Python has them:
//!
//! ```text
//! [read(path="walden.txt", lines=[1, 2]), stop()]
//! ```

use serde_json::{Map, Value};

use super::blocks::NamedCall;
use super::head::begun;
use super::literals::Reader;
use super::objects::{objects, of_object};
use super::tags::is_of_name;
use crate::text::ToolCall;
use crate::text::shape::json_text;

/// How a family of models writes such calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pythonic {
    /// As a list, which is the whole answer: Llama 3.2 and 4, and ToolACE.
    List,
    /// A line each, in a block that other text may stand beside: OLMo 3.
    Lines,
    /// As a list, in a block that other text may stand beside: LFM2, which writes JSON there when
    /// it is asked to.
    Block,
}

/// What calls stand between that have a line each.
const LINES: (&str, &str) = ("<function_calls>", "</function_calls>");
/// What LFM2's list of calls stands between.
const MARKS: (&str, &str) = ("<|tool_call_start|>", "<|tool_call_end|>");
/// What LFM2's templates have, either of it: the list alone, as MiniCPM has the mark before code.
const MARKS_TAUGHT: [&str; 2] = ["<|tool_call_start|>[", "<|tool_list_start|>"];
/// What each of them has before the tools.
const TOOLS_LISTED: &str = "List of tools: ";
/// What Llama 4 may say before a list, and behind it: tokens that are no text, if its tokeniser has
/// them.
const LLAMA_START: &[&str] = &["<|python_start|>"];
const LLAMA_END: &str = "<|python_end|>";
/// How lists are explained to models.
const LIST_TAUGHT: &str = "[func_name1(";
/// What is longer is no function's name.
const NAME_BYTES_MAX: usize = 512;

impl Pythonic {
    /// The one that a chat template teaches.
    pub(super) fn of(template: &str) -> Option<Self> {
        if MARKS_TAUGHT.iter().any(|taught| template.contains(taught)) {
            Some(Self::Block)
        } else if template.contains(LIST_TAUGHT) {
            Some(Self::List)
        } else if template.contains(LINES.0) && !template.contains("<invoke") {
            Some(Self::Lines)
        } else {
            None
        }
    }

    /// The one of a chat template that teaches none, by the tokens that its model has: the first
    /// templates of LFM2.5 list the tools and say no more.
    pub(super) fn by_tokens(template: &str, has_token: impl Fn(&str) -> bool) -> Option<Self> {
        let has_marks = has_token(MARKS.0) && has_token(MARKS.1);
        (has_marks && template.contains(TOOLS_LISTED)).then_some(Self::Block)
    }

    /// What calls stand between, where text may stand beside them.
    pub(super) fn block(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::List => None,
            Self::Lines => Some(LINES),
            Self::Block => Some(MARKS),
        }
    }

    /// What a list may stand behind.
    pub(super) fn list_marks(self) -> &'static [&'static str] {
        match self {
            Self::List => LLAMA_START,
            Self::Lines | Self::Block => &[],
        }
    }

    /// What models write before all calls, and behind them.
    pub(crate) fn around_calls(self) -> (&'static str, &'static str) {
        match self {
            Self::List => ("[", "]"),
            Self::Lines => LINES,
            Self::Block => ("<|tool_call_start|>[", "]<|tool_call_end|>"),
        }
    }

    /// What they write between one call and the next.
    pub(crate) fn between_calls(self) -> &'static str {
        match self {
            Self::List | Self::Block => ", ",
            Self::Lines => "\n",
        }
    }

    /// What they write for what is true, and what is not.
    pub(crate) fn truths(self) -> [&'static str; 2] {
        match self {
            Self::List | Self::Block => ["True", "False"],
            Self::Lines => ["true", "false"],
        }
    }

    /// What was said in a message with `calls`, and these as models write them: LFM2 calls first.
    pub(super) fn in_words(self, words: &str, calls: &[ToolCall]) -> String {
        let call = |call: &ToolCall| {
            let arguments = call.arguments.as_object().into_iter().flatten();
            let arguments = arguments.map(|(key, value)| format!("{key}={}", self.literal(value)));
            format!("{}({})", call.name, arguments.collect::<Vec<_>>().join(", "))
        };
        let calls: Vec<String> = calls.iter().map(call).collect();
        let (first, last) = self.around_calls();
        let calls = format!("{first}{}{last}", calls.join(self.between_calls()));
        match self {
            Self::Block => calls + words,
            Self::List | Self::Lines => words.to_owned() + &calls,
        }
    }

    fn literal(self, value: &Value) -> String {
        let [yes, no] = self.truths();
        match value {
            Value::Bool(true) => yes.to_owned(),
            Value::Bool(false) => no.to_owned(),
            Value::Null if self != Self::Lines => "None".to_owned(),
            other => json_text(other),
        }
    }

    /// Whether an argument may have this name.
    pub(crate) fn can_name(self, key: &str) -> bool {
        !key.is_empty() && key.chars().all(is_of_key)
    }

    /// Whether calls may begin with `text`, behind the block's tag or the list's mark: a name comes
    /// first, and then what it is called with.
    pub(super) fn may_begin(self, text: &str) -> bool {
        let text = text.trim_start();
        if self.is_json(text) {
            return true;
        }
        let calls = match (text.strip_prefix('['), self) {
            (Some(calls), _) => calls.trim_start(),
            (None, Self::Lines | Self::Block) => text,
            (None, Self::List) => return text.is_empty(),
        };
        let behind = calls.trim_start_matches(is_of_name);
        let bytes = calls.len() - behind.len();
        let behind = behind.trim_start();
        let is_named = (1..=NAME_BYTES_MAX).contains(&bytes);
        calls.is_empty() || is_named && (behind.is_empty() || behind.starts_with('('))
    }

    /// The calls that `text` is; `None` where it is something else.
    pub(super) fn calls(self, text: &str) -> Option<Vec<NamedCall>> {
        let text = text.trim();
        if self.is_json(text) {
            let calls = objects(text)?.into_iter();
            return calls.map(|call| of_object(call, ["name", "arguments"])).collect();
        }
        let text = text.strip_suffix(LLAMA_END).unwrap_or(text);
        // An answer that was cut off may end within it.
        let (text, mut calls) = (&text[..text.len() - begun(text, LLAMA_END)], Vec::new());
        let mut reader = Reader::new(text);
        let is_list = reader.take('[');
        if !is_list && self == Self::List {
            return None;
        }
        loop {
            calls.push(call(&mut reader)?);
            let goes_on = reader.take(',') || !is_list;
            if is_list && reader.take(']') {
                return reader.is_over().then_some(calls);
            }
            if !is_list && reader.is_over() {
                return Some(calls);
            }
            if !goes_on {
                return None;
            }
        }
    }

    /// Whether what begins so is JSON, if it is calls: objects, or a list of none.
    fn is_json(self, text: &str) -> bool {
        let first = text.strip_prefix('[').map_or(text, str::trim_start);
        self == Self::Block && first.starts_with(['{', ']'])
    }
}

/// A function's name and what it is called with, each by name.
fn call(reader: &mut Reader<'_>) -> Option<NamedCall> {
    let name = reader.word(is_of_name)?.to_owned();
    reader.take('(').then_some(())?;
    let mut arguments = Map::new();
    while !reader.take(')') {
        let key = reader.word(is_of_key)?.to_owned();
        reader.take('=').then_some(())?;
        arguments.insert(key, reader.value()?);
        if !reader.take(',') {
            reader.take(')').then_some(())?;
            break;
        }
    }
    Some((name, arguments))
}

/// Whether an argument's name may have it: Python takes letters of any script there.
fn is_of_key(c: char) -> bool {
    c.is_alphanumeric() || "_-.".contains(c)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(notation: Pythonic, text: &str, want: Option<Value>) {
        let got = notation.calls(text).map(|calls| {
            let list = calls.into_iter().map(|(name, arguments)| json!([name, arguments]));
            list.collect::<Value>()
        });
        assert_eq!(got, want, "{text:?}");
    }

    #[test]
    fn lists_of_calls() {
        let check = |text: &str, want: Option<Value>| check(Pythonic::List, text, want);
        check("[f()]", Some(json!([["f", {}]])));
        let both = Some(json!([["f", { "x": "a, b)", "n": -3 }], ["g-1.h", { "y": [1.5, null] }]]));
        check("[f(x=\"a, b)\", n=-3), g-1.h(y=[1.5, None])]", both.clone());
        check(" [ f ( x = 'a, b)' , n = -3 , ) ,\n g-1.h(y=[1.5, null],) , ]\n", both);
        check("[f(x=True)]<|python_end|>", Some(json!([["f", { "x": true }]])));
        for bad in [
            "",
            "[]",
            "f()",
            "[f]",
            "[f(]",
            "[f()",
            "[f() g()]",
            "[f()] x",
            "[f(1)]",
            "[f(x=)]",
            "[f(x=y)]",
            "[f(x=1 y=2)]",
            "[f(x=1, , y=2)]",
            "[f(,)]",
            "[1, 2]",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn lines_of_calls() {
        let check = |text: &str, want: Option<Value>| check(Pythonic::Lines, text, want);
        let both = Some(json!([["f", { "x": "a\nb" }], ["g", {}]]));
        check("f(x='a\\nb')\ng()", both.clone());
        check("\nf(\n    x=\"a\\nb\",\n)\n\ng()\n", both.clone());
        check("[f(x='a\\nb'), g()]", both.clone());
        check("f(x='a\\nb'), g()", both);
        for bad in ["", "f", "f()\nx", "f()\n<b>", "x = f()"] {
            check(bad, None);
        }
        assert!(Pythonic::Lines.may_begin("\n") && Pythonic::Lines.may_begin("\nf("));
        assert!(!Pythonic::Lines.may_begin("{\"name\""));
    }

    #[test]
    fn blocks_of_calls() {
        let check = |text: &str, want: Option<Value>| check(Pythonic::Block, text, want);
        let both = Some(json!([["f", { "x": "a's\n", "n": 2 }], ["g", {}]]));
        check("[f(x=\"a's\\n\", n=2), g()]", both.clone());
        check("\n[f(x='a\\'s\\n', n=2,), g()]\n", both.clone());
        check("f(x=\"a's\\n\", n=2)\ng()", both.clone());
        let nested = json!({ "on": true, "no": null, "x": [1, { "a": [false, "b"] }] });
        check("[f(on=true, no=None, x=[1, {'a': [False, \"b\"]}])]", Some(json!([["f", nested]])));
        let f = r#"{"name": "f", "arguments": {"x": "a's\n", "n": 2}}"#;
        let g = r#"{"name": "g", "arguments": {}}"#;
        for json in [format!("[{f}, {g}]"), format!("\n[ {f},\n{g}]"), format!("{f}\n{g}")] {
            check(&json, both.clone());
        }
        check("[]", Some(json!([])));
        for bad in ["", "]", "[f(1)]", "[f(x=1)", "[{\"x\": 1}]", "[f(), {}]", "[{}", "the end"] {
            check(bad, None);
        }
        for begun in ["", "[", "f", "[f(", " [ {", "{\"name\"", "[]"] {
            assert!(Pythonic::Block.may_begin(begun), "{begun:?}");
        }
        for words in ["the end", "[1]", "[the end", "<", "[("] {
            assert!(!Pythonic::Block.may_begin(words), "{words:?}");
        }
    }

    #[test]
    fn written_calls_are_what_is_read() {
        let arguments = json!({
            "text": "a \"b\", 'c')\n\\d é", "on": true, "no": null, "x": [1.5, { "y": [false] }],
        });
        let call = |name: &str, arguments: &Value| {
            let (id, name) = (String::new(), name.to_owned());
            ToolCall { id, name, arguments: arguments.clone() }
        };
        let calls = [call("f", &arguments), call("g", &json!({}))];
        for notation in [Pythonic::List, Pythonic::Lines, Pythonic::Block] {
            let said = notation.in_words("", &calls);
            let (open, close) = notation.block().unwrap_or_default();
            let inside = said.strip_prefix(open).and_then(|it| it.strip_suffix(close)).unwrap();
            check(notation, inside, Some(json!([["f", arguments], ["g", {}]])));
        }
        let one = [call("f", &json!({ "x": 1, "on": true, "no": null }))];
        let block = "<|tool_call_start|>[f(x=1, on=True, no=None)]<|tool_call_end|>So.";
        assert_eq!(Pythonic::Block.in_words("So.", &one), block);
        let lines = "So.<function_calls>f(x=1, on=true, no=null)</function_calls>";
        assert_eq!(Pythonic::Lines.in_words("So.", &one), lines);
    }

    #[test]
    fn a_name_and_a_parenthesis_come_first() {
        for calls in ["", " ", "[", "[ ", "[f", "[g-1.h ", "[f(", "[ f (x='a'", "[f(x=1), g"] {
            for notation in [Pythonic::List, Pythonic::Lines] {
                assert!(notation.may_begin(calls), "{calls:?}");
            }
        }
        for words in ["[]", "[1]", "[f]", "[f,", "[the end", "[{", "[(", "<", "a b", "tag. "] {
            assert!(!Pythonic::List.may_begin(words), "{words:?}");
        }
        assert!(Pythonic::Lines.may_begin("f (") && Pythonic::Lines.may_begin("tag. "));
        assert!(!Pythonic::Lines.may_begin("tag. No") && !Pythonic::List.may_begin("f("));
        assert!(!Pythonic::Lines.may_begin(&"a".repeat(NAME_BYTES_MAX + 1)));
    }

    #[test]
    fn names_are_words() {
        let calls = Pythonic::List;
        assert!(calls.can_name("a_1") && !calls.can_name("") && !calls.can_name("a b"));
        assert!(calls.can_name("größe") && !calls.can_name("a=b"));
        check(calls, "[f(größe=1)]", Some(json!([["f", { "größe": 1 }]])));
    }
}
