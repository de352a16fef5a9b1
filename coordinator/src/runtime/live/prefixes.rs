//! A prompt that goes on from what another left, and leaves something itself.

use std::sync::Arc;

use aqueduct_core::snapshot::Spacing;
use aqueduct_core::work::Outputs;
use aqueduct_core::{Carry, ChunkGrid, MemoryPolicy, SnapshotKey, WireDtype, WorkerId};

use super::super::ModelInfo;
use super::super::prefix::{self, Prefix, Whole};
use super::super::session;
use super::Live;
use crate::submit::Submission;

/// What one try of a prompt's memory depends on.
pub(super) struct Try<'a> {
    pub(super) submission: &'a Submission,
    pub(super) model: &'a ModelInfo,
    /// Clamped to the chunk size.
    pub(super) policy: MemoryPolicy,
    pub(super) grid: ChunkGrid,
}

impl Try<'_> {
    /// What travels between workers whose keys stay; `None` where memory sets are handed from
    /// chunk to chunk.
    fn carry(&self) -> Option<Carry> {
        let Submission { exchange, wire, .. } = *self.submission;
        let model = (&self.model.shape, self.model.kv);
        exchange.resolve(&self.policy, self.grid.chunk_tokens(), model, wire)
    }

    /// What keys and values of f32 are rounded to where memory sets are handed from chunk to
    /// chunk; those that are stored in two bytes travel as they are.
    fn hand_off_wire(&self) -> WireDtype {
        let wire = self.submission.wire;
        self.carry().map_or_else(|| self.model.rounding(wire), |_| WireDtype::F32)
    }

    /// Its prefixes, where they are kept: all of the prompt is looked at.
    pub(super) fn prefix(&self) -> Prefix {
        if let Some(session) = self.submission.goes_on() {
            return Prefix::new([session::key(session)].into());
        }
        // Where keys stay in shards these change with every chunk, or, on another wire than f32,
        // with who is asked; only under exact attention they are a chunk's own.
        let stay = self.carry().is_some();
        let are_own = self.policy.keeps_all() && self.submission.wire == WireDtype::F32;
        if !self.submission.cache_prompt || (stay && !are_own) {
            return Prefix::default();
        }
        let ModelInfo { fingerprint, .. } = &self.model;
        let (wire, prompt) = (self.hand_off_wire(), &self.submission.prompt);
        let chain = prefix::chain(fingerprint, &self.policy, wire, &self.grid, prompt);
        if stay { Prefix::of_shards(chain) } else { Prefix::new(chain) }
    }
}

impl Live {
    fn this_try(&self) -> Try<'_> {
        let Self { submission, model, policy, grid, .. } = self;
        Try { submission, model, policy: *policy, grid: *grid }
    }

    /// What travels between workers whose keys stay; `None` where memory sets are handed from
    /// chunk to chunk.
    pub(crate) fn carry(&self) -> Option<Carry> {
        self.this_try().carry()
    }

    /// What is handed from chunk to chunk is rounded to this.
    pub(in crate::runtime) fn hand_off_wire(&self) -> WireDtype {
        self.this_try().hand_off_wire()
    }

    /// The prefixes of this try, where they are kept.
    pub(super) fn prefix(&self) -> Prefix {
        self.this_try().prefix()
    }

    /// The prefixes from which this may go on: none where something is wanted of each of the
    /// prompt's tokens.
    pub(super) fn resumable(&self) -> Arc<[SnapshotKey]> {
        match self.submission.outputs {
            Outputs::None => self.prefill.prefix.chain(),
            Outputs::Logits | Outputs::Logprobs(_) => Vec::new().into(),
        }
    }

    /// A snapshot stands for a chunk and, where memory is handed on, all before it: what was
    /// reported of them when they were computed, if they were, counts no more.
    pub(crate) fn restored(&mut self, chunk_idx: u32) {
        if self.prefill.prefix.restore(chunk_idx) {
            self.prefill.reports.retain(|idx, _| *idx > chunk_idx);
        }
    }

    /// A chunk is to be computed, after all if a snapshot was to stand for it. Nobody decodes
    /// meanwhile.
    pub(crate) fn computed(&mut self, chunk_idx: u32) {
        self.home = None;
        self.redone += u32::from(self.prefilled.is_some());
        if let Some(lost) = self.prefill.prefix.compute(chunk_idx) {
            self.prefill.reports.remove(&lost);
        }
    }

    /// Prefixes of which all is known since this was asked last, with who has their memory.
    pub(in crate::runtime) fn whole_prefixes(&mut self) -> Vec<(WorkerId, Whole)> {
        let ModelInfo { shape, kv, .. } = &self.model;
        let spacing = Spacing::new(shape, *kv, self.policy.kept_of(self.grid.prompt_tokens()));
        self.prefill.prefix.go_on((&self.grid, spacing), &self.prefill.reports)
    }

    /// Tokens of the prompt that a snapshot stands for.
    pub(super) fn cached_tokens(&self) -> u32 {
        self.prefill.prefix.cached_tokens(&self.grid)
    }

    /// Chunks that are done, and their tokens.
    pub(super) fn done(&self) -> (u32, u32) {
        let skipped = self.prefill.prefix.skipped();
        let spans = self.prefill.reports.keys().filter_map(|idx| self.grid.chunk(*idx));
        let tokens = spans.map(|span| span.tokens).sum::<u32>();
        let chunks = self.prefill.reports.len() as u32;
        (skipped + chunks, skipped * self.grid.chunk_tokens() + tokens)
    }
}
