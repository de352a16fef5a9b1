//! A pool against a model of it: numbers that holders see.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const PAGES: usize = 6;
const HEAD_DIM: usize = 2;
const ELEMENTS: usize = PAGE_CELLS * HEAD_DIM;

fn pool() -> Pool {
    let bytes = page_bytes(HEAD_DIM, KvDtype::F32) * PAGES;
    Pool::new(HEAD_DIM, KvDtype::F32, bytes as u64 + 7).unwrap()
}

#[derive(Debug, Clone)]
enum Action {
    /// Takes so many pages.
    Take(usize),
    /// Somebody else holds the page of this holder too.
    Share(usize),
    /// The holder fills its page, if it may.
    Write(usize, i16),
    /// The holder lets go.
    Drop(usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let holder = 0..8_usize;
    let action = prop_oneof![
        3 => (0..=PAGES / 2 + 1).prop_map(Action::Take),
        2 => holder.clone().prop_map(Action::Share),
        4 => (holder.clone(), any::<i16>()).prop_map(|(holder, x)| Action::Write(holder, x)),
        4 => holder.prop_map(Action::Drop),
    ];
    vec(action, 1..80)
}

/// What a pool is, without memory: pages are numbers, and so is what they are filled with.
#[derive(Default)]
struct Model {
    /// Of each holder.
    held: Vec<u32>,
    filled: BTreeMap<u32, f32>,
    taken: u32,
    peak: usize,
}

impl Model {
    fn used(&self) -> usize {
        let mut pages = self.held.clone();
        pages.sort_unstable();
        pages.dedup();
        pages.len()
    }

    fn holders(&self, page: u32) -> usize {
        self.held.iter().filter(|held| **held == page).count()
    }

    fn take(&mut self, count: usize) {
        for _ in 0..count {
            self.held.push(self.taken);
            self.taken += 1;
        }
        self.peak = self.peak.max(self.used());
    }
}

/// Lets the action happen to both; `at` counts around the holders there are.
fn happen(action: &Action, pool: &Pool, pages: &mut Vec<Page>, model: &mut Model) {
    let at = |holder: usize| holder % model.held.len().max(1);
    match *action {
        Action::Take(count) => match pool.take(count) {
            Ok(mut taken) => {
                assert!(model.used() + count <= PAGES, "no more than there are");
                for page in &mut taken {
                    let elements = page.elements_mut::<f32>().expect("nobody else has it");
                    assert_eq!(elements.len(), ELEMENTS);
                }
                model.take(count);
                pages.extend(taken);
            }
            Err(error) => {
                assert!(model.used() + count > PAGES, "{count} were free");
                let bytes_of = |pages: usize| (pages * ELEMENTS * size_of::<f32>()) as u64;
                let want = BackendError::Exhausted {
                    wanted_bytes: bytes_of(count),
                    free_bytes: bytes_of(PAGES - model.used()),
                    bytes: bytes_of(PAGES),
                };
                assert_eq!(error, want);
            }
        },
        _ if pages.is_empty() => {}
        Action::Share(holder) => {
            let holder = at(holder);
            pages.push(pages[holder].clone());
            model.held.push(model.held[holder]);
        }
        Action::Write(holder, x) => {
            let holder = at(holder);
            let page = model.held[holder];
            let alone = model.holders(page) == 1;
            let elements = pages[holder].elements_mut::<f32>();
            assert_eq!(elements.is_some(), alone);
            if let Some(elements) = elements {
                elements.fill(x.into());
                model.filled.insert(page, x.into());
            }
        }
        Action::Drop(holder) => {
            let holder = at(holder);
            pages.swap_remove(holder);
            model.held.swap_remove(holder);
        }
    }
}

proptest! {
    #[test]
    fn a_pool_is_its_model(actions in actions()) {
        let pool = pool();
        let (mut pages, mut model) = (Vec::new(), Model::default());
        for action in &actions {
            happen(action, &pool, &mut pages, &mut model);
            prop_assert_eq!(pages.len(), model.held.len());
            for (page, held) in pages.iter().zip(&model.held) {
                prop_assert_eq!(page.is_shared(), model.holders(*held) > 1);
                if let Some(filled) = model.filled.get(held) {
                    prop_assert!(page.elements::<f32>().iter().all(|x| x == filled));
                }
            }
            let usage = pool.usage();
            prop_assert_eq!(usage.used_pages, model.used() as u64);
            prop_assert_eq!(usage.peak_pages, model.peak as u64);
            prop_assert_eq!(usage.bytes(), (PAGES * ELEMENTS * 4) as u64);
        }
        drop(pages);
        prop_assert_eq!(pool.usage().used_pages, 0);
        prop_assert_eq!(pool.take(PAGES).unwrap().len(), PAGES);
    }
}

#[test]
fn what_came_back_last_goes_first_and_untouched_pages_last() {
    let pool = pool();
    let names = |pages: &[Page]| pages.iter().map(|page| format!("{page:?}")).collect::<Vec<_>>();
    let mut pages = pool.take(3).unwrap();
    assert_eq!(names(&pages), ["page 0", "page 1", "page 2"]);
    drop(pages.remove(0));
    drop(pages.remove(1));
    assert_eq!(names(&pool.take(3).unwrap()), ["page 2", "page 0", "page 3"]);
    assert_eq!(names(&pages), ["page 1"]);
}

#[test]
fn pages_come_back_from_any_thread() {
    let pool = pool();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..200 {
                    let Ok(mut pages) = pool.take(2) else { continue };
                    let mark = (thread * 1000 + round) as f32;
                    let shared = pages[0].clone();
                    pages[1].elements_mut::<f32>().expect("alone").fill(mark);
                    assert!(pages[0].elements_mut::<f32>().is_none());
                    drop(shared);
                    pages[0].elements_mut::<f32>().expect("alone again").fill(-mark);
                    assert!(pages[1].elements::<f32>().iter().all(|x| *x == mark));
                    assert!(pages[0].elements::<f32>().iter().all(|x| *x == -mark));
                }
            });
        }
    });
    assert_eq!(pool.usage().used_pages, 0);
}

#[test]
fn a_pool_of_nothing_is_refused() {
    let check = |head_dim, bytes| {
        let error = Pool::new(head_dim, KvDtype::Bf16, bytes).map(drop).unwrap_err();
        assert!(matches!(error, BackendError::Exhausted { .. }), "{error}");
    };
    check(64, 0);
    check(64, page_bytes(64, KvDtype::Bf16) as u64 - 1);
    check(0, 1 << 20);
}
