//! Calls whose arguments are JSON, in a block behind marks of its own. The name of what is called
//! stands between marks too, or the calls are objects:
//!
//! ```text
//! <|tool_calls_section_begin|><|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>
//! {"path": "walden.txt"}<|tool_call_end|><|tool_calls_section_end|>
//! <tool_calls>[{"name": "read", "arguments": {"path": "walden.txt"}}]</tool_calls>
//! ```
//!
//! The marks are text in some vocabularies, and in others tokens that are none, which are heard as
//! text here.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::objects::{function_of, object_in_fence, objects, of_field, of_object};
use super::tags::is_of_name;
use super::tells_of_tools;
use crate::text::shape::json_text;
use crate::text::{ChatMessage, Role, ToolCall};

/// A function's name and its arguments.
pub(super) type NamedCall = (String, Map<String, Value>);

/// How a family of models writes such calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// What of it stands in chat templates.
    taught: &'static [&'static str],
    /// Around one call, or several.
    pub(super) block: (&'static str, &'static str),
    /// Around the calls of a block, where these are a list.
    list: (&'static str, &'static str),
    between: &'static str,
    /// Before a call's arguments: `$` is its name, and `#` its number.
    head: &'static str,
    tail: &'static str,
    form: Form,
    /// How a model is told to call, whose template tells nothing of tools; empty where all do.
    rules: &'static str,
}

