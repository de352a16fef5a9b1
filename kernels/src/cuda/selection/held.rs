//! How many keys a selection keeps, worked out without reading a position.
//!
//! What always stays of past and own keys are the positions below `sinks` and from `recent` on;
//! of the candidates between, `heavy` stay. So a head gives up `max(candidates - heavy, 0)`, all
//! heads as many as the one that gives up least, and a set's size follows from how many of its
//! keys stand in `sinks..recent`.
//!
//! Own keys stand at consecutive positions, so theirs are counted by subtraction. Of past keys
//! two things are known, for every head alike ([`Held`]): all positions below `first` are held,
//! and all from `last` to the set's end. If `sinks <= first`, exactly `sinks` keys stand below
//! `sinks`; if `recent >= last`, exactly `end - recent` stand from `recent` on; the others stand
//! between. Both hold when a set was made by a selection with the same sinks and local keys:
//! - The empty set holds everything: `first = 0 = end`, `last = 0`.
//! - Own keys are joined without a gap: `last` goes on to hold, and `first` becomes the new end
//!   where it was the old one (nothing was ever given up).
//! - A selection that gives up keys takes none below its `sinks` or from its `recent` on, so it
//!   leaves `min(first, sinks)` and `max(last, recent)`. `first` is `sinks` from then on, since
//!   whatever is given up stands behind the sinks; and the next `recent` is no earlier than this
//!   one while `local` is the same.
//!
//! Of a set that came from elsewhere as much is known once its positions were read. Where less is
//! known than a new policy asks for (more sinks, more local keys), positions are read and counted
//! until it is.

use std::ops::Range;

use crate::backend::BackendError;
use crate::memory::{Keys, Selection};

/// What is known of the positions of every KV head of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// All below are held.
    first: u32,
    /// All from here to the set's end are held.
    last: u32,
}

/// A set and the own keys behind it, as far as counting goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    /// Of the set: position of the first own key.
    pub(crate) end: u32,
    /// Keys of each head.
    pub(crate) past: usize,
    /// Own keys of each head.
    pub(crate) own: usize,
}

impl Turn {
    /// The set's end after the turn.
    pub(crate) fn next_end(&self) -> u32 {
        self.end + self.own as u32
    }

    /// Positions that are neither sinks nor recent; what is outside of it always stays.
    pub(crate) fn candidates(&self, selection: &Selection) -> Range<u32> {
        let recent = self.next_end().saturating_sub(selection.local);
        selection.sinks..recent.max(selection.sinks)
    }

    /// Own keys within `span`.
    pub(crate) fn own_within(&self, span: &Range<u32>) -> usize {
        let (first, end) = (span.start.max(self.end), span.end.min(self.next_end()));
        end.saturating_sub(first) as usize
    }
}

impl Held {
    /// What can be said of any set that ends at `end`.
    pub(crate) fn nothing(end: u32) -> Self {
        Self { first: 0, last: end }
    }

    /// What is so of `keys`, of a set that ends at `end`; waits for positions that are on a
    /// device.
    pub(crate) fn of(keys: &Keys, end: u32) -> Result<Self, BackendError> {
        keys.positions.host()?;
        let mut whole = Self { first: end, last: 0 };
        for g in 0..keys.kv_heads() {
            let positions = keys.head_positions(g);
            let from_front = positions.iter().zip(0..).take_while(|&(&it, at)| it == at);
            let from_back = positions.iter().rev().zip((0..end).rev());
            let from_back = from_back.take_while(|&(&it, at)| it == at);
            whole.first = whole.first.min(from_front.count() as u32);
            whole.last = whole.last.max(end - from_back.count() as u32);
        }
        Ok(whole)
    }

    /// Past keys of each head within `span`, where that follows.
    pub(crate) fn past_within(&self, turn: &Turn, span: &Range<u32>) -> Option<usize> {
        if span.is_empty() || turn.past == 0 {
            return Some(0);
        }
        let everything = self.first >= turn.end;
        let below = (span.start <= self.first || everything).then_some(span.start.min(turn.end))?;
        let from = (span.end >= self.last).then_some(turn.end.saturating_sub(span.end))?;
        turn.past.checked_sub(below as usize + from as usize)
    }

