//! Grammars of calls, as each notation has them: Lark in llguidance's dialect.

use aqueduct_grammar::narrowed;
use serde_json::{Value, json};

use super::arguments::{Argument, Arguments, Kind};
use crate::text::{ArgumentTags, CallNotation, TextModel};

/// Calls of `functions`, by name and schema of their arguments, `most` of them, or an `answer` of
/// this schema.
pub(super) fn grammar_of(
    text: &TextModel,
    functions: &[(&String, Value)],
    (notation, most): (CallNotation, usize),
    answer: Option<&Value>,
) -> String {
    let (between, most) = match notation {
        CallNotation::Tagged | CallNotation::ArgumentTags(_) => (r#""\n""#, most),
        CallNotation::Listed => (r#"", ""#, most),
        CallNotation::Marked => ("", most),
        CallNotation::Bare | CallNotation::InChannels => ("", 1),
    };
    let more =
        if most > 1 { format!(" ({between} call){{0,{}}}", most - 1) } else { String::new() };
    let all = match notation {
        CallNotation::Listed => format!(r#""[" call{more} "]""#),
        _ => format!("call{more}"),
    };
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
        CallNotation::ArgumentTags(tags) => between_tags(idx, tags, name, schema),
        _ => {
            let (head, tail) = notation.around_arguments(name);
            let (head, tail) = (text.in_grammar(&head), text.in_grammar(&tail));
            let schema = narrowed(schema.clone());
            format!("call_{idx}: {head} args_{idx} {tail}\nargs_{idx}: %json {schema}\n")
        }
    });
    start + &rules.collect::<String>()
}

/// A call whose arguments are texts of their own, in the order in which the schema has them.
fn between_tags(idx: usize, tags: ArgumentTags, name: &str, schema: &Value) -> String {
    let (mut body, mut rules) = (String::new(), String::new());
    for (at, Argument { name, is_required, kind }) in (0..).zip(Arguments::of(schema).list) {
        let argument = format!("arg_{idx}_{at}");
        body += &format!(" {argument}{}", if is_required { "" } else { "?" });
        let (head, tail) = tags.around_argument(&name);
        let (head, end) = (json!(head), json!(tail));
        rules += &match kind {
            Kind::Words(words) => {
                let words: Vec<String> = words.iter().map(|word| json!(word).to_string()).collect();
                format!("{argument}: {head} ({}) {end}\n", words.join(" | "))
            }
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
    let (head, tail) = tags.around_call(name);
    format!("call_{idx}: {}{body} {}\n{rules}", json!(head), json!(tail))
}
