//! A request as the plan hears of it.

use aqueduct_core::{Carry, limits};
use aqueduct_plan::{Job, Sharded, Windowed};

use super::super::ModelInfo;
use super::Live;
use crate::submit::Submission;

impl Live {
    /// What it is now: another policy makes it another.
    pub(crate) fn job(&self) -> Job {
        let decodes = self.submission.max_tokens > 0;
        Job {
            grid: self.grid,
            choices: if decodes { self.submission.choices } else { 0 },
            sharded: self.carry().map(|carry| self.sharded(carry)),
            memory_tokens: self.memory_tokens(),
            state_tokens: self.state_tokens(),
            keeps_all: self.policy.keeps_all(),
            priority: self.submission.priority,
            arrived_at_ms: self.timing.arrived_at_ms,
            prefix: self.resumable(),
            resumes: self.submission.goes_on().is_some(),
            deadline_at_ms: self.timing.deadline_at_ms,
        }
    }

    /// Most tokens whose keys one memory set keeps.
    fn memory_tokens(&self) -> u64 {
        let all = self.grid.prompt_tokens().saturating_add(self.submission.max_tokens);
        let kept = self.policy.kept_of(all).into();
        match self.carry() {
            None if self.policy.keeps_all() => self.windowed().taken(kept, limits::PAGE_TOKENS),
            _ => kept,
        }
    }

    /// A state takes as much of a worker as so many tokens' keys, though it lies beside the pool.
    fn state_tokens(&self) -> u64 {
        let token_bytes = self.model.shape.kv_bytes(1, self.model.kv);
        self.model.shape.state_bytes.div_ceil(token_bytes.max(1))
    }

    fn windowed(&self) -> Windowed {
        let ModelInfo { shape, kv, .. } = &self.model;
        let (kept_tokens, bytes) = (shape.windowed.tokens.into(), shape.windowed_bytes(1, *kv));
        Windowed { kept_tokens, bytes, all_bytes: shape.kv_bytes(1, *kv) }
    }

    fn sharded(&self, carry: Carry) -> Sharded {
        let Submission { choices, max_tokens, .. } = self.submission;
        Sharded {
            output_tokens: u64::from(choices) * u64::from(max_tokens),
            pruned: !self.policy.keeps_all(),
            gathers: carry == Carry::Keys,
            windowed: self.windowed(),
        }
    }
}
