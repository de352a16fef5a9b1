//! What a memory set holds and what a row looks at, key by key, for people to see.

use aqueduct_core::limits;
use aqueduct_core::work::SeenHead;
use aqueduct_kernels::{Attended, BackendError, Keys, MemorySet};

/// What each KV head remembers, with its scores.
///
/// # Errors
/// Scores that cannot be read off their device.
pub fn remembered(memory: &MemorySet) -> Result<Vec<SeenHead>, BackendError> {
    let (keys, scores) = (&memory.keys, memory.score.host()?);
    let heads = (0..keys.kv_heads())
        .map(|head| {
            let positions = keys.head_positions(head);
            let scores = &scores[head * positions.len()..][..positions.len()];
            let of = positions.iter().copied().zip(scores.iter().copied());
            heaviest(of.collect(), limits::SEEN_KEYS_MAX)
        })
        .collect();
    Ok(heads)
}

/// What a step's row looked at, as shares of each KV head's attention.
pub(crate) fn looked(
    (past, own): (&Keys, &Keys),
    attended: &Attended,
) -> Result<Vec<SeenHead>, BackendError> {
    let (past_mass, own_mass) = (attended.past_mass.host()?, attended.own_mass.host()?);
    let heads = (0..past.kv_heads())
        .map(|head| {
            let of = |positions: &[u32], mass: &[f32]| -> Vec<(u32, f32)> {
                let mass = &mass[head * positions.len()..][..positions.len()];
                positions.iter().copied().zip(mass.iter().copied()).collect()
            };
            let mut keys = of(past.head_positions(head), past_mass);
            keys.extend(of(own.head_positions(head), own_mass));
            let all: f32 = keys.iter().map(|(_, mass)| mass).sum();
            keys.iter_mut().for_each(|(_, mass)| *mass /= all);
            keys.retain(|(_, share)| *share > 0.0);
            heaviest(keys, limits::LOOKED_KEYS_MAX)
        })
        .collect();
    Ok(heads)
}

/// The `most` heaviest keys, by position.
fn heaviest(mut keys: Vec<(u32, f32)>, most: usize) -> SeenHead {
    let left_out = keys.len().saturating_sub(most);
    if left_out > 0 {
        keys.sort_by(|left, right| right.1.total_cmp(&left.1).then(left.0.cmp(&right.0)));
        keys.truncate(most);
        keys.sort_unstable_by_key(|(position, _)| *position);
    }
    let (positions, weights) = keys.into_iter().unzip();
    SeenHead { positions, weights, left_out: left_out as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heaviest_keys_are_told_by_position() {
        let keys = vec![(1, 0.5), (4, 2.0), (6, 0.5), (9, 1.0)];
        let told = heaviest(keys.clone(), 3);
        assert_eq!((told.positions, told.left_out), (vec![1, 4, 9], 1));
        assert_eq!(told.weights, [0.5, 2.0, 1.0]);
        assert_eq!(heaviest(keys, 4).left_out, 0);
    }
}
