//! Grammars of calls, as each notation has them: Lark in llguidance's dialect.

use aqueduct_grammar::narrowed;
use serde_json::{Value, json};

use super::arguments::{Argument, Arguments, Kind};
use super::braces;
use crate::text::{ArgumentTags, CallNotation, Pythonic, TextModel};

/// A call's number: which it is, only who counts the calls of all answers knows.
const NUMBER: &str = " /[0-9]{1,3}/ ";

/// Calls of `functions`, by name and schema of their arguments, `most` of them, or an `answer` of
/// this schema.
pub(super) fn grammar_of(
    text: &TextModel,
    functions: &[(&String, Value)],
    (notation, most): (CallNotation, usize),
    answer: Option<&Value>,
) -> String {
    let ((first, last), between) = around_calls(notation);
    let (first, last) = (text.in_grammar(&first), text.in_grammar(&last));
    let between = text.in_grammar(between);
    let is_one = matches!(notation, CallNotation::Bare | CallNotation::InChannels);
    let most = if is_one { 1 } else { most };
    let more =
        if most > 1 { format!(" ({between} call){{0,{}}}", most - 1) } else { String::new() };
    let all = format!("{first} call{more} {last}");
    let any: Vec<String> = (0..functions.len()).map(|idx| format!("call_{idx}")).collect();
    let answer = answer.map(|schema| narrowed(schema.clone()));
    let (or, answer) = match answer {
        Some(schema) => {
            let head = text.in_grammar(notation.before_words());
            (" | answer", format!("answer: {head} words\nwords: %json {schema}\n"))
        }
        None => ("", String::new()),
    };
    let start = format!("start: calls{or}\n{answer}calls: {all}\ncall: {}\n", any.join(" | "));
    let rules = functions.iter().enumerate().map(|(idx, (name, schema))| match notation {
        CallNotation::ArgumentTags(tags) => between_tags(idx, tags, (name, schema), text),
        CallNotation::Pythonic(calls) => in_python(idx, calls, name, schema),
        CallNotation::Braces => braces::call(idx, (name, schema), text),
        CallNotation::Blocks(blocks) => {
            let (parts, tail) = blocks.around_arguments(name);
            let parts: Vec<String> = parts.iter().map(|part| text.in_grammar(part)).collect();
            call_with_json(idx, &parts.join(NUMBER), &text.in_grammar(tail), schema)
        }
        _ => {
            let (head, tail) = notation.around_arguments(name);
            let (head, tail) = (text.in_grammar(&head), text.in_grammar(&tail));
            call_with_json(idx, &head, &tail, schema)
        }
    });
    let rules: String = rules.collect();
    let shared =
        if notation == CallNotation::Braces { braces::shared(text) } else { String::new() };
    start + &rules + &shared
}

/// What stands around all calls of an answer, and between one and the next.
fn around_calls(notation: CallNotation) -> ((String, String), &'static str) {
    match notation {
        CallNotation::Tagged | CallNotation::ArgumentTags(_) => (Default::default(), "\n"),
        CallNotation::Listed => (("[".to_owned(), "]".to_owned()), ", "),
        CallNotation::Blocks(blocks) => (blocks.around_calls(), blocks.between_calls()),
        CallNotation::Pythonic(calls) => {
            let (first, last) = calls.around_calls();
            ((first.to_owned(), last.to_owned()), calls.between_calls())
        }
        CallNotation::Marked
        | CallNotation::Bare
        | CallNotation::InChannels
        | CallNotation::Braces => (Default::default(), ""),
    }
}

/// A call whose arguments are JSON.
fn call_with_json(idx: usize, head: &str, tail: &str, schema: &Value) -> String {
    let schema = narrowed(schema.clone());
    format!("call_{idx}: {head} args_{idx} {tail}\nargs_{idx}: %json {schema}\n")
}

