//! Texts as tokens and back, as vLLM and llama.cpp have it; also what is too long for the model, so
//! that one sees by how much.

use std::time::SystemTime;

use aqueduct_core::{Refusal, TokenId, limits};
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use super::calls::aside;
use super::error::ApiError;
use super::fields::Fields;
use super::request::{Chat, Usual};
use super::{ApiState, Shared};
use crate::text::Start;

/// What a text is in tokens. They are written as they are: each would be many times as large as a
/// JSON value.
#[derive(Serialize)]
struct Tokenized {
    count: usize,
    max_model_len: u32,
    tokens: Vec<TokenId>,
    token_strs: Option<Vec<String>>,
}

pub(super) async fn tokenize(
    State(state): State<ApiState>,
    body: Body,
) -> Result<Response, ApiError> {
    let how = |shared: &Shared, body: &[u8]| written(&tokenized(shared, body)?);
    aside(&state, body, how).await.map(answer)
}

pub(super) async fn detokenize(
    State(state): State<ApiState>,
    body: Body,
) -> Result<Response, ApiError> {
    let how = |shared: &Shared, body: &[u8]| written(&spelled(shared, body)?);
    aside(&state, body, how).await.map(answer)
}

/// Written where it was made: what is long would keep a thread busy that answers everybody.
fn written(reply: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(reply)
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

fn answer(json: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}

fn tokenized(shared: &Shared, body: &[u8]) -> Result<Tokenized, ApiError> {
    let mut fields = Fields::parse(body)?;
    shared.check_model(fields.take::<String>("model")?.as_deref())?;
    let with_texts = fields.take_or("return_token_strs", false)?;
    fields.refuse("return_token_offsets", |value| value == false)?;
    let text = &shared.generator.text;
    let tokens = match (fields.take::<String>("prompt")?, fields.take::<String>("content")?) {
        (Some(prompt), None) => {
            let begins = fields.take_or("add_special_tokens", true)?;
            fields.finish()?;
            text.encode_any(&prompt, begins)?
        }
        (None, Some(content)) => {
            let begins = fields.take_or("add_special", false)?;
            fields.refuse("parse_special", |value| value == true)?;
            fields.refuse("with_pieces", |value| value == false)?;
            fields.finish()?;
            text.encode_any(&content, begins)?
        }
        (None, None) => chat(shared, fields)?,
        (Some(_), Some(_)) => {
            return Err(ApiError::field("content", "is not supported beside prompt"));
        }
    };
    if with_texts && tokens.len() > text.prompt_tokens_max() as usize {
        // Each is a text of its own, of some thirty bytes and more.
        let bound = format!("false for over {} tokens", text.prompt_tokens_max());
        return Err(Refusal::new("return_token_strs", true, bound).into());
    }
    let texts = || tokens.iter().map(|token| text.spell(&[*token], Start::Continuation));
    let texts = with_texts.then(|| texts().collect::<Vec<_>>());
    let (count, max_model_len) = (tokens.len(), text.prompt_tokens_max());
    Ok(Tokenized { count, max_model_len, tokens, token_strs: texts })
}

/// The tokens of a chat, which has all that its template says.
fn chat(shared: &Shared, mut fields: Fields<'_>) -> Result<Vec<TokenId>, ApiError> {
    fields.refuse("add_special_tokens", |value| value == false)?;
    let chat = Chat::take(&mut fields, &Usual::of(&shared.generator.text))?;
    fields.finish()?;
    of_chat(shared, chat)
}

/// The tokens of the prompt that a chat makes.
pub(super) fn of_chat(shared: &Shared, chat: Chat) -> Result<Vec<TokenId>, ApiError> {
    let text = &shared.generator.text;
    let template = text.template();
    let chat = chat.for_template(template, &mut Vec::new())?;
    let prompt = template.render(chat.conversation(), SystemTime::now())?;
    Ok(text.encode_any(&prompt, !template.writes_bos())?)
}

fn spelled(shared: &Shared, body: &[u8]) -> Result<Value, ApiError> {
    let mut fields = Fields::parse(body)?;
    shared.check_model(fields.take::<String>("model")?.as_deref())?;
    let tokens: Vec<TokenId> =
        fields.take("tokens")?.ok_or_else(|| ApiError::field("tokens", "is missing"))?;
    fields.finish()?;
    let text = &shared.generator.text;
    text.check_within(&tokens, text.counted_tokens_max())
        .map_err(|refusal| Refusal { field: "tokens".to_owned(), ..refusal })?;
    // The longest tokens have a hundred bytes and more.
    let bytes: usize = tokens.iter().map(|token| text.token_bytes(*token).len()).sum();
    Refusal::unless_within("tokens bytes", bytes, 0, limits::PROMPT_BYTES_MAX)?;
    let spelled = text.spell(&tokens, Start::Text);
    // vLLM's name for it, and llama.cpp's.
    Ok(json!({ "prompt": spelled, "content": spelled }))
}
