//! Messages in the shape in which a template takes them: templates differ in what they want of
//! calls that were made before.

use std::borrow::Cow;

use minijinja::{Value, context};
use serde_json::{Map, json};

use super::calls::{Blocks, Telling, numbered};
use super::json::JsonWriter;
use super::{CallNotation, ChatMessage, Role, ToolCall, channels};

/// What a template wants of calls that were made before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Shape {
    arguments: Arguments,
    beside: Beside,
}

/// What a call's arguments are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Arguments {
    #[default]
    Mapping,
    /// JSON, as text.
    Text,
    /// Words, as all of the call is: the template knows no calls.
    Words,
}

/// What may be said in a message that calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Beside {
    #[default]
    Words,
    /// The same, or `none`, which is not an empty text.
    WordsOrNone,
    /// Nothing: of who says something no call is shown.
    Nothing,
    /// The same, which is `none`.
    None,
}

impl Shape {
    /// Those that a template is tried with, by what arguments are: the first of these that shows
    /// the call counts.
    pub(super) const TRIED: [[Self; 2]; 2] =
        [Self::with(Arguments::Mapping), Self::with(Arguments::Text)];

    /// Of a template that shows no calls.
    pub(super) const IN_WORDS: Self = Self { arguments: Arguments::Words, beside: Beside::Words };

    const fn with(arguments: Arguments) -> [Self; 2] {
        [Self { arguments, beside: Beside::Words }, Self { arguments, beside: Beside::WordsOrNone }]
    }

    /// The same where nothing is said beside calls.
    pub(super) fn alone(self) -> Self {
        let beside = match self.beside {
            Beside::Words | Beside::Nothing => Beside::Nothing,
            Beside::WordsOrNone | Beside::None => Beside::None,
        };
        Self { beside, ..self }
    }

    /// Whether `prompt`, which a template of this shape would make of [`tried`], shows the call.
    pub(super) fn is_seen(self, prompt: &str) -> bool {
        let arguments = tried_arguments();
        let is_shown = [TRIED_NAME, TRIED_KEY, TRIED_TEXT].iter().all(|it| prompt.contains(it));
        is_shown
            && match self.arguments {
                // Python's own way to write a mapping is none of JSON's.
                Arguments::Mapping => {
                    let written = value(&arguments).to_string();
                    written == json_text(&arguments) || !prompt.contains(&written)
                }
                Arguments::Text => prompt.contains(&json_text(&arguments)),
                Arguments::Words => true,
            }
    }
}

const TRIED_NAME: &str = "aqueduct_tried";
const TRIED_KEY: &str = "tried_key";
const TRIED_TEXT: &str = "tried_text";

fn tried_arguments() -> serde_json::Value {
    json!({ TRIED_KEY: TRIED_TEXT, "flag": true })
}

/// A conversation with a call, beside which this is said.
pub(super) fn tried(words: &str) -> Vec<ChatMessage> {
    let id = "abcdefghi".to_owned(); // Mistral's have nine letters
    let call =
        ToolCall { id: id.clone(), name: TRIED_NAME.to_owned(), arguments: tried_arguments() };
    let said = ChatMessage::new(Role::Assistant, words);
    let result = ChatMessage::new(Role::Tool, "-");
    vec![
        ChatMessage::new(Role::User, "-"),
        ChatMessage { tool_calls: vec![call], ..said },
        ChatMessage { tool_call_id: Some(id), ..result },
    ]
}

/// What a template teaches of calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taught {
    /// How models of it call; `None` where they cannot be told of any tool.
    pub(super) notation: Option<CallNotation>,
    /// Who tells them of the tools.
    telling: Telling,
    /// Whether it looks for what the assistant thought by LFM2.5's name for it.
    asks_thinking: bool,
    /// Whether it knows results beside the calls that they are of, and not as messages.
    joins_results: bool,
    pub(super) shape: Shape,
}

