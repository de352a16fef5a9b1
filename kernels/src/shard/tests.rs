//! Shards against one memory set.

use super::*;
use crate::Reference;
use crate::array::{Array, Lost};
use crate::backend::{AttentionOps, Scope, SelectionOps};
use crate::memory::Leaves;
use crate::tensor::{KvDtype, KvHeads};
use crate::window::Window;
use proptest::prelude::*;

const KV_HEADS: usize = 2;
const HEADS: usize = 4;
const HEAD_DIM: usize = 4;

/// Numbers that look random and are the same everywhere.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn block(start: u32, tokens: u32, seed: u64) -> (Heads, Keys) {
    let heads = |n: usize, salt: u64| numbers(n * tokens as usize * HEAD_DIM, seed ^ salt);
    let kv = |salt| {
        KvHeads::from_f32(KV_HEADS, tokens as usize, HEAD_DIM, &heads(KV_HEADS, salt), KvDtype::F32)
    };
    let positions = (0..KV_HEADS).flat_map(|_| start..start + tokens).collect::<Vec<_>>();
    let q = Heads {
        data: heads(HEADS, 1 << 40).into_iter().map(|x| x * 3.0).collect(),
        ..Heads::zeros(HEADS, tokens as usize, HEAD_DIM)
    };
    (q, Keys::new(positions, kv(2 << 40), kv(3 << 40)))
}

fn queries(q: &Heads, start: u32) -> Queries<'_> {
    let slopes = Some(&[0.5, 0.1, 0.0, 0.02][..]);
    Queries { q, start, scale: 0.5, window: None, softcap: None, slopes }
}

/// Positions and scores of each KV head, whatever the form.
fn entries(parts: &[&MemorySet]) -> Vec<Vec<(u32, f32)>> {
    let mut heads = vec![Vec::new(); KV_HEADS];
    let mut at = 0;
    for part in parts {
        for g in 0..part.keys.kv_heads() {
            let head = at % KV_HEADS;
            let n = part.keys.len();
            let score = part.score[g * n..(g + 1) * n].iter().copied();
            heads[head].extend(part.keys.head_positions(g).iter().copied().zip(score));
            at += 1;
        }
    }
    heads.iter_mut().for_each(|head| head.sort_by_key(|entry| entry.0));
    heads
}

fn close(a: &[Vec<(u32, f32)>], b: &[Vec<(u32, f32)>]) -> bool {
    let near = |(x, y): (&(u32, f32), &(u32, f32))| x.0 == y.0 && (x.1 - y.1).abs() < 1e-4;
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| a.len() == b.len() && a.iter().zip(b).all(near))
}

proptest! {
    /// Chunk after chunk, shards keep together what one memory set keeps.
    #[test]
    fn shards_keep_what_a_memory_set_keeps(
        tokens in prop::collection::vec(1u32..9, 1..8),
        (sinks, local, heavy) in (0u32..3, 0u32..5, 0usize..6),
        decay in prop_oneof![Just(1.0f32), Just(0.9)],
        (votes, age_normalised) in (0usize..4, any::<bool>()),
        (sight, in_blocks) in (0u32..12, any::<bool>()),
        seed: u64,
    ) {
        let ranking = Ranking { decay, window: votes, age_normalised };
        let window = if in_blocks { Window::Block(sight) } else { Window::Last(sight) };
        let window = Some(window).filter(|_| sight > 0);
        let selection = Selection { keep_all: false, sinks, local, heavy, ranking, window };
        let mut set = Arc::new(MemorySet::empty(KV_HEADS, HEAD_DIM, KvDtype::F32));
        let mut shards: Vec<Arc<Shard>> = Vec::new();
        let mut start = 0;
        for (idx, &count) in tokens.iter().enumerate() {
            let (q, keys) = block(start, count, seed ^ idx as u64);
            let queries = Queries { window, ..queries(&q, start) };
            let weights = ranking.row_weights(count as usize);
            let row_weights = Some(weights.as_slice());
            let (past, leaves, own, outputs) = (&set.keys, Leaves::ONE, &keys, q.tokens);
            let (sinks, rounded) = (None, false);
            let scope = Scope { past, leaves, own, row_weights, sinks, outputs, rounded };
            let whole = Reference.attend_all(queries, scope).unwrap();
            let masses = (&whole.past_mass, &whole.own_mass);
            let selected = Reference.select(set, &keys, masses, &selection).unwrap();
            set = Arc::new(selected.memory);

            let own = Reference.attend(queries, &keys).unwrap();
            let state = shards.iter().fold(own, |state, shard| {
                state.merge(&shard.attend(&Reference, queries).unwrap())
            });
            let lse = state.lse();
            let end = start + count;
            let passed = Passed { selection: &selection, end };
            let mut tallies: Vec<Tally> = shards
                .iter()
                .map(|shard| {
                    let masses = shard.weigh(&Reference, queries, &lse, &ranking).unwrap();
                    shard.count(&masses, count as usize, &ranking)
                })
                .collect();
            let own_mass = Reference.weigh(queries, &keys, &lse, &weights).unwrap();
            shards.push(Arc::new(Shard::new(keys, end)));
            tallies.push(shards.last().unwrap().count_own(&own_mass, &ranking));
            let candidates: Vec<_> = shards
                .iter()
                .zip(&tallies)
                .map(|(shard, tally)| shard.candidates(tally, passed))
                .collect();
            let cutoffs = cutoffs(&candidates, KV_HEADS, heavy);
            let each = shards.iter().zip(&tallies);
            let total: f64 = each.map(|(shard, tally)| shard.mass_in(tally, passed)).sum();
            shards = shards
                .into_iter()
                .zip(tallies)
                .map(|(shard, tally)| Arc::new(shard.settle(tally, &cutoffs, passed).unwrap()))
                .collect();
            let parts: Vec<&MemorySet> = shards.iter().flat_map(|shard| shard.parts()).collect();
            let kept: f64 = shards.iter().map(|shard| shard.mass(passed)).sum();
            for (seen, want) in [kept, total].iter().zip(selected.retained.iter()) {
                prop_assert!((seen - want).abs() < 1e-4, "{seen} of mass, {want} of a set");
            }
            let (got, want) = (entries(&parts), entries(&[&set]));
            prop_assert!(close(&got, &want), "{got:?}\n{want:?}");
            start = end;
        }
    }
}

