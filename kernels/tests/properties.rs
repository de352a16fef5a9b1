//! Merging and selection hold for whatever comes, not only for the cases somebody thought of.

use std::sync::Arc;

use aqueduct_kernels::compare::{Tolerance, close, identical};
use aqueduct_kernels::select::select;
use aqueduct_kernels::{
    AttentionState, Keys, KvDtype, KvHeads, MemorySet, Ranking, Selection, Window,
};
use proptest::collection::vec;
use proptest::prelude::*;

const HEADS: usize = 2;
const TOKENS: usize = 3;
const HEAD_DIM: usize = 4;

/// A partial state whose rows are empty one time in four.
fn state() -> impl Strategy<Value = AttentionState> {
    let element = prop_oneof![9 => -100.0..100.0_f32, 1 => Just(-0.0_f32)];
    let seen = (-1e4..1e4_f32, 1.0..300.0_f32, vec(element, HEAD_DIM));
    let row = prop_oneof![
        1 => Just((f32::NEG_INFINITY, 0.0, vec![0.0; HEAD_DIM])),
        3 => seen.clone(),
        // Maxima so near that neither side vanishes.
        3 => seen.prop_map(|(m, l, o)| (m / 1e3, l, o)),
    ];
    vec(row, HEADS * TOKENS).prop_map(|rows| AttentionState {
        heads: HEADS,
        tokens: TOKENS,
        head_dim: HEAD_DIM,
        m: rows.iter().map(|row| row.0).collect(),
        l: rows.iter().map(|row| row.1).collect(),
        o: rows.into_iter().flat_map(|row| row.2).collect(),
    })
}

fn same_bits(a: &AttentionState, b: &AttentionState) {
    identical("m", &a.m, &b.m).unwrap();
    identical("l", &a.l, &b.l).unwrap();
    identical("o", &a.o, &b.o).unwrap();
}

proptest! {
    #[test]
    fn merge_is_commutative_bit_for_bit(a in state(), b in state()) {
        same_bits(&a.clone().merge(&b), &b.merge(&a));
    }

    #[test]
    fn merge_with_empty_is_the_identity(a in state()) {
        let empty = AttentionState::empty(HEADS, TOKENS, HEAD_DIM);
        same_bits(&a.clone().merge(&empty), &a);
        same_bits(&empty.merge(&a), &a);
    }

    #[test]
    fn merge_is_associative(a in state(), b in state(), c in state()) {
        let left = a.clone().merge(&b).merge(&c);
        let right = a.merge(&b.merge(&c));
        identical("m", &left.m, &right.m).unwrap();
        close("l", &left.l, &right.l, Tolerance::new(1e-30, 2e-6)).unwrap();
        // Sums of either sign cancel: o is near in proportion to what was added.
        close("o", &left.o, &right.o, Tolerance::new(1e-3, 2e-6)).unwrap();
    }
}

/// A memory set, the own keys after it, masses of both, and what to keep.
#[derive(Debug, Clone)]
struct Choice {
    past: MemorySet,
    own: Keys,
    masses: (Vec<f32>, Vec<f32>),
    selection: Selection,
}

/// Keys at `positions`, `[kv_heads, keys]`, that tell their head and position.
fn keys(kv_heads: usize, positions: Vec<u32>, kv: KvDtype) -> Keys {
    let count = positions.len() / kv_heads;
    let told = |sign: f32| -> KvHeads {
        let rows = positions.iter().enumerate();
        let rows = rows.map(|(i, &position)| [sign * (i / count) as f32, position as f32]);
        let data = rows.flatten().collect::<Vec<_>>();
        KvHeads::from_f32(kv_heads, count, 2, &data, kv)
    };
    {
        let (k, v) = (told(1.0), told(-1.0));
        Keys::new(positions, k, v)
    }
}

/// Few values, so that ranks tie often; now and then one that is not a number.
fn tally(count: usize) -> impl Strategy<Value = Vec<f32>> {
    vec(prop_oneof![20 => (0..4_u8).prop_map(f32::from), 1 => Just(f32::NAN)], count)
}

/// Also such as hide all but a few keys.
fn windows() -> impl Strategy<Value = Option<Window>> {
    let last = (1..80_u32).prop_map(|count| Some(Window::Last(count)));
    let block = (1..80_u32).prop_map(|count| Some(Window::Block(count)));
    prop_oneof![4 => Just(None), 1 => last, 1 => block]
}

fn selections() -> impl Strategy<Value = Selection> {
    let ranking = (prop_oneof![Just(1.0_f32), Just(0.5)], 0..5_usize, any::<bool>());
    let budget = (0..12_u32, 0..40_u32, 0..20_usize, prop::bool::weighted(0.1));
    (ranking, budget, windows()).prop_map(
        |((decay, votes, age_normalised), (sinks, local, heavy, keep_all), window)| Selection {
            keep_all,
            sinks,
            local,
            heavy,
            ranking: Ranking { decay, window: votes, age_normalised },
            window,
        },
    )
}

