//! Tells calls from text as an answer comes.

use std::sync::Arc;

use serde_json::Value;

use super::blocks::NamedCall;
use super::close::Closing;
use super::head::begun;
use super::literals::ends_in_text;
use super::live::{Live, Step, is_offered};
use super::objects::of_object;
use super::{CallNotation, braces};
use crate::text::Call;

/// A part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// For the caller to read.
    Text(String),
    /// For the caller to run.
    Call {
        /// Of the tool.
        name: String,
        /// An object, as JSON; more of it may follow.
        arguments: String,
    },
    /// More of the arguments of the call before.
    Arguments(String),
}

/// Tells calls from text as an answer comes.
#[derive(Debug, Clone)]
pub struct CallParser {
    notation: CallNotation,
    one_call: bool,
    /// Arguments that are texts, each behind its function's name and a space, and the names alone.
    texts: Arc<[String]>,
    /// Of the only call: nothing, its beginning, or all of it was told.
    only: Only,
    held: String,
    /// White space before what may be a call: the notation's, if it is one.
    gap: String,
    in_call: bool,
    /// Where what closes the call is sought.
    closing: Closing,
    /// Tells calls as they come, where they may be.
    live: Option<Live>,
    /// Whether the answer is none that can be told as it comes, however it goes on.
    is_untold: bool,
    calls: usize,
    is_text: bool,
}

/// What was told of the only call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Only {
    Nothing,
    Begun,
    All,
}

impl CallParser {
    /// For one answer; `one_call`: of which the first call alone is told of. `texts` are the
    /// arguments that are texts even where they look like something else, each behind its
    /// function's name and a space; and the names of all functions, if they are known. An empty
    /// one says that an answer is calls and nothing else.
    pub fn new(notation: CallNotation, one_call: bool, texts: Arc<[String]>) -> Self {
        let (held, gap) = (String::new(), String::new());
        let (only, closing, live, calls) = (Only::Nothing, Closing::default(), None, 0);
        let (in_call, is_untold, is_text) = (false, false, false);
        Self {
            notation,
            one_call,
            texts,
            only,
            held,
            gap,
            in_call,
            closing,
            live,
            is_untold,
            calls,
            is_text,
        }
    }

    /// How calls are written.
    pub fn notation(&self) -> CallNotation {
        self.notation
    }

    /// Takes more of the answer; what may become a call is held back until it is known to be one,
    /// or none.
    pub fn push(&mut self, text: &str) -> Vec<Said> {
        self.held.push_str(text);
        let said = self.parse(false);
        self.up_to_the_last(said)
    }

    /// Takes what was told apart from text before it came here.
    pub fn push_calls(&mut self, calls: Vec<Call>) -> Vec<Said> {
        let said = calls.into_iter().map(|Call { name, arguments }| match name {
            Some(name) => Said::Call { name, arguments },
            None => Said::Arguments(arguments),
        });
        self.up_to_the_last(said.collect())
    }

    /// What was held back, when nothing follows. A call whose end is missing is one all the
    /// same if its object is complete.
    pub fn finish(&mut self) -> Vec<Said> {
        let mut said = self.parse(true);
        said.extend(self.rest());
        self.up_to_the_last(said)
    }

    fn parse(&mut self, is_last: bool) -> Vec<Said> {
        match self.notation {
            notation if notation.tags().is_some() => self.tagged(is_last),
            CallNotation::Bare | CallNotation::Listed | CallNotation::Pythonic(_) => {
                self.whole(is_last)
            }
            // What was told apart has no calls in its text.
            _ => shown(std::mem::take(&mut self.held)).into_iter().collect(),
        }
    }

    /// Nothing is told of behind the only call.
    fn up_to_the_last(&mut self, mut said: Vec<Said>) -> Vec<Said> {
        if self.one_call {
            said.retain(|one| {
                let is_more = matches!(one, Said::Arguments(_));
                self.only = match (self.only, one) {
                    (Only::Nothing, Said::Call { .. }) => Only::Begun,
                    (Only::Begun, _) if !is_more => Only::All,
                    (so_far, _) => so_far,
                };
                self.only != Only::All
            });
        }
        said
    }

