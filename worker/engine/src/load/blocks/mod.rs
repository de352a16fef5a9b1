//! GGUF's block formats, widened to f32 exactly as ggml defines them.
//!
//! A file for each format, or for two that are alike, and in it one function from a block's bytes
//! to its elements. Scales are multiplied in ggml's order, so the products round as they do there.

mod float8;
mod fp4;
mod grids;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5;
mod q5_k;
mod q6_k;
mod q8_0;
mod ternary;

use half::f16;

pub(crate) use float8::{e4m3, e8m0};
pub(crate) use fp4::{e2m1, mxfp4, nvfp4};
pub(crate) use iq1::{iq1_m, iq1_s};
pub(crate) use iq2::{iq2_s, iq2_xs, iq2_xxs};
pub(crate) use iq3::{iq3_s, iq3_xxs};
pub(crate) use iq4::{iq4_nl, iq4_xs};
pub(crate) use q2_k::q2_k;
pub(crate) use q3_k::q3_k;
pub(crate) use q4_0::q4_0;
pub(crate) use q4_1::q4_1;
pub(crate) use q4_k::q4_k;
pub(crate) use q5::{q5_0, q5_1};
pub(crate) use q5_k::q5_k;
pub(crate) use q6_k::q6_k;
pub(crate) use q8_0::q8_0;
pub(crate) use ternary::{q1_0, tq1_0, tq2_0};

/// Blocks, one after the other: `bytes` is whole ones, `elements` has room for as many.
pub(crate) fn widen<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    elements: &mut [f32],
    block: impl Fn(&[u8; BYTES]) -> [f32; ELEMENTS],
) {
    let (blocks, _) = bytes.as_chunks();
    for (elements, bytes) in elements.as_chunks_mut().0.iter_mut().zip(blocks) {
        *elements = block(bytes);
    }
}

/// A scale: the f16 whose first byte is `bytes[at]`.
fn scale<const BYTES: usize>(bytes: &[u8; BYTES], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The 32 bits whose first byte is the first of these.
fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The half byte of element `i`: runs of `run` elements lie two by two in `run` bytes, low halves
/// first.
fn four_bits(bytes: &[u8], run: usize, i: usize) -> u8 {
    bytes[i / (2 * run) * run + i % run] >> (4 * (i / run % 2)) & 0x0f
}

/// Of K-quants: the 2 bits of element `i`. Each half of 128 elements is four runs of 32 that share
/// 32 bytes.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `vectors.json` holds random blocks and what the gguf package makes of them; it is
    /// written by `ops/parity/make_block_vectors.py`.
    fn check<const B: usize, const E: usize>(name: &str, block: impl Fn(&[u8; B]) -> [f32; E]) {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("vectors.json")).unwrap();
        let numbers = |key: &str| vectors[name][key].as_array().unwrap().clone();
        let bytes: Vec<u8> =
            numbers("bytes").iter().map(|byte| byte.as_u64().unwrap() as u8).collect();
        let want: Vec<f32> =
            numbers("elements").iter().map(|x| x.as_f64().unwrap() as f32).collect();
        assert!(want.len() >= 2 * E && want.iter().any(|&x| x < 0.0), "{name}: a poor vector");
        let mut seen = vec![0.0; want.len()];
        widen(&bytes, &mut seen, block);
        assert_eq!(seen, want, "{name}");
    }

    #[test]
    fn blocks_are_those_of_ggml() {
        check("Q8_0", q8_0);
        check("Q4_0", q4_0);
        check("Q4_1", q4_1);
        check("Q5_0", q5_0);
        check("Q5_1", q5_1);
        check("Q2_K", q2_k);
        check("Q3_K", q3_k);
        check("Q4_K", q4_k);
        check("Q5_K", q5_k);
        check("Q6_K", q6_k);
        check("IQ4_NL", iq4_nl);
        check("IQ4_XS", iq4_xs);
        check("IQ1_S", iq1_s);
        check("IQ1_M", iq1_m);
        check("IQ2_XXS", iq2_xxs);
        check("IQ2_XS", iq2_xs);
        check("IQ2_S", iq2_s);
        check("IQ3_XXS", iq3_xxs);
        check("IQ3_S", iq3_s);
        check("TQ1_0", tq1_0);
        check("TQ2_0", tq2_0);
        check("NVFP4", nvfp4);
    }
}
