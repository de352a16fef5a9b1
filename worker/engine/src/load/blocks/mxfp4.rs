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

/// Two of E2M1, low half first.
pub(crate) fn e2m1(&[byte]: &[u8; 1]) -> [f32; 2] {
    [byte & 0x0f, byte >> 4].map(|half| VALUES[usize::from(half)])
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
        let beside = Vec::from_iter(pairs.iter().flat_map(|&pair| e2m1(&[pair])).map(|x| x / 4.0));
        assert_eq!(mxfp4(&block), *beside);
        assert_eq!(beside[..4], [0.0, 1.5, -1.0, 0.75]);
    }
}
