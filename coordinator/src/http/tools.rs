//! Tools that a caller offers: which there are, and whether one must be called.

use aqueduct_core::{Grammar, Refusal};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::Fields;
use crate::text::CallNotation;

/// Tools of one request.
const TOOLS_MAX: usize = 128;
/// Bytes of a tool's name.
const NAME_BYTES_MAX: usize = 64;
/// Calls that one answer may be made to have.
const CALLS_MAX: usize = 8;

/// What a caller offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// As they came, for the chat template.
    pub list: Vec<Value>,
    functions: Vec<Function>,
    choice: Choice,
    parallel: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    parameters: Option<Value>,
}

#[derive(Debug, Clone, PartialEq)]
enum Choice {
    /// The model decides.
    Auto,
    /// At least one call.
    Required,
    /// A call of this tool.
    Named(String),
}

/// `tool_choice`, as a caller has it.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RawChoice {
    Word(String),
    Named { function: NamedFunction },
}

#[derive(Deserialize)]
pub(super) struct NamedFunction {
    pub(super) name: String,
}

impl Tools {
    /// `None` where there are no tools, or none may be called.
    pub(super) fn take(fields: &mut Fields<'_>) -> Result<Option<Self>, ApiError> {
        let list = fields.take_or("tools", Vec::new())?;
        let raw_choice = fields.take("tool_choice")?;
        Self::of(list, raw_choice, fields.take_or("parallel_tool_calls", true)?)
    }

    /// `None` where there are no tools, or none may be called.
    pub(super) fn of(
        list: Vec<Value>,
        raw_choice: Option<RawChoice>,
        parallel: bool,
    ) -> Result<Option<Self>, ApiError> {
        Refusal::unless_within("tools", list.len(), 0, TOOLS_MAX)?;
        let functions = list.iter().enumerate().map(|(idx, tool)| function(idx, tool));
        let functions = functions.collect::<Result<Vec<_>, _>>()?;
        let Some(choice) = choice(raw_choice, &functions)? else { return Ok(None) };
        Ok((!list.is_empty()).then_some(Self { list, functions, choice, parallel }))
    }

    /// Whether an answer has one call at most.
    pub(super) fn is_one_call(&self) -> bool {
        !self.parallel || matches!(self.choice, Choice::Named(_))
    }

    /// What the answer must look like; `None` where the model decides. Where it may answer without
    /// a call, that is a JSON document that `answer` describes, a schema, if there is one.
    pub(super) fn grammar(&self, notation: CallNotation, answer: Option<&str>) -> Option<Grammar> {
        let answer = answer.filter(|_| matches!(self.choice, Choice::Auto));
        let named = match &self.choice {
            Choice::Auto if answer.is_none() => return None,
            Choice::Named(name) => Some(name),
            Choice::Auto | Choice::Required => None,
        };
        let most = if self.is_one_call() { 1 } else { CALLS_MAX };
        let callable = |function: &&Function| named.is_none_or(|name| function.name == *name);
        let functions: Vec<&Function> = self.functions.iter().filter(callable).collect();
        let (open, between, close, most) = match notation {
            CallNotation::Tagged => ("<tool_call>\n", r#""\n""#, "\n</tool_call>", most),
            CallNotation::Bare => ("", "", "", 1),
            CallNotation::Listed => ("", r#"", ""#, "", most),
        };
        let more =
            if most > 1 { format!(" ({between} call){{0,{}}}", most - 1) } else { String::new() };
        let all = match notation {
            CallNotation::Listed => format!(r#""[" call{more} "]""#),
            _ => format!("call{more}"),
        };
        let any: Vec<String> = (0..functions.len()).map(|idx| format!("call_{idx}")).collect();
        let answer = answer.map(|schema| {
            aqueduct_grammar::narrowed(serde_json::from_str(schema).unwrap_or_default())
        });
        let (or, answer) = match answer {
            Some(schema) => (" | answer", format!("answer: %json {schema}\n")),
            None => ("", String::new()),
        };
        let mut lark =
            format!("start: calls{or}\n{answer}calls: {all}\ncall: {}\n", any.join(" | "));
        for (idx, function) in functions.iter().enumerate() {
            let name = json!(function.name);
            let head = format!("{open}{{\"name\": {name}, \"{}\": ", notation.arguments_name());
            let (head, tail) = (json!(head), json!(format!("}}{close}")));
            let schema = aqueduct_grammar::narrowed(function.schema());
            lark += &format!("call_{idx}: {head} args_{idx} {tail}\nargs_{idx}: %json {schema}\n");
        }
        Some(Grammar::Lark(lark))
    }
}

impl Function {
    /// Of its arguments: an object, if the caller does not say.
    fn schema(&self) -> Value {
        let nothing = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        self.parameters.clone().filter(Value::is_object).unwrap_or(nothing)
    }
}

fn function(idx: usize, tool: &Value) -> Result<Function, ApiError> {
    let at = |field: &str| format!("tools[{idx}].{field}");
    if tool["type"] != "function" {
        return Err(Refusal::new(at("type"), &tool["type"], "function").into());
    }
    let function: Function = serde_json::from_value(tool["function"].clone())
        .map_err(|error| ApiError::field(&at("function"), error))?;
    let usable = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
    let name = &function.name;
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(usable) {
        let bound = format!("1 to {NAME_BYTES_MAX} letters, digits, `_`, `-` and `.`");
        return Err(Refusal::new(at("function.name"), name, bound).into());
    }
    Ok(function)
}

/// `None` where no tool may be called.
fn choice(raw: Option<RawChoice>, functions: &[Function]) -> Result<Option<Choice>, ApiError> {
    let choice = match raw {
        None => Choice::Auto,
        Some(RawChoice::Named { function }) => Choice::Named(function.name),
        Some(RawChoice::Word(word)) => match word.as_str() {
            "none" => return Ok(None),
            "auto" => Choice::Auto,
            "required" => Choice::Required,
            other => {
                let bound = "none, auto, required or the name of a tool";
                return Err(Refusal::new("tool_choice", other, bound).into());
            }
        },
    };
    match &choice {
        Choice::Named(name) if !functions.iter().any(|function| function.name == *name) => {
            Err(Refusal::new("tool_choice", name, "the name of one of the tools").into())
        }
        Choice::Required if functions.is_empty() => {
            Err(Refusal::new("tool_choice", "required", "given with tools").into())
        }
        _ => Ok(Some(choice)),
    }
}
