//! Tool calls in what a model says, in the notations that templates teach.

mod blocks;
mod braces;
mod close;
mod head;
mod literals;
mod live;
mod live_tags;
mod objects;
mod parser;
mod pythonic;
mod tags;

use serde_json::Value;

use super::{ToolCall, channels, marked};
pub use blocks::Blocks;
pub(super) use blocks::{Telling, numbered};
pub(crate) use braces::QUOTE;
pub(super) use braces::{ENDS_OF_TURNS, asking};
pub use parser::{CallParser, Said};
pub use pythonic::Pythonic;
pub use tags::ArgumentTags;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// What Mistral's models say before a list of calls: a token that is no text, if their tokeniser
/// has it.
const LIST: &str = "[TOOL_CALLS]";
/// What Granite 3 says before one.
const GRANITE_LIST: &str = "<|tool_call|>";
/// What Phi 4 mini says before one, with vLLM's template.
const PHI_LIST: &str = "functools";

/// How a model writes that it calls a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallNotation {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`, as Hermes and Qwen have it; other
    /// text may stand beside it, and several calls after each other.
    Tagged,
    /// The answer is one object, `{"name": .., "parameters": ..}`, as Llama 3 has it.
    Bare,
    /// The answer is a list, `[TOOL_CALLS][{"name": .., "arguments": ..}, ..]`, as Mistral 7B and
    /// Nemo have it, or the same behind `<|tool_call|>`, as Granite 3 does, or `functools`.
    /// Mistral's templates take ids of nine letters and digits only.
    Listed,
    /// In a channel of their own, as gpt-oss has them: see [`super::Heard`].
    InChannels,
    /// Behind tokens of their own, as Mistral's models since Small 3.1 have them: likewise.
    Marked,
    /// Names and arguments between tags; other text may stand beside them.
    ArgumentTags(ArgumentTags),
    /// Arguments as JSON in blocks of calls; likewise.
    Blocks(Blocks),
    /// As Python has calls.
    Pythonic(Pythonic),
    /// `<|tool_call>call:f{x:1}<tool_call|>`, as Gemma 4 has it: its texts stand between marks;
    /// other text may stand beside calls.
    Braces,
}

impl CallNotation {
    /// The notation that a chat template teaches; `None` if it is none of these.
    pub fn of(template: &str) -> Option<Self> {
        // In a template's strings quotes may be escaped.
        let teaches_json = template.contains("arguments\"") || template.contains("arguments\\\"");
        let blocks = Blocks::of(template);
        if !tells_of_tools(template) {
            blocks.map(Self::Blocks)
        } else if channels::are_taught(template) {
            Some(Self::InChannels)
        } else if braces::are_taught(template) {
            Some(Self::Braces)
        } else if let Some(tags) = ArgumentTags::of(template) {
            Some(Self::ArgumentTags(tags))
        } else if let Some(blocks) = blocks {
            Some(Self::Blocks(blocks))
        } else if let Some(calls) = Pythonic::of(template) {
            Some(Self::Pythonic(calls))
        } else if template.contains(OPEN) && teaches_json {
            Some(Self::Tagged)
        } else if marked::are_taught(template) {
            Some(Self::Marked)
        } else if template.contains(LIST) || teaches_list(template) {
            Some(Self::Listed)
        } else if template.contains("\"parameters\":") && template.contains("ipython") {
            Some(Self::Bare)
        } else {
            None
        }
    }

    /// The notation of a chat template that teaches none, by the tokens that its model has.
    pub(super) fn by_tokens(template: &str, has_token: impl Fn(&str) -> bool) -> Option<Self> {
        Pythonic::by_tokens(template, has_token).map(Self::Pythonic)
    }

