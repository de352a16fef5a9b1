//! What an answer must look like, and the vocabulary that it is spelled in.

use std::sync::Arc;

use aqueduct_core::{Constraint, Form, Grammar, Refusal, Thinking, TokenBytes};

use super::{Under, required};
use crate::v1;
use crate::v1::grammar::Kind;

impl From<Grammar> for v1::Grammar {
    fn from(grammar: Grammar) -> Self {
        let kind = match grammar {
            Grammar::JsonSchema(text) => Kind::JsonSchema(text),
            Grammar::Regex(text) => Kind::Regex(text),
            Grammar::Lark(text) => Kind::Lark(text),
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<v1::Grammar> for Grammar {
    type Error = Refusal;

    fn try_from(wire: v1::Grammar) -> Result<Self, Refusal> {
        let grammar = match required("grammar", wire.kind)? {
            Kind::JsonSchema(text) => Self::JsonSchema(text),
            Kind::Regex(text) => Self::Regex(text),
            Kind::Lark(text) => Self::Lark(text),
        };
        grammar.validate()?;
        Ok(grammar)
    }
}

impl From<Thinking> for v1::Thinking {
    fn from(thinking: Thinking) -> Self {
        let Thinking { begun, always, open, close, ending, head, most } = thinking;
        Self { begun, always, open, close, ending, head, most }
    }
}

impl TryFrom<v1::Thinking> for Thinking {
    type Error = Refusal;

    fn try_from(wire: v1::Thinking) -> Result<Self, Refusal> {
        let v1::Thinking { begun, always, open, close, ending, head, most } = wire;
        let thinking = Self { begun, always, open, close, ending, head, most };
        thinking.validate()?;
        Ok(thinking)
    }
}

/// The form that these parts make.
pub(super) fn form(
    thinking: Option<v1::Thinking>,
    grammar: Option<v1::Grammar>,
) -> Result<Form, Refusal> {
    Ok(Form {
        thinking: thinking.map(TryInto::try_into).transpose().under("thinking")?,
        grammar: grammar.map(TryInto::try_into).transpose().under("grammar")?,
    })
}

impl From<Constraint> for v1::Constraint {
    fn from(constraint: Constraint) -> Self {
        let (bytes, lengths) = constraint.vocabulary.parts();
        Self {
            token_bytes: bytes.to_vec().into(),
            token_lengths: lengths.to_vec(),
            grammar: constraint.form.grammar.map(Into::into),
            thinking: constraint.form.thinking.map(Into::into),
        }
    }
}

impl TryFrom<v1::Constraint> for Constraint {
    type Error = Refusal;

    fn try_from(wire: v1::Constraint) -> Result<Self, Refusal> {
        let form = form(wire.thinking, wire.grammar)?;
        if form.is_any() {
            return Err(Refusal::new("grammar", "absent", "present, or thinking"));
        }
        let vocabulary = TokenBytes::from_parts(wire.token_bytes.into(), wire.token_lengths)?;
        Ok(Self { form, vocabulary: Arc::new(vocabulary) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::arbitrary;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_by_field() {
        let check = |change: fn(&mut v1::Constraint), field: &str| {
            let vocabulary = Arc::new(TokenBytes::of([b"ab".as_slice()]));
            let grammar = Grammar::json_object();
            let mut wire = v1::Constraint::from(Constraint { form: grammar.into(), vocabulary });
            change(&mut wire);
            assert_eq!(Constraint::try_from(wire).unwrap_err().field, field);
        };
        check(|wire| wire.grammar = None, "grammar");
        check(|wire| wire.grammar = Some(v1::Grammar { kind: None }), "grammar.grammar");
        check(|wire| wire.thinking = Some(v1::Thinking::default()), "thinking.open bytes");
        check(|wire| wire.token_lengths.push(1), "vocabulary lengths");
        check(|wire| wire.token_bytes = vec![0; 4 << 20].into(), "vocabulary bytes");
    }

    proptest! {
        #[test]
        fn survives_the_wire(constraint in arbitrary::constraint()) {
            let wire = v1::Constraint::from(constraint.clone());
            prop_assert_eq!(Constraint::try_from(wire), Ok(constraint));
        }
    }
}
