//! What an answer must look like, and the vocabulary that it is spelled in.

use std::sync::Arc;

use crate::{Refusal, limits};

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

/// What each token of a vocabulary adds to a text; nothing for tokens that no text has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenBytes {
    bytes: Vec<u8>,
    /// Of the tokens in order, which together are `bytes`.
    lengths: Vec<u32>,
}

impl TokenBytes {
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

/// A grammar, and the vocabulary in which an answer follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    /// What the answer must look like.
    pub grammar: Grammar,
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
}