/// What a call within a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Text that begins with a mark, has one before the arguments, and ends with one.
    Marks([&'static str; 3]),
    /// An object, with these names for what is called and for the arguments.
    Object([&'static str; 2]),
    /// An object of one field, which is named as what is called and holds the arguments.
    Field,
}

/// Who tells a model of the tools that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Telling {
    /// Its template.
    Template,
    /// Its template, which takes them as a text beside the system's words.
    Beside,
    /// Nobody else than who writes the system's words.
    Words,
}

const DEEPSEEK: [&str; 3] = ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"];

/// DeepSeek V3.1, which was trained with these words.
const DEEPSEEK_V31: Blocks = Blocks {
    taught: &["<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"],
    block: ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    list: ("", ""),
    between: "",
    head: "<｜tool▁call▁begin｜>$<｜tool▁sep｜>",
    tail: "<｜tool▁call▁end｜>",
    form: Form::Marks(DEEPSEEK),
    rules: "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n\
        <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments\
        <｜tool▁call▁end｜>{additional_tool_calls}<｜tool▁calls▁end｜>\n\n\
        Where:\n\
        - `tool_call_name` must be an exact match to one of the available tools\n\
        - `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters \
        Schema\n\
        - For multiple tool calls, chain them directly without separators or spaces",
};

/// DeepSeek V3 and R1.
const DEEPSEEK_V3: Blocks = Blocks {
    taught: &["<｜tool▁sep｜>", "```json"],
    between: "\n",
    head: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$\n```json\n",
    tail: "\n```<｜tool▁call▁end｜>",
    rules: "To use tools, end your answer with calls of them, in exactly this form:\n\
        <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>tool_name\n\
        ```json\n\
        tool_arguments\n\
        ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>\n\n\
        Here `tool_name` is the name of one of the tools, and `tool_arguments` a JSON object that \
        follows its parameters. Each further call begins with <｜tool▁call▁begin｜> on a line of \
        its own, before <｜tool▁calls▁end｜>.",
    ..DEEPSEEK_V31
};

/// Lists of objects, as Hunyuan A13B and Apriel write them.
const LISTS: Blocks = Blocks {
    taught: &["<tool_calls>", "</tool_calls>", "arguments\""],
    block: ("<tool_calls>", "</tool_calls>"),
    list: ("[", "]"),
    between: ", ",
    head: "{\"name\": \"$\", \"arguments\": ",
    tail: "}",
    form: Form::Object(["name", "arguments"]),
    rules: "",
};

const PHI: Blocks = Blocks {
    taught: &["<|tool_call|>", "<|/tool_call|>"],
    block: ("<|tool_call|>", "<|/tool_call|>"),
    ..LISTS
};

const KNOWN: [Blocks; 11] = [
    // Kimi K2.
    Blocks {
        taught: &["<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"],
        block: ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        list: ("", ""),
        between: "",
        head: "<|tool_call_begin|>functions.$:#<|tool_call_argument_begin|>",
        tail: "<|tool_call_end|>",
        form: Form::Marks([
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ]),
        rules: "",
    },
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    // Command R7B and A.
    Blocks {
        taught: &["<|START_ACTION|>", "\"tool_name\""],
        block: ("<|START_ACTION|>", "<|END_ACTION|>"),
        list: ("[\n    ", "\n]"),
        between: ",\n    ",
        head: "{\"tool_call_id\": \"#\", \"tool_name\": \"$\", \"parameters\": ",
        form: Form::Object(["tool_name", "parameters"]),
        ..LISTS
    },
    // Apertus.
    Blocks {
        taught: &["<|tools_prefix|>", "<|tools_suffix|>"],
        block: ("<|tools_prefix|>", "<|tools_suffix|>"),
        head: "{\"$\": ",
        form: Form::Field,
        ..LISTS
    },
    // Nemotron Nano 2.
    Blocks {
        taught: &["<TOOLCALL>", "</TOOLCALL>"],
        block: ("<TOOLCALL>", "</TOOLCALL>"),
        ..LISTS
    },
    PHI,
    // Phi 4 mini as it is published.
    Blocks { taught: &["<|tool|>", "message['tools']"], ..PHI },
    // Hunyuan but A13B, whose block is that of lists.
    Blocks {
        taught: &["<tool_calls>", "<tool_call>function_name"],
        list: ("", ""),
        between: "\n",
        head: "<tool_call>$\n```json\n",
        tail: "\n```</tool_call>",
        form: Form::Marks(["<tool_call>", "\n", "</tool_call>"]),
        ..LISTS
    },
    LISTS,
    // Jamba, whose template may name no field as it is written.
    Blocks { taught: &["<|bom|>", "<tool_calls>"], ..LISTS },
];

impl Blocks {
    /// Those that a chat template teaches.
    pub(super) fn of(template: &str) -> Option<Self> {
        let says = |text: &str| template.contains(text);
        // In a template's strings quotes may be escaped.
        let teaches = |text: &str| says(text) || says(&text.replace('"', "\\\""));
        let is_told = |blocks: &Self| !blocks.rules.is_empty() || tells_of_tools(template);
        let mut known = KNOWN.into_iter();
        known.find(|blocks| blocks.taught.iter().all(|text| teaches(text)) && is_told(blocks))
    }

    /// Who tells a model of this chat template, which teaches these, of the tools.
    pub(crate) fn telling(self, template: &str) -> Telling {
        if template.contains("message['tools']") {
            Telling::Beside
        } else if tells_of_tools(template) {
            Telling::Template
        } else {
            Telling::Words
        }
    }

    /// Whether a token of this name, which is no text, is a part of calls.
    pub(crate) fn has_mark(self, name: &str) -> bool {
        let is_within = matches!(self.form, Form::Marks(marks) if marks.contains(&name));
        is_within || [self.block.0, self.block.1].contains(&name)
    }

    /// What one call stands between, and its name and its arguments, where these are marks.
    pub(super) fn marks(self) -> Option<[&'static str; 3]> {
        match self.form {
            Form::Marks(marks) => Some(marks),
            Form::Object(_) | Form::Field => None,
        }
    }

    /// What name and arguments are called, where a call is an object that has both.
    pub(super) fn object_names(self) -> Option<[&'static str; 2]> {
        match self.form {
            Form::Object(names) => Some(names),
            Form::Marks(_) | Form::Field => None,
        }
    }

    /// What is called, of a call with this name.
    pub(super) fn function_in(self, name: &str) -> &str {
        if self.names_calls() { function_of(name.trim()) } else { name.trim() }
    }

    /// Whether a model names its calls by function and number.
    pub(crate) fn names_calls(self) -> bool {
        self.head.contains("$:#")
    }

    /// What models write before all calls of a block, and behind them.
    pub(crate) fn around_calls(self) -> (String, String) {
        let ((open, close), (first, last)) = (self.block, self.list);
        (format!("{open}{first}"), format!("{last}{close}"))
    }

    /// What they write between one call and the next.
    pub(crate) fn between_calls(self) -> &'static str {
        self.between
    }

    /// What they write before a call's arguments, in parts that the call's number stands between,
    /// and behind the arguments.
    pub(crate) fn around_arguments(self, name: &str) -> (Vec<String>, &'static str) {
        let parts = self.head.split('#').map(|part| part.replace('$', name));
        (parts.collect(), self.tail)
    }

    /// `calls` as models write them.
    pub(crate) fn written(self, calls: &[ToolCall]) -> String {
        let call = |(idx, call): (usize, &ToolCall)| {
            let named = call.id.rsplit_once(':').filter(|_| self.names_calls());
            let number = named.map_or_else(|| idx.to_string(), |(_, number)| number.to_owned());
            let (parts, tail) = self.around_arguments(&call.name);
            format!("{}{}{tail}", parts.join(&number), json_text(&call.arguments))
        };
        let calls: Vec<String> = calls.iter().enumerate().map(call).collect();
        let (open, close) = self.around_calls();
        format!("{open}{}{close}", calls.join(self.between))
    }

    /// The same messages, in which the system tells of `tools` and of how they are called.
    pub(crate) fn told(self, mut messages: Vec<ChatMessage>, tools: &[Value]) -> Vec<ChatMessage> {
        let tool = |tool: &Value| {
            let function = &tool["function"];
            let text = |field: &str| function[field].as_str().unwrap_or_default();
            let (name, description) = (text("name"), text("description"));
            let parameters = function.get("parameters").map_or_else(|| "{}".to_owned(), json_text);
            format!("### {name}\nDescription: {description}\n\nParameters: {parameters}\n\n")
        };
        let tools: String = tools.iter().map(tool).collect();
        let rules = self.rules;
        let told = format!("## Tools\nYou have access to the following tools:\n\n{tools}{rules}");
        match messages.first_mut().filter(|first| first.role == Role::System) {
            Some(first) if first.content.is_empty() => first.content = told,
            Some(first) => first.content += &format!("\n\n{told}"),
            None => messages.insert(0, ChatMessage::new(Role::System, told)),
        }
        messages
    }

    /// Whether calls may begin with `text`, behind the block's mark.
    pub(super) fn may_begin(self, text: &str) -> bool {
        let text = text.trim_start();
        match self.form {
            Form::Marks([open, ..]) => text.starts_with(open) || open.starts_with(text),
            Form::Object(_) | Form::Field => text.is_empty() || text.starts_with(['[', '{']),
        }
    }

    /// The calls within a block; `None` where that is something else.
    pub(super) fn calls(self, block: &str) -> Option<Vec<NamedCall>> {
        let calls = match self.form {
            Form::Marks(marks) => self.between_marks(block, marks)?,
            Form::Object(names) => {
                let calls = objects(block)?.into_iter().map(|call| of_object(call, names));
                calls.collect::<Option<Vec<_>>>()?
            }
            Form::Field => {
                let calls = objects(block)?.into_iter().map(of_field);
                calls.collect::<Option<Vec<_>>>()?
            }
        };
        // A list may be empty: that is no call, and nothing to be read.
        let is_list = block.trim_start().starts_with('[');
        (is_list || !calls.is_empty()).then_some(calls)
    }

    /// The mark that ends the last call may be missing; within arguments others are text.
    fn between_marks(self, block: &str, marks: [&str; 3]) -> Option<Vec<NamedCall>> {
        let (mut rest, mut calls) = (block.trim(), Vec::new());
        while !rest.is_empty() {
            let (call, behind) = self.call(rest, marks)?;
            calls.push(call);
            rest = behind.trim_start();
        }
        Some(calls)
    }

    /// The call that `text` begins with, and what follows it. A mark stands before its arguments,
    /// or before name and arguments where what kind of call it is was said before.
    fn call<'t>(
        self,
        text: &'t str,
        [open, between, close]: [&str; 3],
    ) -> Option<(NamedCall, &'t str)> {
        let (head, behind) = text.strip_prefix(open)?.split_once(between)?;
        let behind = behind.trim_start();
        let is_named = behind.is_empty() || behind.starts_with(['{', '`']);
        let (name, arguments) = match is_named || behind.starts_with(close) {
            true => (head, behind),
            false => {
                let end = behind.find(['\n', '{', '`']).unwrap_or(behind.len());
                behind.split_at(behind[..end].find(close).unwrap_or(end))
            }
        };
        let name = self.function_in(name);
        if name.is_empty() || !name.chars().all(is_of_name) {
            return None;
        }
        let (arguments, rest) = object_in_fence(arguments)?;
        let next = match rest.strip_prefix(close) {
            Some(next) => next,
            None => rest.is_empty().then_some(rest)?,
        };
        Some(((name.to_owned(), arguments), next))
    }
}