    /// What calls stand between, where text may stand beside them.
    fn tags(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Tagged => Some((OPEN, CLOSE)),
            Self::ArgumentTags(tags) => Some(tags.block),
            Self::Blocks(blocks) => Some(blocks.block),
            Self::Pythonic(calls) => calls.block(),
            Self::Braces => Some(braces::BLOCK),
            Self::Bare | Self::Listed | Self::InChannels | Self::Marked => None,
        }
    }

    /// The blocks that calls stand in, if they do.
    pub(crate) fn blocks(self) -> Option<Blocks> {
        match self {
            Self::Blocks(blocks) => Some(blocks),
            _ => None,
        }
    }

    /// What was said in a message with `calls`, and these as models write them, for a template that
    /// knows none; `None` in a notation whose templates all do.
    pub(super) fn in_words(self, words: &str, calls: &[ToolCall]) -> Option<String> {
        match self {
            Self::Blocks(blocks) => Some(format!("{words}{}", blocks.written(calls))),
            Self::Pythonic(own) => Some(own.in_words(words, calls)),
            _ => None,
        }
    }

    /// What a list of calls may stand behind that is the whole answer.
    fn list_marks(self) -> &'static [&'static str] {
        match self {
            Self::Listed => &[LIST, GRANITE_LIST, PHI_LIST],
            Self::Pythonic(calls) => calls.list_marks(),
            _ => &[],
        }
    }

    /// Whether a token of this name, which is no text, is said as text all the same: it is a part
    /// of calls.
    pub(crate) fn says(self, name: &str) -> bool {
        match self {
            Self::Blocks(blocks) => blocks.has_mark(name),
            Self::Braces => braces::has_mark(name),
            Self::Tagged | Self::ArgumentTags(_) | Self::Pythonic(_) => {
                self.tags().is_some_and(|(open, close)| [open, close].contains(&name))
            }
            _ => false,
        }
    }

    /// Whether an argument may have this name: what is read is what was written.
    pub(crate) fn can_name(self, key: &str) -> bool {
        match self {
            Self::ArgumentTags(tags) => tags.can_name(key),
            Self::Pythonic(calls) => calls.can_name(key),
            Self::Braces => braces::can_name(key),
            _ => true,
        }
    }

    /// Whether calls may begin with `text`, behind the mark that stands before them.
    fn may_begin(self, text: &str) -> bool {
        match self {
            Self::ArgumentTags(tags) => tags.may_begin(text),
            Self::Blocks(blocks) => blocks.may_begin(text),
            Self::Pythonic(calls) => calls.may_begin(text),
            Self::Braces => braces::may_begin(text),
            _ => text.trim_start().chars().next().is_none_or(|first| first == '{'),
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
            Self::Braces => braces::around_arguments(function),
            // The last three have grammars of their own, or stand in lists.
            Self::Bare
            | Self::Listed
            | Self::ArgumentTags(_)
            | Self::Blocks(_)
            | Self::Pythonic(_) => (named(), "}".to_owned()),
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

/// Whether it may have tools at all.
fn tells_of_tools(template: &str) -> bool {
    template.replace(PHI_LIST, "").contains("tools")
}

/// Granite 3's words for it, as others have the mark before something else; or Phi's, or xLAM's.
fn teaches_list(template: &str) -> bool {
    let words = [
        "<|tool_call|> followed by a JSON list",
        "functools[",
        "make calls in a single JSON array",
    ];
    words.iter().any(|words| template.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What templates have that teach arguments as tags.
    pub(super) const TAGS: [&str; 4] = [
        "<tool_call>\n<function=f>\n<parameter=x>",
        "<seed:tool_call>\n<function=f>\n<parameter=x>",
        "<minimax:tool_call>\n<invoke name=\\\"f\\\">",
        "<tool_call>f\n<arg_key>x</arg_key>",
    ];

    /// What templates have that teach blocks of calls.
    pub(super) const BLOCKS: [&str; 5] = [
        "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>f\\n```json",
        "<｜tool▁calls▁begin｜>f<｜tool▁sep｜>",
        "<|tool_calls_section_begin|>f<|tool_call_argument_begin|>",
        "<|tool_call|>f<|/tool_call|>",
        "<tool_calls>[{\"arguments\": x}]</tool_calls>",
    ];

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
        for blocks in BLOCKS {
            let named = CallNotation::of(&format!("{{{{ tools }}}}{blocks}")).unwrap();
            assert!(matches!(named, CallNotation::Blocks(_)), "{blocks}");
        }
        // DeepSeek's own tell nothing of tools.
        assert!(CallNotation::of(BLOCKS[0]).is_some() && CallNotation::of(BLOCKS[2]).is_none());
        for (taught, want) in [
            ("Use exact format: [func_name1(param1=value1), func_name2(...)]", Pythonic::List),
            ("{{- '<function_calls>' -}}f()", Pythonic::Lines),
            ("List of tools: <|tool_list_start|>[ <|tool_list_end|>", Pythonic::Block),
            ("{{- '<|tool_call_start|>[' + calls + ']<|tool_call_end|>' }}", Pythonic::Block),
        ] {
            let named = CallNotation::of(&format!("{{{{ tools }}}}ipython\"parameters\":{taught}"));
            assert_eq!(named, Some(CallNotation::Pythonic(want)));
        }
        let phi = "{% if tools %}formatted as functools[{\"name\": [function name]}]";
        assert_eq!(CallNotation::of(phi), Some(CallNotation::Listed));
        let xlam = "{% if tools %}When using tools, make calls in a single JSON array: ipython";
        assert_eq!(CallNotation::of(xlam), Some(CallNotation::Listed));
        let llama = r#"{{- '{"name": "' + n + '", "parameters": ' }} ipython {{ tools }}"#;
        assert_eq!(CallNotation::of(llama), Some(CallNotation::Bare));
        assert_eq!(CallNotation::of("{{ messages }}<tool_call>"), None);
        assert_eq!(CallNotation::of("functools[{\"arguments\": ..}]<tool_call>"), None);
        let harmony = "{{ tools }}<|start|>assistant<|channel|>final<|message|>";
        assert_eq!(CallNotation::of(harmony), Some(CallNotation::InChannels));
        let mistral = "{{ tools }}[TOOL_CALLS][{{ call | tojson }}]";
        assert_eq!(CallNotation::of(mistral), Some(CallNotation::Listed));
        let granite = "{%- if tools %}Respond with <|tool_call|> followed by a JSON list of tools.";
        assert_eq!(CallNotation::of(granite), Some(CallNotation::Listed));
        let gemma =
            CallNotation::of("{{ tools }}{{- '<|tool_call>call:' + function['name'] + '{' -}}");
        assert_eq!(gemma, Some(CallNotation::Braces));
        assert_eq!(CallNotation::of("{{ tools }}<|tool_call>{{ call }}<tool_call|>"), None);
        let marked = CallNotation::of("{{ tools }}[TOOL_CALLS]f[ARGS]{}");
        assert_eq!(marked, Some(CallNotation::Marked));
        assert_eq!(CallNotation::of("{{ tools }}<tools>"), None);
        // Code between the same marks is MiniCPM's.
        let code = "{{ tools }}<|tool_call_start|>\\n```python\\nf()\\n```\\n<|tool_call_end|>";
        assert_eq!(CallNotation::of(code), None);
    }

    /// The words with which templates of models that keep states teach calls.
    #[test]
    fn notations_are_known_by_the_words_of_hybrid_models() {
        let granite = r#"{% if tools %}return a json object with function name and arguments within
            <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>,
            \"arguments\": <args-json-object>}\n</tool_call>. If a tool does not exist"#;
        for quoted in [granite.to_owned(), granite.replace("\\\"", "\"")] {
            assert_eq!(CallNotation::of(&quoted), Some(CallNotation::Tagged), "{quoted}");
        }
        // Qwen 3.5 and Nemotron 3, whose tools stand between tags as well.
        let coder = CallNotation::of(&format!("{{{{ tools }}}}{}", TAGS[0]));
        for tools in ["<tools>{{ tool | tojson }}</tools>", "<function>\\n<parameter>\\n<name>"] {
            let named = CallNotation::of(&format!(
                "{{% for tool in tools %}}{tools}{{% endfor %}}ONLY reply in the following format \
                 with NO suffix:\\n\\n<tool_call>\\n<function=example_function_name>\\n\
                 <parameter=example_parameter_1>\\nvalue_1\\n</parameter>"
            ));
            assert_eq!(named, coder, "{tools}");
        }
        let olmo = "{% if tools %}Output any function calls within <function_calls>\
            </function_calls> XML tags.{{ tool_call['function']['arguments'] }}";
        assert_eq!(CallNotation::of(olmo), Some(CallNotation::Pythonic(Pythonic::Lines)));
        let nano = "{{ tools }}<TOOLCALL>[{{\"name\": \"tool_name1\"}}]</TOOLCALL>";
        assert!(matches!(CallNotation::of(nano), Some(CallNotation::Blocks(_))));
    }

    #[test]
    fn marks_may_be_known_by_the_vocabulary() {
        let block = Some(CallNotation::Pythonic(Pythonic::Block));
        let listed = "{% if tools %}{{ 'List of tools: [' + tools + ']' }}{% endif %}";
        let by = |template: &str, tokens: &[&str]| {
            CallNotation::by_tokens(template, |name| tokens.contains(&name))
        };
        let marks = ["<|tool_call_start|>", "<|tool_call_end|>"];
        assert_eq!(CallNotation::of(listed), None);
        assert_eq!(by(listed, &marks), block);
        assert_eq!(by(listed, &marks[..1]), None);
        assert_eq!(by(&listed.replace("List", "A list"), &marks), None);
    }
}
