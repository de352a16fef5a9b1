//! Forms of answers.

use std::sync::Arc;

use aqueduct_core::{Constraint, Form, Grammar, Thinking, TokenBytes, limits};
use proptest::prelude::*;

fn thinking() -> impl Strategy<Value = Thinking> {
    let tokens = || prop::collection::vec(0..limits::VOCAB_MAX, 1..4);
    let most = prop::option::of(any::<u32>());
    (any::<bool>(), "[a-z]{1,9}", "[a-z]{1,9}", tokens(), tokens(), most).prop_map(
        |(begun, open, close, ending, head, most)| Thinking {
            begun,
            always: !begun,
            open,
            close,
            ending,
            head,
            most,
        },
    )
}

/// Not that of any answer.
pub(crate) fn form() -> impl Strategy<Value = Form> {
    let grammar = (0..3, "[a-z]{1,9}").prop_map(|(kind, text)| {
        [Grammar::JsonSchema, Grammar::Regex, Grammar::Lark][kind as usize](text)
    });
    let of = (prop::option::of(thinking()), prop::option::of(grammar));
    let form = of.prop_map(|(thinking, grammar)| Form { thinking, grammar });
    form.prop_filter("asks for something", |form| !form.is_any())
}

pub(crate) fn constraint() -> impl Strategy<Value = Constraint> {
    let tokens = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..5);
    (form(), tokens).prop_map(|(form, tokens)| {
        let vocabulary = TokenBytes::of(tokens.iter().map(Vec::as_slice));
        Constraint { form, vocabulary: Arc::new(vocabulary) }
    })
}
