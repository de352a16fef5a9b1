//! The tokens of a model as bytes, in a form that grammars can be matched against.

use std::sync::Arc;

use aqueduct_core::{Form, Grammar, Refusal, Thinking, TokenBytes, TokenId, limits};
use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use crate::compile;
use crate::follower::Follower;
use crate::schema::{narrowed, unfollowed};
use crate::thinker::{Thinker, name};

/// What a grammar must be, before the reason why one is not.
const FOLLOWED: &str = "a grammar that can be followed: ";
/// Characters of a grammar that are shown where it is refused.
const SHOWN_CHARS: usize = 100;

/// A vocabulary that grammars can be compiled for; costs some ten milliseconds to make.
pub struct Vocabulary {
    factory: ParserFactory,
    words: TokEnv,
    tokens: usize,
}

impl Vocabulary {
    /// Tokens without bytes are never part of what follows a grammar; those that are no text are
    /// where it names them by their ids.
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
        *factory.limits_mut() = compile::bounds();
        Ok(Self { factory, words: env, tokens })
    }

    /// Compiles `form`, whose grammar comes from `field`.
    ///
    /// # Errors
    /// A grammar that is too long or too costly, is not understood, or allows no answer; thoughts
    /// that do not end.
    pub fn compile(&self, field: &str, form: &Form) -> Result<Follower, Refusal> {
        let has_grammar = form.grammar.is_some();
        let thinker = |thinking| {
            self.check(thinking)?;
            Ok(Thinker::new(thinking, has_grammar))
        };
        let thinker = form.thinking.as_ref().map(thinker).transpose()?;
        let matcher =
            form.grammar.as_ref().map(|grammar| self.matcher(field, grammar)).transpose()?;
        let mut follower = Follower::new((self.words.clone(), self.tokens), thinker, matcher);
        let text = form.grammar.as_ref().map_or("", Grammar::text);
        match follower.begin() {
            Ok(()) => Ok(follower),
            Err(error) => Err(refusal(field, text, error)),
        }
    }

    fn matcher(&self, field: &str, grammar: &Grammar) -> Result<Matcher, Refusal> {
        let (text, most) = (grammar.text(), limits::GRAMMAR_BYTES_MAX);
        Refusal::unless_within(&format!("{field} bytes"), text.len(), 1, most)?;
        let top = match grammar {
            Grammar::JsonSchema(schema) => {
                TopLevelGrammar::from_json_schema(parsed(field, schema)?)
            }
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Grammar::Lark(lark) => {
                let counted = compile::counted(lark).map_err(|why| refusal(field, text, why))?;
                TopLevelGrammar::from_lark(counted)
            }
        };
        let parser = compile::parser(&self.factory, &self.words, top);
        parser.map(|parser| Matcher::new(Ok(parser))).map_err(|error| refusal(field, text, error))
    }

    /// Checks that thoughts can be ended: what ends them is spelled so.
    fn check(&self, thinking: &Thinking) -> Result<(), Refusal> {
        thinking.validate()?;
        let spelled = |tokens: &[TokenId]| -> Vec<u8> {
            let words = tokens.iter().map(|token| name(self.words.tok_trie().token(*token)));
            words.flatten().copied().collect()
        };
        let tokens = || thinking.ending.iter().chain(&thinking.head);
        if let Some(token) = tokens().find(|token| **token as usize >= self.tokens) {
            let bound = format!("below the vocabulary's {}", self.tokens);
            return Err(Refusal::new("thinking.ending", token, bound));
        }
        let (ending, close) = (spelled(&thinking.ending), thinking.close.as_bytes());
        match ending.windows(close.len()).any(|part| part == close) {
            true => Ok(()),
            false => {
                let ending = String::from_utf8_lossy(&ending).into_owned();
                let bound = format!("what has {:?}", thinking.close);
                Err(Refusal::new("thinking.ending", format!("{ending:?}"), bound))
            }
        }
    }
}

/// The schema in `text`, from `field`.
fn parsed(field: &str, text: &str) -> Result<Value, Refusal> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => {
            let schema = narrowed(Value::Object(fields));
            match unfollowed(&schema) {
                Some(why) => Err(refusal(field, text, why)),
                None => Ok(schema),
            }
        }
        Ok(other) => Err(Refusal::new(field, other, "a JSON schema, which is an object")),
        Err(error) => Err(Refusal::new(field, error, "JSON")),
    }
}

