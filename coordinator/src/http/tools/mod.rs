//! Tools that a caller offers: which there are, and whether one must be called.

use aqueduct_core::{Grammar, Refusal, limits};
use serde::Deserialize;
use serde_json::{Value, json};

mod arguments;
mod braces;
mod grammar;

use super::error::ApiError;
use super::fields::Fields;
use super::format::followed;
use crate::text::{CallNotation, TextModel};
use arguments::{Argument, Arguments, Kind};
use grammar::grammar_of;

/// Tools of one request.
const TOOLS_MAX: usize = 128;
/// Bytes of a tool's name.
const NAME_BYTES_MAX: usize = 128;
/// Calls that one answer may be made to have.
const CALLS_MAX: usize = 8;
const CHOICES: &str =
    "none, auto, required or an object that names a function, or some as allowed_tools";

/// What a caller offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// As they came, for the chat template.
    pub list: Vec<Value>,
    functions: Vec<Function>,
    choice: Choice,
    parallel: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct Function {
    /// Among the tools as they came.
    place: usize,
    name: String,
    /// Of its arguments: an object.
    schema: Value,
    /// Whether it is refused where no grammar can follow all that it says.
    is_strict: bool,
}

#[derive(Deserialize)]
#[serde(rename = "function", expecting = "must be an object with a name")]
struct RawFunction {
    name: String,
    #[serde(default)]
    parameters: Option<Value>,
    #[serde(default)]
    strict: Option<bool>,
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
pub(super) enum RawChoice {
    Word(String),
    Named(String),
    /// Of these alone any may be called, or one must be where this `is_required`.
    Allowed {
        names: Vec<String>,
        is_required: bool,
    },
}

impl Tools {
    /// `None` where there are no tools, or none may be called.
    pub(super) fn take(fields: &mut Fields<'_>) -> Result<Option<Self>, ApiError> {
        let mut list: Vec<Value> = fields.take_or("tools", Vec::new())?;
        // As in vLLM, what has a function and no type is one; so is the template told.
        for tool in list.iter_mut().filter_map(Value::as_object_mut) {
            if tool.contains_key("function") && !tool.contains_key("type") {
                tool.insert("type".to_owned(), json!("function"));
            }
        }
        let raw_choice = fields.take::<Value>("tool_choice")?;
        let raw_choice = raw_choice.map(|value| raw_choice_of(&value, "function")).transpose()?;
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
        let mut functions = functions.collect::<Result<Vec<_>, _>>()?;
        let (mut list, mut raw_choice) = (list, raw_choice);
        if let Some(RawChoice::Allowed { names, is_required }) = &raw_choice {
            functions = allowed(functions, names)?;
            // Of the others the model is not told: it cannot take one for the asking.
            list = functions.iter().map(|function| list[function.place].take()).collect();
            raw_choice = is_required.then(|| RawChoice::Word("required".to_owned()));
        }
        let Some(choice) = choice(raw_choice, &functions)? else { return Ok(None) };
        Ok((!list.is_empty()).then_some(Self { list, functions, choice, parallel }))
    }

    /// Whether an answer has one call at most.
    pub(super) fn is_one_call(&self) -> bool {
        !self.parallel || matches!(self.choice, Choice::Named(_))
    }

    /// What calls are known by before they are whole: the functions' names, and an empty one where
    /// an answer is calls and nothing else; and the arguments that are texts, each behind its
    /// function's name and a space, in a notation that does not tell.
    ///
    /// # Errors
    /// A name that cannot stand in this notation; more than a request's account has room for.
    pub(super) fn text_arguments(&self, notation: CallNotation) -> Result<Vec<String>, Refusal> {
        let names = self.functions.iter().map(|function| function.name.clone());
        let is_call = !matches!(self.choice, Choice::Auto);
        let mut texts: Vec<String> = names.chain(is_call.then(String::new)).collect();
        if !names_arguments(notation) {
            return Ok(texts);
        }
        let is_untyped = matches!(notation, CallNotation::ArgumentTags(_));
        for function in &self.functions {
            let idx = function.place;
            for Argument { name, kind, .. } in Arguments::of(&function.schema).list {
                if !notation.can_name(&name) {
                    let field = format!("tools[{idx}].function.parameters.properties");
                    let bound = "names without space around them, and without what ends them in \
                        this model's calls";
                    return Err(Refusal::new(field, format!("{name:?}"), bound));
                }
                if is_untyped && !matches!(kind, Kind::Json(_)) {
                    texts.push(format!("{} {name}", function.name));
                }
            }
        }
        let bytes = texts.iter().map(String::len).sum();
        let most = limits::TEXT_ARGUMENTS_BYTES_MAX;
        Refusal::unless_within("tools' names of arguments in bytes", bytes, 0, most)?;
        Ok(texts)
    }