/// A call as Python has it, whose arguments stand in the order in which the schema has them.
fn in_python(idx: usize, calls: Pythonic, name: &str, schema: &Value) -> String {
    let list = Arguments::of(schema).list;
    let required = list.iter().map(|argument| argument.is_required);
    let prefixes = [format!("arg_{idx}_"), format!("rest_{idx}_")];
    let (body, mut rules) = in_order(required, &prefixes, ", ");
    for (at, Argument { name, kind, .. }) in list.iter().enumerate() {
        let argument = format!("arg_{idx}_{at}");
        let value = match kind {
            Kind::Words(words) => either(words.iter().map(|word| json!(word).to_string())),
            Kind::Json(schema) if is_any_truth(schema) => either(calls.truths()),
            _ => String::new(),
        };
        let head = json!(format!("{name}="));
        if !value.is_empty() {
            rules += &format!("{argument}: {head} ({value})\n");
            continue;
        }
        let schema = match kind {
            Kind::Json(schema) => schema.clone(),
            Kind::Text { least, most: Some(most) } => {
                json!({ "type": "string", "minLength": least, "maxLength": most })
            }
            Kind::Text { least, .. } => json!({ "type": "string", "minLength": least }),
            Kind::Words(_) => json!({ "type": "string" }),
        };
        let schema = narrowed(schema);
        rules += &format!("{argument}: {head} {argument}_json\n{argument}_json: %json {schema}\n");
    }
    format!("call_{idx}: {}{body} \")\"\n{rules}", json!(format!("{name}(")))
}

/// What stands between brackets where items come in their order, separated so, and those that are
/// not `required` may be missing; and the rules that it names. Item i is a rule called by the first
/// prefix and i; what stands behind the first item that there is, the others from i on, by the
/// second.
pub(super) fn in_order(
    required: impl ExactSizeIterator<Item = bool>,
    [item, rest]: &[String; 2],
    separator: &str,
) -> (String, String) {
    let (count, separator) = (required.len(), json!(separator));
    let (mut firsts, mut rules, mut is_needed) = (Vec::new(), String::new(), false);
    for (at, is_required) in required.enumerate() {
        let next = at + 1;
        let behind = if next < count { format!(" {rest}{next}") } else { String::new() };
        if !is_needed {
            firsts.push(format!("{item}{at}{behind}"));
        }
        is_needed |= is_required;
        if at > 0 {
            let optional = if is_required { "" } else { "?" };
            rules += &format!("{rest}{at}: ({separator} {item}{at}){optional}{behind}\n");
        }
    }
    let body = match (firsts.is_empty(), is_needed) {
        (true, _) => String::new(),
        (false, true) => format!(" ({})", firsts.join(" | ")),
        (false, false) => format!(" ({})?", firsts.join(" | ")),
    };
    (body, rules)
}

/// Whether a schema is that of what is true or not, whichever it is.
fn is_any_truth(schema: &Value) -> bool {
    schema["type"] == "boolean" && schema.get("enum").is_none() && schema.get("const").is_none()
}

/// One of these texts.
pub(super) fn either(texts: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let texts = texts.into_iter().map(|text| json!(text.as_ref()).to_string());
    texts.collect::<Vec<_>>().join(" | ")
}

/// A call whose arguments are texts of their own, in the order in which the schema has them.
fn between_tags(
    idx: usize,
    tags: ArgumentTags,
    (function, schema): (&str, &Value),
    text: &TextModel,
) -> String {
    let (mut body, mut rules) = (String::new(), String::new());
    for (at, Argument { name, is_required, kind }) in (0..).zip(Arguments::of(schema).list) {
        let argument = format!("arg_{idx}_{at}");
        body += &format!(" {argument}{}", if is_required { "" } else { "?" });
        let (head, tail) = tags.around_argument(&name);
        let (head, end) = (json!(head), json!(tail));
        rules += &match kind {
            Kind::Words(words) => format!("{argument}: {head} ({}) {end}\n", either(words)),
            Kind::Text { least, most } => {
                let most = most.map_or_else(String::new, |most| most.to_string());
                format!(
                    "{argument}: {head} {argument}_text\n\
                     {argument}_text[suffix={end}]: /(?s:.{{{least},{most}}})/\n"
                )
            }
            Kind::Json(schema) => {
                let schema = narrowed(schema);
                format!(
                    "{argument}: {head} {argument}_json {end}\n{argument}_json: %json {schema}\n"
                )
            }
        };
    }
    let (head, tail) = tags.around_call(function);
    format!("call_{idx}: {}{body} {}\n{rules}", text.in_grammar(&head), text.in_grammar(&tail))
}
