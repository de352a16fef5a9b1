//! Tells calls from text as an answer comes.

use std::sync::Arc;

use serde_json::Value;

use super::CallNotation;
use super::blocks::NamedCall;

/// A part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// For the caller to read.
    Text(String),
    /// For the caller to run.
    Call {
        /// Of the tool.
        name: String,
        /// An object, as JSON.
        arguments: String,
    },
}

/// Tells calls from text as an answer comes.
#[derive(Debug, Clone)]
pub struct CallParser {
    notation: CallNotation,
    one_call: bool,
    /// Arguments that are texts, each behind its function's name and a space.
    texts: Arc<[String]>,
    /// The only call was told of.
    over: bool,
    held: String,
    /// White space before what may be a call: the notation's, if it is one.
    gap: String,
    in_call: bool,
    calls: usize,
    is_text: bool,
}

impl CallParser {
    /// For one answer; `one_call`: of which the first call alone is told of. `texts` are the
    /// arguments that are texts even where they look like something else, each behind its
    /// function's name and a space.
    pub fn new(notation: CallNotation, one_call: bool, texts: Arc<[String]>) -> Self {
        let (held, gap) = (String::new(), String::new());
        let (over, in_call, is_text) = (false, false, false);
        Self { notation, one_call, texts, over, held, gap, in_call, calls: 0, is_text }
    }

    /// How calls are written.
    pub fn notation(&self) -> CallNotation {
        self.notation
    }

    /// Takes more of the answer; what may become a call is held back until it is one, or is not.
    pub fn push(&mut self, text: &str) -> Vec<Said> {
        self.held.push_str(text);
        let said = match self.notation {
            notation if notation.tags().is_some() => self.tagged(false),
            CallNotation::Bare => self.whole('{'),
            CallNotation::Listed | CallNotation::Pythonic(_) => self.whole('['),
            // What was told apart has no calls in its text.
            _ => shown(std::mem::take(&mut self.held)).into_iter().collect(),
        };
        self.up_to_the_last(said)
    }

    /// What was held back, when nothing follows. A call whose end is missing is one all the
    /// same if its object is complete.
    pub fn finish(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        if self.notation.tags().is_some() {
            said.extend(self.tagged(true));
        }
        said.extend(self.rest());
        self.up_to_the_last(said)
    }

    /// Nothing is told of behind the only call.
    fn up_to_the_last(&mut self, mut said: Vec<Said>) -> Vec<Said> {
        if self.over {
            return Vec::new();
        }
        let is_call = |one: &Said| matches!(one, Said::Call { .. });
        if let Some(first) = said.iter().position(is_call).filter(|_| self.one_call) {
            said.truncate(first + 1);
            self.over = true;
        }
        said
    }

    fn rest(&mut self) -> Vec<Said> {
        let held = std::mem::take(&mut self.held);
        let is_whole = self.notation.tags().is_none() && !self.is_text;
        let calls = if is_whole { self.calls_of(&held) } else { None };
        let calls = calls.or_else(|| self.in_call.then(|| self.within(&held))?);
        if let Some(calls) = calls {
            return calls;
        }
        let text = if self.in_call { self.literal(&held) } else { held };
        let is_shown = !(text.is_empty() || text.trim().is_empty() && self.calls > 0);
        if is_shown { vec![Said::Text(text)] } else { Vec::new() }
    }

    fn tagged(&mut self, is_last: bool) -> Vec<Said> {
        let mut said = Vec::new();
        let Some((open, close)) = self.notation.tags() else { return said };
        loop {
            let tag = if self.in_call { close } else { open };
            let at = if self.in_call { self.close(close, is_last) } else { self.held.find(tag) };
            if self.in_call && !self.may_begin() {
                self.in_call = false; // text that has the tag in it
                said.push(Said::Text(self.literal("")));
                continue;
            }
            let Some(at) = at else { break };
            let rest = self.held.split_off(at + tag.len());
            let mut before = std::mem::replace(&mut self.held, rest);
            before.truncate(at);
            if self.in_call {
                let calls = self.within(&before);
                let literal = || vec![Said::Text(self.literal(&before) + close)];
                said.extend(calls.unwrap_or_else(literal));
            } else {
                self.gap = before.split_off(before.trim_end().len());
                said.extend(shown(before));
            }
            self.in_call = !self.in_call;
        }
        if !self.in_call {
            let text = &self.held[..self.held.len() - begun(&self.held, open)];
            let rest = self.held.split_off(text.trim_end().len());
            said.extend(shown(std::mem::replace(&mut self.held, rest)));
        }
        said
    }

