//! Tokens that end an answer, as GGUF files tell of them.

use aqueduct_core::TokenId;

use super::calls::ENDS_OF_TURNS;
use super::channels;
use super::gguf::{GgufVocabulary, kind};

/// Tokens that end a turn, a message or a text, by the names that models give them. Files often
/// tell of one where a model has two: the one that ends a text, and not what ends its turns.
const ENDS: [&str; 16] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
    "<EOT>",
    "<|EOT|>",
    "<|observation|>",
    "<｜end▁of▁sentence｜>",
    channels::ENDS_OF_ANSWERS[0],
    channels::ENDS_OF_ANSWERS[1],
    ENDS_OF_TURNS[0],
    ENDS_OF_TURNS[1],
];
/// The tokens that the file says end an answer, and those that do by their names; ordinary
/// tokens that read like one are text.
pub(super) fn of(all: &GgufVocabulary) -> Vec<TokenId> {
    let is_end = |(token, kind): (&String, &i32)| {
        matches!(*kind, kind::CONTROL | kind::USER_DEFINED) && ENDS.contains(&token.as_str())
    };
    // Behind what ends a message in a channel the model goes on.
    let has = |name: &&str| all.tokens.iter().any(|token| token == name);
    let in_channels = channels::ENDS_OF_ANSWERS.iter().all(has);
    // Who has Gemma 4's turns has this as a word.
    let in_turns = ENDS_OF_TURNS.iter().all(has);
    let goes_on = |id: &TokenId| {
        let is = |name: &str| all.tokens.get(*id as usize).is_some_and(|token| token == name);
        in_channels && is(channels::END_OF_MESSAGE) || in_turns && is("</s>")
    };
    let tokens = all.tokens.iter().zip(&all.kinds);
    let named = (0..).zip(tokens).filter(|(_, token)| is_end(*token)).map(|(id, _)| id);
    let mut ends: Vec<TokenId> = Vec::new();
    for id in all.eos.iter().copied().chain(named).filter(|id| !goes_on(id)) {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    ends
}
