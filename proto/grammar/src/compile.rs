//! Grammars compiled within bounds: of work, of stack, and of what their compiler can count.

use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::thread;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::TokEnv;
use llguidance::{ParserFactory, TokenParser};
use serde_json::{Deserializer, Value};

use crate::numbers;
use crate::schema::{each, unfollowed};

/// What a schema stands behind in a grammar.
const SCHEMA: &str = "%json";

/// What a schema's references may take, each of which is followed within the last one: the
/// compiler takes 50,000 steps at most, of some 3 KiB. Of this, what is not touched costs nothing;
/// of a thread's own two MiB a chain of a thousand references would be the end of the process.
const STACK_BYTES: usize = 256 << 20;
/// Steps to find how what a grammar describes begins, of some 100 ns each.
const BEGIN_STEPS: u64 = 4_000_000;
/// How what is said of an expression begins, and so many of its characters are shown.
const EXPRESSION: &str = "regex parse error:";
const EXPRESSION_CHARS: usize = 80;
/// Said of what the compiler gave up over, which is no text for callers.
const PANICKED: &str = "its compiler gives up over it";

/// A parser of what `top` describes.
///
/// # Errors
/// Why there is none.
pub(crate) fn parser(
    factory: &ParserFactory,
    words: &TokEnv,
    top: TopLevelGrammar,
) -> Result<TokenParser, String> {
    let limits = || factory.limits().clone();
    apart(|| {
        let init = GrammarInit::Serialized(top);
        let (grammar, lexer) = init.to_internal(Some(words.clone()), limits()).map_err(said)?;
        begin(&lexer, &mut limits())?;
        let init = GrammarInit::Internal(grammar, lexer);
        factory.create_parser_from_init_default(init).map_err(said)
    })
}

/// `lark` with what its schemas say of numbers in terms that the compiler can count in.
///
/// # Errors
/// What it cannot count, or would take too long over.
pub(crate) fn counted(lark: &str) -> Result<String, String> {
    let (mut counted, mut rest) = (String::with_capacity(lark.len()), lark);
    while let Some(at) = rest.find(SCHEMA) {
        let (before, behind) = rest.split_at(at + SCHEMA.len());
        counted.push_str(before);
        rest = behind;
        let mut read = Deserializer::from_str(behind).into_iter::<Value>();
        // What is no schema here is a text, or else the compiler says so.
        let Some(Ok(mut schema)) = read.next() else { continue };
        let (end, came) = (read.byte_offset(), schema.clone());
        each(&mut schema, &mut numbers::mend);
        match unfollowed(&schema) {
            Some(why) => return Err(why),
            None if schema == came => counted.push_str(&behind[..end]),
            None => counted.push_str(&format!(" {schema}")),
        }
        rest = &behind[end..];
    }
    counted.push_str(rest);
    Ok(counted)
}

/// What one grammar may cost, to compile and for each token.
pub(crate) fn bounds() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 500_000,
        step_lexer_fuel: 100_000,
        step_max_items: 25_000,
        max_lexer_states: 50_000,
        max_grammar_size: 100_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Whether this schema by itself is one that can be followed, or one that allows nothing.
pub(crate) fn is_followed(schema: Value) -> bool {
    let top = TopLevelGrammar::from_json_schema(schema);
    let init = GrammarInit::Serialized(top);
    let made = apart(|| init.to_internal(None, bounds()).map(drop).map_err(said));
    made.err().is_none_or(|error| error.starts_with("Unsatisfiable"))
}

/// What a lexer does before its bounds apply is to look where each first byte leads, and whether
/// something can follow. That is done here before, within the bound of the rest.
fn begin(lexer: &LexerSpec, limits: &mut ParserLimits) -> Result<(), String> {
    let mut states = lexer.to_regex_vec(limits).map_err(said)?;
    states.set_fuel(BEGIN_STEPS);
    let start = states.initial_state(&lexer.all_lexemes());
    for byte in 0..=u8::MAX {
        states.transition(start, byte);
        if states.has_error() {
            return Err(format!("to find how it begins takes more than {BEGIN_STEPS} steps"));
        }
    }
    Ok(())
}