    /// Whether `function` may be called.
    fn may_call(&self, function: &Function) -> bool {
        match &self.choice {
            Choice::Named(name) => function.name == *name,
            Choice::Auto | Choice::Required => true,
        }
    }

    /// What the answer must look like; `None` where the model decides. Where it may answer without
    /// a call, that is a JSON document that `answer` describes, a schema, if there is one.
    /// `warnings` say what of the tools' parameters is not followed.
    ///
    /// # Errors
    /// Parameters that cannot be followed, by the name of their tool; more than a grammar has room
    /// for.
    pub(super) fn grammar(
        &self,
        (text, notation): (&TextModel, CallNotation),
        answer: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Grammar>, Refusal> {
        let answer = answer.filter(|_| matches!(self.choice, Choice::Auto));
        if answer.is_none() && matches!(self.choice, Choice::Auto) {
            return Ok(None);
        }
        let most = if self.is_one_call() { 1 } else { CALLS_MAX };
        let functions = || self.functions.iter().filter(|function| self.may_call(function));
        // All of them stand in one grammar: what is too long for it is not compiled before.
        let bytes = functions().map(|function| function.schema.to_string().len()).sum();
        let bytes_max = limits::GRAMMAR_BYTES_MAX;
        Refusal::unless_within("tools bytes", bytes, 0, bytes_max)?;
        let followed = functions().map(|Function { place, name, schema, is_strict }| {
            let field = format!("tools[{place}].function.parameters");
            let followed = followed(text, &field, (schema.clone(), *is_strict), warnings)?;
            match unfollowed(notation, schema) {
                Some(what) if *is_strict => {
                    let bound = "absent from a strict function: this model's calls are no JSON \
                        objects";
                    return Err(Refusal::new(field, what, bound));
                }
                Some(what) => warnings.push(format!("{field}.{what} is not followed")),
                None => {}
            }
            Ok((name, followed.schema))
        });
        let functions = followed.collect::<Result<Vec<_>, Refusal>>()?;
        Ok(Some(Grammar::Lark(grammar_of(text, &functions, (notation, most), answer))))
    }
}

/// Something of the schema of a function's arguments that calls in this notation do not follow.
fn unfollowed(notation: CallNotation, schema: &Value) -> Option<String> {
    match notation {
        CallNotation::Braces => braces::unfollowed(schema),
        _ if names_arguments(notation) => Arguments::of(schema).unfollowed,
        _ => None,
    }
}

/// Whether arguments stand by their names in calls, and not all together as JSON.
fn names_arguments(notation: CallNotation) -> bool {
    matches!(
        notation,
        CallNotation::ArgumentTags(_) | CallNotation::Pythonic(_) | CallNotation::Braces
    )
}

/// The schema of arguments that `parameters` describe: an object in any case, and an empty one if
/// nobody says more.
fn schema_of(field: &str, parameters: Option<Value>) -> Result<Value, Refusal> {
    let Some(Value::Object(mut fields)) = parameters else {
        return Ok(json!({ "type": "object", "properties": {}, "additionalProperties": false }));
    };
    let kind = fields.insert("type".to_owned(), json!("object"));
    let is_object = |kind: &Value| {
        kind == "object" || kind.as_array().is_some_and(|kinds| kinds.contains(&json!("object")))
    };
    match kind.filter(|kind| !kind.is_null() && !is_object(kind)) {
        Some(other) => Err(Refusal::new(format!("{field}.type"), other, "object")),
        None => Ok(Value::Object(fields)),
    }
}

fn function(idx: usize, tool: &Value) -> Result<Function, ApiError> {
    let at = |field: &str| format!("tools[{idx}].{field}");
    if tool["type"] != "function" {
        return Err(Refusal::new(at("type"), &tool["type"], "function").into());
    }
    let RawFunction { name, parameters, strict } = serde_json::from_value(tool["function"].clone())
        .map_err(|error| ApiError::field(&at("function"), error))?;
    let usable = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(usable) {
        let bound = format!("1 to {NAME_BYTES_MAX} letters, digits, `_`, `-` and `.`");
        return Err(Refusal::new(at("function.name"), name, bound).into());
    }
    let schema = schema_of(&at("function.parameters"), parameters)?;
    Ok(Function { place: idx, name, schema, is_strict: strict == Some(true) })
}

/// Those of `functions` that have these names.
fn allowed(functions: Vec<Function>, names: &[String]) -> Result<Vec<Function>, Refusal> {
    let is_there = |name: &String| functions.iter().any(|function| function.name == *name);
    if let Some(name) = names.iter().find(|name| !is_there(name)) {
        return Err(Refusal::new("tool_choice.allowed_tools", name, "names of the tools"));
    }
    Ok(functions.into_iter().filter(|function| names.contains(&function.name)).collect())
}

/// `tool_choice` of the type allowed_tools: the mode and the tools stand in an object called so, or
/// beside the type.
fn raw_allowed_of(asked: &Value) -> Result<RawChoice, Refusal> {
    let within = &asked["allowed_tools"];
    let told = if within.is_null() { asked } else { within };
    let is_required = match told["mode"].as_str() {
        Some("required") => true,
        Some("auto") => false,
        _ => {
            return Err(Refusal::new("tool_choice.mode", &told["mode"], "auto or required"));
        }
    };
    let name = |tool: &Value| {
        let name = tool["function"]["name"].as_str().or_else(|| tool["name"].as_str());
        name.filter(|_| tool["type"] == "function" || tool["type"].is_null()).map(str::to_owned)
    };
    let names =
        told["tools"].as_array().map(|tools| tools.iter().map(name).collect::<Option<Vec<_>>>());
    match names.flatten() {
        Some(names) => Ok(RawChoice::Allowed { names, is_required }),
        None => Err(Refusal::new("tool_choice.tools", &told["tools"], "a list of functions")),
    }
}

/// A word, or the name of a function: in the object `within`, or beside the type; or several.
pub(super) fn raw_choice_of(asked: &Value, within: &str) -> Result<RawChoice, Refusal> {
    if asked["type"] == "allowed_tools" {
        return raw_allowed_of(asked);
    }
    let named = if within.is_empty() { asked } else { &asked[within] };
    match (asked, named["name"].as_str()) {
        (Value::String(word), _) => Ok(RawChoice::Word(word.clone())),
        (_, Some(name)) if asked["type"] == "function" || asked["type"].is_null() => {
            Ok(RawChoice::Named(name.to_owned()))
        }
        _ => Err(Refusal::new("tool_choice", asked, CHOICES)),
    }
}

/// `None` where no tool may be called.
fn choice(raw: Option<RawChoice>, functions: &[Function]) -> Result<Option<Choice>, ApiError> {
    let choice = match raw {
        // Which are allowed is settled by what they are here.
        None | Some(RawChoice::Allowed { .. }) => Choice::Auto,
        Some(RawChoice::Named(name)) => Choice::Named(name),
        Some(RawChoice::Word(word)) => match word.as_str() {
            "none" => return Ok(None),
            "auto" => Choice::Auto,
            "required" => Choice::Required,
            other => return Err(Refusal::new("tool_choice", other, CHOICES).into()),
        },
    };
    match &choice {
        Choice::Named(name) if !functions.iter().any(|function| function.name == *name) => {
            Err(Refusal::new("tool_choice", name, "the name of one of the tools").into())
        }
        Choice::Required if functions.is_empty() => {
            Err(Refusal::new("tool_choice", "required", "given with functions in tools").into())
        }
        _ => Ok(Some(choice)),
    }
}
