//! What an answer must be like, and the vocabulary that it is spelled in.

use std::sync::Arc;

use crate::{Refusal, TokenId, limits};

/// What an answer must look like.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Grammar {
    /// A JSON document that a JSON schema describes.
    JsonSchema(String),
    /// A text that a regular expression matches from end to end.
    Regex(String),
    /// A text of a context-free grammar, in llguidance's dialect of Lark.
    Lark(String),
}

impl Grammar {
    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::JsonSchema(r#"{"type": "object"}"#.to_owned())
    }

    /// Its source.
    pub fn text(&self) -> &str {
        match self {
            Self::JsonSchema(text) | Self::Regex(text) | Self::Lark(text) => text,
        }
    }

    /// Checks the length of its source.
    ///
    /// # Errors
    /// One that is empty or too long.
    pub fn validate(&self) -> Result<(), Refusal> {
        let bytes = self.text().len();
        Refusal::unless_within("grammar bytes", bytes, 1, limits::GRAMMAR_BYTES_MAX).map(drop)
    }
}

/// What of an answer is thought, before what it says. Texts are spelled with tokens that are no
/// text by their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thinking {
    /// Whether the prompt ends within thoughts.
    pub begun: bool,
    /// Whether nothing is said without thoughts before it.
    pub always: bool,
    /// What thoughts begin with, where the prompt does not.
    pub open: String,
    /// What they end with.
    pub close: String,
    /// What ends them when they are too long: has `close`.
    pub ending: Vec<TokenId>,
    /// What follows their end before an answer of a grammar.
    pub head: Vec<TokenId>,
    /// Most tokens of thoughts, those of their end aside; `None`: any.
    pub most: Option<u32>,
}

impl Thinking {
    /// Checks every field against its bound.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn validate(&self) -> Result<(), Refusal> {
        for (field, text) in [("open bytes", &self.open), ("close bytes", &self.close)] {
            Refusal::unless_within(field, text.len(), 1, limits::THOUGHT_MARK_BYTES_MAX)?;
        }
        let most = limits::THOUGHT_END_TOKENS_MAX;
        Refusal::unless_within("ending", self.ending.len(), 1, most)?;
        Refusal::unless_within("head", self.head.len(), 0, most).map(drop)
    }
}

/// What an answer must be like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Form {
    /// What of it is thought; `None`: nothing is known of that.
    pub thinking: Option<Thinking>,
    /// What it must look like, thoughts aside; `None`: any text will do.
    pub grammar: Option<Grammar>,
}

impl From<Grammar> for Form {
    fn from(grammar: Grammar) -> Self {
        Self { thinking: None, grammar: Some(grammar) }
    }
}

impl Form {
    /// Whether it is that of any answer.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// Checks every field against its bound.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn validate(&self) -> Result<(), Refusal> {
        self.thinking.as_ref().map_or(Ok(()), Thinking::validate)?;
        self.grammar.as_ref().map_or(Ok(()), Grammar::validate)
    }
}

/// What each token of a vocabulary adds to a text; nothing for tokens that no text has, and for
/// those that steer the model [`Self::MARK`] and their name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenBytes {
    bytes: Vec<u8>,
    /// Of the tokens in order, which together are `bytes`.
    lengths: Vec<u32>,
}

impl TokenBytes {
    /// A byte that no text has: what it begins is the name of a token that is no text.
    pub const MARK: u8 = 0xFF;

    /// Of tokens in the order of their ids.
    pub fn of<'a>(tokens: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut all = Self::default();
        for token in tokens {
            all.bytes.extend_from_slice(token);
            all.lengths.push(token.len() as u32);
        }
        all
    }

    /// From what [`parts`](Self::parts) gave.
    ///
    /// # Errors
    /// Lengths that are not those of `bytes`, or more than there may be.
    pub fn from_parts(bytes: Vec<u8>, lengths: Vec<u32>) -> Result<Self, Refusal> {
        let all = Self { bytes, lengths };
        all.validate()?;
        Ok(all)
    }

    /// Checks its size, and that its parts agree.
    ///
    /// # Errors
    /// The part that is wrong.
    pub fn validate(&self) -> Result<(), Refusal> {
        let (bytes, tokens) = (self.bytes.len(), self.lengths.len());
        Refusal::unless_within("vocabulary tokens", tokens, 0, limits::VOCAB_MAX as usize)?;
        Refusal::unless_within("vocabulary bytes", bytes, 0, limits::VOCABULARY_BYTES_MAX)?;
        let sum: u64 = self.lengths.iter().map(|length| u64::from(*length)).sum();
        Refusal::unless_within("vocabulary lengths", sum, bytes as u64, bytes as u64).map(drop)
    }

    /// All bytes, and the lengths of the tokens that they are of.
    pub fn parts(&self) -> (&[u8], &[u32]) {
        (&self.bytes, &self.lengths)
    }

    /// How many tokens.
    pub fn tokens(&self) -> usize {
        self.lengths.len()
    }

    /// Every token, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.bytes.as_slice();
        self.lengths.iter().map(move |length| {
            let (token, after) = rest.split_at((*length as usize).min(rest.len()));
            rest = after;
            token
        })
    }
}

/// A form, and the vocabulary in which an answer follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    /// What the answer must be like.
    pub form: Form,
    /// What it is spelled in.
    pub vocabulary: Arc<TokenBytes>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_must_agree() {
        let tokens: [&[u8]; 3] = [b"a", b"", b"bc"];
        let all = TokenBytes::of(tokens);
        assert_eq!(all.iter().collect::<Vec<_>>(), tokens);
        let (bytes, lengths) = all.parts();
        let again = TokenBytes::from_parts(bytes.to_vec(), lengths.to_vec());
        assert_eq!(again, Ok(all.clone()));
        for lengths in [vec![], vec![1, 1], vec![4], vec![u32::MAX, u32::MAX]] {
            let refused = TokenBytes::from_parts(b"abc".to_vec(), lengths).unwrap_err();
            assert_eq!(refused.field, "vocabulary lengths");
        }
    }

    #[test]
    fn grammars_are_bounded() {
        assert_eq!(Grammar::json_object().validate(), Ok(()));
        assert!(Grammar::Regex(String::new()).validate().is_err());
        let long = "a".repeat(limits::GRAMMAR_BYTES_MAX + 1);
        assert_eq!(Grammar::Lark(long).validate().unwrap_err().field, "grammar bytes");
    }

    #[test]
    fn thoughts_are_bounded() {
        let check = |change: fn(&mut Thinking), want: &str| {
            let mut thinking = Thinking {
                begun: false,
                always: false,
                open: "<think>".into(),
                close: "</think>".into(),
                ending: vec![1],
                head: vec![],
                most: None,
            };
            change(&mut thinking);
            let form = Form { thinking: Some(thinking), grammar: None };
            let got = form.validate().map_err(|refusal| refusal.to_string()).err();
            assert_eq!(got.unwrap_or_default(), want);
        };
        check(|_| (), "");
        check(|bad| bad.open.clear(), "open bytes = 0: must be between 1 and 64");
        check(|bad| bad.close = "a".repeat(65), "close bytes = 65: must be between 1 and 64");
        check(|bad| bad.ending.clear(), "ending = 0: must be between 1 and 64");
        check(|bad| bad.head = vec![0; 65], "head = 65: must be between 0 and 64");
    }
}