#[test]
fn tokens_one_by_one_are_one_shard() {
    let (q, keys) = block(5, 3, 9);
    let one_by_one = |g: usize, j: usize, of: fn(&Keys) -> &KvHeads| -> Vec<f32> {
        of(&keys).head_f32(g)[j * HEAD_DIM..(j + 1) * HEAD_DIM].to_vec()
    };
    let token = |j: usize| {
        let rows = |of: fn(&Keys) -> &KvHeads| {
            let data: Vec<f32> = (0..KV_HEADS).flat_map(|g| one_by_one(g, j, of)).collect();
            KvHeads::from_f32(KV_HEADS, 1, HEAD_DIM, &data, KvDtype::F32)
        };
        let positions = vec![5 + j as u32; KV_HEADS];
        Shard::new(Keys::new(positions, rows(|keys| &keys.k), rows(|keys| &keys.v)), 6 + j as u32)
    };
    let mut shard = Arc::new(token(0));
    for j in 1..3 {
        shard = Arc::new(shard.append(&Reference, &token(j)).unwrap());
    }
    assert_eq!((shard.end(), shard.keys()), (8, 6));
    let whole = Shard::new(keys.clone(), 8);
    assert_eq!(
        shard.attend(&Reference, queries(&q, 8)).unwrap(),
        whole.attend(&Reference, queries(&q, 8)).unwrap()
    );
}

#[test]
fn heads_that_keep_different_keys_attend_as_one() {
    let (q, keys) = block(0, 4, 3);
    let shard = Arc::new(Shard::new(keys, 4));
    let tally =
        Tally { score: vec![vec![4., 3., 2., 1., 1., 2., 3., 4.]], votes: vec![vec![1.0; 8]] };
    let ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };
    let selection =
        Selection { keep_all: false, sinks: 0, local: 0, heavy: 9, ranking, window: None };
    let passed = Passed { selection: &selection, end: 4 };
    let last = |rank, position| Cutoff::Last(Candidate { rank, position });
    let kept = shard.clone().settle(tally.clone(), &[last(3.0, 1), last(2.0, 1)], passed).unwrap();
    assert_eq!(kept.parts().iter().map(|part| part.keys.len()).collect::<Vec<_>>(), [2, 3]);
    assert_eq!((kept.keys(), kept.kv_heads()), (5, 2));
    let state = kept.attend(&Reference, queries(&q, 4)).unwrap();
    for (g, part) in kept.parts().iter().enumerate() {
        let q = q.some(2 * g..2 * g + 2);
        let all = queries(&q, 4);
        let slopes = all.slopes.map(|slopes| &slopes[2 * g..2 * g + 2]);
        let alone = Reference.attend(Queries { slopes, ..all }, &part.keys).unwrap();
        assert_eq!(state.l[g * 8..(g + 1) * 8], alone.l[..]);
    }
    let none = shard.settle(tally, &[Cutoff::None, Cutoff::None], passed).unwrap();
    assert_eq!((none.keys(), none.parts().len()), (0, 1));
    assert_eq!(none.attend(&Reference, queries(&q, 4)).unwrap().l[..], [0.0; 16]);
}