    fn rest(&mut self) -> Vec<Said> {
        let held = std::mem::take(&mut self.held);
        let is_whole = self.notation.tags().is_none() && !self.is_text;
        let calls = if is_whole { self.calls_of(&held) } else { None };
        // An answer that was cut off may end within the mark that closes a call.
        let close = self.notation.tags().map_or("", |(_, close)| close);
        let inside = &held[..held.len() - begun(&held, close)];
        let calls = calls.or_else(|| self.in_call.then(|| self.within(inside))?);
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
            match self.tell(is_last, &mut said) {
                Some(Step::Wait) => break,
                Some(_) => continue,
                None => {}
            }
            let tag = if self.in_call { close } else { open };
            let at = if self.in_call { self.close(close, is_last) } else { self.held.find(tag) };
            if self.in_call && !self.may_begin() {
                self.leave(); // text that has the tag in it
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
                self.leave();
            } else {
                self.gap = before.split_off(before.trim_end().len());
                said.extend(shown(before));
                (self.in_call, self.closing) = (true, Closing::default());
                self.live = Live::new(self.notation, close, self.texts.clone());
            }
        }
        if !self.in_call {
            let text = &self.held[..self.held.len() - begun(&self.held, open)];
            let rest = self.held.split_off(text.trim_end().len());
            said.extend(shown(std::mem::replace(&mut self.held, rest)));
        }
        said
    }

    /// Goes on behind a block.
    fn leave(&mut self) {
        (self.in_call, self.live) = (false, None);
    }

    /// Goes on with calls that are told as they come, if that is where the answer is; `None` where
    /// it is not, and what is held is looked at when it is whole.
    fn tell(&mut self, is_last: bool, said: &mut Vec<Said>) -> Option<Step> {
        let live = self.live.as_mut()?;
        let before = said.len();
        let step = live.step(&mut self.held, is_last, said);
        let is_call = |one: &&Said| matches!(one, Said::Call { .. });
        self.calls += said[before..].iter().filter(is_call).count();
        let (has_told, in_list) = (live.has_told(), live.in_list());
        match step {
            Step::Wait if !has_told => None,
            Step::Whole => {
                if in_list {
                    self.held.insert(0, '['); // the others of the list are one as well
                }
                (self.live, self.closing) = (None, Closing::default());
                None
            }
            Step::Wait => {
                if is_last {
                    // Of what is left no call can be made, and it is no text either.
                    self.held.clear();
                    self.leave();
                }
                Some(step)
            }
            Step::Over | Step::Left => {
                self.gap.clear();
                self.leave();
                Some(step)
            }
        }
    }

    /// Whether what is held may become a call.
    fn may_begin(&self) -> bool {
        self.notation.may_begin(&self.held)
    }

    /// Where the tag is that closes the call which is held: not within a text of its, unless
    /// nothing follows and no other is one.
    fn close(&mut self, close: &str, is_last: bool) -> Option<usize> {
        let mut closing = std::mem::take(&mut self.closing);
        let at = match self.notation {
            CallNotation::Tagged | CallNotation::Blocks(_) => closing.of_json(&self.held, close),
            // What is no call is known to be none at a mark that no text of its can have.
            CallNotation::Pythonic(_) => closing
                .by(&self.held, close, |text| !ends_in_text(text) || self.read(text).is_some()),
            CallNotation::Braces => closing.by(&self.held, close, |it| !braces::ends_in_text(it)),
            _ => closing.by(&self.held, close, |text| self.read(text).is_some()),
        };
        let at = at.or_else(|| closing.first().filter(|_| is_last));
        self.closing = closing;
        at
    }

    /// What was begun like a call and is none.
    fn literal(&mut self, text: &str) -> String {
        let open = self.notation.tags().map_or("", |(open, _)| open);
        format!("{}{open}{text}", std::mem::take(&mut self.gap))
    }

    /// Begins to tell calls where no text can stand: behind a list's mark, or where it is known
    /// that the answer is calls.
    fn tell_list(&mut self, is_last: bool, said: &mut Vec<Said>) {
        let text = self.held.trim_start();
        let mut marks = self.notation.list_marks().iter();
        let is_call = self.texts.iter().any(String::is_empty);
        let may_be_mark = marks.clone().any(|mark| mark.starts_with(text));
        let list = marks.find_map(|mark| text.strip_prefix(mark)).or(is_call.then_some(text));
        let list = list.map(str::len);
        let live = Live::new(self.notation, "", self.texts.clone());
        let (Some(list), Some(live)) = (list, live) else { return };
        let list = self.held.split_off(self.held.len() - list);
        let mark = std::mem::replace(&mut self.held, list);
        (self.live, self.is_text) = (Some(live), false);
        let before = said.len();
        let step = self.tell(is_last, said);
        if step.is_none() && said.len() == before {
            // It is begun anew with what comes next, if it may be one.
            self.is_untold = self.live.is_none() && !may_be_mark;
            self.held.insert_str(0, &mark);
            self.live = None;
        }
        self.is_text = step == Some(Step::Left);
    }

    /// Everything is a call until it begins otherwise than calls do.
    fn whole(&mut self, is_last: bool) -> Vec<Said> {
        let mut said = Vec::new();
        match self.live {
            Some(_) => self.is_text |= self.tell(is_last, &mut said) == Some(Step::Left),
            None if !self.is_text && !self.is_untold => self.tell_list(is_last, &mut said),
            None => {}
        }
        if self.live.is_some() {
            return said;
        }
        self.is_text |= !self.may_be_calls();
        if self.is_text {
            said.extend(shown(std::mem::take(&mut self.held)));
        }
        said
    }

    /// Whether a whole answer that begins with what is held may be calls.
    fn may_be_calls(&self) -> bool {
        let (held, marks) = (self.held.trim_start(), self.notation.list_marks());
        let behind = marks.iter().find_map(|mark| held.strip_prefix(mark));
        let list = behind.unwrap_or(held).trim_start();
        let begins = |text: &str, first: &[char]| text.is_empty() || text.starts_with(first);
        let is_begun = match (self.notation, list.strip_prefix('[')) {
            (CallNotation::Pythonic(calls), _) => calls.may_begin(list),
            (CallNotation::Listed, Some(first)) if behind.is_none() => {
                begins(first.trim_start(), &['{'])
            }
            (CallNotation::Listed, Some(first)) => begins(first.trim_start(), &['{', ']']),
            // Behind a mark the list's beginning may be missing.
            (CallNotation::Listed, None) if behind.is_none() => list.is_empty(),
            _ => begins(list, &['{']),
        };
        is_begun || marks.iter().any(|mark| mark.starts_with(held))
    }

    /// The calls that a whole answer is, if it is nothing else.
    fn calls_of(&mut self, answer: &str) -> Option<Vec<Said>> {
        let answer = answer.trim();
        let behind = self.notation.list_marks().iter().find_map(|mark| answer.strip_prefix(mark));
        let list = behind.unwrap_or(answer);
        let calls: Vec<Said> = match self.notation {
            CallNotation::Listed => {
                let calls: Vec<Value> = serde_json::from_str(list).ok()?;
                calls.into_iter().map(|call| self.said(call)).collect::<Option<_>>()?
            }
            CallNotation::Pythonic(calls) => {
                calls.calls(list)?.into_iter().map(said_call).collect()
            }
            _ => vec![self.said(serde_json::from_str(answer).ok()?)?],
        };
        self.calls += calls.len();
        // An empty list is nothing to be read where its mark says what it is.
        (behind.is_some() || !calls.is_empty()).then_some(calls)
    }

    /// The calls that `text`, which stands between tags, is.
    fn within(&mut self, text: &str) -> Option<Vec<Said>> {
        let calls: Vec<Said> = match self.notation {
            CallNotation::Tagged => {
                vec![self.said(serde_json::from_str(text.trim()).ok()?)?]
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
            CallNotation::Braces => braces::calls(text),
            _ => None,
        }
    }

    /// The call that an object is, if it is one.
    fn said(&self, call: Value) -> Option<Said> {
        let arguments = self.notation.arguments_name();
        let inner = call.get("function").filter(|inner| inner.is_object()).unwrap_or(&call);
        let has_arguments = inner.get(arguments).is_some();
        let call = of_object(call, ["name", arguments])?;
        // Much has a name: without arguments it is a call where that is a tool's.
        (has_arguments || is_offered(&self.texts, &call.0)).then(|| said_call(call))
    }
}

