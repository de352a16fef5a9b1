//! What a memory set keeps: a total order over ranks and positions.

use std::sync::Arc;

use crate::array::Array;
use crate::backend::{Backend, Choice};
use crate::compare::identical;
use crate::memory::{Keys, MemorySet, Ranking, Selection};
use crate::pool::Pool;
use crate::shard::Shard;
use crate::tensor::KvDtype;
use crate::window::Window;

use super::chains::{CUMULATIVE, H2O};
use super::oracle::{self, Entries};
use super::scene::{Random, Shape};

const PAST: usize = 40;
const OWN: usize = 6;

/// A memory set and what follows it; scores and masses are small integers, so ties abound and
/// f32 sums are exact.
struct Tied {
    past: MemorySet,
    own: Keys,
    past_mass: Array<f32>,
    own_mass: Array<f32>,
}

impl Tied {
    fn new(kv: KvDtype) -> Self {
        Self::sized(kv, PAST, OWN)
    }

    fn sized(kv: KvDtype, past: usize, own: usize) -> Self {
        let shape = Shape { kv, ..Shape::default() };
        let mut random = Random::new(11);
        let mut small = |count: usize| -> Array<f32> {
            (0..count * shape.kv_heads).map(|_| (random.next() % 3) as f32).collect()
        };
        let end = 2 * past as u32;
        let votes = small(past).iter().map(|votes| votes + 1.0).collect();
        let (past_mass, own_mass) = (small(past), small(own));
        let past = MemorySet {
            keys: shape.past(past),
            score: small(past),
            votes,
            state: Array::default(),
            end,
        };
        Self { past, own: shape.block(end, own).keys, past_mass, own_mass }
    }

    fn select(&self, backend: &dyn Backend, selection: &Selection) -> MemorySet {
        let past = Arc::new(self.past.clone());
        let masses = (&self.past_mass, &self.own_mass);
        backend.select(past, &self.own, masses, selection).expect("fits").memory
    }

    /// By full sorts; heads need not keep equally many.
    fn want(&self, selection: &Selection) -> Entries {
        let mut keys =
            oracle::joined(&oracle::entries(&self.past.keys), &oracle::entries(&self.own));
        for (g, head) in keys.iter_mut().enumerate() {
            for (j, entry) in head.iter_mut().enumerate() {
                let past = g * PAST + j;
                let own = j.wrapping_sub(PAST);
                (entry.score, entry.votes) = if j < PAST {
                    let score = self.past.score[past] + self.past_mass[past];
                    (score.into(), f64::from(self.past.votes[past]) + OWN as f64)
                } else {
                    (self.own_mass[g * OWN + own].into(), (OWN - own) as f64)
                };
            }
            *head = oracle::kept(head, self.past.end + OWN as u32, selection);
        }
        keys
    }
}

/// Equal ranks go to the smaller position; kept keys are ascending, with their own K and V.
pub fn total_order_with_ties(backend: &dyn Backend) {
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        let tied = Tied::new(kv);
        for (sinks, local, heavy) in
            [(0, 0, 1), (0, 0, 7), (4, 10, 9), (2, 4, 0), (0, 0, 0), (6, 80, 3), (8, 8, 500)]
        {
            for age_normalised in [false, true] {
                let ranking = Ranking { age_normalised, ..CUMULATIVE };
                let selection =
                    Selection { keep_all: false, sinks, local, heavy, ranking, window: None };
                check_kept(&tied.select(backend, &selection), &tied.want(&selection), &selection);
            }
        }
    }
}

fn check_kept(seen: &MemorySet, want: &Entries, selection: &Selection) {
    let count = seen.keys.len();
    assert_eq!(seen.end as usize, 2 * PAST + OWN);
    for (g, want) in want.iter().enumerate() {
        let positions: Vec<u32> = want.iter().map(|entry| entry.position).collect();
        assert_eq!(seen.keys.head_positions(g), positions, "KV head {g}, {selection:?}");
        let flat = |of: fn(&oracle::Entry) -> &[f32]| -> Vec<f32> {
            want.iter().flat_map(|entry| of(entry).to_vec()).collect()
        };
        identical("k", &seen.keys.k_rows(g).to_f32(), &flat(|entry| &entry.k)).unwrap();
        identical("v", &seen.keys.v_rows(g).to_f32(), &flat(|entry| &entry.v)).unwrap();
        let head = g * count..(g + 1) * count;
        let score: Vec<f32> = want.iter().map(|entry| entry.score as f32).collect();
        let votes: Vec<f32> = want.iter().map(|entry| entry.votes as f32).collect();
        identical("score", &seen.score[head.clone()], &score).unwrap();
        identical("votes", &seen.votes[head], &votes).unwrap();
    }
}

