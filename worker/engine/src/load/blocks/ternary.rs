//! TQ1_0 and TQ2_0: 256 elements of -1, 0 and 1 in 54 and 66 bytes. Q1_0: 128 of -1 and 1 in 18.

use super::{scale, two_bits};

/// 32 bytes of 160 elements, 16 of 80 and 4 of 16, then f16 scale d;  x = d (q - 1).
///
/// A byte is a fraction of 256 in base 3: its digits are elements as far from each other as there
/// are bytes.
pub(crate) fn tq1_0(bytes: &[u8; 54]) -> [f32; 256] {
    let d = scale(bytes, 52);
    let digit = |run: &[u8], i: usize| {
        let rest = run[i % run.len()].wrapping_mul(3_u8.pow((i / run.len()) as u32));
        ((u16::from(rest) * 3) >> 8) as u8
    };
    std::array::from_fn(|i| {
        let q = match i {
            0..160 => digit(&bytes[..32], i),
            160..240 => digit(&bytes[32..48], i - 160),
            _ => digit(&bytes[48..52], i - 240),
        };
        d * (f32::from(q) - 1.0)
    })
}

/// 64 bytes of 2 bits, f16 scale d;  x = d (q - 1).
pub(crate) fn tq2_0(bytes: &[u8; 66]) -> [f32; 256] {
    let d = scale(bytes, 64);
    std::array::from_fn(|i| d * (f32::from(two_bits(bytes, i)) - 1.0))
}

/// f16 scale d, then 16 bytes of 1 bit, lowest first;  x = d (2 q - 1).
pub(crate) fn q1_0(bytes: &[u8; 18]) -> [f32; 128] {
    let d = scale(bytes, 0);
    std::array::from_fn(|i| if bytes[2 + i / 8] >> (i % 8) & 1 == 1 { d } else { -d })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of which the gguf package knows the size alone.
    #[test]
    fn bits_are_signs() {
        let mut block = [0; 18];
        block[..2].copy_from_slice(&[0x00, 0xc0]); // -2
        (block[2], block[17]) = (0b0000_0101, 0b1000_0000);
        let made = q1_0(&block);
        assert_eq!(made[..4], [-2.0, 2.0, -2.0, 2.0]);
        assert_eq!(made[126..], [2.0, -2.0]);
        assert_eq!(made.iter().filter(|&&x| x == -2.0).count(), 3);
    }
}
