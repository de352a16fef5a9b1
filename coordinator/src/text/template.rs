//! Chat templates: Jinja as the `transformers` library sets it up.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use aqueduct_core::Refusal;
use aqueduct_core::limits::PROMPT_BYTES_MAX;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde_json::Map;

use super::asks::Asks;
use super::calls::asking;
use super::hearing::Speech;
use super::python;
use super::shape::{Shape, Taught, object, tried, value};
use super::{CallNotation, ChatMessage, Conversation, Ending, TextError, channels};
use crate::text::clock::strftime;

const NAME: &str = "chat_template";
/// What the `transformers` library calls a template that is for conversations with tools alone.
pub(super) const TOOL_USE: &str = "tool_use";
/// Stands behind a message that is gone on with.
const MARK: &str = "[[aqueduct: go on here]] ";
/// What templates call the tokens that begin and end a text.
const BEGIN_AND_END: [&str; 2] = ["bos_token", "eos_token"];
/// What messages must be.
const TAKEN: &str = "a conversation that the model's chat template takes";
/// Field of a call that has what else a template is told.
const VARIABLES: &str = "chat_template_kwargs";

/// How a conversation becomes a prompt.
pub struct ChatTemplate {
    /// `None` when the model has no template.
    environment: Option<Environment<'static>>,
    /// Whether there is another one for conversations with tools.
    has_tool_use: bool,
    /// What it teaches of calls.
    taught: Taught,
    /// What the one for conversations without tools does, where there is another.
    without_tools: Option<Taught>,
    /// How a model of this template tells what it thinks from what it says.
    speech: Speech,
    asks: Asks,
    /// Tokens by the names that templates have for them.
    special: Vec<(String, String)>,
}

impl ChatTemplate {
    /// # Errors
    /// A template that is not Jinja.
    pub fn new(
        source: Option<String>,
        bos: Option<String>,
        eos: Option<String>,
    ) -> Result<Self, TextError> {
        let taught = Taught::by(source.as_deref());
        let speech = source.as_deref().map_or(Speech::Plain, Speech::of);
        let asks = source.as_deref().map(Asks::of).unwrap_or_default();
        let environment = source.as_deref().map(environment).transpose();
        let environment =
            environment.map_err(|error| TextError::invalid(NAME, error.to_string()))?;
        let special = BEGIN_AND_END.into_iter().zip([bos, eos]);
        let special = special.filter_map(|(name, text)| Some((name.to_owned(), text?))).collect();
        let (has_tool_use, without_tools) = (false, None);
        let template =
            Self { environment, has_tool_use, taught, without_tools, speech, asks, special };
        Ok(template.shaped())
    }

    /// The same, which is given calls in the shape in which it shows them.
    fn shaped(mut self) -> Self {
        let mut best: Option<(usize, Shape)> = None;
        for shapes in Shape::TRIED {
            for shape in shapes {
                let prompt = self.tried(shape, "").filter(|prompt| shape.is_seen(prompt));
                // What is longer says something of words that there are none of.
                if let Some(bytes) = prompt.map(|prompt| prompt.len()) {
                    let is_better = best.is_none_or(|(least, _)| bytes < least);
                    best = if is_better { Some((bytes, shape)) } else { best };
                }
            }
            if best.is_some() {
                break;
            }
        }
        self.taught.shape = match (best, self.taught.notation) {
            (Some((_, shape)), _) => match self.tried(shape, "Said.") {
                Some(prompt) if !shape.is_seen(&prompt) => shape.alone(),
                _ => shape,
            },
            (None, Some(CallNotation::Blocks(_) | CallNotation::Pythonic(_))) => Shape::IN_WORDS,
            (None, _) => Shape::default(),
        };
        self
    }

    /// The prompt of a conversation with a call in this shape, if that is taken.
    fn tried(&mut self, shape: Shape, words: &str) -> Option<String> {
        self.taught.notation?;
        self.taught.shape = shape;
        let function = serde_json::json!({
            "name": "-", "description": "-", "parameters": { "type": "object", "properties": {} },
        });
        let tools = [serde_json::json!({ "type": "function", "function": function })];
        let messages = tried(words);
        let conversation = Conversation { tools: &tools, ..Conversation::of(&messages) };
        self.render(conversation, UNIX_EPOCH).ok()
    }

    /// The same that also names these tokens, by name and text; the first of a name counts. Comes
    /// before [`Self::with_tool_use`], as templates that want them show nothing without.
    #[must_use]
    pub fn with_special(mut self, special: Vec<(String, String)>) -> Self {
        let is_new = |name: &str| self.special.iter().all(|(known, _)| known != name);
        let new: Vec<_> = special.into_iter().filter(|(name, _)| is_new(name)).collect();
        self.special.extend(new);
        self.shaped()
    }

    /// The same with `source` for conversations with tools.
    ///
    /// # Errors
    /// A template that is not Jinja.
    pub fn with_tool_use(mut self, source: Option<String>) -> Result<Self, TextError> {
        if let (Some(environment), Some(source)) = (&mut self.environment, source) {
            self.without_tools = Some(self.taught);
            self.taught = Taught::by(Some(&source));
            let added = python::add_template(environment, TOOL_USE, &source);
            added.map_err(|error| TextError::invalid(TOOL_USE, error.to_string()))?;
            self.has_tool_use = true;
            return Ok(self.shaped());
        }
        Ok(self)
    }