impl Taught {
    /// By a template, if there is one.
    pub(super) fn by(source: Option<&str>) -> Self {
        let notation = source.and_then(CallNotation::of);
        let blocks = notation.and_then(CallNotation::blocks).zip(source);
        let telling = blocks.map_or(Telling::Template, |(blocks, text)| blocks.telling(text));
        let names = ["message.thinking", "message[\"thinking\"]", "message['thinking']"];
        let asks = |source: &str| names.iter().any(|name| source.contains(name));
        let asks_thinking = source.is_some_and(asks);
        let joins =
            |source: &str| source.contains("tool_responses") && !source.contains("tool_call_id");
        let joins_results = notation == Some(CallNotation::Braces) && source.is_some_and(joins);
        Self { notation, telling, asks_thinking, joins_results, shape: Shape::default() }
    }

    fn blocks(&self) -> Option<Blocks> {
        self.notation.and_then(CallNotation::blocks)
    }

    /// The messages that a template is given, where a model is told of `tools`. One of gpt-oss
    /// answers `in_channels`.
    pub(super) fn told<'m>(
        &self,
        messages: &'m [ChatMessage],
        tools: &[serde_json::Value],
        in_channels: bool,
    ) -> Cow<'m, [ChatMessage]> {
        if in_channels {
            return Cow::Owned(channels::one_call_each(messages));
        }
        let Some(blocks) = self.blocks() else { return Cow::Borrowed(messages) };
        let named = match blocks.names_calls() {
            true => Cow::Owned(numbered(messages)),
            false => Cow::Borrowed(messages),
        };
        let has_system = messages.first().is_some_and(|first| first.role == Role::System);
        match self.telling {
            Telling::Words if !tools.is_empty() => {
                Cow::Owned(blocks.told(named.into_owned(), tools))
            }
            Telling::Beside if !tools.is_empty() && !has_system => {
                let mut named = named.into_owned();
                named.insert(0, ChatMessage::new(Role::System, ""));
                Cow::Owned(named)
            }
            _ => named,
        }
    }

    /// What stands beside the system's words, where the template looks for `tools` there.
    pub(super) fn beside_words(&self, tools: &[serde_json::Value]) -> Option<String> {
        let is_asked = self.telling == Telling::Beside && !tools.is_empty();
        let functions = || tools.iter().map(|tool| tool["function"].clone());
        is_asked.then(|| json_text(&functions().collect()))
    }

    /// How messages are shown.
    pub(super) fn showing<'a>(&self, in_channels: bool, tools: Option<&'a str>) -> Showing<'a> {
        let Self { notation, shape, asks_thinking, joins_results, .. } = *self;
        Showing { in_channels, asks_thinking, joins_results, shape, notation, tools }
    }
}

/// How messages are shown to one template.
#[derive(Debug, Clone, Copy)]
pub(super) struct Showing<'a> {
    /// Those of gpt-oss have a name of their own for what the assistant thought, and take that
    /// beside a call only where nothing was said as well.
    in_channels: bool,
    /// Whether others have the same name for it.
    asks_thinking: bool,
    /// Whether results stand beside calls.
    joins_results: bool,
    shape: Shape,
    /// How calls are written into words.
    notation: Option<CallNotation>,
    /// What stands beside the system's words.
    tools: Option<&'a str>,
}

