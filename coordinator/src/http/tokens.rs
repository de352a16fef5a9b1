//! Texts as tokens and back, as vLLM and llama.cpp have it.

use std::time::SystemTime;

use aqueduct_core::{Refusal, TokenId};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use serde_json::{Value, json};

use super::calls::aside;
use super::error::ApiError;
use super::fields::Fields;
use super::request::Chat;
use super::{ApiState, Shared};
use crate::text::Start;

pub(super) async fn tokenize(
    State(state): State<ApiState>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    aside(&state, body, tokenized).await.map(Json)
}

pub(super) async fn detokenize(
    State(state): State<ApiState>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    aside(&state, body, spelled).await.map(Json)
}

fn tokenized(shared: &Shared, body: &[u8]) -> Result<Value, ApiError> {
    let mut fields = Fields::parse(body)?;
    shared.check_model(fields.take::<String>("model")?.as_deref())?;
    let with_texts = fields.take_or("return_token_strs", false)?;
    let text = &shared.generator.text;
    let tokens = match (fields.take::<String>("prompt")?, fields.take::<String>("content")?) {
        (Some(prompt), None) => {
            let begins = fields.take_or("add_special_tokens", true)?;
            fields.finish()?;
            text.encode(&prompt, begins)?
        }
        (None, Some(content)) => {
            let begins = fields.take_or("add_special", false)?;
            fields.refuse("parse_special", |value| value == true)?;
            fields.refuse("with_pieces", |value| value == false)?;
            fields.finish()?;
            text.encode(&content, begins)?
        }
        (None, None) => chat(shared, fields)?,
        (Some(_), Some(_)) => {
            return Err(ApiError::field("content", "is not supported beside prompt"));
        }
    };
    let texts = || tokens.iter().map(|token| text.spell(&[*token], Start::Continuation));
    let texts = with_texts.then(|| texts().collect::<Vec<_>>());
    Ok(json!({
        "count": tokens.len(),
        "max_model_len": text.prompt_tokens_max(),
        "tokens": tokens,
        "token_strs": texts,
    }))
}

/// The tokens of a chat, which has all that its template says.
fn chat(shared: &Shared, mut fields: Fields<'_>) -> Result<Vec<TokenId>, ApiError> {
    fields.refuse("add_special_tokens", |value| value == false)?;
    let chat = Chat::take(&mut fields)?;
    fields.finish()?;
    let chat = chat.for_template(shared.generator.text.template())?;
    let (_, tokens) = shared.generator.text.chat(chat.conversation(), None, SystemTime::now())?;
    Ok(tokens)
}

fn spelled(shared: &Shared, body: &[u8]) -> Result<Value, ApiError> {
    let mut fields = Fields::parse(body)?;
    shared.check_model(fields.take::<String>("model")?.as_deref())?;
    let tokens: Vec<TokenId> =
        fields.take("tokens")?.ok_or_else(|| ApiError::field("tokens", "is missing"))?;
    fields.finish()?;
    let text = &shared.generator.text;
    text.check(&tokens).map_err(|refusal| Refusal { field: "tokens".to_owned(), ..refusal })?;
    let spelled = text.spell(&tokens, Start::Text);
    // vLLM's name for it, and llama.cpp's.
    Ok(json!({ "prompt": spelled, "content": spelled }))
}
