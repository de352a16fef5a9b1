//! Tool calls in what a model says, in the notations that templates teach.

mod tags;

use std::sync::Arc;

use serde_json::Value;

use super::{channels, marked};
pub use tags::ArgumentTags;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// What Mistral's models say before a list of calls: a token that is no text, if their tokeniser
/// has it.
const LIST: &str = "[TOOL_CALLS]";
/// What Granite 3 says before one.
const GRANITE_LIST: &str = "<|tool_call|>";

/// How a model writes that it calls a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallNotation {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`, as Hermes and Qwen have it; other
    /// text may stand beside it, and several calls after each other.
    Tagged,
    /// The answer is one object, `{"name": .., "parameters": ..}`, as Llama 3 has it.
    Bare,
    /// The answer is a list, `[TOOL_CALLS][{"name": .., "arguments": ..}, ..]`, as Mistral 7B and
    /// Nemo have it, or the same behind `<|tool_call|>`, as Granite 3 does. Mistral's templates
    /// take ids of nine letters and digits only.
    Listed,
    /// In a channel of their own, as gpt-oss has them: see [`super::Heard`].
    InChannels,
    /// Behind tokens of their own, as Mistral's models since Small 3.1 have them: likewise.
    Marked,
    /// Names and arguments between tags; other text may stand beside them.
    ArgumentTags(ArgumentTags),
}

impl CallNotation {
    /// The notation that a chat template teaches; `None` if it is none of these.
    pub fn of(template: &str) -> Option<Self> {
        // In a template's strings quotes may be escaped.
        let teaches_json = template.contains("arguments\"") || template.contains("arguments\\\"");
        if !template.contains("tools") {
            None
        } else if channels::are_taught(template) {
            Some(Self::InChannels)
        } else if let Some(tags) = ArgumentTags::of(template) {
            Some(Self::ArgumentTags(tags))
        } else if template.contains(OPEN) && teaches_json {
            Some(Self::Tagged)
        } else if marked::are_taught(template) {
            Some(Self::Marked)
        } else if template.contains(LIST) || teaches_list_of_granite(template) {
            Some(Self::Listed)
        } else if template.contains("\"parameters\":") && template.contains("ipython") {
            Some(Self::Bare)
        } else {
            None
        }
    }

    /// What ends a call, where others may follow.
    pub fn end(self) -> Option<&'static str> {
        self.tags().map(|(_, close)| close)
    }

    /// What calls stand between, where text may stand beside them.
    fn tags(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Tagged => Some((OPEN, CLOSE)),
            Self::ArgumentTags(tags) => Some(tags.block),
            Self::Bare | Self::Listed | Self::InChannels | Self::Marked => None,
        }
    }

    /// What stands around the arguments of a call of `function`, where these are an object.
    pub fn around_arguments(self, function: &str) -> (String, String) {
        let named = || {
            let function = Value::from(function);
            format!("{{\"name\": {function}, \"{}\": ", self.arguments_name())
        };
        match self {
            Self::Tagged => (format!("{OPEN}\n{}", named()), format!("}}\n{CLOSE}")),
            Self::InChannels => (channels::head_of_call(function), String::new()),
            Self::Marked => (marked::head_of_call(function), String::new()),
            Self::Bare | Self::Listed | Self::ArgumentTags(_) => (named(), "}".to_owned()),
        }
    }

    /// What stands before words for the caller, where a call might.
    pub fn before_words(self) -> &'static str {
        match self {
            Self::InChannels => channels::FINAL_HEAD,
            _ => "",
        }
    }

    /// Whether calls are told apart from text by tokens that are none: see [`super::Heard`].
    pub fn is_apart(self) -> bool {
        matches!(self, Self::InChannels | Self::Marked)
    }

    /// What a call's arguments are named.
    pub fn arguments_name(self) -> &'static str {
        match self {
            Self::Bare => "parameters",
            _ => "arguments",
        }
    }
}

