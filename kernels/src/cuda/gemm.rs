//! The seam to a library of matrix products, where the machine has one.

/// Fewest rows that a library is asked to multiply. Fewer rows are a decode step's, and a
/// decode row's bits may not depend on how many sequences are decoded beside it; a library
/// chooses by shape. Up to 64 rows our own kernels stream the weight at the memory's pace.
pub(crate) const LIBRARY_ROWS_MIN: usize = 65;

/// out = x Wᵀ + bias + residual, accumulated in f32; addresses on the device, all row-major and
/// aligned to 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Product {
    /// T, at least [`LIBRARY_ROWS_MIN`].
    pub(crate) rows: usize,
    /// I, a multiple of 8.
    pub(crate) inputs: usize,
    /// O, a multiple of 8.
    pub(crate) outputs: usize,
    /// `[T, I]` bf16.
    pub(crate) x: u64,
    /// `[O, I]` bf16.
    pub(crate) weight: u64,
    /// `[O]` f32.
    pub(crate) bias: Option<u64>,
    /// `[T, O]` f32; may be `out`.
    pub(crate) residual: Option<u64>,
    /// `[T, O]` f32.
    pub(crate) out: u64,
}

impl Product {
    /// Whether a library takes it.
    pub(crate) fn fits(&self) -> bool {
        self.rows >= LIBRARY_ROWS_MIN
            && self.inputs.is_multiple_of(8)
            && self.outputs.is_multiple_of(8)
    }
}

/// A library of matrix products on a device's stream.
pub(crate) trait GemmLibrary: Send + Sync {
    /// Enqueues `product`, which must [fit](Product::fits), or says that it does not take it. The
    /// order of its sums depends on the shape and on the library's version, and on nothing else.
    fn multiply(&self, product: &Product) -> bool;
}