    /// Whether what is held may become a call.
    fn may_begin(&self) -> bool {
        match self.notation {
            CallNotation::ArgumentTags(tags) => tags.may_begin(&self.held),
            CallNotation::Blocks(blocks) => blocks.may_begin(&self.held),
            CallNotation::Pythonic(calls) => calls.may_begin(&self.held),
            _ => self.held.trim_start().chars().next().is_none_or(|first| first == '{'),
        }
    }

    /// Where the tag is that closes the call which is held: not within a string of its, unless
    /// nothing follows and no other is one.
    fn close(&self, close: &str, is_last: bool) -> Option<usize> {
        let mut all = self.held.match_indices(close).map(|(at, _)| at);
        let is_end = |at: &usize| match self.notation {
            CallNotation::Tagged => !ends_in_string(&self.held[..*at]),
            _ => self.read(&self.held[..*at]).is_some(),
        };
        let whole = all.clone().find(is_end);
        whole.or_else(|| all.next().filter(|_| is_last))
    }

    /// What was begun like a call and is none.
    fn literal(&mut self, text: &str) -> String {
        let open = self.notation.tags().map_or("", |(open, _)| open);
        format!("{}{open}{text}", std::mem::take(&mut self.gap))
    }

    /// Everything is a call until it begins otherwise than with `open`.
    fn whole(&mut self, open: char) -> Vec<Said> {
        let held = self.held.trim_start();
        let is_mark = self
            .notation
            .list_marks()
            .iter()
            .any(|mark| held.starts_with(mark) || mark.starts_with(held));
        self.is_text |= !is_mark && held.chars().next().is_some_and(|first| first != open);
        if !self.is_text {
            return Vec::new();
        }
        let text = std::mem::take(&mut self.held);
        if text.is_empty() { Vec::new() } else { vec![Said::Text(text)] }
    }

    /// The calls that a whole answer is, if it is nothing else.
    fn calls_of(&mut self, answer: &str) -> Option<Vec<Said>> {
        let answer = answer.trim();
        let marks = self.notation.list_marks();
        let list = || marks.iter().find_map(|mark| answer.strip_prefix(mark)).unwrap_or(answer);
        let calls: Vec<Said> = match self.notation {
            CallNotation::Listed => {
                let calls: Vec<Value> = serde_json::from_str(list()).ok()?;
                let calls = calls.into_iter().map(|call| said(self.notation, call));
                calls.collect::<Option<_>>()?
            }
            CallNotation::Pythonic(calls) => {
                calls.calls(list())?.into_iter().map(said_call).collect()
            }
            _ => vec![said(self.notation, serde_json::from_str(answer).ok()?)?],
        };
        self.calls += calls.len();
        Some(calls).filter(|calls| !calls.is_empty())
    }

    /// The calls that `text`, which stands between tags, is.
    fn within(&mut self, text: &str) -> Option<Vec<Said>> {
        let calls: Vec<Said> = match self.notation {
            CallNotation::Tagged => {
                vec![said(self.notation, serde_json::from_str(text.trim()).ok()?)?]
            }
            _ => self.read(text)?.into_iter().map(said_call).collect(),
        };
        self.calls += calls.len();
        Some(calls)
    }

    /// The same where they are more than objects, which have an end of their own.
    fn read(&self, text: &str) -> Option<Vec<NamedCall>> {
        match self.notation {
            CallNotation::ArgumentTags(tags) => tags.calls(text, |name, key| {
                let is_it = |text: &String| text.split_once(' ') == Some((name, key));
                self.texts.iter().any(is_it)
            }),
            CallNotation::Blocks(blocks) => blocks.calls(text),
            CallNotation::Pythonic(calls) => calls.calls(text),
            _ => None,
        }
    }
}

fn said_call((name, arguments): NamedCall) -> Said {
    Said::Call { name, arguments: Value::Object(arguments).to_string() }
}

/// The call that an object is, if it is one.
fn said(notation: CallNotation, mut call: Value) -> Option<Said> {
    let name = call["name"].as_str()?.to_owned();
    let arguments = match call.get_mut(notation.arguments_name())?.take() {
        Value::Object(fields) => fields,
        // Some write the object as text.
        Value::String(text) => serde_json::from_str(&text).ok()?,
        _ => return None,
    };
    let arguments = Value::Object(arguments).to_string();
    Some(Said::Call { name, arguments })
}