    /// What is known after `turn` of a set of which this was known, when `gave_up` says whether
    /// any candidate went.
    pub(crate) fn after(self, turn: &Turn, candidates: &Range<u32>, gave_up: bool) -> Self {
        let first = if self.first >= turn.end { turn.next_end() } else { self.first };
        match gave_up {
            false => Self { first, last: self.last },
            true => {
                Self { first: first.min(candidates.start), last: self.last.max(candidates.end) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::memory::{MemorySet, Ranking};
    use crate::tensor::{KvDtype, KvHeads};

    const KV_HEADS: usize = 3;

    fn policies() -> impl Strategy<Value = Selection> {
        (0..6_u32, 0..9_u32, 0..9_usize, prop::bool::weighted(0.1)).prop_map(
            |(sinks, local, heavy, keep_all)| {
                let ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };
                Selection { keep_all, sinks, local, heavy, ranking, window: None }
            },
        )
    }

    /// `past` after `tokens` more, by the host's selection, with any masses.
    fn advance(past: MemorySet, tokens: usize, seed: u32, selection: &Selection) -> MemorySet {
        let own: Vec<u32> = (past.end..).take(tokens).collect();
        let none = KvHeads::from_f32(KV_HEADS, tokens, 0, &[], KvDtype::F32);
        let own = Keys::new(own.repeat(KV_HEADS), none.clone(), none);
        let voting = if selection.keep_all { 0 } else { KV_HEADS };
        let mass = |count: usize| -> Vec<f32> {
            let mixed = (0..voting * count).map(|i| (i as u32 + seed).wrapping_mul(2_654_435_761));
            mixed.map(|x| (x >> 24) as f32).collect()
        };
        let masses = (&mass(past.keys.len())[..], &mass(tokens)[..]);
        crate::select::select(Arc::new(past), &own, masses, selection).unwrap().memory
    }

    fn within(set: &MemorySet, span: &Range<u32>) -> Vec<usize> {
        let count = |g| set.keys.head_positions(g).iter().filter(|it| span.contains(it)).count();
        (0..KV_HEADS).map(count).collect()
    }

    /// Blocks of tokens under their policies: what is said of a set is true of it, and enough is
    /// said where `always`.
    fn check(blocks: Vec<(usize, Selection)>, always: bool) {
        let mut set = MemorySet::empty(KV_HEADS, 0, KvDtype::F32);
        let mut held = Held::nothing(0);
        for (seed, (tokens, selection)) in (0..).zip(blocks) {
            let turn = Turn { end: set.end, past: set.keys.len(), own: tokens };
            let span = turn.candidates(&selection);
            match held.past_within(&turn, &span) {
                Some(known) => assert_eq!(within(&set, &span), [known; KV_HEADS]),
                None => assert!(!always, "{held:?} at {turn:?}"),
            }
            let own: Vec<u32> = (set.end..).take(tokens).collect();
            let among = own.iter().filter(|it| span.contains(it)).count();
            assert_eq!(turn.own_within(&span), among);
            set = advance(set, tokens, seed, &selection);
            held = held.after(&turn, &span, set.keys.len() < turn.past + tokens);
            let whole = |span: Range<u32>| within(&set, &span) == [span.len(); KV_HEADS];
            assert!(whole(0..held.first) && whole(held.last..set.end), "{held:?}");
            let read = Held::of(&set.keys, set.end).unwrap();
            assert!(whole(0..read.first) && whole(read.last..set.end), "{read:?}");
            assert!(read.first >= held.first && read.last <= held.last, "{read:?}, {held:?}");
        }
    }

    fn tokens() -> impl Strategy<Value = usize> {
        prop_oneof![Just(1_usize), 0..20_usize]
    }

    proptest! {
        #[test]
        fn one_policy_needs_no_count(selection in policies(), blocks in vec(tokens(), 1..20)) {
            check(blocks.into_iter().map(|tokens| (tokens, selection)).collect(), true);
        }

        #[test]
        fn nothing_false_is_said_when_policies_change(
            blocks in vec((tokens(), policies()), 1..20),
        ) {
            check(blocks, false);
        }
    }
}
