//! Q8_0: 32 elements in 34 bytes.

use super::scale;

/// f16 scale d, then 32 i8 q: x = d q.
pub(crate) fn q8_0(bytes: &[u8; 34]) -> [f32; 32] {
    let d = scale(bytes, 0);
    std::array::from_fn(|i| d * f32::from(bytes[2 + i] as i8))
}