/// Granite 3's words for it; others have the mark before something else.
fn teaches_list_of_granite(template: &str) -> bool {
    template.contains("<|tool_call|> followed by a JSON list")
}

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
            CallNotation::Tagged | CallNotation::ArgumentTags(_) => self.tagged(false),
            CallNotation::Bare => self.whole('{'),
            CallNotation::Listed => self.whole('['),
            // What was told apart has no calls in its text.
            CallNotation::InChannels | CallNotation::Marked => {
                shown(std::mem::take(&mut self.held)).into_iter().collect()
            }
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
            _ => self.held.trim_start().chars().next().is_none_or(|first| first == '{'),
        }
    }

    /// Where the tag is that closes the call which is held: not within a string of its, unless
    /// nothing follows and no other is one.
    fn close(&self, close: &str, is_last: bool) -> Option<usize> {
        let mut all = self.held.match_indices(close).map(|(at, _)| at);
        let is_end = |at: &usize| match self.notation {
            CallNotation::ArgumentTags(tags) => {
                tags.calls(&self.held[..*at], |_, _| true).is_some()
            }
            _ => !ends_in_string(&self.held[..*at]),
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
        let is_mark = self.notation == CallNotation::Listed
            && (held.starts_with(GRANITE_LIST) || GRANITE_LIST.starts_with(held));
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
        let calls: Vec<Value> = match self.notation {
            CallNotation::Listed => {
                let list = [LIST, GRANITE_LIST].iter().find_map(|mark| answer.strip_prefix(mark));
                serde_json::from_str(list.unwrap_or(answer)).ok()?
            }
            _ => vec![serde_json::from_str(answer).ok()?],
        };
        let calls = calls.into_iter().map(|call| said(self.notation, call));
        let calls = calls.collect::<Option<Vec<_>>>().filter(|calls| !calls.is_empty())?;
        self.calls += calls.len();
        Some(calls)
    }

    /// The calls that `text`, which stands between tags, is.
    fn within(&mut self, text: &str) -> Option<Vec<Said>> {
        let calls = match self.notation {
            CallNotation::ArgumentTags(tags) => {
                let is_text = |name: &str, key: &str| {
                    let is_it = |text: &String| text.split_once(' ') == Some((name, key));
                    self.texts.iter().any(is_it)
                };
                let call = |(name, arguments)| {
                    let arguments = Value::Object(arguments).to_string();
                    Said::Call { name, arguments }
                };
                tags.calls(text, is_text)?.into_iter().map(call).collect()
            }
            _ => vec![said(self.notation, serde_json::from_str(text.trim()).ok()?)?],
        };
        self.calls += calls.len();
        Some(calls)
    }
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
    (1..tag.len()).rev().find(|&bytes| text.ends_with(&tag[..bytes])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
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

    /// What templates have that teach arguments as tags.
    const TAGS: [&str; 4] = [
        "<tool_call>\n<function=f>\n<parameter=x>",
        "<seed:tool_call>\n<function=f>\n<parameter=x>",
        "<minimax:tool_call>\n<invoke name=\\\"f\\\">",
        "<tool_call>f\n<arg_key>x</arg_key>",
    ];

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

    proptest! {
        #[test]
        fn any_cut_says_the_same(
            answer in "(<tool_call>|</tool_call>|<\\|tool_call\\|>|\\[TOOL_CALLS\\]|\\[|\\{|\
                \"name\"|<function=f>|</function>|<parameter=x>|</parameter>|<arg_key>x</arg_key>|\
                <arg_value>|</arg_value>|f|[<a \n\"\\\\]){0,12}",
        ) {
            let tagged =
                TAGS.map(|tags| CallNotation::of(&format!("{{{{ tools }}}}{tags}")).unwrap());
            let objects = [CallNotation::Tagged, CallNotation::Bare, CallNotation::Listed];
            for notation in objects.into_iter().chain(tagged) {
                for one_call in [false, true] {
                    let whole = parsed(notation, one_call, &answer, 1000);
                    prop_assert_eq!(parsed(notation, one_call, &answer, 1), whole);
                }
            }
        }
    }

    #[test]
    fn notations_are_known_by_their_templates() {
        for taught in [r#""arguments": "#, r#"{{- '{\"arguments\": ' }}"#] {
            let hermes = format!("{{{{ tools }}}}<tool_call>{{{taught}}}</tool_call>");
            assert_eq!(CallNotation::of(&hermes), Some(CallNotation::Tagged));
        }
        for tags in TAGS {
            let named = CallNotation::of(&format!("{{{{ tools }}}}{tags}")).unwrap();
            assert!(matches!(named, CallNotation::ArgumentTags(_)), "{tags}");
        }
        let llama = r#"{{- '{"name": "' + n + '", "parameters": ' }} ipython {{ tools }}"#;
        assert_eq!(CallNotation::of(llama), Some(CallNotation::Bare));
        assert_eq!(CallNotation::of("{{ messages }}<tool_call>"), None);
        let harmony = "{{ tools }}<|start|>assistant<|channel|>final<|message|>";
        assert_eq!(CallNotation::of(harmony), Some(CallNotation::InChannels));
        let mistral = "{{ tools }}[TOOL_CALLS][{{ call | tojson }}]";
        assert_eq!(CallNotation::of(mistral), Some(CallNotation::Listed));
        let granite = "{%- if tools %}Respond with <|tool_call|> followed by a JSON list of tools.";
        assert_eq!(CallNotation::of(granite), Some(CallNotation::Listed));
        let marked = CallNotation::of("{{ tools }}[TOOL_CALLS]f[ARGS]{}");
        assert_eq!(marked, Some(CallNotation::Marked));
        assert_eq!(CallNotation::of("{{ tools }}<tools>"), None);
    }
}
