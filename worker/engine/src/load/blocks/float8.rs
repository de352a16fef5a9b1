//! Floats of eight bits of the OCP 8-bit Floating Point Specification 1.0 and, for scales, of its
//! Microscaling Formats 1.0.

/// What each byte stands for in E4M3: a sign, 4 bits of exponent with a bias of 7, 3 of fraction;
/// NaN where all but the sign are set, and nothing infinite.
const E4M3: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (exponent, fraction) = (byte as u32 >> 3 & 15, byte as u32 & 7);
        let sign = (byte as u32 >> 7) << 31;
        values[byte] = match (exponent, fraction) {
            (15, 7) => f32::NAN,
            // Steps of 2^-9, which f32 has all.
            (0, steps) => {
                let size = steps as f32 * (1.0 / 512.0);
                if sign != 0 { -size } else { size }
            }
            _ => f32::from_bits(sign | (exponent + 127 - 7) << 23 | fraction << 20),
        };
        byte += 1;
    }
    values
};

/// One element.
pub(crate) fn e4m3(bytes: &[u8; 1]) -> [f32; 1] {
    [E4M3[usize::from(bytes[0])]]
}

/// 2^(byte - 127); NaN at 255.
pub(crate) fn e8m0(bytes: &[u8; 1]) -> [f32; 1] {
    [match bytes[0] {
        0 => f32::MIN_POSITIVE / 2.0,
        255 => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_floats() {
        let check = |byte: u8, want: f32| assert_eq!(e4m3(&[byte])[0].to_bits(), want.to_bits());
        check(0x00, 0.0);
        check(0x80, -0.0);
        check(0x01, 2.0_f32.powi(-9));
        check(0x07, 7.0 / 512.0);
        check(0x08, 1.0 / 64.0);
        check(0x38, 1.0);
        check(0xb9, -1.125);
        check(0x7e, 448.0);
        check(0xfe, -448.0);
        assert!([0x7f, 0xff].iter().all(|&byte| e4m3(&[byte])[0].is_nan()));
        let ascending: Vec<f32> = (0..0x7f).map(|byte| e4m3(&[byte])[0]).collect();
        assert!(ascending.is_sorted());
    }

    #[test]
    fn scales_are_powers_of_two() {
        for (scale, want) in [(127, 1.0), (128, 2.0), (120, 0.0078125), (1, 2.0_f32.powi(-126))] {
            assert_eq!(e8m0(&[scale]), [want], "{scale}");
        }
        assert_eq!(e8m0(&[0]), [2.0_f32.powi(-127)]);
        assert!(e8m0(&[255])[0].is_nan());
    }
}