    /// The same of a model that has these tokens, of which some may say how it calls tools where
    /// its template does not.
    #[must_use]
    pub fn with_tokens(mut self, has_token: impl Fn(&str) -> bool) -> Self {
        if self.taught.notation.is_some() {
            return self;
        }
        let name = if self.has_tool_use { TOOL_USE } else { NAME };
        let template = self.environment.as_ref().and_then(|all| all.get_template(name).ok());
        let by_tokens = template.and_then(|it| CallNotation::by_tokens(it.source(), has_token));
        self.taught.notation = by_tokens;
        self.shaped()
    }

    /// What a caller should be told about prompts made here.
    pub fn warning(&self) -> Option<&'static str> {
        let missing = "the model has no chat template; messages were joined as \"role: content\"";
        self.environment.is_none().then_some(missing)
    }

    /// Whether rendered prompts already begin with the model's begin token.
    pub fn writes_bos(&self) -> bool {
        self.environment.is_some()
    }

    /// How the model calls tools; `None` where its template does not teach it, or not in a
    /// notation that is known here.
    pub fn notation(&self) -> Option<CallNotation> {
        self.taught.notation
    }

    /// How the model tells what it thinks from what it says.
    pub(crate) fn speech(&self) -> Speech {
        self.speech
    }

    /// Whether the template is told how long to think.
    pub fn takes_effort(&self) -> bool {
        self.asks.effort
    }

    /// Whether models of the template are known to think before they answer.
    pub(crate) fn thinks(&self) -> bool {
        self.speech.thinks()
    }

    /// The variables by which the template is told whether to think.
    pub(crate) fn thinking_switches(&self) -> impl Iterator<Item = &'static str> {
        self.asks.switches.iter().copied()
    }

    /// What stands between the texts that a message has as parts: a template that walks them puts
    /// nothing there, and for one that does not, vLLM and llama.cpp put the end of a line.
    pub fn between_parts(&self) -> &'static str {
        if self.asks.parts { "" } else { "\n" }
    }

    /// The prompt that asks for the next message of the assistant. `now` is what templates that
    /// mention the date are told.
    ///
    /// # Errors
    /// A conversation that the template does not take, in the template's own words; variables
    /// that no template hears of, or that it is told anyway.
    pub fn render(
        &self,
        conversation: Conversation<'_>,
        now: SystemTime,
    ) -> Result<String, Refusal> {
        if conversation.ending == Ending::GoesOn {
            return self.within_last(conversation, now);
        }
        let Conversation { messages, tools, variables, ending } = conversation;
        let asks = matches!(ending, Ending::Asks | Ending::Says);
        let in_channels = self.speech == Speech::InChannels;
        self.check_tools(messages, tools)?;
        let Some(environment) = &self.environment else {
            return match variables {
                None => Ok(plain(messages, asks)),
                Some(variables) => {
                    let bound = "absent: the model has no chat template";
                    Err(Refusal::new(VARIABLES, format!("{} fields", variables.len()), bound))
                }
            };
        };
        let taught = self.without_tools.as_ref().filter(|_| tools.is_empty());
        let taught = taught.unwrap_or(&self.taught);
        let messages = taught.told(messages, tools, in_channels);
        let beside = taught.beside_words(tools);
        let showing = taught.showing(in_channels, beside.as_deref());
        let list = showing.messages(&messages);
        let special = self.special.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let name = if self.has_tool_use && !tools.is_empty() { TOOL_USE } else { NAME };
        // Templates tell "none" and "an empty list" apart.
        let tool = |tool: &serde_json::Value| match in_channels {
            true => value(&channels::described(tool)),
            false => value(tool),
        };
        let tools = (!tools.is_empty()).then(|| tools.iter().map(tool).collect::<Vec<_>>());
        let given = context! {
            messages => list,
            tools => tools,
            add_generation_prompt => asks,
            strftime_now => Value::from_function(move |format: &str| strftime(format, now)),
            ..Value::from_pairs(special)
        };
        let values = with_variables(given, variables)?;
        let mut prompt = Bounded(Vec::new());
        let rendered = environment
            .get_template(name)
            .and_then(|template| template.render_captured_to(values, &mut prompt).map(drop));
        rendered.map_err(|error| refused(&error))?;
        let mut prompt =
            String::from_utf8(prompt.0).map_err(|error| Refusal::new("messages", error, TAKEN))?;
        if asks && taught.notation == Some(CallNotation::Braces) {
            prompt.push_str(asking(&prompt));
        }
        if ending == Ending::Says {
            prompt.push_str(&self.speech.before_words(&prompt));
        }
        Ok(prompt)
    }

    /// The prompt up to the end of its last message, as the `transformers` library finds it: the
    /// message is given a mark, and what the template writes behind that is cut off.
    fn within_last(
        &self,
        conversation: Conversation<'_>,
        now: SystemTime,
    ) -> Result<String, Refusal> {
        let mut messages = conversation.messages.to_vec();
        if let Some(last) = messages.last_mut() {
            last.content.push_str(MARK);
        }
        let marked = Conversation { messages: &messages, ending: Ending::Stands, ..conversation };
        let mut prompt = self.render(marked, now)?;
        // A template that trims what is said has trimmed the mark too.
        let (end, trims) = match (prompt.rfind(MARK), prompt.rfind(MARK.trim_end())) {
            (Some(end), _) => (end, false),
            (None, Some(end)) => (end, true),
            (None, None) => {
                let bound = "a chat whose template shows its last message";
                return Err(Refusal::new("continue_final_message", "true", bound));
            }
        };
        prompt.truncate(end);
        if trims {
            prompt.truncate(prompt.trim_end().len());
        }
        Ok(prompt)
    }

    fn check_tools(
        &self,
        messages: &[ChatMessage],
        tools: &[serde_json::Value],
    ) -> Result<(), Refusal> {
        if self.taught.notation.is_some() {
            return Ok(());
        }
        let bound = "absent: the model's chat template does not take tools, or not in a way \
            that is known here";
        if !tools.is_empty() {
            return Err(Refusal::new("tools", format!("{} tools", tools.len()), bound));
        }
        match messages.iter().position(ChatMessage::needs_tools) {
            Some(idx) => Err(Refusal::new(format!("messages[{idx}].role"), "of a tool", bound)),
            None => Ok(()),
        }
    }
}

