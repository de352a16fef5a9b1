//! The tensor index: names, dimensions, element types and checked byte ranges.

use crate::cursor::Cursor;
use crate::error::GgufError;

/// Most dimensions of a tensor (ggml's own bound).
const DIMS_MAX: u32 = 4;

/// How a tensor's elements are stored: blocks of `block_elements` in `block_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorType {
    /// Code in the file.
    pub code: u32,
    /// ggml's name, `Q4_K` for instance.
    pub name: &'static str,
    /// Elements of one block; 1 where there are no blocks.
    pub block_elements: u64,
    /// Bytes of one block.
    pub block_bytes: u64,
}

const fn ty(code: u32, name: &'static str, elements: u64, bytes: u64) -> TensorType {
    TensorType { code, name, block_elements: elements, block_bytes: bytes }
}

/// Every type that files hold (`GGML_QUANT_SIZES` of the gguf package), ascending by code.
pub const TENSOR_TYPES: &[TensorType] = &[
    ty(0, "F32", 1, 4),
    ty(1, "F16", 1, 2),
    ty(2, "Q4_0", 32, 18),
    ty(3, "Q4_1", 32, 20),
    ty(6, "Q5_0", 32, 22),
    ty(7, "Q5_1", 32, 24),
    ty(8, "Q8_0", 32, 34),
    ty(10, "Q2_K", 256, 84),
    ty(11, "Q3_K", 256, 110),
    ty(12, "Q4_K", 256, 144),
    ty(13, "Q5_K", 256, 176),
    ty(14, "Q6_K", 256, 210),
    ty(16, "IQ2_XXS", 256, 66),
    ty(17, "IQ2_XS", 256, 74),
    ty(18, "IQ3_XXS", 256, 98),
    ty(19, "IQ1_S", 256, 50),
    ty(20, "IQ4_NL", 32, 18),
    ty(21, "IQ3_S", 256, 110),
    ty(22, "IQ2_S", 256, 82),
    ty(23, "IQ4_XS", 256, 136),
    ty(24, "I8", 1, 1),
    ty(25, "I16", 1, 2),
    ty(26, "I32", 1, 4),
    ty(27, "I64", 1, 8),
    ty(28, "F64", 1, 8),
    ty(29, "IQ1_M", 256, 56),
    ty(30, "BF16", 1, 2),
    ty(34, "TQ1_0", 256, 54),
    ty(35, "TQ2_0", 256, 66),
    ty(39, "MXFP4", 32, 17),
    ty(40, "NVFP4", 64, 36),
    ty(41, "Q1_0", 128, 18),
];

impl TensorType {
    /// The type with this code.
    pub fn from_code(code: u32) -> Option<Self> {
        TENSOR_TYPES.iter().copied().find(|ty| ty.code == code)
    }

    /// Bytes of `elements` elements, if they are whole blocks and the product fits.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        let whole = elements.is_multiple_of(self.block_elements);
        whole.then(|| (elements / self.block_elements).checked_mul(self.block_bytes)).flatten()
    }
}

/// A tensor and its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor<'a> {
    /// Name.
    pub name: &'a str,
    /// Dimensions in ggml's order: `dims[0]` is the fastest, the length of a row. The row-major
    /// shape `[outputs, inputs]` is `dims = [inputs, outputs]`.
    pub dims: Vec<u64>,
    /// Element type.
    pub ty: TensorType,
    /// The elements: exactly as many bytes as `dims` and `ty` ask for.
    pub bytes: &'a [u8],
}

impl Tensor<'_> {
    /// Product of the dimensions.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product() // checked when the tensor was read
    }
}

/// An entry of the index whose bytes are not yet looked up.
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a str,
    dims: Vec<u64>,
    ty: TensorType,
    /// From the start of the data.
    offset: u64,
    bytes: u64,
    /// Of the entry itself, for errors.
    at: u64,
}

impl<'a> Entry<'a> {
    pub(crate) fn read(cursor: &mut Cursor<'a>) -> Result<Self, GgufError> {
        let at = cursor.offset();
        let name = cursor.name("tensor name")?;
        let bad = |what: String| GgufError::Malformed { offset: at, what };
        let dim_count = cursor.u32(name)?;
        if dim_count > DIMS_MAX {
            let what = format!("dimensions of tensor {name}");
            let (value, bound) = (dim_count.into(), DIMS_MAX.into());
            return Err(GgufError::Bound { offset: at, what, value, bound });
        }
        let dims = (0..dim_count).map(|_| cursor.u64(name)).collect::<Result<Vec<_>, _>>()?;
        let code = cursor.u32(name)?;
        let ty = TensorType::from_code(code)
            .ok_or_else(|| bad(format!("type {code} of tensor {name} is unknown")))?;
        let offset = cursor.u64(name)?;
        let row_elements = dims.first().copied().unwrap_or(1);
        if !row_elements.is_multiple_of(ty.block_elements) {
            let (block, name) = (ty.block_elements, ty.name);
            return Err(bad(format!("rows of {row_elements} elements are not {name} of {block}")));
        }
        let bytes = dims
            .iter()
            .try_fold(1u64, |product, &dim| product.checked_mul(dim))
            .and_then(|elements| ty.bytes_of(elements))
            .ok_or_else(|| bad(format!("size of tensor {name} {dims:?} overflows")))?;
        Ok(Self { name, dims, ty, offset, bytes, at })
    }

    /// Looks the bytes up in `data`, the part of the file after the index.
    pub(crate) fn locate(self, data: &'a [u8], alignment: u64) -> Result<Tensor<'a>, GgufError> {
        let Self { name, dims, ty, offset, bytes, at } = self;
        if !offset.is_multiple_of(alignment) {
            let what = format!("tensor {name} at {offset}: must be a multiple of {alignment}");
            return Err(GgufError::Malformed { offset: at, what });
        }
        let left = (data.len() as u64).saturating_sub(offset);
        if bytes > left {
            let what = format!("tensor {name} at {offset}");
            return Err(GgufError::Truncated { offset: at, what, needs: bytes, left });
        }
        let start = if bytes == 0 { 0 } else { offset as usize };
        Ok(Tensor { name, dims, ty, bytes: &data[start..start + bytes as usize] })
    }
}

/// No byte belongs to two tensors, so all of them together are no larger than the file.
pub(crate) fn refuse_overlaps(entries: &[Entry<'_>]) -> Result<(), GgufError> {
    let mut by_offset: Vec<&Entry<'_>> = entries.iter().filter(|entry| entry.bytes > 0).collect();
    by_offset.sort_by_key(|entry| entry.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset.saturating_add(pair[0].bytes) > pair[1].offset {
            let what = format!("tensors {} and {} overlap", pair[0].name, pair[1].name);
            return Err(GgufError::Malformed { offset: pair[1].at, what });
        }
    }
    Ok(())
}
