//! How an answer is told, as a journal has it.

use aqueduct_core::{Refusal, Telling};

use crate::v1;

impl From<Telling> for v1::Telling {
    fn from(telling: Telling) -> Self {
        Self {
            resumable: telling.resumable,
            stop: telling.stop,
            continues: telling.continues,
            tools: telling.tools,
            usage: telling.usage,
            progress: telling.progress,
            warnings: telling.warnings,
            holder: telling.holder,
            prompt_tokens: telling.prompt_tokens,
            created_at_s: telling.created_at_s,
        }
    }
}

impl TryFrom<v1::Telling> for Telling {
    type Error = Refusal;

    fn try_from(wire: v1::Telling) -> Result<Self, Refusal> {
        let telling = Self {
            resumable: wire.resumable,
            stop: wire.stop,
            continues: wire.continues,
            tools: wire.tools,
            usage: wire.usage,
            progress: wire.progress,
            warnings: wire.warnings,
            holder: wire.holder,
            prompt_tokens: wire.prompt_tokens,
            created_at_s: wire.created_at_s,
        };
        telling.validate()?;
        Ok(telling)
    }
}