impl Showing<'_> {
    /// Messages, as the `transformers` library gives them to templates.
    pub(super) fn messages(&self, messages: &[ChatMessage]) -> Vec<Value> {
        if !self.joins_results {
            return messages.iter().map(|message| self.message(message, &[])).collect();
        }
        let (mut all, mut rest) = (Vec::with_capacity(messages.len()), messages);
        while let [message, others @ ..] = rest {
            let calls = !message.tool_calls.is_empty();
            let results = others.iter().take_while(|other| calls && other.role == Role::Tool);
            let (results, others) = others.split_at(results.count());
            rest = others;
            if results.is_empty() {
                all.push(self.message(message, results));
                continue;
            }
            // What is said in a turn is shown behind its results, where it ends the turn: that is
            // for what is said behind them, and not for what is said beside calls.
            let is_words =
                |it: &&ChatMessage| it.role == Role::Assistant && it.tool_calls.is_empty();
            let said = others.first().filter(is_words);
            rest = &others[usize::from(said.is_some())..];
            let content = said.map_or_else(String::new, |said| said.content.clone());
            all.push(self.message(&ChatMessage { content, ..message.clone() }, results));
        }
        all
    }

    /// One of them, beside whose calls these results stand.
    fn message(&self, message: &ChatMessage, results: &[ChatMessage]) -> Value {
        let ChatMessage { role, content, tool_calls, tool_call_id, reasoning, name } = message;
        let calls = (!tool_calls.is_empty()).then(|| self.calls(tool_calls)).flatten();
        let text = |text: &Option<String>| text.as_deref().map(Value::from);
        let thought = reasoning.as_ref().filter(|_| self.in_channels);
        let is_said = thought.is_none() || calls.is_none();
        let names_thought = self.in_channels || self.asks_thinking;
        let has_calls = !tool_calls.is_empty();
        let tools = self.tools.filter(|_| *role == Role::System);
        // Templates ask whether a field is there.
        let fields = [
            ("role", Some(Value::from(role.as_str()))),
            ("content", is_said.then(|| self.words(content, tool_calls))),
            ("tools", tools.map(Value::from)),
            ("reasoning_content", text(reasoning)),
            ("thinking", text(reasoning).filter(|_| names_thought)),
            ("name", text(name)),
            ("tool_call_id", text(tool_call_id).filter(|_| !has_calls)),
            ("tool_calls", calls.map(Value::from)),
            ("tool_responses", (!results.is_empty()).then(|| responses(tool_calls, results))),
        ];
        Value::from_pairs(fields.into_iter().filter_map(|(name, field)| Some((name, field?))))
    }

    /// What was said in a message with these calls.
    fn words(&self, content: &str, calls: &[ToolCall]) -> Value {
        if calls.is_empty() {
            return Value::from(content);
        }
        let notation = self.notation.filter(|_| self.shape.arguments == Arguments::Words);
        if let Some(said) = notation.and_then(|notation| notation.in_words(content, calls)) {
            return Value::from(said);
        }
        match self.shape.beside {
            Beside::WordsOrNone if content.is_empty() => Value::from(()),
            Beside::Words | Beside::WordsOrNone => Value::from(content),
            Beside::Nothing => Value::from(""),
            Beside::None => Value::from(()),
        }
    }

    /// `None` where they are words.
    fn calls(&self, calls: &[ToolCall]) -> Option<Vec<Value>> {
        let call = |call: &ToolCall| {
            let arguments = match self.shape.arguments {
                Arguments::Text => Value::from(json_text(&call.arguments)),
                Arguments::Mapping | Arguments::Words => value(&call.arguments),
            };
            let function = context! { name => call.name.as_str(), arguments };
            context! { id => call.id.as_str(), type => "function", function }
        };
        let is_shown = self.shape.arguments != Arguments::Words;
        is_shown.then(|| calls.iter().map(call).collect())
    }
}

/// Results of `calls`, as Gemma 4's first templates have them.
fn responses(calls: &[ToolCall], results: &[ChatMessage]) -> Value {
    let response = |result: &ChatMessage| {
        let own = |call: &&ToolCall| result.tool_call_id.as_ref() == Some(&call.id);
        let called = calls.iter().find(own).map(|call| call.name.as_str());
        let name = called.or(result.name.as_deref());
        let name = name.map(|name| ("name", Value::from(name)));
        let response = ("response", Value::from(result.content.as_str()));
        Value::from_pairs(name.into_iter().chain([response]))
    };
    Value::from(results.iter().map(response).collect::<Vec<_>>())
}

/// JSON, as templates see it: fields in the order in which they were written.
pub(super) fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Value::from(whole),
            (None, Some(whole)) => Value::from(whole),
            (None, None) => Value::from(number.as_f64()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(list) => Value::from(list.iter().map(value).collect::<Vec<_>>()),
        Json::Object(fields) => object(fields),
    }
}

