//! Remembered keys and values with fewer bits than they are stored in.

use half::{bf16, f16};

use super::{Keys, Move};
use crate::backend::BackendError;
use crate::cells::HeadRows;
use crate::tensor::{KvDtype, KvHeads};

/// What f32 keys and values may be rounded to, to nearest even; they stay f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// 8 bits of mantissa.
    Bf16,
    /// 11 bits of mantissa, at most 65504.
    F16,
}

impl Rounding {
    /// `x` as it is after the rounding; infinite where it cannot be held.
    pub fn of(self, x: f32) -> f32 {
        match self {
            Self::Bf16 => bf16::from_f32(x).to_f32(),
            Self::F16 => f16::from_f32(x).to_f32(),
        }
    }

    /// All of `heads`, which are f32 and lie side by side.
    fn of_heads(self, heads: &KvHeads, what: &'static str) -> Result<KvHeads, BackendError> {
        let KvHeads { kv_heads, tokens, head_dim, .. } = *heads;
        let all: Vec<f32> =
            (0..kv_heads).flat_map(|g| heads.head_f32(g)).map(|x| self.of(x)).collect();
        match all.iter().all(|x| x.is_finite()) {
            true => Ok(KvHeads::from_f32(kv_heads, tokens, head_dim, &all, KvDtype::F32)),
            false => Err(BackendError::OutOfRange { what, most: self.most() }),
        }
    }

    const fn most(self) -> f32 {
        match self {
            Self::Bf16 => f32::from_bits(0x7f7f_0000),
            Self::F16 => 65504.0,
        }
    }
}

impl Keys {
    /// Rounds keys and values that are stored in f32; others stay as they are. What is round
    /// already is not written, and of shared pages only those that change are copied.
    ///
    /// # Errors
    /// [`BackendError::OutOfRange`] where one would be infinite, [`BackendError::Exhausted`]
    /// where there are no pages for copies; nothing was changed then.
    pub fn round(&mut self, to: Rounding) -> Result<(), BackendError> {
        if self.k.dtype() != KvDtype::F32 {
            return Ok(());
        }
        let (k, v) = {
            let laid = self.in_order();
            (to.of_heads(&laid.k, "a key")?, to.of_heads(&laid.v, "a value")?)
        };
        let round = Self::new(self.positions.clone(), k, v);
        let changed = |&(g, j): &(usize, usize)| {
            differs(self.k_rows(g), round.k_rows(g), j)
                || differs(self.v_rows(g), round.v_rows(g), j)
        };
        let cell = |g: usize, j: usize| self.head_cells(g).map_or(j, |cells| cells[j] as usize);
        let each = (0..self.kv_heads()).flat_map(|g| (0..self.keys).map(move |j| (g, j)));
        let mut moves: Vec<Move> =
            each.filter(changed).map(|(g, j)| Move::own(g, j, cell(g, j))).collect();
        moves.sort_unstable_by_key(|moved| (moved.g, moved.to));
        if moves.is_empty() {
            return Ok(());
        }
        self.store(self.k.tokens, &moves, &round)
    }
}

/// Whether row `j` of two heads has other bits.
fn differs(a: HeadRows<'_>, b: HeadRows<'_>, j: usize) -> bool {
    match (a, b) {
        (HeadRows::F32(a), HeadRows::F32(b)) => {
            a.row(j).iter().zip(b.row(j)).any(|(a, b)| a.to_bits() != b.to_bits())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use proptest::prelude::*;

    fn keys(values: &[f32]) -> Keys {
        let heads = || KvHeads::from_f32(1, values.len(), 1, values, KvDtype::F32);
        Keys::new((0..values.len() as u32).collect::<Vec<_>>(), heads(), heads())
    }

    #[test]
    fn what_cannot_be_held_is_refused_and_nothing_changed() {
        let check = |value: f32, to: Rounding, want: bool| {
            let mut keys = keys(&[0.1, value]);
            let (before, result) = (keys.clone(), keys.round(to));
            assert_eq!(result.is_ok(), want, "{value} {to:?}");
            assert!(want || keys == before);
        };
        check(65_519.0, Rounding::F16, true);
        check(-65_520.0, Rounding::F16, false);
        check(1e38, Rounding::Bf16, true);
        check(f32::MAX, Rounding::Bf16, false);
    }

    #[test]
    fn two_bytes_stay_as_they_are() {
        let heads = || KvHeads::from_f32(1, 2, 1, &[0.1, 1e30], KvDtype::Bf16);
        let mut keys = Keys::new(vec![3, 4], heads(), heads());
        let before = keys.clone();
        assert_eq!(keys.round(Rounding::F16), Ok(()));
        assert_eq!(keys, before);
    }

    #[test]
    fn shared_pages_are_copied_where_they_change() {
        let pool = Pool::new(1, KvDtype::F32, 8 * 64).unwrap();
        let values: Vec<f32> = (0..32).map(|i| if i < 16 { 0.5 } else { 0.1 }).collect();
        let mut round = keys(&values).put_in(&pool).unwrap();
        let before = round.clone();
        assert_eq!(pool.usage().used_pages, 4);
        round.round(Rounding::F16).unwrap();
        assert_eq!(pool.usage().used_pages, 6, "the second page of keys, and that of values");
        assert_eq!(before, keys(&values), "whoever shares them sees no change");
        let kept = round.clone();
        round.round(Rounding::F16).unwrap();
        assert_eq!((pool.usage().used_pages, round), (6, kept), "a second time changes nothing");
    }

    proptest! {
        #[test]
        fn loses_a_bounded_part(values in prop::collection::vec(-1e4f32..1e4, 1..40)) {
            let f16 = (Rounding::F16, 2f32.powi(-11), 2f32.powi(-25));
            for (to, part, least) in [(Rounding::Bf16, 2f32.powi(-8), 0.0), f16] {
                let mut keys = keys(&values);
                keys.round(to).unwrap();
                for (seen, want) in keys.v_rows(0).to_f32().iter().zip(&values) {
                    prop_assert!((seen - want).abs() <= part * want.abs() + least);
                    prop_assert_eq!(*seen, to.of(*seen));
                }
            }
        }
    }
}
