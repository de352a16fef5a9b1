//! The tokens of a model as bytes, in a form that grammars can be matched against.

use std::sync::Arc;

use aqueduct_core::{Grammar, Refusal, TokenBytes, limits};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use crate::follower::Follower;
use crate::schema::narrowed;

/// What a grammar must be, before the reason why one is not.
const FOLLOWED: &str = "a grammar that can be followed: ";
/// Characters of a grammar that are shown where it is refused.
const SHOWN_CHARS: usize = 100;

/// A vocabulary that grammars can be compiled for; costs some ten milliseconds to make.
pub struct Vocabulary {
    factory: ParserFactory,
    tokens: usize,
}

impl Vocabulary {
    /// Tokens without bytes are never part of an answer.
    ///
    /// # Errors
    /// Tokens that no answer can be made of.
    pub fn new(bytes: &TokenBytes) -> Result<Self, Refusal> {
        let tokens = bytes.tokens();
        Refusal::unless_within("vocabulary", tokens, 1, limits::VOCAB_MAX as usize)?;
        let mut words: Vec<Vec<u8>> = bytes.iter().map(<[u8]>::to_vec).collect();
        // What llguidance takes for the end is one more: a request says for itself which tokens
        // end its answers. The first byte marks a token that no text spells.
        words.push(b"\xff<end>".to_vec());
        let info = TokRxInfo::new(words.len() as u32, tokens as u32);
        let trie = TokTrie::from(&info, &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::json_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|error| refusal("vocabulary", tokens, error))?;
        factory.quiet();
        *factory.limits_mut() = bounds();
        Ok(Self { factory, tokens })
    }

    /// Compiles `grammar`, which comes from `field`.
    ///
    /// # Errors
    /// A grammar that is too long or too costly, is not understood, or allows no answer.
    pub fn compile(&self, field: &str, grammar: &Grammar) -> Result<Follower, Refusal> {
        let text = grammar.text();
        Refusal::unless_within(
            &format!("{field} bytes"),
            text.len(),
            1,
            limits::GRAMMAR_BYTES_MAX,
        )?;
        let top = match grammar {
            Grammar::JsonSchema(schema) => {
                TopLevelGrammar::from_json_schema(parsed(field, schema)?)
            }
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Grammar::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        };
        let matcher = Matcher::new(self.factory.create_parser(top));
        let mut follower = Follower::new(matcher, self.tokens);
        match follower.begin() {
            Ok(()) => Ok(follower),
            Err(error) => Err(refusal(field, text, error)),
        }
    }
}

/// The schema in `text`, from `field`.
fn parsed(field: &str, text: &str) -> Result<Value, Refusal> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(narrowed(Value::Object(fields))),
        Ok(other) => Err(Refusal::new(field, other, "a JSON schema, which is an object")),
        Err(error) => Err(Refusal::new(field, error, "JSON")),
    }
}

/// What one grammar may cost, to compile and for each token.
fn bounds() -> ParserLimits {
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

fn refusal(field: &str, value: impl std::fmt::Display, error: impl std::fmt::Display) -> Refusal {
    // The first line says what is wrong, the others where llguidance was.
    let error = error.to_string();
    let reason = error.lines().next().unwrap_or_default();
    let value = value.to_string();
    let value = match value.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}..", &value[..end]),
        None => value,
    };
    Refusal::new(field, value, format!("{FOLLOWED}{reason}"))
}

/// Why a grammar that [`Vocabulary::compile`] refused cannot be followed.
pub fn reason(refusal: &Refusal) -> &str {
    refusal.bound.strip_prefix(FOLLOWED).unwrap_or(&refusal.bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte is a token, and some words are; one token is part of no text.
    fn vocabulary() -> Vocabulary {
        let bytes: Vec<u8> = (0..=255).collect();
        let words: [&[u8]; 4] = [b"", b"{\"", b"true", b"\": "];
        Vocabulary::new(&TokenBytes::of(bytes.chunks(1).chain(words))).unwrap()
    }

    fn allowed(follower: &mut Follower) -> (Vec<u32>, bool) {
        let mask = follower.mask().unwrap();
        ((0..300).filter(|token| mask.allows(*token)).collect(), mask.may_end())
    }

    #[test]
    fn an_answer_is_followed_to_its_end() {
        let schema = r#"{"type": "object", "properties": {"a": {"type": "boolean"}},
            "required": ["a"], "additionalProperties": false}"#;
        let grammar = Grammar::JsonSchema(schema.into());
        let mut follower = vocabulary().compile("grammar", &grammar).unwrap();
        let mut beside = follower.clone();
        // `{` or `{"`, then the rest, of which `true` is one token or four.
        assert_eq!(allowed(&mut follower), (vec![u32::from(b'{'), 257], false));
        for token in [257, u32::from(b'a'), 259] {
            follower.take(token).unwrap();
        }
        assert_eq!(allowed(&mut follower), (vec![u32::from(b'f'), u32::from(b't'), 258], false));
        follower.take(258).unwrap();
        assert_eq!(allowed(&mut follower), (vec![u32::from(b'}')], false));
        follower.take(u32::from(b'}')).unwrap();
        assert!(follower.must_end());
        assert_eq!(allowed(&mut follower), (vec![], true));
        assert_eq!(allowed(&mut beside), (vec![u32::from(b'{'), 257], false));
        assert!(beside.take(u32::from(b'!')).is_err());
    }

    #[test]
    fn what_may_not_come_is_barred() {
        let grammar = Grammar::Regex("a?".into());
        let mut follower = vocabulary().compile("grammar", &grammar).unwrap();
        let mut logits = vec![1.0; 300];
        follower.mask().unwrap().bar(&mut logits, &[256, 299]);
        let left: Vec<usize> = (0..300).filter(|idx| logits[*idx] == 1.0).collect();
        assert_eq!(left, [usize::from(b'a'), 256, 299]);
        let mut follower = vocabulary().compile("grammar", &Grammar::Regex("a{2}".into())).unwrap();
        let mut logits = vec![1.0; 300];
        follower.mask().unwrap().bar(&mut logits, &[256, 299]);
        assert_eq!(logits.iter().filter(|z| **z == 1.0).count(), 1);
    }

    #[test]
    fn grammars_that_cannot_be_followed_are_refused() {
        let vocabulary = vocabulary();
        let check = |grammar: Grammar, word: &str| {
            let refusal = vocabulary.compile("grammar", &grammar).map(drop).unwrap_err();
            assert!(refusal.field.starts_with("grammar"), "{refusal}");
            assert!(refusal.to_string().contains(word), "{refusal}");
        };
        check(Grammar::JsonSchema("[]".into()), "object");
        check(Grammar::JsonSchema("{".into()), "JSON");
        check(Grammar::JsonSchema(r#"{"type": "wizard"}"#.into()), "wizard");
        check(Grammar::JsonSchema(r#"{"$ref": "http://localhost/x"}"#.into()), "");
        check(Grammar::JsonSchema(r#"{"enum": []}"#.into()), "");
        check(Grammar::Regex("(".into()), "");
        check(Grammar::Lark("start: nothing".into()), "nothing");
        check(Grammar::Lark(String::new()), "1");
        check(Grammar::Lark("x".repeat(limits::GRAMMAR_BYTES_MAX + 1)), "131072");
    }
}
