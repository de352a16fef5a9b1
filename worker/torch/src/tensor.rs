//! A tensor, checked against the storage that it is a part of.

use crate::archive::Archive;
use crate::dtype::Dtype;
use crate::error::TorchError;
use crate::pickle::Rebuilt;

/// A tensor of a file.
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    /// Unique in its file.
    pub name: &'a str,
    /// Of its elements.
    pub dtype: Dtype,
    /// Row-major.
    pub shape: Vec<usize>,
    /// Its elements.
    pub data: Data<'a>,
}

/// Where a tensor's elements lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data<'a> {
    /// One after the other, at any alignment. Other tensors may have the same bytes.
    InOrder(&'a [u8]),
    /// In another order, or some of them several times: so many elements further for one more of
    /// each dimension. All lie in the storage; what they are is not looked for.
    Strided(Vec<u64>),
}

/// A pickle's word for where a tensor lies, in elements.
struct Place {
    offset: u64,
    shape: Vec<u64>,
    strides: Vec<u64>,
}

impl Place {
    /// How many elements it has, and one more than the last one that it has of its storage.
    fn extent(&self) -> Option<(u64, u64)> {
        let elements = self.shape.iter().try_fold(1, |all: u64, size| all.checked_mul(*size))?;
        if elements == 0 {
            return Some((0, 0));
        }
        let last = self.shape.iter().zip(&self.strides).try_fold(self.offset, |at, dimension| {
            let (size, stride) = dimension;
            at.checked_add((size - 1).checked_mul(*stride)?)
        });
        Some((elements, last?.checked_add(1)?))
    }

    fn is_in_order(&self) -> bool {
        let mut of_row = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(size, stride)| {
            let is_next = *size == 1 || *stride == of_row;
            of_row *= size; // fits: they are factors of how many elements there are
            is_next
        })
    }
}

impl<'a> Tensor<'a> {
    pub(crate) fn locate(rebuilt: &Rebuilt<'a>, archive: &Archive<'a>) -> Result<Self, TorchError> {
        let Rebuilt { name, dtype, storage, .. } = rebuilt;
        let refused = |what: String| Err(TorchError::tensor(name, what));
        let entry = format!("data/{}", storage.key);
        let Ok(bytes) = archive.entry(&entry) else {
            return refused(format!("its storage {entry:?} is not in the file"));
        };
        let (elements, of_each) = (storage.elements, storage.dtype.map_or(1, |it| it.bytes));
        if elements.checked_mul(of_each as i64) != Some(bytes.len() as i64) {
            let own = bytes.len();
            return refused(format!(
                "its storage {entry:?} has {own} bytes: must be {elements} elements of {of_each}"
            ));
        }
        let place = place(rebuilt)?;
        let bound = (bytes.len() / dtype.bytes) as u64;
        let (elements, end) = match place.extent() {
            Some((elements, end)) if end <= bound => (elements, end),
            _ => {
                let Place { offset, shape, strides } = &place;
                return refused(format!(
                    "offset {offset}, shape {shape:?}, strides {strides:?}: must lie in the \
                     {bound} elements of storage {entry:?}"
                ));
            }
        };
        let data = match elements == 0 || place.is_in_order() {
            // Both fit: what is in order ends where its last element does.
            true => {
                let start = (end - elements) as usize * dtype.bytes;
                Data::InOrder(&bytes[start..end as usize * dtype.bytes])
            }
            false => Data::Strided(place.strides),
        };
        let shape = place.shape.iter().map(|size| *size as usize).collect();
        Ok(Self { name, dtype: *dtype, shape, data })
    }
}

/// Sizes that are none are refused here, where it is known of what.
fn place(rebuilt: &Rebuilt<'_>) -> Result<Place, TorchError> {
    let (shape, strides) = (&rebuilt.shape, &rebuilt.strides);
    let refused = |what: String| Err(TorchError::tensor(rebuilt.name, what));
    if shape.len() != strides.len() {
        return refused(format!("shape {shape:?} has strides {strides:?}: must be as many"));
    }
    let natural = |all: &[i64]| all.iter().map(|x| u64::try_from(*x)).collect::<Result<_, _>>();
    match (u64::try_from(rebuilt.offset), natural(shape), natural(strides)) {
        (Ok(offset), Ok(shape), Ok(strides)) => Ok(Place { offset, shape, strides }),
        _ => {
            let offset = rebuilt.offset;
            refused(format!(
                "offset {offset}, shape {shape:?}, strides {strides:?}: none may be negative"
            ))
        }
    }
}
