//! Log probabilities in the two shapes that OpenAI has for them.

use aqueduct_core::TokenId;
use aqueduct_core::work::TokenLogprob;
use serde_json::{Map, Value, json};

use crate::text::{Detokenizer, Start, TextModel};

/// What JSON has for minus infinity.
const LEAST: f32 = -9999.0;

/// The parallel lists of `/v1/completions`.
#[derive(Debug, Clone, Default)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
    /// Characters of the returned text so far that are complete.
    offset: usize,
    /// What makes that text of the tokens.
    detokenizer: Option<Detokenizer>,
}

impl CompletionLogprobs {
    /// Adds a token; without `logprob` it is the first of a prompt, which nothing predicts.
    pub(super) fn push(
        &mut self,
        text: &TextModel,
        token: TokenId,
        scores: Option<(f32, &[TokenLogprob])>,
    ) {
        self.tokens.push(token_key(text, token));
        // A prompt is a text of its own, and what is generated goes on with one.
        let start = if scores.is_none() { Start::Text } else { Start::Continuation };
        let detokenizer = self.detokenizer.get_or_insert_with(|| text.detokenizer(start));
        let first = text.token_bytes(token).first().filter(|_| !text.is_special(token));
        // A token that goes on with an open character stands where that begins.
        let is_behind = first.is_some_and(|byte| detokenizer.gives_up(*byte));
        self.text_offset.push(self.offset + usize::from(is_behind));
        self.offset += text.push(detokenizer, token).chars().count();
        self.token_logprobs.push(scores.map(|(logprob, _)| logprob.max(LEAST)));
        self.top_logprobs.push(scores.map(|(logprob, top)| {
            let sampled = TokenLogprob { token, logprob };
            let all = top.iter().copied().chain([sampled]);
            all.map(|one| (token_key(text, one.token), json!(one.logprob.max(LEAST)))).collect()
        }));
    }

    /// The prompt is over: what follows is no part of a character that it leaves open.
    pub(super) fn end_prompt(&mut self) {
        let open = self.detokenizer.take().map(|mut detokenizer| detokenizer.finish());
        self.offset += open.map_or(0, |text| text.chars().count());
    }

    /// The object for what was added since the last call; `top` is what the caller asked for.
    pub(super) fn take(&mut self, top: u32) -> Value {
        let top_logprobs = std::mem::take(&mut self.top_logprobs);
        json!({
            "tokens": std::mem::take(&mut self.tokens),
            "token_logprobs": std::mem::take(&mut self.token_logprobs),
            "top_logprobs": if top > 0 { json!(top_logprobs) } else { Value::Null },
            "text_offset": std::mem::take(&mut self.text_offset),
        })
    }
}

/// One entry of the `content` list of `/v1/chat/completions`.
pub(super) fn chat_entry(
    text: &TextModel,
    token: TokenId,
    logprob: f32,
    top: &[TokenLogprob],
) -> Value {
    let one = |token: TokenId, logprob: f32| {
        let bytes = text.token_bytes(token);
        json!({
            "token": String::from_utf8_lossy(bytes),
            "logprob": logprob.max(LEAST),
            "bytes": bytes,
        })
    };
    let mut entry = one(token, logprob);
    entry["top_logprobs"] = top.iter().map(|top| one(top.token, top.logprob)).collect();
    entry
}

/// A token's text; a part of a character as `bytes:\xe2\x80`, as OpenAI writes it.
fn token_key(text: &TextModel, token: TokenId) -> String {
    let bytes = text.token_bytes(token);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let digits: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{digits}")
        }
    }
}