/// Runs `work` where there is stack enough for all that it may be given.
fn apart<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    // What it panics over is an error, and nothing of it is logged.
    let work = || catch_unwind(AssertUnwindSafe(|| Ok(work()))).map_err(said).flatten();
    let made = thread::scope(|scope| {
        let thread = thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        let made = thread.spawn_scoped(scope, work).map(thread::ScopedJoinHandle::join);
        made.unwrap_or_else(|error| Ok(Err(format!("there is no thread to compile it: {error}"))))
    });
    made.unwrap_or_else(|_| Err(PANICKED.to_owned()))
}

fn said(error: impl Display) -> String {
    error.to_string()
}

/// What there is to say of an error: its first line says what is wrong, the others where
/// llguidance was. Of an expression the first one says that it is one, and stands before it.
pub(crate) fn told(error: &str) -> String {
    let mut lines = error.lines();
    let told = lines.next().unwrap_or_default();
    if told.contains("panic:") {
        return PANICKED.to_owned();
    }
    let why = lines.clone().find_map(|line| line.strip_prefix("error: "));
    let Some(why) = why.filter(|_| told.ends_with(EXPRESSION)) else { return told.to_owned() };
    // One of several lines stands between others.
    let expression = lines.next().and_then(|line| line.strip_prefix("    ")).unwrap_or_default();
    let shown: String = expression.chars().take(EXPRESSION_CHARS).collect();
    let more = if shown.len() < expression.len() { ".." } else { "" };
    match shown.is_empty() {
        true => format!("{told} {why}"),
        false => format!("{told} {why} in {shown}{more}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use aqueduct_core::{Grammar, TokenBytes};
    use serde_json::{Map, json};

    use super::*;
    use crate::{Vocabulary, lenient, reason};

    fn vocabulary() -> &'static Vocabulary {
        static VOCABULARY: OnceLock<Vocabulary> = OnceLock::new();
        let bytes: Vec<u8> = (0..=255).collect();
        VOCABULARY.get_or_init(|| Vocabulary::new(&TokenBytes::of(bytes.chunks(1))).unwrap())
    }

    /// Whether this is an answer that `schema` allows; why it cannot be followed.
    fn allows(schema: &Value, said: &str) -> Result<bool, String> {
        let grammars = [
            Grammar::JsonSchema(schema.to_string()),
            Grammar::Lark(format!("start: it\nit: %json {schema}\n")),
        ];
        let mut seen = grammars.into_iter().map(|grammar| {
            let made = vocabulary().compile("grammar", &grammar.into());
            let mut follower = made.map_err(|refusal| reason(&refusal).to_owned())?;
            let mut takes = |byte: u8| {
                let may_come = follower.mask().unwrap().allows(byte.into());
                may_come && follower.take(byte.into()).is_ok()
            };
            let is_begun = said.bytes().all(&mut takes);
            Ok(is_begun && follower.mask().unwrap().may_end())
        });
        let (by_itself, within) = (seen.next().unwrap(), seen.next().unwrap());
        assert_eq!(by_itself.is_ok(), within.is_ok(), "{schema}: {by_itself:?} {within:?}");
        assert!(by_itself.is_err() || by_itself == within, "{schema}");
        by_itself
    }

    fn check(schema: Value, good: &[&str], bad: &[&str]) {
        for (said, want) in good.iter().map(|it| (it, true)).chain(bad.iter().map(|it| (it, false)))
        {
            assert_eq!(allows(&schema, said), Ok(want), "{said} by {schema}");
        }
    }

    #[test]
    fn bounds_of_64_bits_are_kept() {
        let whole =
            |low: Value, high: Value| json!({ "type": "integer", "minimum": low, "maximum": high });
        check(
            whole(json!(i64::MIN), json!(i64::MAX)),
            &["0", "-9223372036854774784", "9223372036854775807"],
            &["9223372036854775808", "-9223372036854775809", "-9223372036854774785"],
        );
        check(whole(json!(0), json!(u64::MAX)), &["0", "9223372036854775807"], &["-1"]);
        let exact = 9_007_199_254_740_993u64;
        check(
            json!({ "type": "integer", "minimum": exact }),
            &["9007199254740994", "9223372036854774784"],
            &["9007199254740992", "9007199254740993", "5"],
        );
        check(
            json!({ "type": "integer", "exclusiveMaximum": exact - 1 }),
            &["9007199254740990", "-5"],
            &["9007199254740992"],
        );
        let low = json!({ "type": "integer", "minimum": 4_611_686_018_427_387_904u64 });
        check(low, &["4611686018427387904"], &["4611686018427387903"]);
        let number = json!({ "type": "number", "minimum": -1e300, "maximum": 1e300 });
        check(number, &["-1.5", "9223372036854774783.5"], &["9223372036854775808"]);
        check(json!({ "const": i64::MAX }), &["9223372036854775807"], &["9223372036854775806"]);
    }

    /// What was added up in 32 bits, or was no double, came out as something else.
    #[test]
    fn numbers_that_the_compiler_gets_wrong_are_refused_and_left_out() {
        let multiple = |of: u64| json!({ "type": "integer", "multipleOf": of });
        let both = |a: u64, b: u64| json!({ "allOf": [multiple(a), multiple(b)] });
        for schema in [
            json!({ "const": i64::MIN }),
            json!({ "const": 9_007_199_254_740_993u64 }),
            json!({ "type": "integer", "minimum": 1e19 }),
            json!({ "type": "integer", "multipleOf": 982_451_653 }),
            json!({ "type": "number", "multipleOf": 1e-9, "minimum": 0, "maximum": 1 }),
            both(65_536, 65_537),
            json!({ "$ref": "#/default", "default": { "const": i64::MIN } }),
            json!({ "type": "integer", "multipleOf": 3_000_017 }),
            json!({ "anyOf": [multiple(97), multiple(9973), multiple(9967)] }),
            json!({ "items": [{ "type": "integer", "multipleOf": 0 }] }),
        ] {
            let why = allows(&schema, "0").unwrap_err();
            assert!(!why.contains("panic"), "{why}");
            if schema.get("default").is_none() {
                assert!(allows(&lenient(schema.clone()), "1").is_ok(), "{schema}");
            }
        }
        let cents = json!({ "type": "number", "multipleOf": 0.07, "minimum": 0 });
        check(cents, &["0.07", "0.7", "7"], &["0.08", "1"]);
        // In Lark these are written, and read again.
        let of = |multiple: f64| json!({ "type": "number", "multipleOf": multiple, "minimum": 0 });
        check(of(0.14), &["0.14", "0.28", "7"], &["0.15"]);
        check(of(0.23), &["0.23", "0.46"], &["0.24"]);
        check(json!({ "type": "string", "minLength": 2.0 }), &["\"ab\""], &["\"a\""]);
    }

    /// Each on its own is followed, whatever bounds it has.
    #[test]
    fn multiples_of_few_remainders_are_followed() {
        for multiple in [1999, 86_400, 25_000, 1_000_000] {
            let said = (3 * multiple).to_string();
            let schema = |more: Value| {
                let mut schema = json!({ "type": "integer", "multipleOf": multiple });
                schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                schema
            };
            for bounds in [json!({}), json!({ "minimum": 1 })] {
                check(schema(bounds), &[&said], &["1"]);
            }
            if multiple > 2000 {
                continue;
            }
            check(schema(json!({ "maximum": 99_999_999 })), &[&said, "-1999"], &["1"]);
            check(
                schema(json!({ "minimum": 10, "maximum": 99_999_999_999_999u64 })),
                &[&said],
                &["77777"],
            );
        }
    }

    #[test]
    fn multiples_beside_words_are_followed() {
        let word = json!({ "type": "string", "enum": ["a", "b"] });
        let cents = json!({ "type": "number", "multipleOf": 0.01 });
        let thousands = json!({ "type": "integer", "multipleOf": 1000 });
        check(json!({ "anyOf": [cents, thousands, word] }), &["0.07", "2000", "\"a\""], &["0.075"]);
        let days = json!({ "type": "integer", "multipleOf": 86_400 });
        check(json!({ "anyOf": [days, word] }), &["172800", "\"b\""], &["1", "\"c\""]);
    }

    /// The lexer looked for what follows the first byte without a bound, however long that took.
    #[test]
    fn how_a_grammar_begins_is_found_within_bounds() {
        let times = [7, 11, 13, 17, 19, 23].map(|times| format!("/(a{{{times}}})+b/")).join(" & ");
        let lark = format!("start: X\nX: \"a\" | \"b\" HARD\nHARD: {times}\n");
        let refusal = vocabulary().compile("grammar", &Grammar::Lark(lark).into()).map(drop);
        assert!(reason(&refusal.unwrap_err()).contains("steps"));
        // Where no keyword is looked for, but a reference leads.
        let hidden = json!({ "$ref": "#/default", "default": { "multipleOf": 3_000_017 } });
        assert!(allows(&hidden, "0").unwrap_err().contains("steps"));
    }

    /// Of a usual thread's stack one of the threads that answer everybody had none left.
    #[test]
    fn references_may_follow_one_another() {
        let refer = |idx: usize| json!({ "$ref": format!("#/$defs/{idx}") });
        let nested = |idx: usize| {
            let all = |within: Value, _: usize| json!({ "allOf": [within] });
            (0..50).fold(refer(idx), all)
        };
        for (count, next) in [(3000, &refer as &dyn Fn(usize) -> Value), (200, &nested)] {
            let mut defs: Map<String, Value> =
                (0..count).map(|idx| (idx.to_string(), next(idx + 1))).collect();
            defs.insert(count.to_string(), json!({ "type": "integer" }));
            let schema = json!({ "$ref": "#/$defs/0", "$defs": defs });
            assert_eq!(allows(&schema, "1"), Ok(true));
        }
    }

    #[test]
    fn what_is_wrong_with_an_expression_is_said() {
        let check = |error: &str, want: &str| assert_eq!(told(error), want);
        check("Unsatisfiable schema\n\nwhere", "Unsatisfiable schema");
        check("regex parse error:", "regex parse error:");
        let group = "regex parse error:\n    (a\n    ^\nerror: unclosed group";
        check(group, "regex parse error: unclosed group in (a");
        let long = format!("at 1: regex parse error:\n    {}(\nerror: unclosed", "é".repeat(90));
        check(&long, &format!("at 1: regex parse error: unclosed in {}..", "é".repeat(80)));
        let lines = "regex parse error:\n~~~~\n1: (a\n~~~~\non line 1\nerror: unclosed group";
        check(lines, "regex parse error: unclosed group");

        let refusal = vocabulary().compile("grammar", &Grammar::Regex("x(a".into()).into());
        let refusal = refusal.map(drop).unwrap_err();
        let why = reason(&refusal);
        assert!(why.contains("unclosed group") && why.contains("(a"), "{why}");
    }

    #[test]
    fn schemas_in_grammars_are_counted() {
        let check = |lark: &str, want: Result<&str, ()>| {
            assert_eq!(counted(lark).as_deref().map_err(|_| ()), want, "{lark}");
        };
        let same = "start: \"%json\" x y\nx: %json {\"minLength\": 2}\ny: %json [";
        check(same, Ok(same));
        check("a: %json {\"minLength\":2.0} \"b\"", Ok("a: %json {\"minLength\":2} \"b\""));
        check("a: %json {\"items\": {\"multipleOf\": 1e-9}}", Err(()));
    }
}