fn refusal(field: &str, value: impl std::fmt::Display, error: impl std::fmt::Display) -> Refusal {
    let error = error.to_string();
    let reason = compile::told(&error);
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
        let mut follower = vocabulary().compile("grammar", &grammar.into()).unwrap();
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
        let mut follower = vocabulary().compile("grammar", &grammar.into()).unwrap();
        let mut logits = vec![1.0; 300];
        follower.mask().unwrap().bar(&mut logits, &[256, 299]);
        let left: Vec<usize> = (0..300).filter(|idx| logits[*idx] == 1.0).collect();
        assert_eq!(left, [usize::from(b'a'), 256, 299]);
        let grammar = Grammar::Regex("a{2}".into());
        let mut follower = vocabulary().compile("grammar", &grammar.into()).unwrap();
        let mut logits = vec![1.0; 300];
        follower.mask().unwrap().bar(&mut logits, &[256, 299]);
        assert_eq!(logits.iter().filter(|z| **z == 1.0).count(), 1);
    }

    #[test]
    fn grammars_that_cannot_be_followed_are_refused() {
        let vocabulary = vocabulary();
        let check = |grammar: Grammar, word: &str| {
            let refusal = vocabulary.compile("grammar", &grammar.into()).map(drop).unwrap_err();
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

    /// `<think>` is a token, `</think>` is not, and one token is no text.
    fn thoughtful(begun: bool, most: Option<u32>, grammar: Option<Grammar>) -> Follower {
        let bytes: Vec<u8> = (0..=255).collect();
        let words: [&[u8]; 5] = [b"<think>", b"</", b"think", b">{", b"\xFF<|call|>"];
        let vocabulary = Vocabulary::new(&TokenBytes::of(bytes.chunks(1).chain(words))).unwrap();
        let ending = b"</think>\n".iter().map(|byte| TokenId::from(*byte)).collect();
        let (open, close) = ("<think>".into(), "</think>".into());
        let thinking =
            Some(Thinking { begun, always: false, open, close, ending, head: vec![], most });
        vocabulary.compile("grammar", &Form { thinking, grammar }).unwrap()
    }

    fn take(follower: &mut Follower, text: &str) {
        for byte in text.bytes() {
            assert!(follower.mask().unwrap().allows(byte.into()), "{text} at {:?}", byte as char);
            follower.take(byte.into()).unwrap();
        }
    }

    #[test]
    fn thoughts_come_before_a_grammar() {
        let grammar = || Some(Grammar::Regex(r"<[ab]>|\{\}".into()));
        // A call may begin as thoughts do, and so may nothing else.
        let mut follower = thoughtful(false, None, grammar());
        // White space, of which the grammar has none, would leave thoughts alone.
        let start = vec![u32::from(b'<'), u32::from(b'{'), 256];
        assert_eq!(allowed(&mut follower), (start, false));
        take(&mut follower, "<");
        let behind = vec![u32::from(b'a'), u32::from(b'b'), u32::from(b't'), 258];
        assert_eq!(allowed(&mut follower), (behind, false));
        let mut beside = follower.clone();
        take(&mut beside, "a>");
        assert!(beside.must_end());
        take(&mut follower, "think>{x");
        let mask = follower.mask().unwrap();
        assert!(mask.allows(256) && mask.allows(259) && !mask.allows(260) && !mask.may_end());
        take(&mut follower, "</think");
        assert!(!follower.mask().unwrap().allows(259), "it would say something as well");
        take(&mut follower, ">\n{");
        assert_eq!(allowed(&mut follower), (vec![u32::from(b'}')], false));
        take(&mut follower, "}");
        assert!(follower.must_end());
        let mut without = thoughtful(false, None, grammar());
        take(&mut without, "{}");
        assert!(without.must_end());
        let mut refused = thoughtful(false, None, grammar());
        refused.take(u32::from(b'<')).unwrap();
        assert!(refused.take(u32::from(b'x')).is_err());
    }

    #[test]
    fn thoughts_come_to_an_end() {
        let mut follower = thoughtful(true, Some(2), Some(Grammar::Regex("a".into())));
        take(&mut follower, "xy");
        for byte in "</think>\n".bytes() {
            assert_eq!(allowed(&mut follower), (vec![byte.into()], false));
            follower.take(byte.into()).unwrap();
        }
        assert!(allowed(&mut follower).0.contains(&u32::from(b'a')));
        // Where anything may be said, anything may be thought, and the answer may end.
        let mut follower = thoughtful(false, Some(1), None);
        assert!(follower.mask().unwrap().is_any());
        take(&mut follower, "<think>x</think>\n");
        assert!(follower.mask().unwrap().is_any() && !follower.must_end());
        take(&mut follower, "<think>xyz");
        assert!(follower.mask().unwrap().is_any());
    }

    #[test]
    fn grammars_may_name_tokens_that_are_no_text() {
        let grammar = Grammar::Lark("start: (/[^a]*/ <[260]>)? \"b\"".into());
        let mut follower = thoughtful(true, Some(0), Some(grammar));
        take(&mut follower, "</think>\nx");
        assert!(follower.mask().unwrap().allows(260));
        follower.take(260).unwrap();
        assert_eq!(allowed(&mut follower), (vec![u32::from(b'b')], false));
    }

    #[test]
    fn thoughts_must_end() {
        let mut thinking = Thinking {
            begun: true,
            always: false,
            open: "<think>".into(),
            close: "a".into(),
            ending: vec![98],
            head: vec![],
            most: None,
        };
        let check = |thinking: &Thinking, want: &str| {
            let form = Form { thinking: Some(thinking.clone()), grammar: None };
            let refusal = vocabulary().compile("grammar", &form).map(drop).unwrap_err();
            assert_eq!(refusal.to_string(), want);
        };
        check(&thinking, "thinking.ending = \"b\": must be what has \"a\"");
        thinking.ending = vec![97, 260];
        check(&thinking, "thinking.ending = 260: must be below the vocabulary's 260");
    }
}
