//! MXFP4 of the OCP Microscaling Formats 1.0: 32 elements of E2M1 that share a scale of E8M0. In
//! GGUF they are 17 bytes; OpenAI's folders have scales in a tensor of their own.

use super::{e8m0, four_bits};

/// What the sixteen patterns of E2M1 stand for.
const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Scale, then 16 bytes as in Q4_0;  x = 2^(scale - 127) value(q).
pub(crate) fn mxfp4(bytes: &[u8; 17]) -> [f32; 32] {
    let [scale] = e8m0(&[bytes[0]]);
    std::array::from_fn(|i| scale * VALUES[usize::from(four_bits(&bytes[1..], 16, i))])
}

/// Elements two by two, low half first, beside one of `scales` for every 32.
pub(crate) fn mxfp4_beside(scales: &[u8], bytes: &[u8], to: &mut [f32]) {
    for ((&scale, bytes), to) in scales.iter().zip(bytes.chunks(16)).zip(to.chunks_mut(32)) {
        let [scale] = e8m0(&[scale]);
        for (&byte, pair) in bytes.iter().zip(to.chunks_mut(2)) {
            for (to, half) in pair.iter_mut().zip([byte & 0x0f, byte >> 4]) {
                *to = scale * VALUES[usize::from(half)];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_have_the_same_elements() {
        let halves: Vec<u8> = (0..32).map(|i| (i * 7 % 16) as u8).collect();
        let mut block = [125; 17];
        block[1..].iter_mut().enumerate().for_each(|(i, to)| *to = halves[i] | halves[16 + i] << 4);
        let pairs: Vec<u8> = halves.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
        let mut beside = [0.0; 32];
        mxfp4_beside(&[125], &pairs, &mut beside);
        assert_eq!(mxfp4(&block), beside);
        assert_eq!(beside[..4], [0.0, 1.5, -1.0, 0.75]);
    }
}
