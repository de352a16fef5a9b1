//! The coordinator's options, parsed once by whoever starts it.

use std::time::Duration;

use aqueduct_core::{MemoryPolicy, Refusal, limits};

/// How a coordinator serves.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Tokens of one request in flight at once, and of all together for each worker that is up;
    /// at least one chunk is.
    pub batch_tokens: u32,
    /// C, where a caller names none.
    pub chunk_tokens: u32,
    /// The memory policy, where a caller names none.
    pub policy: MemoryPolicy,
    /// Whether prompts must fit the positions that the model was made for. Benches lift it.
    pub positions_limited: bool,
    /// Longest prompt that is taken, in tokens.
    pub prompt_tokens_max: u32,
    /// Requests that wait for their turn before new ones are refused.
    pub queued_requests: usize,
    /// Tokens of the prompts that wait, if more than one does, before new ones are refused.
    pub queued_tokens: u64,
    /// Requests that are prefilled or decoded at once.
    pub running_requests: usize,
    /// Failures that one request survives by having chunks done again.
    pub retries: u32,
    /// How long what a lost worker leaves waits for one to come, where the others cannot take it
    /// over, before it fails; not longer than until all that were lost are back.
    pub worker_grace: Duration,
    /// How long a chunk takes at least, and several times as long as others, before an idle worker
    /// is given it as well; `None`: none ever is.
    pub hedge_after: Option<Duration>,
    /// How long a request may take; a caller may ask for less.
    pub request_deadline: Duration,
    /// How long a request goes on without its caller, and is kept after its end, if its caller may
    /// come back.
    pub resume_grace: Duration,
    /// How long a chunk waits for the memory of the chunk before it.
    pub handoff_deadline: Duration,
    /// When a refused caller is told to try again at the earliest.
    pub retry_after: Duration,
    /// Most bytes of prompt logits that one request may ask for; they wait for a slow caller.
    pub logits_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            batch_tokens: limits::BATCH_TOKENS_DEFAULT,
            chunk_tokens: limits::CHUNK_TOKENS_DEFAULT,
            policy: MemoryPolicy::default(),
            positions_limited: true,
            prompt_tokens_max: limits::PROMPT_TOKENS_MAX,
            queued_requests: limits::QUEUE_REQUESTS_DEFAULT,
            queued_tokens: limits::QUEUE_TOKENS_DEFAULT,
            running_requests: limits::RUNNING_REQUESTS_DEFAULT,
            retries: 4,
            worker_grace: Duration::from_millis(limits::WORKER_GRACE_MS),
            hedge_after: Some(Duration::from_millis(limits::HEDGE_AFTER_MS)),
            request_deadline: Duration::from_millis(limits::REQUEST_DEADLINE_MS),
            resume_grace: Duration::from_millis(limits::RESUME_GRACE_MS),
            handoff_deadline: Duration::from_millis(limits::HANDOFF_DEADLINE_MS),
            retry_after: Duration::from_secs(1),
            logits_bytes: 8 << 30,
        }
    }
}

impl Config {
    /// What holds for a request that was let in before: what it may ask for was decided then, by
    /// whoever answered for it.
    pub(crate) fn past_admission(&self) -> Self {
        let prompt_tokens_max = limits::PROMPT_TOKENS_MAX;
        Self { prompt_tokens_max, positions_limited: false, ..self.clone() }
    }

    /// Checks every option against its bound.
    ///
    /// # Errors
    /// The first option that is out of bounds.
    pub fn validate(&self) -> Result<(), Refusal> {
        Refusal::unless_within("chunk_tokens", self.chunk_tokens, 1, limits::CHUNK_TOKENS_MAX)?;
        Refusal::unless_within("batch_tokens", self.batch_tokens, 1, limits::PROMPT_TOKENS_MAX)?;
        let most = limits::PROMPT_TOKENS_MAX;
        Refusal::unless_within("prompt_tokens_max", self.prompt_tokens_max, 1, most)?;
        Refusal::unless_within("queued_tokens", self.queued_tokens, 1, u64::MAX)?;
        let most = limits::COMMANDS_MAX / 8;
        Refusal::unless_within("running_requests", self.running_requests, 1, most)?;
        let grace_ms = u64::try_from(self.resume_grace.as_millis()).unwrap_or(u64::MAX);
        if self.request_deadline.is_zero() {
            return Err(Refusal::new("request_deadline", "0 s", "above 0"));
        }
        Refusal::unless_within("resume_grace_ms", grace_ms, 1, limits::RESUME_GRACE_MS_MAX)?;
        self.policy.validate()
    }

    pub(crate) fn plan_limits(&self) -> aqueduct_plan::Limits {
        aqueduct_plan::Limits {
            batch_tokens: self.batch_tokens,
            // Whatever is lost, no more is in flight than that, be it done again or not. So a
            // worker that reads its commands always has room for those of a step, which are half
            // as many unless configured otherwise (`Limits::commands_most`).
            batch_chunks: limits::COMMANDS_MAX / 8,
            queued_requests: self.queued_requests,
            queued_tokens: self.queued_tokens,
            running_requests: self.running_requests,
            page_tokens: limits::PAGE_TOKENS,
            retries: self.retries,
            grace_ms: millis(self.worker_grace),
            hedge_after_ms: self.hedge_after.map(millis),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_has_room_for_what_a_step_says() {
        let most = |running_requests| {
            let config = Config { running_requests, ..Config::default() };
            config.validate().unwrap();
            config.plan_limits().commands_most()
        };
        assert_eq!(most(limits::RUNNING_REQUESTS_DEFAULT), limits::COMMANDS_MAX / 2);
        assert!(most(limits::COMMANDS_MAX / 8) < limits::COMMANDS_MAX);
    }
}
