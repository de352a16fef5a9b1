//! Elements of E2M1 with scales. MXFP4 of the OCP Microscaling Formats 1.0 has one of E8M0 for 32,
//! NVFP4 of NVIDIA one of E4M3 for sixteen. In GGUF they are 17 bytes, and 36 for four such scales;
//! folders have scales in tensors of their own.

use super::{e4m3, e8m0, four_bits};

/// What the sixteen patterns of E2M1 stand for.
const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Scale, then 16 bytes as in Q4_0;  x = 2^(scale - 127) value(q).
pub(crate) fn mxfp4(bytes: &[u8; 17]) -> [f32; 32] {
    let [scale] = e8m0(&[bytes[0]]);
    std::array::from_fn(|i| scale * VALUES[usize::from(four_bits(&bytes[1..], 16, i))])
}

/// Scales of four runs, which have no sign, then 8 bytes of each as in Q4_0;  x = scale value(q).
/// The pattern that is no number is 0, as ggml has it.
pub(crate) fn nvfp4(bytes: &[u8; 36]) -> [f32; 64] {
    let scales: [f32; 4] = std::array::from_fn(|run| match bytes[run] & 0x7f {
        0x7f => 0.0,
        scale => e4m3(&[scale])[0],
    });
    std::array::from_fn(|i| scales[i / 16] * VALUES[usize::from(four_bits(&bytes[4..], 8, i))])
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
