//! How an answer is told, as a journal has it.

use aqueduct_core::{Refusal, StartKey, Telling};
use bytes::Bytes;

use crate::v1;

impl From<Telling> for v1::Telling {
    fn from(telling: Telling) -> Self {
        Self {
            resumable: telling.resumable,
            stop: telling.stop,
            continues: telling.continues,
            goes_on: telling.goes_on,
            tools: telling.tools,
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
            tools: wire.tools,
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