/// A rank that is not a number breaks no order and displaces no number.
pub fn nan_ranks_last(backend: &dyn Backend) {
    let mut tied = Tied::new(KvDtype::F32);
    for (j, mass) in tied.past_mass.iter_mut().enumerate().filter(|(j, _)| j % 2 == 0) {
        *mass = if j % 4 == 0 { f32::NAN } else { -f32::NAN };
    }
    let selection = Selection { sinks: 0, local: 0, heavy: 20, ..H2O };
    let kept = tied.select(backend, &selection);
    assert_eq!(kept.keys.len(), 20);
    assert!(kept.score.iter().all(|score| score.is_finite()), "{:?}", kept.score);
}

/// Dense: past then own, nothing lost, masses neither needed nor read.
pub fn keep_all_keeps_everything(backend: &dyn Backend) {
    let nothing = &Array::default();
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        let tied = Tied::new(kv);
        let dense = Selection { keep_all: true, ..H2O };
        let past = Arc::new(tied.past.clone());
        let kept = backend.select(past, &tied.own, (nothing, nothing), &dense);
        let kept = kept.expect("fits").memory;
        assert_eq!(kept.keys.len(), PAST + OWN);
        assert_eq!(kept.score.len(), kept.keys.positions.len());
        assert_eq!(kept.votes.len(), kept.keys.positions.len());
        for g in 0..tied.own.kv_heads() {
            let (past, own) = (&tied.past.keys, &tied.own);
            let positions = [past.head_positions(g), own.head_positions(g)].concat();
            assert_eq!(kept.keys.head_positions(g), positions);
            let k = [past.k.head_f32(g), own.k.head_f32(g)].concat();
            let v = [past.v.head_f32(g), own.v.head_f32(g)].concat();
            identical("k", &kept.keys.k_rows(g).to_f32(), &k).unwrap();
            identical("v", &kept.keys.v_rows(g).to_f32(), &v).unwrap();
        }
    }
}

/// Of a block's own keys those that rows behind it see, as they were; all the same shard where
/// that is all.
pub fn a_shard_keeps_what_rows_behind_it_see(backend: &dyn Backend) {
    let (end, own) = (52, 20);
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        let shape = Shape { kv, ..Shape::default() };
        let keys = shape.block(end - own as u32, own).keys;
        let shard = Arc::new(Shard::new(keys.clone(), end));
        let check = |window: Option<Window>, kept: usize| {
            let seen = shard.seen_behind(backend, window).expect("fits");
            seen.fetch().expect("fits");
            assert_eq!((seen.end(), seen.keys()), (end, kept * keys.kv_heads()), "{window:?}");
            assert_eq!(Arc::ptr_eq(&seen, &shard), kept == own, "{window:?}");
            let seen = seen.of_all_heads().expect("each head keeps as many");
            for g in 0..keys.kv_heads() {
                let (first, width) = (own - kept, keys.k.head_dim);
                assert_eq!(seen.head_positions(g), &keys.head_positions(g)[first..]);
                let last = |rows: Vec<f32>| rows[first * width..].to_vec();
                identical("k", &seen.k_rows(g).to_f32(), &last(keys.k.head_f32(g))).unwrap();
                identical("v", &seen.v_rows(g).to_f32(), &last(keys.v.head_f32(g))).unwrap();
            }
        };
        check(None, own);
        check(Some(Window::Last(1000)), own);
        check(Some(Window::Last(21)), own);
        check(Some(Window::Last(20)), 19);
        check(Some(Window::Last(2)), 1);
        check(Some(Window::Last(1)), 0);
        check(Some(Window::Block(40)), 12);
        check(Some(Window::Block(26)), 0);
    }
}

