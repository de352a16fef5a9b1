//! Memory sets in a pool against sets that lie side by side, and against a model of their pages.

use std::collections::BTreeSet;
use std::sync::Arc;

use aqueduct_kernels::compare::identical;
use aqueduct_kernels::pool::{PAGE_CELLS, page_bytes};
use aqueduct_kernels::select::select;
use aqueduct_kernels::{BackendError, Keys, KvDtype, KvHeads, MemorySet, Pool, Ranking, Selection};
use proptest::collection::vec;
use proptest::prelude::*;

const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 2;
/// Enough for a few sets of some pages.
const PAGES: usize = 40;

#[derive(Debug, Clone)]
enum Action {
    /// A sequence goes on by a block of tokens, the keys given masses from `salt`. The past may
    /// be held by somebody else meanwhile.
    Block { at: usize, tokens: usize, salt: u32, held: bool },
    /// Another sequence goes on from the same memory.
    Share(usize),
    /// A sequence ends.
    End(usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let at = 0..4_usize;
    let tokens = prop_oneof![3 => Just(1), 1 => 2..40_usize];
    let block = (at.clone(), tokens, any::<u32>(), prop::bool::weighted(0.3));
    let action = prop_oneof![
        8 => block.prop_map(|(at, tokens, salt, held)| Action::Block { at, tokens, salt, held }),
        2 => at.clone().prop_map(Action::Share),
        1 => at.prop_map(Action::End),
    ];
    vec(action, 1..60)
}

fn selections() -> impl Strategy<Value = Selection> {
    let ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };
    (0..3_u32, 0..30_u32, 0..30_usize, prop::bool::weighted(0.2)).prop_map(
        move |(sinks, local, heavy, keep_all)| Selection {
            keep_all,
            sinks,
            local,
            heavy,
            ranking,
            window: None,
        },
    )
}

/// One sequence: in the pool, side by side, and the names of its pages of keys, those of each KV
/// head together. Values have as many.
#[derive(Clone)]
struct Sequence {
    paged: Arc<MemorySet>,
    flat: MemorySet,
    pages: Vec<Vec<u64>>,
}

/// A block of tokens behind a sequence, and what is selected of both.
struct Block<'a> {
    own: Keys,
    masses: (Vec<f32>, Vec<f32>),
    selection: &'a Selection,
}

/// All sequences there are, and a name that no page has had.
struct World {
    pool: Pool,
    sequences: Vec<Sequence>,
    next: u64,
}

fn own(start: u32, tokens: usize, kv: KvDtype) -> Keys {
    let positions: Vec<u32> = (start..start + tokens as u32).collect();
    let told = |sign: f32| {
        let rows = |g: usize| positions.iter().flat_map(move |p| [sign * *p as f32, g as f32]);
        let data: Vec<f32> = (0..KV_HEADS).flat_map(rows).collect();
        KvHeads::from_f32(KV_HEADS, tokens, HEAD_DIM, &data, kv)
    };
    Keys::new(positions.repeat(KV_HEADS), told(1.0), told(-1.0))
}

fn masses(count: usize, salt: u32) -> Vec<f32> {
    let mass = |i: u32| (i.wrapping_mul(2654435761).wrapping_add(salt) >> 28) as f32;
    (0..count as u32).map(mass).collect()
}

/// Which position lies in each cell of KV head `g`.
fn contents(keys: &Keys, g: usize) -> Vec<u32> {
    let mut contents = vec![0; keys.len()];
    for (j, position) in keys.head_positions(g).iter().enumerate() {
        contents[keys.head_cells(g).map_or(j, |cells| cells[j] as usize)] = *position;
    }
    contents
}

/// Cells `page * PAGE_CELLS..` of `contents`.
fn in_page(contents: &[u32], page: usize) -> &[u32] {
    contents.chunks(PAGE_CELLS).nth(page).unwrap_or_default()
}

impl<'a> Block<'a> {
    fn behind(set: &MemorySet, (tokens, salt): (usize, u32), selection: &'a Selection) -> Self {
        let voting = if selection.keep_all { 0 } else { KV_HEADS };
        let masses = (masses(voting * set.keys.len(), salt), masses(voting * tokens, !salt));
        Self { own: own(set.end, tokens, set.keys.k.dtype()), masses, selection }
    }

    fn select(&self, past: Arc<MemorySet>) -> Result<MemorySet, BackendError> {
        let masses = (self.masses.0.as_slice(), self.masses.1.as_slice());
        Ok(select(past, &self.own, masses, self.selection)?.memory)
    }
}

