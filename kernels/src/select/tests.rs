//! One token at a time gives what any number of tokens would.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::compare::identical;
use crate::tensor::{KvDtype, KvHeads};
use crate::window::Window;

const KV_HEADS: usize = 2;

/// Own keys at `position`, told apart by their values.
fn own(position: u32, kv: KvDtype) -> Keys {
    let told = |sign: f32| {
        let data: Vec<f32> =
            (0..KV_HEADS).flat_map(|g| [sign * position as f32, g as f32]).collect();
        KvHeads::from_f32(KV_HEADS, 1, 2, &data, kv)
    };
    Keys::new(vec![position; KV_HEADS], told(1.0), told(-1.0))
}

/// Also such as hide all but a few keys.
fn windows() -> impl Strategy<Value = Option<Window>> {
    let last = (1..20_u32).prop_map(|count| Some(Window::Last(count)));
    let block = (1..20_u32).prop_map(|count| Some(Window::Block(count)));
    prop_oneof![4 => Just(None), 1 => last, 1 => block]
}

/// A policy, and the mass that every step gives to each key, repeated where keys outnumber it.
fn runs() -> impl Strategy<Value = (Selection, Vec<Vec<f32>>, bool)> {
    let ranking = (prop_oneof![Just(1.0_f32), Just(0.5)], 0..3_usize, any::<bool>());
    let budget = (0..4_u32, 0..6_u32, 0..6_usize, prop::bool::weighted(0.1));
    let selection = (ranking, budget, windows()).prop_map(
        |((decay, votes, age_normalised), (sinks, local, heavy, keep_all), window)| Selection {
            keep_all,
            sinks,
            local,
            heavy,
            ranking: Ranking { decay, window: votes, age_normalised },
            window,
        },
    );
    let mass = prop_oneof![
        20 => (-1..4_i8).prop_map(f32::from),
        2 => Just(-0.0_f32),
        1 => Just(f32::NAN),
        1 => Just(-f32::NAN),
    ];
    (selection, vec(vec(mass, 1..9), 1..60), any::<bool>())
}

proptest! {
    #[test]
    fn a_step_is_the_general_selection((selection, steps, bf16) in runs()) {
        let kv = if bf16 { KvDtype::Bf16 } else { KvDtype::F32 };
        let mut stepped = MemorySet::empty(KV_HEADS, 2, kv);
        let mut general = stepped.clone();
        for (position, given) in (0..).zip(&steps) {
            let own = own(position, kv);
            let voting = if selection.keep_all { 0 } else { KV_HEADS };
            let mass: Vec<f32> = given.iter().copied().cycle().take(voting * stepped.keys.len())
                .collect();
            let masses = (mass.as_slice(), &given.repeat(KV_HEADS)[..voting]);
            let selected = select(Arc::new(stepped), &own, masses, &selection).unwrap();
            let retained = append(Alone, &mut general, &own, masses, &selection).unwrap();
            for (seen, want) in selected.retained.iter().zip(retained) {
                let near = (seen - want).abs() <= 1e-6 * want.abs().max(1.0);
                prop_assert!(near || want.is_nan(), "retained {seen} where it is {want}");
            }
            stepped = selected.memory;
            prop_assert_eq!(&stepped.keys, &general.keys);
            identical("score", &stepped.score, &general.score).unwrap();
            identical("votes", &stepped.votes, &general.votes).unwrap();
            prop_assert_eq!(stepped.end, general.end);
            // Growing leaves some cells to spare, and a full set none.
            prop_assert!(stepped.keys.k.tokens <= stepped.keys.len().max(1) * 5 / 4 + 32);
            let budget = (selection.sinks + selection.local) as usize + selection.heavy;
            prop_assert!(selection.keep_all || stepped.keys.k.tokens <= budget.max(1));
        }
    }
}

#[test]
fn a_full_set_moves_one_row_and_keeps_its_bytes() {
    let ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };
    let selection =
        Selection { keep_all: false, sinks: 1, local: 2, heavy: 3, ranking, window: None };
    let mut set = MemorySet::empty(KV_HEADS, 2, KvDtype::Bf16);
    let mut sizes = Vec::new();
    for position in 0..40 {
        let before = set.keys.clone();
        let mass = vec![1.0; set.score.len()];
        let (own, arc) = (own(position, KvDtype::Bf16), Arc::new(set));
        set = select(arc, &own, (&mass, &[1.0; KV_HEADS]), &selection).unwrap().memory;
        sizes.push(set.bytes());
        if position > 8 {
            for g in 0..KV_HEADS {
                let cells = |keys: &Keys| keys.head_cells(g).unwrap_or_default().to_vec();
                let (old, new) = (cells(&before), cells(&set.keys));
                let stayed = new[..new.len() - 1].iter();
                let moved = stayed.zip(set.keys.head_positions(g)).filter(|&(cell, position)| {
                    let at = before.head_positions(g).iter().position(|old| old == position);
                    at.map(|at| old[at]) != Some(*cell)
                });
                assert_eq!(moved.count(), 0, "at {position}");
            }
        }
    }
    assert!(sizes[10..].iter().all(|size| *size == sizes[10]), "{sizes:?}");
}