/// What is added to a shard lies in its pool too, though heads keep different keys.
#[test]
fn tokens_are_added_within_the_pool() {
    let ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };
    let selection =
        Selection { keep_all: false, sinks: 0, local: 0, heavy: 9, ranking, window: None };
    let passed = Passed { selection: &selection, end: 4 };
    let last = |rank| Cutoff::Last(Candidate { rank, position: u32::MAX });
    for cuts in [[3.0, 2.0], [2.0, 2.0]] {
        let pool = Pool::new(HEAD_DIM, KvDtype::F32, 1 << 20).unwrap();
        let (q, keys) = block(0, 4, 3);
        let held = Shard::new(keys, 4).put_in(&pool).unwrap();
        let score = vec![vec![4., 3., 2., 1., 1., 2., 3., 4.]];
        let tally = Tally { score, votes: vec![vec![1.0; 8]] };
        let mut shard = Arc::new(held).settle(tally, &cuts.map(last), passed).unwrap();
        for start in 4..7 {
            let (_, own) = block(start, 1, start.into());
            let own = Shard::new(own, start + 1);
            let both = [Arc::new(shard.clone()), Arc::new(own.clone())];
            let plain = Shard::joined(&both).unwrap();
            shard = Arc::new(shard).append(&Reference, &own).unwrap();
            let lies = |part: &MemorySet| part.keys.pool().is_some();
            assert!(shard.parts().iter().all(lies), "{cuts:?} at {start}");
            let attend = |shard: &Shard| shard.attend(&Reference, queries(&q, 8)).unwrap();
            assert_eq!(attend(&shard), attend(&plain), "{cuts:?} at {start}");
        }
    }
}

/// Whoever has all shards of a leaf attends to them as to one, whatever each KV head kept.
#[test]
fn shards_that_are_joined_are_one() {
    let ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };
    let selection =
        Selection { keep_all: false, sinks: 0, local: 0, heavy: 9, ranking, window: None };
    let shard = |start: u32, cuts: [f32; 2]| {
        let (_, keys) = block(start, 4, start.into());
        let shard = Arc::new(Shard::new(keys, start + 4));
        let score = vec![vec![4., 3., 2., 1., 1., 2., 3., 4.]];
        let tally = Tally { score, votes: vec![vec![1.0; 8]] };
        let cutoffs = cuts.map(|rank| Cutoff::Last(Candidate { rank, position: u32::MAX }));
        let passed = Passed { selection: &selection, end: start + 4 };
        Arc::new(shard.settle(tally, &cutoffs, passed).unwrap())
    };
    for cuts in
        [[[1., 1.], [1., 1.]], [[3., 2.], [1., 4.]], [[2., 4.], [4., 2.]], [[9., 9.], [1., 2.]]]
    {
        let shards = [shard(0, cuts[0]), shard(8, cuts[1]), shard(16, [2., 3.])];
        let (q, _) = block(20, 3, 7);
        let queries = queries(&q, 20);
        let joined = Shard::joined(&shards).unwrap();
        assert_eq!(joined.keys(), shards.iter().map(|shard| shard.keys()).sum::<usize>());
        // One head after the other, from the entries themselves.
        let parts: Vec<&MemorySet> = shards.iter().flat_map(|shard| shard.parts()).collect();
        let whole: Vec<&MemorySet> = joined.parts().iter().collect();
        let positions = |parts: &[&MemorySet]| -> Vec<Vec<u32>> {
            entries(parts).iter().map(|head| head.iter().map(|entry| entry.0).collect()).collect()
        };
        assert_eq!(positions(&whole), positions(&parts));
        let lse = vec![0.5; 4 * 3];
        let masses = joined.weigh(&Reference, queries, &lse, &ranking).unwrap();
        for (shard, masses) in shards.iter().zip(apart(&shards, &masses)) {
            assert_eq!(masses, shard.weigh(&Reference, queries, &lse, &ranking).unwrap());
        }
        let merged = shards.iter().map(|shard| shard.attend(&Reference, queries).unwrap());
        let merged = merged.reduce(|all, state| all.merge(&state)).unwrap();
        let state = joined.attend(&Reference, queries).unwrap();
        let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
        assert!(state.lse().iter().zip(&merged.lse()).all(near));
    }
}

#[test]
fn what_a_device_lost_is_an_error_to_whoever_counts_on_it() {
    let (_, keys) = block(0, 3, 1);
    let positions = Array::<u32>::on_device(Arc::new(Lost(keys.positions.len())));
    let shard = Arc::new(Shard::new(Keys::new(positions, keys.k, keys.v), 3));
    let told = |error: Option<BackendError>| {
        assert!(matches!(error, Some(BackendError::NotFinite { op: "test", .. })), "{error:?}");
    };
    let ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };
    let selection =
        Selection { keep_all: false, sinks: 0, local: 0, heavy: 1, ranking, window: None };
    let tally = shard.count_own(&[1.0; 3 * KV_HEADS], &ranking);
    told(shard.fetch_lists().err());
    told(shard.fetch().err());
    told(Shard::joined(&[shard.clone(), shard.clone()]).err());
    told(shard.clone().append(&Reference, &shard).err());
    let passed = Passed { selection: &selection, end: 3 };
    told(shard.settle(tally, &[Cutoff::None; KV_HEADS], passed).err());
}