impl World {
    fn new(kv: KvDtype) -> Self {
        let bytes = PAGES * page_bytes(HEAD_DIM, kv);
        let pool = Pool::new(HEAD_DIM, kv, bytes as u64).unwrap();
        let nothing = Sequence {
            paged: Arc::new(MemorySet::empty_in(&pool, KV_HEADS, HEAD_DIM, kv)),
            flat: MemorySet::empty(KV_HEADS, HEAD_DIM, kv),
            pages: vec![Vec::new(); KV_HEADS],
        };
        Self { pool, sequences: vec![nothing], next: 0 }
    }

    /// Pages of keys and values that somebody holds.
    fn used(&self) -> usize {
        let pages = self.sequences.iter().flat_map(|sequence| sequence.pages.iter().flatten());
        2 * pages.collect::<BTreeSet<_>>().len()
    }

    /// The pages that `before` has once its keys are `after`: another one for each that grew or
    /// was written while somebody else had it.
    fn pages_after(&mut self, before: &Sequence, held: bool, after: &Keys) -> Vec<Vec<u64>> {
        let mut pages = before.pages.clone();
        for (g, pages) in pages.iter_mut().enumerate() {
            let (was, is) = (contents(&before.flat.keys, g), contents(after, g));
            pages.resize(is.len().div_ceil(PAGE_CELLS), u64::MAX);
            for (idx, page) in pages.iter_mut().enumerate() {
                let (was, is) = (in_page(&was, idx), in_page(&is, idx));
                let is_written = (0..is.len()).any(|i| was.get(i) != Some(&is[i]));
                let has = |other: &Sequence| other.pages[g].contains(page);
                let is_shared = held || self.sequences.iter().any(has);
                if *page == u64::MAX || (is_written && is_shared) {
                    *page = self.next;
                    self.next += 1;
                }
            }
        }
        pages
    }

    /// The sequence `at` goes on by a block; or ends, where there are no pages for it.
    fn go_on(&mut self, at: usize, block: (usize, u32), held: bool, selection: &Selection) {
        let (used, first_new) = (self.used(), self.next);
        let before = self.sequences.swap_remove(at);
        let block = Block::behind(&before.flat, block, selection);
        let flat = block.select(Arc::new(before.flat.clone())).unwrap();
        let pages = self.pages_after(&before, held, &flat.keys);
        let wanted = 2 * (self.next - first_new) as usize;
        let Sequence { paged, flat: flat_before, pages: pages_before } = before;
        let holder = held.then(|| paged.clone());
        match block.select(paged) {
            Ok(paged) => {
                assert!(used + wanted <= PAGES, "{wanted} beside {used}");
                same(&paged, &flat);
                self.sequences.push(Sequence { paged: Arc::new(paged), flat, pages });
            }
            Err(error) => {
                assert!(used + wanted > PAGES, "{error}");
                let page = self.pool.usage().page_bytes;
                let exhausted = BackendError::Exhausted {
                    wanted_bytes: wanted as u64 * page,
                    free_bytes: (PAGES - used) as u64 * page,
                    bytes: PAGES as u64 * page,
                };
                assert_eq!(error, exhausted);
                // Who still holds what there was finds it as it was.
                if let Some(paged) = holder {
                    same(&paged, &flat_before);
                    let (flat, pages) = (flat_before, pages_before);
                    self.sequences.push(Sequence { paged, flat, pages });
                }
            }
        }
    }
}

/// The same keys in the same cells, with the same scores.
fn same(paged: &MemorySet, flat: &MemorySet) {
    assert_eq!(paged.keys, flat.keys);
    for g in 0..KV_HEADS {
        assert_eq!(contents(&paged.keys, g), contents(&flat.keys, g));
    }
    identical("score", &paged.score, &flat.score).unwrap();
    identical("votes", &paged.votes, &flat.votes).unwrap();
    assert_eq!(paged.end, flat.end);
}

proptest! {
    #[test]
    fn sets_in_a_pool_are_sets_and_their_pages_are_counted(
        actions in actions(),
        selection in selections(),
        bf16 in any::<bool>(),
    ) {
        let mut world = World::new(if bf16 { KvDtype::Bf16 } else { KvDtype::F32 });
        for action in actions {
            let at = |at: usize| at % world.sequences.len().max(1);
            match action {
                _ if world.sequences.is_empty() => break,
                Action::Block { at: of, tokens, salt, held } => {
                    let of = at(of);
                    world.go_on(of, (tokens, salt), held, &selection);
                }
                Action::Share(of) => world.sequences.push(world.sequences[at(of)].clone()),
                Action::End(of) => drop(world.sequences.swap_remove(at(of))),
            }
            for sequence in &world.sequences {
                same(&sequence.paged, &sequence.flat); // whatever became of the others
            }
            prop_assert_eq!(world.pool.usage().used_pages as usize, world.used());
        }
        world.sequences.clear();
        prop_assert_eq!(world.pool.usage().used_pages, 0);
    }
}