/// `messages` whose calls are named by function and number, as models do that name them so: their
/// templates write these names, and results have them too.
pub(crate) fn numbered(messages: &[ChatMessage]) -> Vec<ChatMessage> {
    let (mut all, mut names, mut calls) = (messages.to_vec(), HashMap::<String, String>::new(), 0);
    for message in &mut all {
        for call in &mut message.tool_calls {
            let name = format!("functions.{}:{calls}", call.name);
            names.insert(std::mem::replace(&mut call.id, name.clone()), name);
            calls += 1;
        }
        let known = message.tool_call_id.as_ref().and_then(|id| names.get(id)).cloned();
        message.tool_call_id = known.or(message.tool_call_id.take());
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(blocks: Blocks, block: &str, want: Option<Value>) {
        let got = blocks.calls(block).map(|calls| {
            let list = calls.into_iter().map(|(name, arguments)| json!([name, arguments]));
            list.collect::<Value>()
        });
        assert_eq!(got, want, "{block:?}");
    }

    fn call(id: &str, name: &str, arguments: Value) -> ToolCall {
        ToolCall { id: id.to_owned(), name: name.to_owned(), arguments }
    }

    /// What is written is read, for each of the families.
    #[test]
    fn calls_are_read_as_they_are_written() {
        for blocks in KNOWN {
            let text = format!("a{}b{}", blocks.block.1, blocks.tail);
            let calls = [
                call("functions.f:3", "f", json!({ "x": [1, { "y": null }], "text": text })),
                call("functions.g-1.h:4", "g-1.h", json!({})),
            ];
            let written = blocks.written(&calls);
            let inside = written.strip_prefix(blocks.block.0).unwrap();
            let inside = inside.strip_suffix(blocks.block.1).unwrap();
            let want = json!([["f", calls[0].arguments], ["g-1.h", {}]]);
            check(blocks, inside, Some(want));
            assert!(blocks.may_begin(inside) && blocks.may_begin(" "), "{written}");
            assert!(!blocks.may_begin("a"), "{written}");
        }
    }

    #[test]
    fn each_family_writes_its_own() {
        let check = |template: &str, want: &str| {
            let blocks = Blocks::of(template).unwrap();
            let calls = [call("functions.f:7", "f", json!({ "x": 1 })), call("", "g", json!({}))];
            assert_eq!(blocks.written(&calls), want);
        };
        check(
            "{{ tools }}<|tool_calls_section_begin|><|tool_call_argument_begin|>",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:7\
             <|tool_call_argument_begin|>{\"x\": 1}<|tool_call_end|><|tool_call_begin|>\
             functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>\
             <|tool_calls_section_end|>",
        );
        check(
            "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>\\n```json",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n\
             {\"x\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n\
             ```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        );
        check(
            "<｜tool▁calls▁begin｜>{{ name }}<｜tool▁sep｜>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": 1}\
             <｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>\
             <｜tool▁calls▁end｜>",
        );
        check(
            "{{ tools }}<|START_ACTION|>[{\\\"tool_name\\\": ",
            "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \
             \"parameters\": {\"x\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \
             \"parameters\": {}}\n]<|END_ACTION|>",
        );
        check(
            "{{ tools }}<|tools_prefix|><|tools_suffix|>",
            "<|tools_prefix|>[{\"f\": {\"x\": 1}}, {\"g\": {}}]<|tools_suffix|>",
        );
        let phi = "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"x\": 1}}, \
            {\"name\": \"g\", \"arguments\": {}}]<|/tool_call|>";
        check("{{ tools }}<|tool_call|>f<|/tool_call|>", phi);
        check("'<|tool|>' + message['tools'] + '<|/tool|>'", phi);
        let list = phi.replace("<|tool_call|>", "<tool_calls>");
        let list = list.replace("<|/tool_call|>", "</tool_calls>");
        check("{{ tools }}<tool_calls>\\\"arguments\\\"</tool_calls>", &list);
        check("{{ tools }}<|bom|><tool_calls>", &list);
        let nano = list.replace("tool_calls>", "TOOLCALL>");
        check("{{ tools }}<TOOLCALL>[{{\"name\": ..}}]</TOOLCALL>", &nano);
        check(
            "{{ tools }}<tool_calls><tool_call>function_name\n```json\n```</tool_call>",
            "<tool_calls><tool_call>f\n```json\n{\"x\": 1}\n```</tool_call>\n<tool_call>g\n\
             ```json\n{}\n```</tool_call></tool_calls>",
        );
        for other in [
            "<tool_calls>\"arguments\"</tool_calls>",
            "functools<tool_calls>\"arguments\"</tool_calls>",
            "{{ tools }}<tool_calls></tool_calls>",
            "{{ tools }}<|tool_call|>",
            "tools```json",
        ] {
            assert_eq!(Blocks::of(other), None, "{other}");
        }
    }

    #[test]
    fn what_deepseek_writes() {
        let check = |block: &str, want: Option<Value>| {
            for blocks in [DEEPSEEK_V3, DEEPSEEK_V31] {
                check(blocks, block, want.clone());
            }
        };
        let f = || Some(json!([["f", { "x": 1 }]]));
        let one = |inside: &str| format!("<｜tool▁call▁begin｜>{inside}<｜tool▁call▁end｜>");
        let plain = one("f<｜tool▁sep｜>{\"x\": 1}");
        check(&plain, f());
        check(&one("function<｜tool▁sep｜>f\n```json\n{\"x\": 1}\n```"), f());
        check(&one("f<｜tool▁sep｜>```json\n{\"x\": 1}\n```"), f());
        check(&one("f<｜tool▁sep｜>\n{\"x\": 1}\n"), f());
        check(&one("function<｜tool▁sep｜>{}"), Some(json!([["function", {}]])));
        check(&one("f<｜tool▁sep｜>"), Some(json!([["f", {}]])));
        check(&plain.replace("<｜tool▁call▁end｜>", ""), f());
        check(&format!("\n{plain}\n{plain} "), Some(json!([["f", { "x": 1 }], ["f", { "x": 1 }]])));
        for bad in [
            "",
            "f",
            &format!("{plain}f"),
            &one("f{\"x\": 1}"),
            &one("f<｜tool▁sep｜>{\"x\": 1"),
            &one("f<｜tool▁sep｜>[1]"),
            &one("a b<｜tool▁sep｜>{}"),
            &one("<｜tool▁sep｜>{}"),
        ] {
            check(bad, None);
        }
    }

    /// Each mark that might end a call costs no reading of what stands before it.
    #[test]
    fn many_marks_in_arguments_are_read_at_once() {
        let marks = "<｜tool▁call▁end｜><｜tool▁call▁begin｜>".repeat(20_000);
        let one = format!("<｜tool▁call▁begin｜>f<｜tool▁sep｜>{{\"x\": \"{marks}\"}}");
        check(DEEPSEEK_V31, &one, Some(json!([["f", { "x": marks }]])));
        check(DEEPSEEK_V31, &one[..one.len() - 2], None);
    }

    #[test]
    fn what_hunyuan_writes() {
        let taught = "{{ tools }}<tool_calls><tool_call>function_name\n```json\n```</tool_call>";
        let hunyuan = Blocks::of(taught).unwrap();
        let check = |block: &str, want: Option<Value>| check(hunyuan, block, want);
        let f = "<tool_call>f\n```json\n{\"x\": \"</tool_call>\"}\n```</tool_call>";
        let want = || json!(["f", { "x": "</tool_call>" }]);
        check(f, Some(json!([want()])));
        check(&format!("{f}\n{f}\n"), Some(json!([want(), want()])));
        check("<tool_call>\nf\n{}</tool_call>", Some(json!([["f", {}]])));
        check("<tool_call>f\n</tool_call>", Some(json!([["f", {}]])));
        for bad in ["", "[]f", "<tool_call>f</tool_call>", "<tool_call>a b\n{}</tool_call>"] {
            check(bad, None);
        }
    }

    #[test]
    fn what_kimi_writes() {
        let check = |name: &str, want: Option<Value>| {
            let block =
                format!("<|tool_call_begin|>{name} <|tool_call_argument_begin|> {{\"x\": 1}} ");
            check(KNOWN[0], &block, want.clone());
            check(KNOWN[0], &format!("\n{block}<|tool_call_end|>\n"), want);
        };
        for name in ["functions.f:0", "functions.f:12", " f:0", "f"] {
            check(name, Some(json!([["f", { "x": 1 }]])));
        }
        check("functions.functions.f:0", Some(json!([["functions.f", { "x": 1 }]])));
        for name in ["", "functions.:0", "f:x", "a b:0"] {
            check(name, None);
        }
    }

    #[test]
    fn objects_may_stand_in_lists_or_alone() {
        let check = |block: &str, want: Option<Value>| check(LISTS, block, want);
        let one = "{\"name\": \"f\", \"arguments\": {\"x\": 1}}";
        let f = json!(["f", { "x": 1 }]);
        check(one, Some(json!([f])));
        check(&format!("\n[{one}]\n"), Some(json!([f])));
        for several in [format!("[{one}, {one}]"), format!("{one}, {one}"), format!("{one}\n{one}")]
        {
            check(&several, Some(json!([f, f])));
        }
        check(&format!("[{{\"type\": \"function\", \"function\": {one}}}]"), Some(json!([f])));
        let as_text = "{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}";
        check(as_text, Some(json!([f])));
        for empty in ["[]", "\n[ ]\n"] {
            check(empty, Some(json!([])));
        }
        let bare = ["{\"name\": \"f\"}", "{\"name\": \"f\", \"arguments\": \"\"}"];
        for none in bare.into_iter().chain(["{\"name\": \"f\", \"arguments\": null, \"id\": 1}"]) {
            check(&format!("[{none}]"), Some(json!([["f", {}]])));
        }
        for bad in ["", "[1]", "f", &one[1..], "{\"name\": 1, \"arguments\": {}}"] {
            check(bad, None);
        }
        check("{\"name\": \"f\", \"arguments\": [1]}", None);
        check("{\"name\": \"f\", \"parameters\": {\"x\": 1}}", None);
    }

    #[test]
    fn fields_may_be_named_as_what_is_called() {
        let apertus = Blocks::of("{{ tools }}<|tools_prefix|><|tools_suffix|>").unwrap();
        let check = |block: &str, want: Option<Value>| check(apertus, block, want);
        check("[{\"f\": {\"x\": 1}}]", Some(json!([["f", { "x": 1 }]])));
        check("[{\"f\": null}]", Some(json!([["f", {}]])));
        for bad in ["[{}]", "[{\"f\": 1}]", "[{\"f\": {}, \"g\": {}}]", "[\"f\"]"] {
            check(bad, None);
        }
    }

    #[test]
    fn results_are_named_as_their_calls_are() {
        let said = |calls: &[ToolCall]| ChatMessage {
            tool_calls: calls.to_vec(),
            ..ChatMessage::new(Role::Assistant, "")
        };
        let result = |id: &str| ChatMessage {
            tool_call_id: Some(id.to_owned()),
            ..ChatMessage::new(Role::Tool, "281")
        };
        let both = [call("a", "f", json!({})), call("b", "g", json!({}))];
        let named = numbered(&[
            said(&both),
            result("b"),
            result("a"),
            said(&[call("c", "f", json!({}))]),
            result("c"),
            result("d"),
        ]);
        let calls = named.iter().flat_map(|message| &message.tool_calls);
        let calls: Vec<&str> = calls.map(|call| call.id.as_str()).collect();
        assert_eq!(calls, ["functions.f:0", "functions.g:1", "functions.f:2"]);
        let results: Vec<_> = named.iter().filter_map(|it| it.tool_call_id.as_deref()).collect();
        assert_eq!(results, ["functions.g:1", "functions.f:0", "functions.f:2", "d"]);
    }

    #[test]
    fn the_system_tells_of_tools() {
        let check = |before: &[ChatMessage], want: &str| {
            let parameters = json!({ "type": "object" });
            let function = json!({ "name": "f", "description": "F.", "parameters": parameters });
            let tools = [json!({ "function": function }), json!({ "function": { "name": "g" } })];
            let told = DEEPSEEK_V31.told(before.to_vec(), &tools);
            let list = "## Tools\nYou have access to the following tools:\n\n### f\nDescription: \
                F.\n\nParameters: {\"type\": \"object\"}\n\n### g\nDescription: \n\nParameters: \
                {}\n\nIMPORTANT: ";
            assert!(told[0].content.starts_with(&format!("{want}{list}")), "{}", told[0].content);
            assert_eq!((told[0].role, told[1].content.as_str()), (Role::System, "Go"));
        };
        let user = ChatMessage::new(Role::User, "Go");
        let system = ChatMessage::new(Role::System, "Be kind.");
        check(std::slice::from_ref(&user), "");
        check(&[system, user.clone()], "Be kind.\n\n");
        check(&[ChatMessage::new(Role::System, ""), user], "");
    }

    #[test]
    fn who_tells_of_tools() {
        let check = |template: &str, want: Telling| {
            assert_eq!(Blocks::of(template).unwrap().telling(template), want, "{template}");
        };
        let v31 = "{{ message['tool_calls'] }}<｜tool▁calls▁begin｜><｜tool▁sep｜>";
        check(v31, Telling::Words);
        check(&format!("{{{{ tools }}}}{v31}"), Telling::Template);
        check("'<|tool|>' + message['tools'] + '<|/tool|>'", Telling::Beside);
    }
}
