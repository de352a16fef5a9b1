//! What is asked, once it was found to be right.

use aqueduct_core::{ChunkGrid, Exchange, Refusal, TokenId};

use super::super::prefix::Prefix;
use super::super::{ModelInfo, session};
use super::prefixes::Try;
use super::trace::RequestTrace;
use crate::config::Config;
use crate::submit::Submission;

/// A request that was found to be right.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) submission: Submission,
    pub(crate) grid: ChunkGrid,
    /// What it will be answered by.
    pub(crate) model: ModelInfo,
    pub(crate) trace: RequestTrace,
    /// Of its first try.
    pub(super) prefix: Prefix,
    /// The prompt's tokens, ascending and each once, where what is drawn depends on them.
    pub(super) words: Vec<TokenId>,
}

impl Asked {
    /// Checks it, and puts the token before the prompt that the session before it left.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub(crate) fn of(
        mut submission: Submission,
        model: ModelInfo,
        config: &Config,
    ) -> Result<Self, Refusal> {
        submission.validate(&model.shape, config)?;
        // What a session keeps is handed on.
        if submission.session.is_some() && submission.exchange == Exchange::Auto {
            submission.exchange = Exchange::Move;
        }
        session::check(&submission, &model)?;
        let grid = submission.grid()?;
        submission.prompt.splice(0..0, submission.pending());
        Ok(Self::read(submission, grid, model))
    }

    /// Whatever takes as long as the prompt is done here, where its caller alone waits for it.
    pub(super) fn read(submission: Submission, grid: ChunkGrid, model: ModelInfo) -> Self {
        let trace = RequestTrace::begin(&submission, grid);
        let (policy, _) = submission.policy.clamped(grid.chunk_tokens());
        let first_try = Try { submission: &submission, model: &model, policy, grid };
        let prefix = first_try.prefix();
        let words = || words(&submission.prompt, model.shape.vocab);
        let words = submission.sampling.repeats_differ().then(words).unwrap_or_default();
        Self { submission, grid, model, trace, prefix, words }
    }
}

/// The tokens of `prompt`, ascending and each once.
fn words(prompt: &[TokenId], vocab: u32) -> Vec<TokenId> {
    let mut is_there = vec![false; vocab as usize];
    for token in prompt {
        if let Some(is_there) = is_there.get_mut(*token as usize) {
            *is_there = true;
        }
    }
    let words = (0..).zip(is_there).filter(|(_, is_there)| *is_there);
    words.map(|(token, _)| token).collect()
}

#[cfg(test)]
mod tests {
    use aqueduct_core::{KvDtype, MemoryPolicy, SessionUse};

    use super::*;
    use crate::submit::tests::{SHAPE, good};

    /// Also where so little is remembered that queries would be fewer bytes.
    #[test]
    fn what_a_session_keeps_is_handed_on() {
        let model = ModelInfo { fingerprint: "same".into(), shape: SHAPE, kv: KvDtype::F32 };
        let asked = |exchange, session| {
            let (policy, chunk_tokens) = (MemoryPolicy::window(1, 1), 1);
            let asked = Submission { policy, chunk_tokens, exchange, session, ..good() };
            Asked::of(asked, model.clone(), &Config::default())
        };
        let auto = asked(Exchange::Auto, None).unwrap();
        assert_eq!(auto.submission.exchange, Exchange::Auto);
        let session = Some(SessionUse::New);
        let kept = asked(Exchange::Auto, session).unwrap();
        assert_eq!(kept.submission.exchange, Exchange::Move);
        assert!(asked(Exchange::Stay, session).is_err());
    }

    #[test]
    fn words_are_told_once_and_in_order() {
        assert_eq!(words(&[7, 0, 3, 7, 3], 8), [0, 3, 7]);
        assert!(words(&[8], 8).is_empty());
    }
}
