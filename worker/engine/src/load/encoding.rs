//! How elements are stored in a file.

use half::{bf16, f16};

use super::blocks::{self, widen};

/// An element type that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    Tq1_0,
    Tq2_0,
    Mxfp4,
    Nvfp4,
    Q1_0,
    /// Two in a byte, the first in its lower half.
    F4E2M1,
    F8E4M3,
    F8E8M0,
    /// Integers of eight bits, or of fewer in words.
    Int,
}

/// What can be read, for errors.
pub(crate) const ENCODINGS: &str = "F32, F16, BF16; in folders F8_E4M3, I8 and pairs of F4 beside \
     scales, and integers in words of GPTQ, AWQ and compressed-tensors; in GGUF Q8_0, Q4_0, Q4_1, \
     Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, \
     IQ3_S, IQ4_NL, IQ4_XS, Q1_0, TQ1_0, TQ2_0, MXFP4 and NVFP4 too";

impl Encoding {
    /// Few bits, with scales that several elements share.
    pub(crate) fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Bytes of an element, of those that are no blocks.
    pub(crate) fn element_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            _ => 1,
        }
    }

    /// The elements in `bytes`, exactly; `to` has as many as there are.
    pub(crate) fn widen(self, bytes: &[u8], to: &mut [f32]) {
        match self {
            Self::F32 => widen(bytes, to, |word| [f32::from_le_bytes(*word)]),
            Self::F16 => widen(bytes, to, |word| [f16::from_le_bytes(*word).to_f32()]),
            Self::Bf16 => widen(bytes, to, |word| [bf16::from_le_bytes(*word).to_f32()]),
            Self::Q8_0 => widen(bytes, to, blocks::q8_0),
            Self::Q4_0 => widen(bytes, to, blocks::q4_0),
            Self::Q4_1 => widen(bytes, to, blocks::q4_1),
            Self::Q5_0 => widen(bytes, to, blocks::q5_0),
            Self::Q5_1 => widen(bytes, to, blocks::q5_1),
            Self::Q2K => widen(bytes, to, blocks::q2_k),
            Self::Q3K => widen(bytes, to, blocks::q3_k),
            Self::Q4K => widen(bytes, to, blocks::q4_k),
            Self::Q5K => widen(bytes, to, blocks::q5_k),
            Self::Q6K => widen(bytes, to, blocks::q6_k),
            Self::Iq4Nl => widen(bytes, to, blocks::iq4_nl),
            Self::Iq4Xs => widen(bytes, to, blocks::iq4_xs),
            Self::Iq1S => widen(bytes, to, blocks::iq1_s),
            Self::Iq1M => widen(bytes, to, blocks::iq1_m),
            Self::Iq2Xxs => widen(bytes, to, blocks::iq2_xxs),
            Self::Iq2Xs => widen(bytes, to, blocks::iq2_xs),
            Self::Iq2S => widen(bytes, to, blocks::iq2_s),
            Self::Iq3Xxs => widen(bytes, to, blocks::iq3_xxs),
            Self::Iq3S => widen(bytes, to, blocks::iq3_s),
            Self::Tq1_0 => widen(bytes, to, blocks::tq1_0),
            Self::Tq2_0 => widen(bytes, to, blocks::tq2_0),
            Self::Mxfp4 => widen(bytes, to, blocks::mxfp4),
            Self::Nvfp4 => widen(bytes, to, blocks::nvfp4),
            Self::Q1_0 => widen(bytes, to, blocks::q1_0),
            Self::F4E2M1 => widen(bytes, to, blocks::e2m1),
            Self::F8E4M3 => widen(bytes, to, blocks::e4m3),
            Self::F8E8M0 => widen(bytes, to, blocks::e8m0),
            Self::Int => widen(bytes, to, |[x]: &[u8; 1]| [f32::from(*x as i8)]),
        }
    }
}