pub(super) fn object(fields: &Map<String, serde_json::Value>) -> Value {
    Value::from_pairs(fields.iter().map(|(name, field)| (name.as_str(), value(field))))
}

/// JSON, as templates write it.
pub(super) fn json_text(json: &serde_json::Value) -> String {
    JsonWriter::plain().text(&value(json)).unwrap_or_else(|_| json.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::super::{ChatTemplate, Conversation};
    use super::*;

    /// What a template makes of a conversation with a call of `f`, beside which this is said.
    fn shown(source: &str, words: &str) -> String {
        let template = ChatTemplate::new(Some(source.to_owned()), None, None).unwrap();
        shown_by(&template, words, true)
    }

    fn shown_by(template: &ChatTemplate, words: &str, has_tools: bool) -> String {
        let call = |id: &str, name: &str, arguments: serde_json::Value| ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments,
        };
        let calls = vec![call("a", "f", json!({ "x": [1, true] })), call("b", "g", json!({}))];
        let said = ChatMessage::new(Role::Assistant, words);
        let result = |id: &str| ChatMessage {
            tool_call_id: Some(id.to_owned()),
            ..ChatMessage::new(Role::Tool, id)
        };
        let messages = [
            ChatMessage::new(Role::User, "Go"),
            ChatMessage { tool_calls: calls, ..said },
            result("b"),
            result("a"),
        ];
        let function = json!({ "name": "f", "description": "F." });
        let tools = [json!({ "type": "function", "function": function })];
        let tools = if has_tools { &tools[..] } else { &[] };
        let conversation = Conversation { tools, ..Conversation::of(&messages) };
        template.render(conversation, UNIX_EPOCH).unwrap()
    }

    fn check(source: &str, words: &str, want: &str) {
        let prompt = shown(source, words);
        assert!(prompt.ends_with(want), "{source}\n{prompt}\n{want}");
    }

    /// Who has arguments as a mapping goes on as before.
    #[test]
    fn arguments_are_a_mapping_or_a_text() {
        let hermes = |arguments: &str| {
            format!(
                "{{{{ tools }}}}<tool_call>\"arguments\"|{{% for m in messages %}}{{{{ m.content \
                 }}}}{{% for c in m.tool_calls %}}{{{{ c.function.name ~ '=' ~ {arguments} }}}};\
                 {{% endfor %}}{{% endfor %}}"
            )
        };
        let want = "|GoSaid.f={\"x\": [1, true]};g={};ba";
        check(&hermes("(c.function.arguments | tojson)"), "Said.", want);
        check(&hermes("c.function.arguments"), "Said.", want);
        let either = "(c.function.arguments if c.function.arguments is string else 'M')";
        check(&hermes(either), "Said.", want);
        let mapping = "(c.function.arguments.keys() | join)";
        check(&hermes(mapping), "", "|Gof=x;g=;ba");
    }

    /// A template that has `arguments` of calls, each behind its name.
    fn hermes(arguments: &str) -> String {
        format!(
            "{{{{ tools }}}}<tool_call>\"arguments\"|{{% for m in messages %}}{{{{ m.content }}}}\
             {{% for c in m.tool_calls %}}{{{{ c.function.name + {arguments} }}}};{{% endfor %}}\
             {{% endfor %}}"
        )
    }

    #[test]
    fn what_a_template_takes_is_tried_with_its_tokens() {
        let source = hermes("pad_token + c.function.arguments");
        let template = ChatTemplate::new(Some(source), None, None).unwrap();
        let template = template.with_special(vec![("pad_token".into(), "=".into())]);
        let prompt = shown_by(&template, "Said.", true);
        assert!(prompt.ends_with("|GoSaid.f={\"x\": [1, true]};g={};ba"), "{prompt}");
    }

    /// Of two templates each is given calls as it takes them.
    #[test]
    fn each_of_two_templates_has_its_shape() {
        let text = hermes("'=' + c.function.arguments");
        let mapping = hermes("'=' + (c.function.arguments.keys() | join)");
        for (plain, with_tools, want) in
            [(&text, &mapping, ["={\"x\": [1, true]}", "=x"]), (&mapping, &text, ["=x", "={\"x\""])]
        {
            let template = ChatTemplate::new(Some(plain.clone()), None, None).unwrap();
            let template = template.with_tool_use(Some(with_tools.clone())).unwrap();
            for (has_tools, want) in [false, true].into_iter().zip(want) {
                let prompt = shown_by(&template, "Said.", has_tools);
                assert!(prompt.contains(&format!("Said.f{want}")), "{prompt}");
            }
        }
    }

    /// As DeepSeek V3 has it, whose template shows calls where nothing is said, and adds them to
    /// text; and the distilled ones of R1, which end an empty message more.
    #[test]
    fn nothing_said_may_be_none() {
        let template = |calls: &str, says: &str| {
            format!(
                "{{% for m in messages %}}{{% if {calls} %}}<｜tool▁calls▁begin｜>{{% for c in \
                 m['tool_calls'] %}}{{{{ 'function<｜tool▁sep｜>' + c.function.name + '```json' + \
                 c.function.arguments }}}}{{% endfor %}}{{% endif %}}{{% if {says} %}}{{{{ '(' + \
                 m['content'] + ')' }}}}{{% endif %}}{{% endfor %}}"
            )
        };
        let calls = "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>f```json{\"x\": [1, true]}\
            function<｜tool▁sep｜>g```json{}";
        let v3 = template("m.content is none", "m.content is not none");
        let want = format!("(Go){calls}(b)(a)");
        check(&v3, "", &want);
        check(&v3, "Said.", &want); // or the calls would be lost
        let distilled = template("m.tool_calls", "m.content is not none");
        check(&distilled, "", &want);
        check(&distilled, "Said.", &format!("(Go){calls}(Said.)(b)(a)"));
        // What its template does not tell of is told in the system's words.
        assert!(shown(&v3, "").starts_with("(## Tools\n"), "{}", shown(&v3, ""));
    }

    #[test]
    fn calls_may_be_named_by_function_and_number() {
        let kimi = "{{ tools | length }}{% for m in messages %}{{ m.tool_call_id }}{{ m.content }}\
            {% for c in m.tool_calls %}<|tool_calls_section_begin|>{{ c.id }}\
            <|tool_call_argument_begin|>{{ c.function.arguments | tojson }}{% endfor %};\
            {% endfor %}";
        let mark = ["<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"];
        let want = format!(
            "1Go;Said.{0}functions.f:0{1}{{\"x\": [1, true]}}{0}functions.g:1{1}{{}};\
             functions.g:1b;functions.f:0a;",
            mark[0], mark[1]
        );
        assert_eq!(shown(kimi, "Said."), want);
    }

    /// LFM2's first, which lists tools, and knows no calls; and LFM2.5's later, which does, and has
    /// a name of its own for thoughts.
    #[test]
    fn calls_may_stand_between_marks() {
        let first = "{% if tools %}List of tools: <|tool_list_start|>{{ tools | length }}\
            <|tool_list_end|>{% endif %}{% for message in messages %}{% set content = \
            message['content'] %}{% if message['role'] == 'tool' %}{% set content = \
            '<|tool_response_start|>' + content + '<|tool_response_end|>' %}{% endif %}({{ content \
            }}){% endfor %}";
        let calls = "<|tool_call_start|>[f(x=[1, true]), g()]<|tool_call_end|>";
        let results = "(<|tool_response_start|>b<|tool_response_end|>)(<|tool_response_start|>a\
            <|tool_response_end|>)";
        let want = format!("1<|tool_list_end|>(Go)({calls}Said.){results}");
        assert_eq!(shown(first, "Said."), format!("List of tools: <|tool_list_start|>{want}"));

        let later = "{% macro written(calls) %}{% set all = namespace(calls=[]) %}{% for call in \
            calls %}{% set of = namespace(list=[]) %}{% for name, value in \
            call.function.arguments.items() %}{% set of.list = of.list + [name + '=' + (value | \
            string)] %}{% endfor %}{% set all.calls = all.calls + [call.function.name + '(' + \
            (of.list | join(', ')) + ')'] %}{% endfor %}{{ '<|tool_call_start|>[' + (all.calls | \
            join(', ')) + ']<|tool_call_end|>' }}{% endmacro %}{% if tools %}List of tools: {{ \
            tools | length }}{% endif %}{% for message in messages %}({% if message.thinking is \
            defined %}<think>{{ message.thinking }}</think>{% endif %}{% if message.tool_calls is \
            defined %}{{ written(message.tool_calls) }}{% endif %}{{ message.content }}){% endfor \
            %}";
        let calls = calls.replace("true", "True");
        assert_eq!(shown(later, "Said."), format!("List of tools: 1(Go)({calls}Said.)(b)(a)"));
        let template = ChatTemplate::new(Some(later.to_owned()), None, None).unwrap();
        let said = ChatMessage::new(Role::Assistant, "Said.");
        let thought = ChatMessage { reasoning: Some("Hm.".into()), ..said };
        let text = template.render(Conversation::of(&[thought]), UNIX_EPOCH).unwrap();
        assert_eq!(text, "(<think>Hm.</think>Said.)");
    }

    /// Gemma 4's first templates, and its later ones, which look for results themselves.
    #[test]
    fn results_may_stand_beside_calls() {
        let first = "{{ tools | length if tools else 0 }}{% for m in messages %}({{ m.role }}\
            {% for c in m.tool_calls %}{{ '<|tool_call>call:' + c.function.name + '{' }}\
            {% for key, value in c.function.arguments | dictsort %}{{ key ~ ':' ~ value }}\
            {% endfor %}{{ \
            '}<tool_call|>' }}{% endfor %}{% for r in m.tool_responses %}[{{ r.name ~ '=' ~ \
            r.response }}]{% endfor %}{{ m.content }}){% endfor %}";
        let calls = "<|tool_call>call:f{x:[1, True]}<tool_call|><|tool_call>call:g{}<tool_call|>";
        assert_eq!(shown(first, ""), format!("1(userGo)(assistant{calls}[g=b][f=a])"));
        assert_eq!(shown(first, "Said."), format!("1(userGo)(assistant{calls}[g=b][f=a])"));
        let later = format!("{first}{{# tool_call_id #}}");
        let want = format!("1(userGo)(assistant{calls}Said.)(toolb)(toola)");
        assert_eq!(shown(&later, "Said."), want);
        let template = ChatTemplate::new(Some(first.to_owned()), None, None).unwrap();
        let call = ToolCall { id: "a".into(), name: "f".into(), arguments: json!({}) };
        let said = |words: &str| ChatMessage::new(Role::Assistant, words);
        let messages = [
            ChatMessage { tool_calls: vec![call], ..said("I look.") },
            ChatMessage { tool_call_id: Some("a".into()), ..ChatMessage::new(Role::Tool, "1") },
            said("So."),
            ChatMessage::new(Role::User, "Go"),
        ];
        let prompt = template.render(Conversation::of(&messages), UNIX_EPOCH).unwrap();
        let want = "0(assistant<|tool_call>call:f{}<tool_call|>[f=1]So.)(userGo)";
        assert_eq!(prompt, want);
    }

    /// Phi 4 mini's own, which knows tools beside the system's words, and no calls.
    #[test]
    fn calls_may_be_words() {
        let phi = "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in \
            message and message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + \
            message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}\
            {% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}\
            {% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";
        let want = "<|system|><|tool|>[{\"name\": \"f\", \"description\": \"F.\"}]<|/tool|><|end|>\
            <|user|>Go<|end|><|assistant|>Said.<|tool_call|>[{\"name\": \"f\", \"arguments\": \
            {\"x\": [1, true]}}, {\"name\": \"g\", \"arguments\": {}}]<|/tool_call|><|end|>\
            <|tool|>b<|end|><|tool|>a<|end|><|assistant|>";
        assert_eq!(shown(phi, "Said."), want);
    }
}
