//! How an answer is told, as a journal has it.

use aqueduct_core::{Refusal, StartKey, Telling, ThoughtsTold};
use bytes::Bytes;

use crate::v1;
use crate::v1::telling::Thoughts;

impl From<Telling> for v1::Telling {
    fn from(telling: Telling) -> Self {
        Self {
            resumable: telling.resumable,
            stop: telling.stop,
            continues: telling.continues,
            goes_on: telling.goes_on,
            thoughts: thoughts(telling.thoughts).into(),
            tools: telling.tools,
            text_arguments: telling.text_arguments,
            one_call: telling.one_call,
            usage: telling.usage,
            progress: telling.progress,
            warnings: telling.warnings,
            holder: telling.holder,
            prompt_tokens: telling.prompt_tokens,
            created_at_s: telling.created_at_s,
            start_content: telling.once.as_ref().map_or_else(Bytes::new, content),
            start_key: telling.once.map_or(String::new(), |once| once.name),
        }
    }
}

impl TryFrom<v1::Telling> for Telling {
    type Error = Refusal;

    fn try_from(wire: v1::Telling) -> Result<Self, Refusal> {
        let once = start_key(wire.start_key, &wire.start_content)?;
        let telling = Self {
            resumable: wire.resumable,
            stop: wire.stop,
            continues: wire.continues,
            goes_on: wire.goes_on,
            thoughts: thoughts_told(wire.thoughts)?,
            tools: wire.tools,
            text_arguments: wire.text_arguments,
            one_call: wire.one_call,
            usage: wire.usage,
            progress: wire.progress,
            warnings: wire.warnings,
            holder: wire.holder,
            prompt_tokens: wire.prompt_tokens,
            created_at_s: wire.created_at_s,
            once,
        };
        telling.validate()?;
        Ok(telling)
    }
}

fn thoughts(told: ThoughtsTold) -> Thoughts {
    match told {
        ThoughtsTold::Apart => Thoughts::Unspecified,
        ThoughtsTold::ApartFromTheStart => Thoughts::ApartFromTheStart,
        ThoughtsTold::AsText => Thoughts::AsText,
        ThoughtsTold::Over => Thoughts::Over,
    }
}

fn thoughts_told(wire: i32) -> Result<ThoughtsTold, Refusal> {
    match Thoughts::try_from(wire) {
        Ok(Thoughts::Unspecified) => Ok(ThoughtsTold::Apart),
        Ok(Thoughts::ApartFromTheStart) => Ok(ThoughtsTold::ApartFromTheStart),
        Ok(Thoughts::AsText) => Ok(ThoughtsTold::AsText),
        Ok(Thoughts::Over) => Ok(ThoughtsTold::Over),
        Err(_) => Err(Refusal::new("thoughts", wire, "0, 1, 2 or 3")),
    }
}

fn content(once: &StartKey) -> Bytes {
    Bytes::copy_from_slice(&once.content)
}

/// Both or neither.
fn start_key(name: String, content: &[u8]) -> Result<Option<StartKey>, Refusal> {
    if name.is_empty() && content.is_empty() {
        return Ok(None);
    }
    let bytes = content.len();
    let not_whole = |_| Refusal::new("start_content bytes", bytes, "32, beside a key");
    Ok(Some(StartKey { name, content: content.try_into().map_err(not_whole)? }))
}