/// What is for the caller to read, if it is anything.
fn shown(text: String) -> Option<Said> {
    (!text.is_empty()).then_some(Said::Text(text))
}

/// Whether JSON that begins with `text` goes on within a string.
fn ends_in_string(text: &str) -> bool {
    let (mut in_string, mut escaped) = (false, false);
    for byte in text.bytes() {
        (in_string, escaped) = match byte {
            b'"' if !escaped => (!in_string, false),
            b'\\' if in_string => (true, !escaped),
            _ => (in_string, false),
        };
    }
    in_string
}

/// Bytes at the end of `text` that begin `tag`.
fn begun(text: &str, tag: &str) -> usize {
    let begins = |&bytes: &usize| tag.get(..bytes).is_some_and(|begun| text.ends_with(begun));
    (1..tag.len()).rev().find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::Pythonic;
    use super::super::tests::{BLOCKS, TAGS};
    use super::*;
    use proptest::prelude::*;

    fn text(text: &str) -> Said {
        Said::Text(text.into())
    }

    fn call(name: &str, arguments: &str) -> Said {
        Said::Call { name: name.into(), arguments: arguments.into() }
    }

    /// In pieces of `cut` characters; neighbouring texts are one.
    fn parsed(notation: CallNotation, one_call: bool, answer: &str, cut: usize) -> Vec<Said> {
        let mut parser = CallParser::new(notation, one_call, Arc::from(["f text".to_owned()]));
        let characters: Vec<char> = answer.chars().collect();
        let mut said = Vec::new();
        for part in characters.chunks(cut) {
            said.extend(parser.push(&part.iter().collect::<String>()));
        }
        said.extend(parser.finish());
        let mut joined: Vec<Said> = Vec::new();
        for one in said {
            match (joined.last_mut(), one) {
                (Some(Said::Text(last)), Said::Text(more)) => *last += &more,
                (_, one) => joined.push(one),
            }
        }
        joined
    }

    fn check(notation: CallNotation, answer: &str, want: &[Said]) {
        for cut in [1, 2, 3, 7, 1000] {
            let said = parsed(notation, false, answer, cut);
            assert_eq!(said, want, "{answer:?} in pieces of {cut}");
            let first = want.iter().position(|one| matches!(one, Said::Call { .. }));
            let up_to_the_first = &want[..first.map_or(want.len(), |first| first + 1)];
            let said = parsed(notation, true, answer, cut);
            assert_eq!(said, up_to_the_first, "one call: {answer:?} in pieces of {cut}");
        }
    }

    #[test]
    fn tagged_calls() {
        let check = |answer: &str, want: &[Said]| check(CallNotation::Tagged, answer, want);
        check("Hello <tool> world\n", &[text("Hello <tool> world\n")]);
        let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
        check(one, &[call("f", "{\"x\":1}")]);
        check(&format!("Let me see.\n{one}"), &[text("Let me see."), call("f", "{\"x\":1}")]);
        check(&format!("{one}\n{one}"), &[call("f", "{\"x\":1}"), call("f", "{\"x\":1}")]);
        check(&one[..one.len() - 13], &[call("f", "{\"x\":1}")]);
        check(
            "<tool_call>{\"name\": 5}</tool_call>!",
            &[text("<tool_call>{\"name\": 5}</tool_call>!")],
        );
        check("<tool_call>{\"name\": ", &[text("<tool_call>{\"name\": ")]);
        check("a <tool_ca", &[text("a <tool_ca")]);
        for words in ["Use the <tool_call> tag. ", "x \n\n <tool_call>{bad}", "<tool_call>"] {
            check(words, &[text(words)]);
        }
        let told = format!("The <tool_call> tag: {one}");
        check(&told, &[text("The <tool_call> tag:"), call("f", "{\"x\":1}")]);
        let quoted = r#"{"name": "f", "arguments": {"x": "a\\\"</tool_call>b"}}"#;
        check(
            &format!("<tool_call>{quoted}</tool_call>"),
            &[call("f", r#"{"x":"a\\\"</tool_call>b"}"#)],
        );
        let open = r#"<tool_call>{"name": "f</tool_call>"#;
        check(&format!("{open}{one}"), &[text(open), call("f", "{\"x\":1}")]);
        let as_text = |arguments: &str| {
            format!("<tool_call>{{\"name\": \"f\", \"arguments\": {arguments}}}</tool_call>")
        };
        check(&as_text(r#""{\"x\": 1}""#), &[call("f", "{\"x\":1}")]);
        check(&as_text(r#""x""#), &[text(&as_text(r#""x""#))]);
    }

    #[test]
    fn bare_calls() {
        let check = |answer: &str, want: &[Said]| check(CallNotation::Bare, answer, want);
        check("It is {\"name\"}", &[text("It is {\"name\"}")]);
        check(" {\"name\": \"f\", \"parameters\": {}}", &[call("f", "{}")]);
        check(
            "{\"name\": \"f\", \"parameters\": {\"x\"",
            &[text("{\"name\": \"f\", \"parameters\": {\"x\"")],
        );
        check("{\"answer\": 42}", &[text("{\"answer\": 42}")]);
        check("", &[]);
    }

    #[test]
    fn listed_calls() {
        let check = |answer: &str, want: &[Said]| check(CallNotation::Listed, answer, want);
        let one = "{\"name\": \"f\", \"arguments\": {\"x\": 1}, \"id\": \"abcdefghi\"}";
        check(&format!("[{one}]"), &[call("f", "{\"x\":1}")]);
        let both = format!("[TOOL_CALLS] [{one}, {one}]");
        check(&both, &[call("f", "{\"x\":1}"), call("f", "{\"x\":1}")]);
        for words in ["I see [1].", "[1, 2]", "[]", "[TOOL_CALLS", &both[..both.len() - 1]] {
            check(words, &[text(words)]);
        }
        check(&format!("[{one}, 1]"), &[text(&format!("[{one}, 1]"))]);
        let granite = format!("<|tool_call|>[{one}]");
        check(&granite, &[call("f", "{\"x\":1}")]);
        for words in ["<b>", "<|tool", "<|tool_call|>f", &granite[..granite.len() - 1]] {
            check(words, &[text(words)]);
        }
    }

    #[test]
    fn calls_with_tagged_arguments() {
        let [coder, _, invocations, keys] =
            TAGS.map(|tags| CallNotation::of(&format!("{{{{ tools }}}}{tags}")).unwrap());
        let function = "<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=text>\n1\n\
            </parameter>\n</function>";
        let one = format!("<tool_call>\n{function}\n</tool_call>");
        let want = call("f", "{\"x\":1,\"text\":\"1\"}");
        let check = |answer: &str, want: &[Said]| check(coder, answer, want);
        let only = std::slice::from_ref(&want);
        check(&one, only);
        check(&format!("I look.\n\n{one}\n{one}"), &[text("I look."), want.clone(), want.clone()]);
        check(&one[..one.len() - 12], only);
        check(
            &format!("The <tool_call> tag: {one}"),
            &[text("The <tool_call> tag:"), want.clone()],
        );
        let within = "a</tool_call>\n<tool_call>b";
        let quoted = one.replace("\n1\n</parameter>\n</f", &format!("{within}</parameter></f"));
        let arguments = serde_json::json!({ "x": 1, "text": within }).to_string();
        check(&quoted, &[call("f", &arguments)]);
        for words in ["<tool_call>\n<function=f>", "<tool_call><function f></tool_call>!"] {
            check(words, &[text(words)]);
        }

        let block = "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"x\">1\
            </parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>";
        super::tests::check(invocations, block, &[call("f", "{\"x\":1}"), call("g", "{}")]);
        let one = "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>1</arg_value>\n</tool_call>";
        super::tests::check(keys, one, &[call("f", "{\"text\":\"1\"}")]);
    }

    #[test]
    fn calls_in_blocks() {
        let named =
            |template: &str| CallNotation::of(&format!("{{{{ tools }}}}{template}")).unwrap();
        let [v3, v31, kimi, phi, lists] = BLOCKS.map(named);
        let inside = |x: &str| {
            [
                format!("function<｜tool▁sep｜>f\n```json\n{{\"x\": {x}}}\n```"),
                format!("f<｜tool▁sep｜>{{\"x\": {x}}}"),
                format!("functions.f:0<|tool_call_argument_begin|>{{\"x\": {x}}}"),
                format!("{{\"name\": \"f\", \"arguments\": {{\"x\": {x}}}}}"),
                format!("{{\"name\": \"f\", \"arguments\": {{\"x\": {x}}}}}"),
            ]
        };
        let deepseek = ["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"];
        let marks = [
            deepseek,
            deepseek,
            ["<|tool_call_begin|>", "<|tool_call_end|>"],
            ["[", "]"],
            ["", "\n"],
        ];
        let (ones, twos) = (inside("1"), inside("\"a\\\"</tool_calls><｜tool▁calls▁end｜>\""));
        let one = call("f", "{\"x\":1}");
        let two = call("f", r#"{"x":"a\"</tool_calls><｜tool▁calls▁end｜>"}"#);
        for (idx, notation) in [v3, v31, kimi, phi, lists].into_iter().enumerate() {
            let (open, close) = notation.tags().unwrap();
            let [begin, end] = marks[idx];
            let first = format!("{begin}{}{end}", ones[idx]);
            let second = format!("{begin}{}{end}", twos[idx]);
            let check = |answer: &str, want: &[Said]| check(notation, answer, want);
            let block = format!("{open}{first}{close}");
            check(&block, std::slice::from_ref(&one));
            check(&format!("I look.\n{block}"), &[text("I look."), one.clone()]);
            check(&format!("{block}\n{block}"), &[one.clone(), one.clone()]);
            check(&format!("{open}{second}{close}"), std::slice::from_ref(&two));
            // The block's end may be missing, and the call's.
            check(&block[..block.len() - close.len()], std::slice::from_ref(&one));
            for words in [open, "a <｜tool▁ca", "<｜b", &format!("The {open} mark.")] {
                check(words, &[text(words)]);
            }
            let broken = format!("{open}{begin}f{end}{close}");
            check(&broken, &[text(&broken)]);
            check(
                &format!("See {open} here: {block}"),
                &[text(&format!("See {open} here:")), one.clone()],
            );
            if begin != "[" && !begin.is_empty() {
                let both = format!("{open}{first}\n{second}{close}");
                check(&both, &[one.clone(), two.clone()]);
            }
        }
    }

    #[test]
    fn calls_as_in_python() {
        let [list, lines] = [Pythonic::List, Pythonic::Lines].map(CallNotation::Pythonic);
        let f = call("f", "{\"x\":\"a\"}");
        for answer in ["[f(x='a')]", "<|python_start|>[f(x='a')]<|python_end|>", " [f(x=\"a\")]\n"]
        {
            check(list, answer, std::slice::from_ref(&f));
        }
        check(list, "[f(x='a'), g()]", &[f.clone(), call("g", "{}")]);
        for words in ["See [f(x='a')]", "[1] says so.", "[f(x='a'", "<|python_st", "<b>", "[]"] {
            check(list, words, &[text(words)]);
        }
        let block = "<function_calls>\nf(x='a')\ng()\n</function_calls>";
        check(lines, block, &[f.clone(), call("g", "{}")]);
        check(lines, &format!("I look.\n{block}"), &[text("I look."), f.clone(), call("g", "{}")]);
        check(lines, &block[..block.len() - 18], &[f, call("g", "{}")]);
        let quoted = "<function_calls>f(x='</function_calls>')</function_calls>";
        check(lines, quoted, &[call("f", "{\"x\":\"</function_calls>\"}")]);
        for words in ["<function_calls>f(x=", "The <function_calls> tag.", "<function_calls>f</f>"]
        {
            check(lines, words, &[text(words)]);
        }
    }

    proptest! {
        #[test]
        fn any_cut_says_the_same(
            answer in "(<tool_call>|</tool_call>|<\\|tool_call\\|>|\\[TOOL_CALLS\\]|\\[|\\{|\
                \"name\"|<function=f>|</function>|<parameter=x>|</parameter>|<arg_key>x</arg_key>|\
                <arg_value>|</arg_value>|<\\|/tool_call\\|>|<｜tool▁calls▁begin｜>|\
                <｜tool▁calls▁end｜>|<｜tool▁call▁begin｜>|<｜tool▁sep｜>|<｜tool▁call▁end｜>|\
                <function_calls>|</function_calls>|\\(\\)|\\]|f|[<｜a \n\"\\\\]){0,12}",
        ) {
            let named =
                |taught: &str| CallNotation::of(&format!("{{{{ tools }}}}{taught}")).unwrap();
            let taught = TAGS.into_iter().chain(BLOCKS).map(named);
            let python = [Pythonic::List, Pythonic::Lines].map(CallNotation::Pythonic);
            let objects = [CallNotation::Tagged, CallNotation::Bare, CallNotation::Listed];
            for notation in objects.into_iter().chain(python).chain(taught) {
                for one_call in [false, true] {
                    let whole = parsed(notation, one_call, &answer, 1000);
                    prop_assert_eq!(parsed(notation, one_call, &answer, 1), whole);
                }
            }
        }
    }
}
