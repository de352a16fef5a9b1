//! The form in which a matrix is held, and so multiplied.

use aqueduct_kernels::KvDtype;

use super::encoding::Encoding;

/// How weights are kept in memory. Vectors (norms, biases) are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WeightDtype {
    /// Where keys and values are f32: f32, which is exact whatever the file has. Where they
    /// are bf16: bf16 for what the file has as bf16, int8 for what it has in
    /// few bits (GGUF's Q and IQ types, MXFP4, eight-bit floats, integers), f32 for the rest,
    /// but bf16 for what stands as F16 beside integers of GPTQ or AWQ.
    #[default]
    Auto,
    /// f32: exact.
    F32,
    /// bf16, rounded to nearest even where the file has more.
    Bf16,
    /// Eight-bit integers with a scale for every 128 inputs: see [`aqueduct_kernels::int8`].
    Int8,
}

/// The form of one matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    F32,
    Bf16,
    Int8,
}

impl WeightDtype {
    /// How to hold a matrix whose stacked parts are stored like this; `None` is a part that
    /// is missing or cannot be read.
    pub(crate) fn held(self, kv: KvDtype, parts: &[Option<Encoding>]) -> Held {
        let all = |is: fn(Encoding) -> bool| parts.iter().all(|part| part.is_some_and(is));
        match (self, kv) {
            (Self::F32, _) | (Self::Auto, KvDtype::F32) => Held::F32,
            (Self::Bf16, _) => Held::Bf16,
            (Self::Int8, _) => Held::Int8,
            (Self::Auto, KvDtype::Bf16) if all(|part| part == Encoding::Bf16) => Held::Bf16,
            (Self::Auto, KvDtype::Bf16) if all(Encoding::is_quantised) => Held::Int8,
            (Self::Auto, KvDtype::Bf16) => Held::F32,
        }
    }

    /// The same, but bf16 where some parts are bf16 and others of few bits, which are then rounded
    /// as the former are: half as large as f32. What loads by [`Self::held`] stays as it is.
    pub(crate) fn held_mixed(self, kv: KvDtype, parts: &[Option<Encoding>]) -> Held {
        let is_coarse = |part: Encoding| part == Encoding::Bf16 || part.is_quantised();
        let held = self.held(kv, parts);
        match (self, kv, held) {
            (Self::Auto, KvDtype::Bf16, Held::F32)
                if parts.iter().all(|part| part.is_some_and(is_coarse)) =>
            {
                Held::Bf16
            }
            _ => held,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_follows_the_file_where_keys_are_rounded() {
        let check = |parts: &[Encoding], want| {
            let parts: Vec<_> = parts.iter().copied().map(Some).collect();
            assert_eq!(WeightDtype::Auto.held(KvDtype::Bf16, &parts), want, "{parts:?}");
            assert_eq!(WeightDtype::Auto.held(KvDtype::F32, &parts), Held::F32);
            assert_eq!(WeightDtype::Int8.held(KvDtype::F32, &parts), Held::Int8);
        };
        check(&[Encoding::Bf16], Held::Bf16);
        check(&[Encoding::Q4K, Encoding::Q6K, Encoding::Q8_0], Held::Int8);
        check(&[Encoding::F16], Held::F32);
        check(&[Encoding::Bf16, Encoding::F32], Held::F32);
        check(&[Encoding::Q4_0, Encoding::Bf16], Held::F32);
        assert_eq!(WeightDtype::Auto.held(KvDtype::Bf16, &[None]), Held::F32);
    }

    #[test]
    fn few_bits_beside_bf16_may_be_held_as_bf16() {
        let check = |weights: WeightDtype, parts: &[Encoding], want| {
            let parts: Vec<_> = parts.iter().copied().map(Some).collect();
            assert_eq!(weights.held_mixed(KvDtype::Bf16, &parts), want, "{parts:?}");
            assert_eq!(
                weights.held_mixed(KvDtype::F32, &parts),
                weights.held(KvDtype::F32, &parts)
            );
        };
        let mixed = [Encoding::Q4K, Encoding::Bf16];
        check(WeightDtype::Auto, &mixed, Held::Bf16);
        check(WeightDtype::Int8, &mixed, Held::Int8);
        check(WeightDtype::F32, &mixed, Held::F32);
        check(WeightDtype::Auto, &[Encoding::Q4K, Encoding::Q8_0], Held::Int8);
        check(WeightDtype::Auto, &[Encoding::Bf16], Held::Bf16);
        for exact in [Encoding::F16, Encoding::F32] {
            check(WeightDtype::Auto, &[Encoding::Q4K, exact], Held::F32);
        }
        let missing = [Some(Encoding::Bf16), None];
        assert_eq!(WeightDtype::Auto.held_mixed(KvDtype::Bf16, &missing), Held::F32);
    }
}