fn choices() -> impl Strategy<Value = Choice> {
    let shape = (1..4_usize, 0..40_usize, 0..12_usize, any::<bool>());
    (shape, selections()).prop_flat_map(|((kv_heads, past, own, bf16), selection)| {
        let kv = if bf16 { KvDtype::Bf16 } else { KvDtype::F32 };
        let head = prop::sample::subsequence((0..60).collect::<Vec<u32>>(), past);
        let voting = if selection.keep_all { 0 } else { kv_heads };
        let tallies = (tally(kv_heads * past), tally(kv_heads * past));
        let masses = (tally(voting * past), tally(voting * own));
        (vec(head, kv_heads), tallies, masses).prop_map(move |(heads, (score, votes), masses)| {
            let past = keys(kv_heads, heads.concat(), kv);
            let next: Vec<u32> = (60..).take(own).collect();
            Choice {
                past: MemorySet {
                    keys: past,
                    score: score.into(),
                    votes: votes.into(),
                    state: Default::default(),
                    end: 60,
                },
                own: keys(kv_heads, next.repeat(kv_heads), kv),
                masses,
                selection,
            }
        })
    })
}

/// One key as the model of selection sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Key {
    position: u32,
    score: f32,
    votes: f32,
}

impl Choice {
    /// Past and own keys of KV head `g` with what the block adds to their tallies.
    fn counted(&self, g: usize) -> Vec<Key> {
        let (past, own) = (self.past.keys.len(), self.own.len());
        let ranking = &self.selection.ranking;
        let (fade, weights) = (ranking.fade(own), ranking.row_weights(own));
        let voters = |from: usize| weights[from..].iter().sum::<f32>();
        let counts = !self.selection.keep_all;
        let old = (g * past..(g + 1) * past).map(|i| {
            let (score, votes) = (self.past.score[i], self.past.votes[i]);
            let (score, votes) = match counts {
                true => (score * fade + self.masses.0[i], votes * fade + voters(0)),
                false => (score, votes),
            };
            Key { position: self.past.keys.positions[i], score, votes }
        });
        let new = (0..own).map(|j| {
            let (score, votes) = match counts {
                true => (self.masses.1[g * own + j], voters(j)),
                false => (0.0, 0.0),
            };
            Key { position: self.own.positions[g * own + j], score, votes }
        });
        old.chain(new).collect()
    }

    fn rank(&self, key: &Key) -> f32 {
        let rank = match self.selection.ranking.age_normalised {
            true => key.score / key.votes.max(1e-30),
            false => key.score,
        };
        // The next row stands behind the own keys, and what it does not see no other one does.
        let next = 60 + self.own.len() as u32;
        let seen = match self.selection.window {
            None => true,
            Some(Window::Last(count)) => key.position + count > next,
            Some(Window::Block(count)) => key.position / count == next / count,
        };
        if rank.is_nan() || !seen { f32::NEG_INFINITY } else { rank }
    }

    /// Every key in the order in which a head gives them up, and how many it must keep.
    fn by_worth(&self, g: usize) -> (Vec<Key>, usize) {
        let Selection { keep_all, sinks, local, heavy, .. } = self.selection;
        let end = 60 + self.own.len() as u32;
        let safe = |key: &Key| keep_all || key.position < sinks || key.position + local >= end;
        let mut keys = self.counted(g);
        let safe_keys = keys.iter().filter(|key| safe(key)).count();
        keys.sort_by(|a, b| {
            let rank = self.rank(b).total_cmp(&self.rank(a));
            safe(b).cmp(&safe(a)).then(rank).then(a.position.cmp(&b.position))
        });
        let count = keys.len().min(safe_keys + heavy);
        (keys, count)
    }

    /// What is kept, by sorting everything.
    fn model(&self) -> Vec<Vec<Key>> {
        let heads: Vec<_> = (0..self.own.kv_heads()).map(|g| self.by_worth(g)).collect();
        let most = heads.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let keep = |(mut keys, _): (Vec<Key>, usize)| {
            keys.truncate(most);
            keys.sort_by_key(|key| key.position);
            keys
        };
        heads.into_iter().map(keep).collect()
    }

    fn select(&self, past: Arc<MemorySet>) -> MemorySet {
        select(past, &self.own, (&self.masses.0, &self.masses.1), &self.selection).unwrap().memory
    }
}

/// Every array of `seen` says what the model says, head by head.
fn check(seen: &MemorySet, choice: &Choice) {
    let model = choice.model();
    let flat: Vec<Key> = model.concat();
    let of = |field: fn(&Key) -> f32| flat.iter().map(field).collect::<Vec<_>>();
    assert_eq!(seen.keys.positions, flat.iter().map(|key| key.position).collect::<Vec<_>>());
    close("score", &seen.score, &of(|key| key.score), Tolerance::new(0.0, 1e-6)).unwrap();
    close("votes", &seen.votes, &of(|key| key.votes), Tolerance::new(0.0, 1e-6)).unwrap();
    let kv = choice.own.k.dtype();
    assert_eq!(seen.keys, keys(model.len(), seen.keys.positions.to_vec(), kv));
    assert_eq!(seen.end as usize, 60 + choice.own.len());
}

proptest! {
    #[test]
    fn selection_is_a_full_sort(choice in choices()) {
        check(&choice.select(Arc::new(choice.past.clone())), &choice);
    }

    #[test]
    fn a_set_held_by_others_is_left_alone(choice in choices()) {
        let shared = Arc::new(choice.past.clone());
        check(&choice.select(shared.clone()), &choice);
        identical("score", &shared.score, &choice.past.score).unwrap();
        prop_assert_eq!(&shared.keys, &choice.past.keys);
    }
}