/// What a template writes, up to the longest prompt; what it keeps in variables is bounded by its
/// fuel alone.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > PROMPT_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `given`, which every template is told and no caller says, and a caller's `variables`.
fn with_variables(
    given: Value,
    variables: Option<&Map<String, serde_json::Value>>,
) -> Result<Value, Refusal> {
    // What a template is told in any case, if only that there are none.
    let none = context! { documents => () };
    let Some(variables) = variables else { return Ok(context! { ..given, ..none }) };
    let is_given = |name: &&String| {
        let is_set = given.get_attr(name).is_ok_and(|value| !value.is_undefined());
        is_set || BEGIN_AND_END.contains(&name.as_str())
    };
    match variables.keys().find(is_given) {
        Some(name) => Err(Refusal::new(format!("{VARIABLES}.{name}"), "present", "absent")),
        None => Ok(context! { ..given, ..object(variables), ..none }),
    }
}

/// Why no prompt was made, in the template's own words where it has some.
fn refused(error: &Error) -> Refusal {
    match error.kind() {
        ErrorKind::WriteFailure => {
            let bound = format!("a conversation that makes at most {PROMPT_BYTES_MAX} bytes");
            Refusal::new("messages", "a longer prompt", bound)
        }
        ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownMethod
        | ErrorKind::TooManyArguments => {
            let bound = format!("{TAKEN}; the template uses what is not supported here");
            Refusal::new("messages", error, bound)
        }
        _ => {
            let reason = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            Refusal::new("messages", reason, TAKEN)
        }
    }
}

fn plain(messages: &[ChatMessage], asks: bool) -> String {
    let line = |message: &ChatMessage| format!("{}: {}\n", message.role.as_str(), message.content);
    messages.iter().map(line).chain(asks.then(|| "assistant:".to_owned())).collect()
}

fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = python::environment()?;
    python::add_template(&mut environment, NAME, source)?;
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use aqueduct_core::ThoughtsTold;

    use super::super::{Pythonic, Role, ToolCall};
    use super::*;

    fn chat(turns: &[(&str, &str)]) -> Vec<ChatMessage> {
        let message = |(role, content): &(&str, &str)| {
            ChatMessage::new(Role::named("role", role).unwrap(), *content)
        };
        turns.iter().map(message).collect()
    }

    fn render(source: &str, turns: &[(&str, &str)]) -> Result<String, Refusal> {
        let template =
            ChatTemplate::new(Some(source.into()), Some("<s>".into()), Some("</s>".into()));
        template.unwrap().render(Conversation::of(&chat(turns)), UNIX_EPOCH)
    }

    const TURNS: [(&str, &str); 4] =
        [("system", "Be <brief> & kind."), ("user", " Hi "), ("assistant", "Yes?"), ("user", "Go")];

    #[test]
    fn a_template_that_writes_on_and_on_is_left() {
        let long = "x".repeat(1 << 20);
        let source = "{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}";
        let refused = render(source, &[("user", &long)]).unwrap_err().to_string();
        assert!(refused.contains("at most 268435456 bytes"), "{refused}");
    }

    #[test]
    fn a_template_that_goes_on_and_on_is_left() {
        let source = "{% for i in range(10000) %}{% for j in range(10000) %}\
            {% set z = i * j %}{% endfor %}{% endfor %}";
        let refused = render(source, &TURNS).unwrap_err().to_string();
        assert!(refused.contains("fuel"), "{refused}");
        let many = [("user", "Hi"); 20_000];
        let each = "{% for m in messages %}{% if m.role == 'user' and m.content is string %}\
            {{ '<' ~ m.role ~ '>' ~ m.content | trim ~ '</>' }}{% endif %}{% endfor %}";
        assert!(render(each, &many).is_ok());
        let broken = "{% for i in %}".repeat(1000);
        let refused = ChatTemplate::new(Some(broken), None, None).err().unwrap().to_string();
        assert!(refused.len() < 300, "{refused}");
    }

    #[test]
    fn parts_are_told_apart_unless_the_template_walks_them() {
        let between = |source: &str| {
            ChatTemplate::new(Some(source.into()), None, None).unwrap().between_parts()
        };
        for walks in [
            "{% for m in messages %}{%- for part in m['content'] -%}{{ part.text }}{% endfor %}\
             {% endfor %}",
            "{% for m in messages %}{% for part in m.content if part.type == 'text' %}\
             {{ part.text }}{% endfor %}{% endfor %}",
            "{% macro said(content) %}{% for it in content %}{{ it }}{% endfor %}{% endmacro %}",
        ] {
            assert_eq!(between(walks), "", "{walks}");
        }
        for takes_text in [
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for line in messages[0].content.split('n') %}{{ line }}{% endfor %}",
            "{% for step in messages[0].reasoning_content %}{{ step }}{% endfor %}",
        ] {
            assert_eq!(between(takes_text), "\n", "{takes_text}");
        }
    }

    /// As Llama 3 has it: one `set`, `trim`, the begin token on the first turn.
    #[test]
    fn llama3() {
        let source = "{% set loop_messages = messages %}{% for message in loop_messages %}\
            {% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' \
            + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}\
            {% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
            {% if add_generation_prompt %}\
            {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
        insta::assert_snapshot!(render(source, &TURNS).unwrap(), @r"
        <s><|start_header_id|>system<|end_header_id|>

        Be <brief> & kind.<|eot_id|><|start_header_id|>user<|end_header_id|>

        Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>

        Yes?<|eot_id|><|start_header_id|>user<|end_header_id|>

        Go<|eot_id|><|start_header_id|>assistant<|end_header_id|>
        ");
    }

    /// As Llama 3.1 has it: the date, whitespace control, methods of strings, undefined names.
    #[test]
    fn llama31() {
        let source = r#"{{- bos_token }}
            {%- if not date_string is defined %}
                {%- set date_string = strftime_now("%d %b %Y") %}
            {%- endif %}
            {%- if messages[0]['role'] == 'system' %}
                {%- set system = messages[0]['content'].strip() %}
                {%- set messages = messages[1:] %}
            {%- endif %}
            {{- "Today: " + date_string + "\n" + system }}
            {%- if tools is not none and tools is defined %}{{- "tools" }}{%- endif %}
            {%- for message in messages %}
                {{- '[' + message.role.upper() + ']' + message.content.lstrip() | tojson }}
            {%- endfor %}"#;
        let want = "<s>Today: 01 Jan 1970\nBe <brief> & kind.\
            [USER]\"Hi \"[ASSISTANT]\"Yes?\"[USER]\"Go\"";
        assert_eq!(render(source, &TURNS).unwrap(), want);
    }

    /// As Qwen has it: a default system prompt, a namespace, a walk from the end.
    #[test]
    fn qwen() {
        let source = r"{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == 'assistant' and not message.content.startswith('<tool') %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
        {{- '<|im_start|>' ~ message.role ~ ns.last_query ~ '\n' ~ content ~ '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}";
        insta::assert_snapshot!(render(source, &TURNS).unwrap(), @r"
        <|im_start|>system
        Be <brief> & kind.<|im_end|>
        <|im_start|>user
         Hi <|im_end|>
        <|im_start|>assistant2
        Yes?<|im_end|>
        <|im_start|>user
        Go<|im_end|>
        <|im_start|>assistant
        ");
    }

    /// As Nemotron 3 and Qwen 3.5 have it: thoughts are begun unless they are not wanted, arguments
    /// stand between tags, and thoughts before calls are shown.
    #[test]
    fn nemotron() {
        let source = "{%- set enable_thinking = enable_thinking if enable_thinking is defined else \
            True %}{% for tool in tools or [] %}<tool_call>\n<function=f>\n<parameter=x>{% endfor \
            %}{%- for message in messages %}{%- if message.role == 'assistant' %}{%- if \
            message.reasoning_content is defined and message.reasoning_content is string and \
            message.reasoning_content | trim | length > 0 %}{%- set content = '<think>\n' ~ \
            message.reasoning_content ~ '\n</think>\n' ~ (message.content | default('', true)) %}\
            {%- else %}{%- set content = '<think></think>' ~ (message.content | default('', true)) \
            %}{%- endif %}{{- content | trim ~ '\n' }}{%- for call in message.tool_calls or [] %}\
            {%- set call = call.function %}{{- '<tool_call>\n<function=' ~ call.name ~ '>\n' }}\
            {%- for name, value in call.arguments | items %}{%- set value = value | tojson | safe \
            if value is mapping or (value is sequence and value is not string) else value | string \
            %}{{- '<parameter=' ~ name ~ '>\n' ~ value ~ '\n</parameter>\n' }}{%- endfor %}\
            {{- '</function>\n</tool_call>\n' }}{%- endfor %}{%- else %}{{- message.content ~ '\n' \
            }}{%- endif %}{%- endfor %}\
            {{- '<think>\n' if enable_thinking else '<think></think>' }}";
        let template = ChatTemplate::new(Some(source.into()), None, None).unwrap();
        let arguments = serde_json::json!({ "town": "Concord", "days": [1, 2], "wet": true });
        let call = ToolCall { id: "1".into(), name: "weather".into(), arguments };
        let said = ChatMessage::new(Role::Assistant, "");
        let reasoning = Some("Hm.".to_owned());
        let messages = [
            ChatMessage { tool_calls: vec![call], reasoning, ..said },
            ChatMessage { tool_call_id: Some("1".into()), ..ChatMessage::new(Role::Tool, "Hot") },
            ChatMessage::new(Role::Assistant, "It is hot."),
        ];
        let conversation = Conversation::of(&messages);
        let prompt = template.render(conversation, UNIX_EPOCH).unwrap();
        insta::assert_snapshot!(prompt, @r"
        <think>
        Hm.
        </think>
        <tool_call>
        <function=weather>
        <parameter=town>
        Concord
        </parameter>
        <parameter=days>
        [1, 2]
        </parameter>
        <parameter=wet>
        True
        </parameter>
        </function>
        </tool_call>
        Hot
        <think></think>It is hot.
        <think>
        ");
        let told = |prompt: &str| template.speech().thoughts_behind(prompt);
        assert_eq!(told(&prompt), ThoughtsTold::ApartFromTheStart);
        let variables = serde_json::json!({ "enable_thinking": false });
        let conversation = Conversation { variables: variables.as_object(), ..conversation };
        let prompt = template.render(conversation, UNIX_EPOCH).unwrap();
        assert!(prompt.ends_with("It is hot.\n<think></think>"), "{prompt}");
        assert_eq!(told(&prompt), ThoughtsTold::Over);
    }

    /// Gemma 4's own, whose macros call each other and themselves: what the `transformers` library
    /// makes of these conversations.
    #[test]
    fn gemma4() {
        let source = include_str!("../../../ops/openai/gemma4.jinja");
        let template = ChatTemplate::new(Some(source.into()), Some("<bos>".into()), None).unwrap();
        assert_eq!(template.notation(), Some(CallNotation::Braces));
        let told = |prompt: &str| template.speech().thoughts_behind(prompt);
        let (asks, none) = ("<turn|>\n<|turn>model\n", "<|channel>thought\n<channel|>");
        let parameters = serde_json::json!({ "type": "object", "properties": {
            "town": { "type": "string", "description": "A place.", "enum": ["A", "B"] },
            "Days": { "type": "array", "items": { "type": "integer" } },
            "unit": { "enum": ["c"] },
            "opt": { "type": ["string", "null"] },
            "o": {
                "type": "object", "required": ["a"],
                "properties": { "a": { "type": "number", "nullable": true } },
            },
        }, "required": ["town"] });
        let weather = serde_json::json!({
            "name": "weather", "description": "Tells it.", "parameters": parameters,
        });
        let tools = [weather, serde_json::json!({ "name": "time" })]
            .map(|function| serde_json::json!({ "type": "function", "function": function }));
        let messages = chat(&[("system", " Be kind. "), ("user", "How is it?")]);
        let conversation = Conversation { tools: &tools, ..Conversation::of(&messages) };
        let prompt = template.render(conversation, UNIX_EPOCH).unwrap();
        let want = "<bos><|turn>system\nBe kind.<|tool>declaration:weather{description:\
            <|\"|>Tells it.<|\"|>,parameters:{properties:{Days:{items:{type:<|\"|>INTEGER<|\"|>},\
            type:<|\"|>ARRAY<|\"|>},o:{properties:{a:{nullable:true,type:<|\"|>NUMBER<|\"|>}},\
            required:[<|\"|>a<|\"|>],type:<|\"|>OBJECT<|\"|>},opt:{type:<|\"|>['STRING', 'NULL']\
            <|\"|>},town:{description:<|\"|>A place.<|\"|>,enum:[<|\"|>A<|\"|>,<|\"|>B<|\"|>],\
            type:<|\"|>STRING<|\"|>},unit:{type:<|\"|><|\"|>}},required:[<|\"|>town<|\"|>],\
            type:<|\"|>OBJECT<|\"|>}}<tool|><|tool>declaration:time{description:<|\"|><|\"|>}\
            <tool|><turn|>\n<|turn>user\nHow is it?";
        assert_eq!(prompt, format!("{want}{asks}{none}"));
        assert_eq!(told(&prompt), ThoughtsTold::Over);
        let variables = serde_json::json!({ "enable_thinking": true });
        let thinks =
            Conversation { variables: variables.as_object(), ..Conversation::of(&messages[1..]) };
        let prompt = template.render(thinks, UNIX_EPOCH).unwrap();
        let user = "<|turn>user\nHow is it?";
        let want = format!("<bos><|turn>system\n<|think|>\n<turn|>\n{user}{asks}");
        assert_eq!(prompt, want);
        assert_eq!(told(&prompt), ThoughtsTold::Apart);
    }

    /// Results stand in the turn of their calls, which the answer goes on with.
    #[test]
    fn gemma4_with_results() {
        let source = include_str!("../../../ops/openai/gemma4.jinja");
        let template = ChatTemplate::new(Some(source.into()), Some("<bos>".into()), None).unwrap();
        let check = |messages: &[ChatMessage], want: &str| {
            let prompt = template.render(Conversation::of(messages), UNIX_EPOCH).unwrap();
            assert_eq!(prompt, format!("<bos><|turn>user\nHow is it?{want}"));
            prompt
        };
        let (asks, none) = ("<turn|>\n<|turn>model\n", "<|channel>thought\n<channel|>");
        let arguments = serde_json::json!({
            "town": "Con\"cord}", "Days": [1, 2.5, { "k": true, "n": null }], "o": {},
        });
        let call = |id: &str, name: &str, arguments: &serde_json::Value| {
            let (id, name) = (id.to_owned(), name.to_owned());
            ToolCall { id, name, arguments: arguments.clone() }
        };
        let tool_calls =
            vec![call("1", "weather", &arguments), call("2", "time", &serde_json::json!({}))];
        let said = |words: &str| ChatMessage {
            tool_calls: tool_calls.clone(),
            reasoning: Some("Hm.".to_owned()),
            ..ChatMessage::new(Role::Assistant, words)
        };
        let result = |id: &str, text: &str| ChatMessage {
            tool_call_id: Some(id.to_owned()),
            ..ChatMessage::new(Role::Tool, text)
        };
        let results = [result("2", "Noon"), result("1", "Hot")];
        let user = ChatMessage::new(Role::User, "How is it?");
        let calls = "<|tool_call>call:weather{Days:[1,2.5,{k:true,n:None}],o:{},\
            town:<|\"|>Con\"cord}<|\"|>}<tool_call|><|tool_call>call:time{}<tool_call|>";
        let responses = "<|tool_response>response:time{value:<|\"|>Noon<|\"|>}<tool_response|>\
            <|tool_response>response:weather{value:<|\"|>Hot<|\"|>}<tool_response|>";
        let turn = format!("{asks}<|channel>thought\nHm.\n<channel|>{calls}");
        let asked = [&[user.clone(), said("")], results.as_slice()].concat();
        let prompt = check(&asked, &format!("{turn}{responses}"));
        assert_eq!(template.speech().thoughts_behind(&prompt), ThoughtsTold::Apart);
        check(&asked[..2], &format!("{turn}<|tool_response>"));
        let over = [ChatMessage::new(Role::Assistant, "Hot."), ChatMessage::new(Role::User, "Go")];
        let over = [asked, over.to_vec()].concat();
        let want = format!("{asks}{calls}{responses}Hot.<turn|>\n<|turn>user\nGo{asks}{none}");
        check(&over, &want);
        // Where words end the turn, the template itself begins none.
        let beside = [&[user, said("I look.")], results.as_slice()].concat();
        check(&beside, &format!("{turn}{responses}I look.{asks}"));
    }

    /// As Mistral has it: roles must alternate, and the template says so itself.
    #[test]
    fn mistral() {
        let source = "{{ bos_token }}{% for message in messages %}\
            {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
            {{ raise_exception('Conversation roles must alternate user/assistant/...') }}\
            {% endif %}{% if message['role'] == 'user' %}\
            {{ '[INST] ' + message['content'] + ' [/INST]' }}\
            {% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}\
            {% else %}{{ raise_exception('Only user and assistant roles!') }}{% endif %}\
            {% endfor %}";
        let want = "<s>[INST]  Hi  [/INST]Yes?</s>[INST] Go [/INST]";
        assert_eq!(render(source, &TURNS[1..]).unwrap(), want);
        let refusal = render(source, &TURNS).unwrap_err();
        assert_eq!(refusal.value, "Conversation roles must alternate user/assistant/...");
        assert_eq!(refusal.field, "messages");
    }

    #[test]
    fn what_is_the_template_s_doing_is_said() {
        let doing = "; the template uses what is not supported here";
        let check = |source: &str, value: &str, is_the_template_s: bool| {
            let refusal = render(source, &TURNS).unwrap_err();
            assert_eq!((refusal.field.as_str(), refusal.value.as_str()), ("messages", value));
            assert_eq!(refusal.bound.ends_with(doing), is_the_template_s, "{source}");
        };
        let unknown = "unknown filter: filter nope is unknown (in chat_template:2)";
        check("\n{{ messages|nope }}", unknown, true);
        let unknown = "unknown method: string has no method named nope (in chat_template:1)";
        check("{{ messages[0].content.nope() }}", unknown, true);
        check("{{ messages[0].tools.strip() }}", "undefined has no method named strip", false);
        check("{{ raise_exception('Roles must alternate') }}", "Roles must alternate", false);
    }

    #[test]
    fn lines_of_blocks_leave_nothing_behind() {
        let source = "{% for message in messages %}\n    {% if true %}\n{{ message.role }}\n    \
            {% endif %}\n{% endfor %}\n";
        assert_eq!(render(source, &TURNS[..2]).unwrap(), "system\nuser\n");
        let windows = source.replace('\n', "\r\n");
        assert_eq!(render(&windows, &TURNS[..2]).unwrap(), "system\nuser\n");
    }

    /// `enable_thinking` as Qwen 3 has it.
    #[test]
    fn callers_may_say_what_else_a_template_asks_for() {
        let source = "{{ messages | length }}{% if enable_thinking is defined and enable_thinking \
            is false %}{{ '<think>\n\n</think>' }}{% endif %}{{ more.list[1] if more }}{{ tools }}";
        let check = |source: Option<&str>, variables: serde_json::Value, want: Result<_, &str>| {
            let template = ChatTemplate::new(source.map(str::to_owned), None, None).unwrap();
            let (messages, variables) = (chat(&TURNS), variables.as_object());
            let conversation = Conversation { variables, ..Conversation::of(&messages) };
            let seen = template.render(conversation, UNIX_EPOCH).map_err(|refusal| refusal.field);
            assert_eq!(seen, want.map(str::to_owned).map_err(str::to_owned));
        };
        let json = |text: &str| serde_json::from_str(text).unwrap();
        check(Some(source), json("{}"), Ok("4None"));
        check(Some(source), json(r#"{"enable_thinking": true, "unheard": 1}"#), Ok("4None"));
        let both = json(r#"{"enable_thinking": false, "more": {"list": [1, "x"]}}"#);
        check(Some(source), both, Ok("4<think>\n\n</think>xNone"));
        let given = [
            "messages",
            "tools",
            "add_generation_prompt",
            "bos_token",
            "eos_token",
            "strftime_now",
        ];
        for given in given {
            let variables = serde_json::json!({ given: 1 });
            check(Some(source), variables, Err(&format!("chat_template_kwargs.{given}")));
        }
        check(None, json(r#"{"enable_thinking": false}"#), Err("chat_template_kwargs"));
    }

    /// As Hermes 2 Pro has it.
    #[test]
    fn tools_may_have_a_template_of_their_own() {
        let template = ChatTemplate::new(Some("{{ tools }}".into()), None, None).unwrap();
        assert_eq!(template.notation(), None);
        let taught = "{{ tools | length }} <tool_call>{\"arguments\": }";
        let template = template.with_tool_use(Some(taught.into())).unwrap();
        assert_eq!(template.notation(), Some(CallNotation::Tagged));
        let messages = chat(&TURNS);
        let render = |tools| {
            let conversation = Conversation { tools, ..Conversation::of(&messages) };
            template.render(conversation, UNIX_EPOCH).unwrap()
        };
        assert_eq!(render(&[]), "None");
        assert_eq!(render(&[serde_json::json!({})]), "1 <tool_call>{\"arguments\": }");
    }

    /// As LFM2.5's first have it, which show no calls either.
    #[test]
    fn tokens_may_say_how_tools_are_called() {
        let source = "{% if tools %}List of tools: {{ tools | length }};{% endif %}\
            {% for message in messages %}{{ message.content }};{% endfor %}";
        let template = || ChatTemplate::new(Some(source.into()), None, None).unwrap();
        assert_eq!(template().with_tokens(|name| name == "<tool_call>").notation(), None);
        let template = template().with_tokens(|name| name.starts_with("<|tool_call_"));
        assert_eq!(template.notation(), Some(CallNotation::Pythonic(Pythonic::Block)));
        let arguments = serde_json::json!({ "town": "Concord" });
        let call = ToolCall { id: "1".into(), name: "weather".into(), arguments };
        let said = ChatMessage::new(Role::Assistant, "Let me see.");
        let messages = [ChatMessage { tool_calls: vec![call], ..said }];
        let tools = [serde_json::json!({})];
        let conversation = Conversation { tools: &tools, ..Conversation::of(&messages) };
        let want = "List of tools: 1;<|tool_call_start|>[weather(town=\"Concord\")]\
            <|tool_call_end|>Let me see.;";
        assert_eq!(template.render(conversation, UNIX_EPOCH).unwrap(), want);
    }

    #[test]
    fn a_prompt_may_end_within_a_message() {
        let check = |source: &str, last: &str, want: Result<&str, &str>| {
            let template = ChatTemplate::new(Some(source.into()), None, None).unwrap();
            let messages = chat(&[("user", "Go"), ("assistant", last)]);
            let conversation =
                Conversation { ending: Ending::GoesOn, ..Conversation::of(&messages) };
            let seen = template.render(conversation, UNIX_EPOCH).map_err(|refusal| refusal.field);
            assert_eq!(seen, want.map(str::to_owned).map_err(str::to_owned), "{source}");
        };
        let asks = "{% if add_generation_prompt %}?{% endif %}";
        let plain = format!("{{% for m in messages %}}<{{{{ m.content }}}}>{{% endfor %}}{asks}");
        check(&plain, "At Walden ", Ok("<Go><At Walden "));
        check(&plain, "", Ok("<Go><"));
        let trims = plain.replace("m.content", "m.content | trim");
        check(&trims, "At Walden ", Ok("<Go><At Walden"));
        check("{{ messages[0].content }}", "At Walden", Err("continue_final_message"));
    }

    #[test]
    fn without_a_template_messages_are_lines() {
        let template = ChatTemplate::new(None, None, None).unwrap();
        let text = template.render(Conversation::of(&chat(&TURNS[2..])), UNIX_EPOCH).unwrap();
        assert_eq!(text, "assistant: Yes?\nuser: Go\nassistant:");
        assert!(template.warning().is_some());
        assert!(ChatTemplate::new(Some("{% if %}".into()), None, None).is_err());
    }

    /// As LFM2.5 and Laguna have it.
    #[test]
    fn what_is_marked_for_training_is_shown() {
        let source = "{%- set said = 0 -%}{% for message in messages %} {%- generation -%} \n\
            {%- set said = 1 -%}{{ message.content }} {%- endgeneration -%} \n.{% endfor %}\
            {% generation %}{{ '{% generation' }}{% endgeneration %}{{ said }}";
        assert_eq!(render(source, &TURNS[2..]).unwrap(), "Yes?.Go.{% generation0");
    }

    #[test]
    fn what_else_a_message_has_is_shown_where_it_is_there() {
        let source = "{% for m in messages %}{{ m.name is defined }} {{ m.reasoning_content }},\
            {% endfor %}";
        let template = ChatTemplate::new(Some(source.into()), None, None).unwrap();
        let said = ChatMessage::new(Role::Assistant, "Yes?");
        let thought = ChatMessage { reasoning: Some("So?".into()), ..said.clone() };
        let named = ChatMessage { name: Some("Ann".into()), ..ChatMessage::new(Role::User, "Go") };
        let text = template.render(Conversation::of(&[said, thought, named]), UNIX_EPOCH).unwrap();
        assert_eq!(text, "False ,False So?,True ,");
    }

    /// As the `transformers` library tells them: what a tokeniser lacks is not defined.
    #[test]
    fn tokens_have_names_where_there_are_any() {
        let source = "{{ bos_token is defined }}{{ unk_token }}{{ pad_token is defined }}\
            {{ documents is none }}{{ eos_token }}";
        let special = [("unk_token", "<unk>"), ("eos_token", "never")];
        let special = special.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let template = ChatTemplate::new(Some(source.into()), None, Some("</s>".into())).unwrap();
        let template = template.with_special(special.into());
        let text = template.render(Conversation::of(&chat(&TURNS)), UNIX_EPOCH).unwrap();
        assert_eq!(text, "False<unk>FalseTrue</s>");
    }

    #[test]
    fn kinds_are_python_s() {
        let source = "{% for it in [none, 1, true, 'a', [1], {'a': 1}, ghost] %}\
            {{ it is iterable }} {{ it is sequence }}, {% endfor %}";
        let want = "False False, False False, False False, True True, True True, True True, \
            True True, ";
        assert_eq!(render(source, &[]).unwrap(), want);
    }

    #[test]
    fn json_is_python_s() {
        let source = "{{ {'b': [1, 2.5, true, none], 'a': \"<é'\\\"\"} | tojson }}";
        let want = r#"{"b": [1, 2.5, true, null], "a": "<é'\""}"#;
        assert_eq!(render(source, &[]).unwrap(), want);
        let source = "{{ {'b': [1, {}], 'a': []} | tojson(indent=2) }}";
        let want = "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": []\n}";
        assert_eq!(render(source, &[]).unwrap(), want);
        let source = "{{ {'b': ['é', '😀'], 'a': 1} | tojson(ensure_ascii=true, sort_keys=true) }}";
        let want = r#"{"a": 1, "b": ["\u00e9", "\ud83d\ude00"]}"#;
        assert_eq!(render(source, &[]).unwrap(), want);
        let source = "{{ {'b': ['é', 2]} | tojson(ensure_ascii=false, separators=(',', ':')) }}";
        assert_eq!(render(source, &[]).unwrap(), r#"{"b":["é",2]}"#);
        assert!(render("{{ 1 | tojson(wrong=1) }}", &[]).is_err());
        let source = "{{ [1e-5, 0.0001, -3e-7, 1.5e16, 1e15, 1e300, 0.1, 2.0, 7] | tojson }}";
        let want = "[1e-05, 0.0001, -3e-07, 1.5e+16, 1000000000000000.0, 1e+300, 0.1, 2.0, 7]";
        assert_eq!(render(source, &[]).unwrap(), want);
    }

    /// Qwen's, as the tests with the `openai` package use it.
    #[test]
    fn tools_are_told_to_templates_that_take_them() {
        let source = include_str!("../../../ops/openai/tools.jinja");
        let template = ChatTemplate::new(Some(source.into()), None, None).unwrap();
        assert_eq!(template.notation(), Some(CallNotation::Tagged));
        let arguments = serde_json::json!({ "town": "Concord" });
        let call = ToolCall { id: "1".into(), name: "weather".into(), arguments };
        let said = ChatMessage::new(Role::Assistant, "Let me see.");
        let messages = [
            ChatMessage::new(Role::User, "How is it?"),
            ChatMessage { tool_calls: vec![call], ..said },
            ChatMessage { tool_call_id: Some("1".into()), ..ChatMessage::new(Role::Tool, "Hot") },
        ];
        let tools = [serde_json::json!({ "type": "function", "function": { "name": "weather" } })];
        let conversation = Conversation { tools: &tools, ..Conversation::of(&messages) };
        let prompt = template.render(conversation, UNIX_EPOCH).unwrap();
        let (_, prompt) = prompt.split_once("tags:\n<tools>").unwrap();
        let (told, prompt) = prompt.split_once("</tools>").unwrap();
        assert_eq!(told, "\n{\"type\": \"function\", \"function\": {\"name\": \"weather\"}}\n");
        let (_, prompt) = prompt.split_once("<|im_end|>\n").unwrap();
        insta::assert_snapshot!(prompt, @r#"
        <|im_start|>user
        How is it?<|im_end|>
        <|im_start|>assistant
        Let me see.
        <tool_call>
        {"name": "weather", "arguments": {"town": "Concord"}}
        </tool_call><|im_end|>
        <|im_start|>user
        <tool_response>
        Hot
        </tool_response><|im_end|>
        <|im_start|>assistant
        "#);
        let plain = ChatTemplate::new(None, None, None).unwrap();
        let refused = |messages: &[ChatMessage], tools: &[serde_json::Value]| {
            let conversation = Conversation { tools, ..Conversation::of(messages) };
            plain.render(conversation, UNIX_EPOCH).unwrap_err().field
        };
        assert_eq!(refused(&messages[..1], &tools), "tools");
        assert_eq!(refused(&messages, &[]), "messages[1].role");
    }
}