fn said_call((name, arguments): NamedCall) -> Said {
    Said::Call { name, arguments: Value::Object(arguments).to_string() }
}

/// What is for the caller to read, if it is anything.
fn shown(text: String) -> Option<Said> {
    (!text.is_empty()).then_some(Said::Text(text))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{BLOCKS, TAGS};
    use super::super::{Blocks, Pythonic};
    use super::*;
    use crate::text::ToolCall;
    use proptest::prelude::*;

    fn text(text: &str) -> Said {
        Said::Text(text.into())
    }

    fn call(name: &str, arguments: &str) -> Said {
        Said::Call { name: name.into(), arguments: arguments.into() }
    }

    /// In pieces of `cut` characters; neighbouring texts are one, and so are a call and its
    /// arguments.
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
                (Some(Said::Call { arguments, .. }), Said::Arguments(more)) => *arguments += &more,
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
        for none in ["null", "\"\"", "{}"] {
            check(&as_text(none), &[call("f", "{}")]);
        }
        check("<tool_call>{\"name\": \"f\"}</tool_call>", &[call("f", "{}")]);
        let other = "<tool_call>{\"name\": \"f\", \"parameters\": {\"x\": 1}}</tool_call>";
        check(other, &[text(other)]);
    }

    /// What is no call is told when it is known to be none, and holds nothing back.
    #[test]
    fn what_is_no_call_is_told_at_once() {
        let named =
            |template: &str| CallNotation::of(&format!("{{{{ tools }}}}{template}")).unwrap();
        let [_, v31, _, phi, lists] = BLOCKS.map(named);
        for (notation, bad) in [
            (CallNotation::Tagged, "<tool_call>{\"x\": 1}</tool_call>"),
            (lists, "<tool_calls>[1]</tool_calls>"),
            (phi, "<|tool_call|>[{\"x\": \"<|/tool_call|>\"}]<|/tool_call|>"),
            (v31, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁calls▁end｜>"),
        ] {
            let said = said_of(notation, &[bad, "\nHello"]);
            assert_eq!(said, [vec![text(bad)], vec![text("\nHello")], vec![]]);
        }
        // An empty list is nothing at all.
        let said = said_of(lists, &["Well.\n<tool_calls>[]</tool_calls>", "\nHello"]);
        assert_eq!(said, [vec![text("Well.")], vec![text("\nHello")], vec![]]);
        check(CallNotation::Listed, "[TOOL_CALLS][]", &[]);
        let python = CallNotation::Pythonic(Pythonic::List);
        for (notation, words) in [
            (CallNotation::Listed, "[1]"),
            (CallNotation::Listed, "[TOOL_CALLS] is"),
            (CallNotation::Listed, "functools is"),
            (python, "[1] says"),
            (python, "<|python_start|>[the end"),
        ] {
            let said = said_of(notation, &[words, " so."]);
            assert_eq!(said, [vec![text(words)], vec![text(" so.")], vec![]], "{notation:?}");
        }
        let block = CallNotation::Pythonic(Pythonic::Block);
        let bad = "<|tool_call_start|>[f(1)]<|tool_call_end|>";
        let said = said_of(block, &[bad, "\nHello"]);
        assert_eq!(said, [vec![text(bad)], vec![text("\nHello")], vec![]]);
        let lines = CallNotation::Pythonic(Pythonic::Lines);
        let said = joined_each(said_of(lines, &["<function_calls> tags are", " here."]));
        let told: Vec<Said> = said.into_iter().flatten().collect();
        let want = ["<function_calls>", " tags are", " here."].map(text);
        assert_eq!(told, want);
    }

    /// A whole answer that only has a name is a call where a tool has that.
    #[test]
    fn a_name_alone_may_be_a_call() {
        let said = |notation, answer: &str| said_of(notation, &[answer]).concat();
        assert_eq!(said(CallNotation::Bare, "{\"name\": \"f\"}"), [call("f", "{}")]);
        assert_eq!(said(CallNotation::Listed, "[{\"name\": \"f\"}]"), [call("f", "{}")]);
        let ada = "{\"name\": \"Ada\", \"age\": 3}";
        assert_eq!(said(CallNotation::Bare, ada), [text(ada)]);
        let root = "{\"function\": {\"name\": \"sqrt\", \"domain\": \"x >= 0\"}}";
        assert_eq!(said(CallNotation::Bare, root), [text(root)]);
    }

    /// Marks in what is no call cost little, however many there are.
    #[test]
    fn many_marks_are_text() {
        let named =
            |template: &str| CallNotation::of(&format!("{{{{ tools }}}}{template}")).unwrap();
        let [v3, v31, kimi, phi, lists] = BLOCKS.map(named);
        let [coder, _, _, glm] = TAGS.map(named);
        let [lines, block] = [Pythonic::Lines, Pythonic::Block].map(CallNotation::Pythonic);
        let object = "{\"name\": \"g\", \"arguments\": {\"x\": \"";
        let deepseek = "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{\"x\":\"";
        for (notation, head) in [
            (CallNotation::Tagged, object),
            (lists, object),
            (phi, object),
            (v3, deepseek),
            (v31, deepseek),
            (kimi, "<|tool_call_begin|>g<|tool_call_argument_begin|>{\"x\":\""),
            (coder, "<function=g>\n<parameter=x>\n"),
            (glm, "g\n<arg_key>x</arg_key>\n<arg_value>"),
            (lines, "g(x='"),
            (block, "[g(x='"),
            (block, object),
            (CallNotation::Braces, "call:g{x:<|\"|>"),
        ] {
            let (open, close) = notation.tags().unwrap();
            let begun = format!("{open}{head}");
            let call_end = notation.blocks().and_then(Blocks::marks).map_or("", |marks| marks[2]);
            for (unit, bytes) in [
                (close.to_owned(), 200_000),
                (format!("{call_end}{close}"), 200_000),
                (format!("{close}{begun}"), 20_000),
                (format!("{begun}\\\"{close}"), 20_000),
            ] {
                let answer = format!("{begun}{}", unit.repeat(bytes / unit.len()));
                let texts = ["f".to_owned()];
                let mut parser = CallParser::new(notation, false, Arc::from(texts));
                let (mut rest, mut told) = (answer.as_str(), String::new());
                while !rest.is_empty() {
                    let end = rest.char_indices().nth(7).map_or(rest.len(), |(at, _)| at);
                    told.extend(parser.push(&rest[..end]).into_iter().map(as_text));
                    rest = &rest[end..];
                }
                told.extend(parser.finish().into_iter().map(as_text));
                assert!(told == answer, "{notation:?} {unit:?}");
            }
        }
    }

    fn as_text(said: Said) -> String {
        match said {
            Said::Text(text) => text,
            other => format!("{other:?}"),
        }
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
        // Behind a mark they are told as they come, to wherever that is.
        check(&both[..both.len() - 1], &[call("f", "{\"x\":1}"), call("f", "{\"x\":1}")]);
        check(
            &format!("{both} So."),
            &[call("f", "{\"x\":1}"), call("f", "{\"x\":1}"), text("] So.")],
        );
        for words in ["I see [1].", "[1, 2]", "[]", "[TOOL_CALLS", &format!("[{one}")] {
            check(words, &[text(words)]);
        }
        check(&format!("[{one}, 1]"), &[text(&format!("[{one}, 1]"))]);
        let granite = format!("<|tool_call|>[{one}]");
        check(&granite, &[call("f", "{\"x\":1}")]);
        check(&granite[..granite.len() - 1], &[call("f", "{\"x\":1}")]);
        for words in ["<b>", "<|tool", "<|tool_call|>f"] {
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

    /// As LFM2 has them: its marks are seen by nobody.
    #[test]
    fn calls_between_marks() {
        let check = |answer: &str, want: &[Said]| {
            check(CallNotation::Pythonic(Pythonic::Block), answer, want);
        };
        let (open, close) = ("<|tool_call_start|>", "<|tool_call_end|>");
        let one = format!("{open}[f(x='a', n=2)]{close}");
        let f = call("f", "{\"x\":\"a\",\"n\":2}");
        check(&one, std::slice::from_ref(&f));
        check(&format!("{one}I look."), &[f.clone(), text("I look.")]);
        check(
            &format!("Well.\n{one}\nI look.{one}"),
            &[text("Well."), f.clone(), text("\nI look."), f.clone()],
        );
        let both = format!("{open}[f(x='a', n=2), g()]{close}");
        check(&both, &[f.clone(), call("g", "{}")]);
        check(&format!("{one}\n{one}"), &[f.clone(), f.clone()]);
        for cut in [&one[..one.len() - 1], &one[..one.len() - close.len()]] {
            check(cut, std::slice::from_ref(&f));
        }
        let object = "{\"name\": \"f\", \"arguments\": {\"x\": \"a\", \"n\": 2}}";
        check(&format!("{open}[{object}]{close}So."), &[f.clone(), text("So.")]);
        let within = format!("{open}[f(x=\"a{close}b\")]{close}So.");
        let arguments = serde_json::json!({ "x": format!("a{close}b") }).to_string();
        check(&within, &[call("f", &arguments), text("So.")]);
        check(&format!("So.{open}[]{close}"), &[text("So.")]);
        for words in [
            "It is [f(x='a')].",
            "a <|tool_call_st",
            &format!("The {open} mark."),
            &format!("{open}[f(x='a"),
            &format!("{open}[f('a')]{close} So."),
        ] {
            check(words, &[text(words)]);
        }
    }

    /// As Gemma 4 has them.
    #[test]
    fn calls_whose_texts_stand_between_marks() {
        let check = |answer: &str, want: &[Said]| check(CallNotation::Braces, answer, want);
        let one = "<|tool_call>call:f{n:2,x:<|\"|>a<|\"|>}<tool_call|>";
        let f = call("f", r#"{"n":2,"x":"a"}"#);
        check(one, std::slice::from_ref(&f));
        check("<|tool_call>call:f{}<tool_call|>", &[call("f", "{}")]);
        check(&format!("I look.\n{one}{one}"), &[text("I look."), f.clone(), f.clone()]);
        check(&format!("{one}\n{one} So."), &[f.clone(), f.clone(), text(" So.")]);
        // Marks may be missing, or cut off.
        for cut in ["<tool_call|>", "tool_call|>", "<", ">"] {
            let end = one.len() - "<tool_call|>".len() + "<tool_call|>".find(cut).unwrap();
            check(&one[..end], std::slice::from_ref(&f));
        }
        let within = "call:f{n:2,x:<|\"|>a<|\"|>}call:g{}";
        check(&format!("<|tool_call>{within}<tool_call|>"), &[f.clone(), call("g", "{}")]);
        check(&format!("<|tool_call>{within}{one}"), &[f.clone(), call("g", "{}"), f.clone()]);
        let quoted = "\"}]<tool_call|><|tool_call>call:g{x:1}\\n\n";
        let arguments = serde_json::json!({ "x": [quoted] }).to_string();
        let block = format!("<|tool_call>call:f{{x:[<|\"|>{quoted}<|\"|>]}}<tool_call|> So.");
        check(&block, &[call("f", &arguments), text(" So.")]);
        for words in [
            "call:f{}",
            "a <|tool_ca",
            "The <|tool_call> mark.",
            "<|tool_call>f{}<tool_call|>",
            "<|tool_call>call:f",
            "<|tool_call>call:f<tool_call|> So.",
        ] {
            check(words, &[text(words)]);
        }
        // What was told stays told.
        check("<|tool_call>call:f{n:2,x:<|\"|>a", &[call("f", "{\"n\":2,\"x\":\"a")]);
        let open = "<|tool_call>call:f{n:2,x}<tool_call|> So.";
        check(open, &[call("f", "{\"n\":2x}"), text(" So.")]);
        // Of what no tool is called, or is none, nothing is told before it is whole.
        let other = one.replace("call:f", "call:g");
        let g = call("g", r#"{"n":2,"x":"a"}"#);
        let said = said_of(CallNotation::Braces, &[&other[..20], &other[20..]]);
        assert_eq!(said, [vec![], vec![g], vec![]]);
        let bad = "<|tool_call>call:g{n}<tool_call|>";
        let said = said_of(CallNotation::Braces, &[bad, "\nHello"]);
        assert_eq!(said, [vec![text(bad)], vec![text("\nHello")], vec![]]);
        let more = |json: &str| Said::Arguments(json.to_owned());
        let pieces =
            ["<|tool_call>call:f{", "x:<|\"|>a ", "\"b<|", "\"|>,n:1", "2}", "<tool_call|>"];
        let said = said_of(CallNotation::Braces, &pieces);
        let want = [
            vec![call("f", ""), more("{")],
            vec![more("\"x\":\"a ")],
            vec![more("\\\"b")],
            vec![more("\",\"n\":")],
            vec![more("12}")],
            vec![],
            vec![],
        ];
        assert_eq!(said, want);
    }

    /// What is said of each of these pieces.
    fn said_of(notation: CallNotation, pieces: &[&str]) -> Vec<Vec<Said>> {
        let texts = ["f".to_owned(), "f text".to_owned()];
        let mut parser = CallParser::new(notation, false, Arc::from(texts));
        let mut said: Vec<_> = pieces.iter().map(|piece| parser.push(piece)).collect();
        said.push(parser.finish());
        said
    }

    #[test]
    fn calls_are_told_as_they_come() {
        let more = |json: &str| Said::Arguments(json.to_owned());
        let said = said_of(
            CallNotation::Tagged,
            &[
                "I look. <tool_call>\n{\"name\": \"f\", \"arguments\": ",
                "{\"x\": [1, ",
                "\"a b",
                "\n\\\"</tool_call>",
                "\"]}}\n</tool",
                "_call> So",
            ],
        );
        let begun = vec![call("f", ""), more("{\"x\":[1,")];
        let want = [
            vec![text("I look.")],
            begun,
            vec![more("\"a b")],
            vec![more("\\n\\\"</tool_call>")],
            vec![more("\"]}")],
            vec![text(" So")],
            vec![],
        ];
        assert_eq!(said, want);
        let coder = CallNotation::of(&format!("{{{{ tools }}}}{}", TAGS[0])).unwrap();
        let said = said_of(
            coder,
            &[
                "<tool_call>\n<function=f>\n<parameter=",
                "x>\n1\n</parameter>",
                "\n<parameter=text>\na\"",
                "\n\nb</par",
                "ameter> c\n</parameter>\n</fun",
                "ction>\n</tool_call>",
            ],
        );
        let want = [
            vec![call("f", ""), more("{")],
            vec![],
            vec![more("\"x\":1,\"text\":\"a\\\"")],
            vec![more("\\n\\nb")],
            vec![more("</parameter> c")],
            vec![more("\"}")],
            vec![],
        ];
        assert_eq!(joined_each(said), want);
        // Where nothing else can be, a call needs no mark.
        for (notation, head) in [
            (CallNotation::Bare, "{\"name\": \"f\", \"parameters\": {"),
            (CallNotation::Listed, "[{\"name\": \"f\", \"arguments\": {"),
        ] {
            let texts = ["f".to_owned(), String::new()];
            let mut parser = CallParser::new(notation, false, Arc::from(texts));
            assert_eq!(parser.push(head), [call("f", ""), more("{")]);
            assert_eq!(parser.push("\"x\": 1}"), [more("\"x\":1}")]);
            assert!(parser.push("}]").is_empty() && parser.finish().is_empty());
        }
        // What no tool is called is looked at when it is whole.
        let said = said_of(
            CallNotation::Tagged,
            &["<tool_call>{\"name\": \"g\", \"arguments\": {", "}}</tool_call>"],
        );
        assert_eq!(said, [vec![], vec![call("g", "{}")], vec![]]);
    }

    /// With neighbouring arguments as one.
    fn joined_each(said: Vec<Vec<Said>>) -> Vec<Vec<Said>> {
        let joined = said.into_iter().map(|of_piece| {
            let mut joined: Vec<Said> = Vec::new();
            for one in of_piece {
                match (joined.last_mut(), one) {
                    (Some(Said::Arguments(last)), Said::Arguments(more)) => *last += &more,
                    (_, one) => joined.push(one),
                }
            }
            joined
        });
        joined.collect()
    }

    /// A call that was begun is one, however it goes on: what was told stays told.
    #[test]
    fn calls_that_were_begun_stay_calls() {
        let tagged = |answer: &str, want: &[Said]| check(CallNotation::Tagged, answer, want);
        let head = "<tool_call>{\"name\": \"f\", \"arguments\": ";
        let f = call("f", "{\"x\":1}");
        tagged(&format!("{head}{{\"x\": \"a b"), &[call("f", "{\"x\":\"a b")]);
        for cut in ["", "}", "}\n", "}\n<", "}\n</tool_c", "</tool_call>", "}}\n</tool_call>"] {
            tagged(&format!("{head}{{\"x\": 1}}{cut}"), std::slice::from_ref(&f));
        }
        let broken = format!("{head}{{\"x\": [1</tool_call> So");
        tagged(&broken, &[call("f", "{\"x\":[1"), text(" So")]);
        tagged(&format!("{head}{{\"x\": 1}}}} So"), &[f.clone(), text(" So")]);
        let next = format!("{head}{{\"x\": 1}}}}\n{head}{{\"x\": 1}}}}</tool_call>");
        tagged(&next, &[f.clone(), f.clone()]);
        let open =
            format!("{head}{{\"x\": \"a}}}}\n</tool_call>\n{head}{{\"x\": 1}}}}</tool_call>");
        tagged(&open, &[call("f", "{\"x\":\"a}}"), f.clone()]);

        let named = |taught: &str| CallNotation::of(&format!("{{{{ tools }}}}{taught}")).unwrap();
        let [coder, _, _, glm] = TAGS.map(named);
        let open = "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n";
        for (cut, want) in [
            ("", "{\"x\":1"),
            ("<", "{\"x\":1"),
            ("</func", "{\"x\":1}"),
            ("</tool_c", "{\"x\":1}"),
            ("</tool_call>", "{\"x\":1}"),
            ("<parameter=text>\na\n</parameter>\n</tool_call>", "{\"x\":1,\"text\":\"a\"}"),
            ("</function>\n</tool", "{\"x\":1}"),
            ("<parameter=text>\na\n</para", "{\"x\":1,\"text\":\"a"),
            ("<parameter=y>\n2", "{\"x\":1"),
            ("Hm.</tool_call>", "{\"x\":\n1\n</parameter>\nHm."),
        ] {
            check(coder, &format!("{open}{cut}"), &[call("f", want)]);
        }
        let next = format!("{open}</tool_call>\n{open}</function></tool_call> So");
        check(coder, &next, &[f.clone(), f.clone(), text(" So")]);
        check(coder, "<tool_call><function=f><parameter=x>1", &[call("f", "{")]);
        let long = format!("<tool_call><function=f><parameter={}", "x".repeat(2000));
        check(coder, &format!("{long}>1"), &[call("f", &format!("{{{}>1", &long[23..]))]);
        let bare = "<tool_call>f\n<arg_key>x</arg_key>Hm.</tool_call> So";
        check(glm, bare, &[call("f", "{<arg_key>x</arg_key>Hm."), text(" So")]);
        let open = "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>a";
        for (cut, want) in [
            ("", "{\"text\":\"a"),
            ("</arg_va", "{\"text\":\"a"),
            ("</arg_value>\n</tool_c", "{\"text\":\"a\"}"),
        ] {
            check(glm, &format!("{open}{cut}"), &[call("f", want)]);
        }
        let [v3, _, kimi, phi, _] = BLOCKS.map(named);
        let fence = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n";
        for cut in ["", "\n``", "\n```<｜tool▁ca", "\n```<｜tool▁call▁end｜><｜tool▁calls"]
        {
            check(v3, &format!("{fence}{{\"x\": 1}}{cut}"), std::slice::from_ref(&f));
        }
        let section = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0\
            <|tool_call_argument_begin|>";
        let both = format!(
            "{section}{{\"x\": [<|tool_call_end|><|tool_call_begin|>functions.f:1\
             <|tool_call_argument_begin|>{{\"x\": 1}}"
        );
        check(kimi, &both, &[call("f", "{\"x\":["), f.clone()]);
        // Of a list what cannot be told as it comes is told when it is whole.
        let object = "{\"name\": \"f\", \"arguments\": {\"x\": 1}}";
        let as_text = "{\"name\": \"f\", \"arguments\": \"{}\"}";
        let list = format!("<|tool_call|>[{object}, {as_text}]<|/tool_call|>");
        check(phi, &list, &[f, call("f", "{}")]);
    }

    /// What cannot be told as it comes is looked at again when it is whole, and not before.
    #[test]
    fn what_is_none_is_known_to_be_none() {
        let texts = || Arc::from(["f".to_owned(), String::new()]);
        let mut parser = CallParser::new(CallNotation::Listed, false, texts());
        assert!(parser.push("[TOOL_CALLS][{\"arguments\": ").is_empty() && !parser.is_untold);
        assert!(parser.push("{").is_empty() && parser.is_untold);
        assert!(parser.push("}, \"name\": \"f\"}]").is_empty());
        assert_eq!(parser.finish(), [call("f", "{}")]);
        let mut parser = CallParser::new(CallNotation::Listed, false, texts());
        assert!(parser.push("[TOOL_CALLS").is_empty() && !parser.is_untold);
        let told = parser.push("][{\"name\": \"f\", \"arguments\": {");
        assert_eq!(told, [call("f", ""), Said::Arguments("{".to_owned())]);
    }

    /// A call that is only told when it is whole may end within the mark that closes it.
    #[test]
    fn a_cut_mark_is_no_part_of_a_call() {
        let one = "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}";
        for cut in ["", "<", "</tool_call"] {
            check(CallNotation::Tagged, &format!("{one}{cut}"), &[call("f", "{}")]);
        }
        let lines = CallNotation::Pythonic(Pythonic::Lines);
        check(lines, "<function_calls>f()\n</function_", &[call("f", "{}")]);
        let list = CallNotation::Pythonic(Pythonic::List);
        check(list, "<|python_start|>[f()]<|python_e", &[call("f", "{}")]);
    }

    proptest! {
        #[test]
        fn whole_arguments_are_what_was_told(
            key in "[a-z]{1,3}",
            value in "(\\PC|\n|</parameter>|</tool_call>|<\\|tool_call_end\\|>|\"){0,12}",
            cuts in proptest::collection::vec(1usize..9, 1..40),
        ) {
            let arguments = serde_json::json!({ key: [value, { "b": [1.5, null, true] }] });
            let (id, name) = ("functions.f:0".to_owned(), "f".to_owned());
            let call = ToolCall { id, name, arguments: arguments.clone() };
            let named =
                |taught: &str| CallNotation::of(&format!("{{{{ tools }}}}{taught}")).unwrap();
            let in_blocks = BLOCKS.map(named).map(|notation| {
                (notation, notation.blocks().unwrap().written(std::slice::from_ref(&call)))
            });
            let object = format!("{{\"name\": \"f\", \"arguments\": {arguments}}}");
            let others = [
                (CallNotation::Tagged, format!("<tool_call>\n{object}\n</tool_call>")),
                (CallNotation::Listed, format!("[TOOL_CALLS][{object}]")),
            ];
            for (notation, answer) in in_blocks.into_iter().chain(others) {
                let mut parser = CallParser::new(notation, false, Arc::from([]));
                let (mut rest, mut said) = (answer.as_str(), Vec::new());
                for cut in cuts.iter().cycle() {
                    if rest.is_empty() {
                        break;
                    }
                    let end = rest.char_indices().nth(*cut).map_or(rest.len(), |(at, _)| at);
                    said.extend(parser.push(&rest[..end]));
                    rest = &rest[end..];
                }
                said.extend(parser.finish());
                let mut told = said.into_iter();
                prop_assert!(matches!(told.next(), Some(Said::Call { .. })), "{}", answer);
                let told = told.map(|one| match one {
                    Said::Arguments(json) => json,
                    other => format!("{other:?}"),
                });
                prop_assert_eq!(told.collect::<String>(), arguments.to_string(), "{}", answer);
            }
        }

        #[test]
        fn any_cut_says_the_same(
            answer in "(<tool_call>|</tool_call>|<\\|tool_call\\|>|\\[TOOL_CALLS\\]|\\[|\\{|\
                \"name\"|\\{\"name\": \"f\", \"arguments\": \\{|\\}\\}|, |\
                <function=f>|<parameter=text>|<arg_key>text</arg_key>|\
                </function>|<parameter=x>|</parameter>|<arg_key>x</arg_key>|\
                <arg_value>|</arg_value>|<\\|/tool_call\\|>|<｜tool▁calls▁begin｜>|\
                <｜tool▁calls▁end｜>|<｜tool▁call▁begin｜>|<｜tool▁sep｜>|<｜tool▁call▁end｜>|\
                <function_calls>|</function_calls>|<\\|tool_call_start\\|>|\
                <\\|tool_call_end\\|>|<\\|tool_call>|call:f\\{|x:1,|<\\|\"\\|>|\
                <tool_call\\|>|\\(\\)|\\]|f|[<｜a \n\"\\\\]){0,12}",
        ) {
            let named =
                |taught: &str| CallNotation::of(&format!("{{{{ tools }}}}{taught}")).unwrap();
            let taught = TAGS.into_iter().chain(BLOCKS).map(named);
            let python = [Pythonic::List, Pythonic::Lines, Pythonic::Block];
            let python = python.map(CallNotation::Pythonic);
            let objects = [CallNotation::Tagged, CallNotation::Bare, CallNotation::Listed];
            let objects = objects.into_iter().chain([CallNotation::Braces]);
            for notation in objects.chain(python).chain(taught) {
                for one_call in [false, true] {
                    let whole = parsed(notation, one_call, &answer, 1000);
                    prop_assert_eq!(parsed(notation, one_call, &answer, 1), whole);
                }
            }
        }
    }
}
