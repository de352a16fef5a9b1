//! Vector registers of an interrupted thread, and what `vpdpbusd` does with them.

use std::ptr::NonNull;

use super::decode::VectorIndex;

/// Bytes of a vector.
pub(super) const VECTOR: usize = 32;
/// Where the system keeps the lower halves of vectors: FXSAVE's place for xmm registers.
const LOW: usize = 160;
/// Where it writes that more follows, and that word ("FPXS").
const MAGIC: usize = 464;
const MAGIC_WORD: u32 = 0x4650_5853;
/// Where XSAVE's header says which parts differ from zero, and the bits of lower and upper halves.
const PARTS: usize = 512;
const LOW_PART: u64 = 1 << 1;
const HIGH_PART: u64 = 1 << 2;
/// Where XSAVE keeps the upper halves.
const HIGH: usize = 576;
const HALF: usize = VECTOR / 2;

/// The state that the system saved of an interrupted thread, and goes on with.
pub(super) struct Vectors(NonNull<u8>);

impl Vectors {
    /// None if the system saved no state of whole vectors.
    ///
    /// # Safety
    /// `saved` is the floating-point state of a signal's context, or null.
    pub(super) unsafe fn new(saved: *mut libc::_libc_fpstate) -> Option<Self> {
        let vectors = Self(NonNull::new(saved.cast())?);
        // SAFETY: the caller's: a word in the state that FXSAVE knows, for the system's own use.
        (unsafe { vectors.read::<4>(MAGIC) } == MAGIC_WORD.to_le_bytes()).then_some(vectors)
    }

    /// # Safety
    /// The state has `at + N` bytes.
    unsafe fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        // SAFETY: the caller's; bytes need no alignment.
        unsafe { self.0.add(at).cast::<[u8; N]>().read() }
    }

    /// # Safety
    /// As [`Self::read`].
    unsafe fn write<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        // SAFETY: the caller's; bytes need no alignment.
        unsafe { self.0.add(at).cast::<[u8; N]>().write(bytes) };
    }

    fn parts(&self) -> u64 {
        // SAFETY: a state with the word has the header and the upper halves of AVX, without
        // which nobody executes its instructions.
        u64::from_le_bytes(unsafe { self.read(PARTS) })
    }

    /// A part that differs from zero nowhere may be left unwritten.
    fn half(&self, part: u64, at: usize) -> [u8; HALF] {
        match self.parts() & part {
            0 => [0; HALF],
            // SAFETY: as in `parts`.
            _ => unsafe { self.read(at) },
        }
    }

    fn set_half(&mut self, part: u64, from: usize, number: VectorIndex, half: [u8; HALF]) {
        let parts = self.parts();
        if parts & part == 0 {
            // SAFETY: as in `parts`; all sixteen registers are zero before this one is not.
            (0..16).for_each(|other| unsafe { self.write(from + HALF * other, [0; HALF]) });
            // SAFETY: as in `parts`.
            unsafe { self.write(PARTS, (parts | part).to_le_bytes()) };
        }
        // SAFETY: as in `parts`.
        unsafe { self.write(from + HALF * number, half) };
    }

    /// A register's bytes.
    pub(super) fn get(&self, number: VectorIndex) -> [u8; VECTOR] {
        let low = self.half(LOW_PART, LOW + HALF * number);
        let high = self.half(HIGH_PART, HIGH + HALF * number);
        let mut bytes = [0; VECTOR];
        bytes[..HALF].copy_from_slice(&low);
        bytes[HALF..].copy_from_slice(&high);
        bytes
    }

    /// Sets a register's bytes.
    pub(super) fn set(&mut self, number: VectorIndex, bytes: [u8; VECTOR]) {
        let (halves, _) = bytes.as_chunks();
        self.set_half(LOW_PART, LOW, number, halves[0]);
        self.set_half(HIGH_PART, HIGH, number, halves[1]);
    }
}

/// `vpdpbusd`: to each i32 the products of four bytes without sign and four with one are added;
/// what is too large wraps round.
pub(super) fn dot(
    sums: [u8; VECTOR],
    unsigned: [u8; VECTOR],
    signed: [u8; VECTOR],
) -> [u8; VECTOR] {
    let mut to = sums;
    let quads = unsigned.as_chunks::<4>().0.iter().zip(signed.as_chunks::<4>().0);
    for (sum, (unsigned, signed)) in to.as_chunks_mut::<4>().0.iter_mut().zip(quads) {
        let products = unsigned.iter().zip(signed);
        let products = products.map(|(&u, &s)| i32::from(u) * i32::from(s as i8));
        let all = i32::from_le_bytes(*sum).wrapping_add(products.sum());
        *sum = all.to_le_bytes();
    }
    to
}

#[cfg(test)]
mod tests {
    use std::arch::x86_64::*;

    use super::super::super::has_avx_vnni;
    use super::*;

    /// # Safety
    /// The processor has AVX2, and AVX-VNNI or someone who does its work.
    #[target_feature(enable = "avx2,avxvnni")]
    unsafe fn instruction(vectors: [[u8; VECTOR]; 3]) -> [[u8; VECTOR]; 2] {
        let [sums, unsigned, signed] = bytemuck::cast::<_, [__m256i; 3]>(vectors);
        let first = _mm256_dpbusd_avx_epi32(sums, unsigned, signed);
        let second = _mm256_dpbusd_avx_epi32(first, signed, sums);
        bytemuck::cast([first, second])
    }

    proptest::proptest! {
        /// Where there is AVX-VNNI, this holds the model against the processor; elsewhere against
        /// what instructions do through the signal.
        #[test]
        fn the_instruction_does_what_the_model_does(
            vectors in proptest::array::uniform3(proptest::array::uniform32(0u8..)),
        ) {
            if has_avx_vnni() {
                // SAFETY: as was asked.
                let seen = unsafe { instruction(vectors) };
                let first = dot(vectors[0], vectors[1], vectors[2]);
                let second = dot(first, vectors[2], vectors[0]);
                proptest::prop_assert_eq!(seen, [first, second]);
            }
        }
    }

    #[test]
    fn sums_wrap_and_signs_are_where_they_belong() {
        let sums = bytemuck::cast([i32::MAX; 8]);
        let seen: [i32; 8] = bytemuck::cast(dot(sums, [255; VECTOR], [0x80; VECTOR]));
        assert_eq!(seen, [i32::MAX - 4 * 255 * 128; 8]);
        let seen: [i32; 8] = bytemuck::cast(dot(sums, [255; VECTOR], [127; VECTOR]));
        assert_eq!(seen, [i32::MAX.wrapping_add(4 * 255 * 127); 8]);
    }
}