/// Working in place is for sets that nobody else holds, and changes no result.
pub fn a_shared_past_is_not_changed(backend: &dyn Backend) {
    let tied = Tied::new(KvDtype::Bf16);
    let alone = tied.select(backend, &H2O);
    let shared = Arc::new(tied.past.clone());
    let masses = (&tied.past_mass, &tied.own_mass);
    let beside = backend.select(shared.clone(), &tied.own, masses, &H2O).expect("fits");
    assert_eq!(beside.memory, alone);
    assert_eq!(*shared, tied.past);
}

/// Heads that differ in how many keys are always kept still keep equally many: more by rank,
/// never fewer than asked for.
pub fn heads_keep_equally_many(backend: &dyn Backend) {
    let tied = Tied::new(KvDtype::F32);
    for local in 0..30 {
        for heavy in [0, 3, 500] {
            let selection = Selection { sinks: 3, local, heavy, ..H2O };
            let kept = tied.select(backend, &selection);
            let want = tied.want(&selection);
            let most = want.iter().map(Vec::len).max().unwrap_or(0);
            assert_eq!(kept.keys.len(), most, "{selection:?}");
            for (g, want) in want.iter().enumerate() {
                let positions = kept.keys.head_positions(g);
                assert_eq!(positions.len(), most);
                assert!(want.iter().all(|entry| positions.contains(&entry.position)));
            }
        }
    }
}

/// Sets that are selected from at once, some of them the same one: what each gives alone.
pub fn sets_are_selected_as_they_are_alone(backend: &dyn Backend) {
    for kv in [KvDtype::F32, KvDtype::Bf16] {
        let sizes = [(0, 1), (PAST, 1), (700, 1), (700, 1), (PAST, OWN), (33, 1), (1, 1), (90, 40)];
        let pool = Pool::new(Shape::default().head_dim, kv, 1 << 21).expect("some pages");
        let tied = sizes.map(|(past, own)| Tied::sized(kv, past, own));
        let dense = Selection { keep_all: true, ..H2O };
        let full = |past: usize| Selection { sinks: 2, local: 8, heavy: past.min(20), ..H2O };
        let nothing = &Array::default();
        for (in_pages, keeps_all) in [(false, false), (true, false), (false, true), (true, true)] {
            let past = |tied: &Tied| {
                let mut past = tied.past.clone();
                if in_pages {
                    past.keys = past.keys.put_in(&pool).expect("enough pages");
                }
                Arc::new(past)
            };
            let mut pasts: Vec<_> = tied.iter().map(past).collect();
            pasts[3] = pasts[2].clone();
            let rules: Vec<_> = sizes
                .iter()
                .map(|&(past, _)| if keeps_all { dense } else { [full(past), H2O][past % 2] })
                .collect();
            let choice = |(i, past): (usize, &Arc<MemorySet>)| {
                let Tied { own, past_mass, own_mass, .. } = &tied[i];
                let masses = if keeps_all { (nothing, nothing) } else { (past_mass, own_mass) };
                Choice { past: past.clone(), own, masses, selection: &rules[i] }
            };
            for count in [0, 1, sizes.len()] {
                let choices = || pasts[..count].iter().enumerate().map(choice);
                let want: Vec<_> = choices()
                    .map(|Choice { past, own, masses, selection }| {
                        backend.select(past, own, masses, selection).expect("fits")
                    })
                    .collect();
                let seen = backend.select_each(choices().collect()).into_iter();
                let seen: Vec<_> = seen.map(|seen| seen.expect("fits")).collect();
                assert_eq!(seen, want, "{count} sets in pages: {in_pages}");
            }
            let mut refused: Vec<_> = pasts.iter().enumerate().map(choice).collect();
            refused[1].own = &tied[2].own;
            let masses = refused[1].masses;
            refused[1].masses = (masses.0, if keeps_all { nothing } else { &tied[2].own_mass });
            for (i, seen) in backend.select_each(refused).into_iter().enumerate() {
                assert_eq!(seen.is_err(), i == 1, "set {i}: {seen:?}");
            }
        }
    }
}
