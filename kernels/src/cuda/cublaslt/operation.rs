//! One shape of product as cuBLASLt describes it.
//!
//! cuBLASLt counts columns first, so a row-major matrix is to it the transposed one: it is asked
//! for outᵀ `[O, T]` = (Wᵀ)ᵀ xᵀ, with Wᵀ `[I, O]` to be transposed and xᵀ `[I, T]` as it is.

use std::ffi::c_void;
use std::mem::size_of;
use std::ptr;

use cudarc::cublaslt::sys;
use sys::cublasLtMatmulDescAttributes_t as Described;
use sys::cublasLtMatmulPreferenceAttributes_t as Preferred;
use sys::cudaDataType_t as Element;

use super::library::{Functions, Heuristic, SUCCESS, check, found};
use crate::cuda::device::Fault;
use crate::cuda::gemm::Product;

/// Device memory that a product may use besides its operands.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// What operands are aligned to.
const ALIGN_BYTES: u32 = 16;

/// `CUBLAS_OP_T`.
const TRANSPOSED: i32 = 1;

/// Sums are never split over the inputs: the order of a sum is that of the inputs.
const UNSPLIT: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_NONE as u32;

/// What giving back says is lost: an error leaves nothing to be done.
fn give_back(call: impl FnOnce(&Functions) -> i32) {
    if let Ok(library) = found() {
        call(library);
    }
}

/// cuBLASLt's state in this process.
pub(super) struct Handle(sys::cublasLtHandle_t);

// SAFETY: cuBLASLt's documentation lets any thread use a handle.
unsafe impl Send for Handle {}
// SAFETY: as above, several at once too.
unsafe impl Sync for Handle {}

impl Handle {
    /// For the current context; the library is there.
    pub(super) fn new() -> Result<Self, Fault> {
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is a place for one pointer.
        let created = unsafe { (found()?.cublasLtCreate)(&raw mut handle) };
        check("cublasLtCreate", created).map(|()| Self(handle))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here alone.
        give_back(|library| unsafe { (library.cublasLtDestroy)(self.0) });
    }
}

/// How a matrix lies in memory.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    /// Of a row-major matrix, which has `columns` elements in a row.
    fn new(element: Element, rows: usize, columns: usize) -> Result<Self, Fault> {
        let (mut layout, columns) = (ptr::null_mut(), columns as u64);
        // SAFETY: `layout` is a place for one pointer.
        let created = unsafe {
            (found()?.cublasLtMatrixLayoutCreate)(
                &raw mut layout,
                element,
                columns,
                rows as u64,
                columns as i64,
            )
        };
        check("cublasLtMatrixLayoutCreate", created).map(|()| Self(layout))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here alone.
        give_back(|library| unsafe { (library.cublasLtMatrixLayoutDestroy)(self.0) });
    }
}

/// What is done with the operands.
struct Description(sys::cublasLtMatmulDesc_t);

impl Description {
    fn new(bias: Option<u64>) -> Result<Self, Fault> {
        let mut description = ptr::null_mut();
        // SAFETY: `description` is a place for one pointer.
        let created = unsafe {
            (found()?.cublasLtMatmulDescCreate)(
                &raw mut description,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                Element::CUDA_R_32F,
            )
        };
        check("cublasLtMatmulDescCreate", created)?;
        let created = Self(description);
        created.set(Described::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        if let Some(bias) = bias {
            let with_bias = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
            created.set(Described::CUBLASLT_MATMUL_DESC_EPILOGUE, &with_bias)?;
            created.set(Described::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
            let element = Element::CUDA_R_32F as i32;
            created.set(Described::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &element)?;
        }
        Ok(created)
    }

    fn set<T>(&self, attribute: Described, value: &T) -> Result<(), Fault> {
        let value = ptr::from_ref(value).cast();
        // SAFETY: the description lives; cuBLASLt copies as many bytes as the attribute has, and
        // refuses another size.
        let set = unsafe {
            (found()?.cublasLtMatmulDescSetAttribute)(self.0, attribute, value, size_of::<T>())
        };
        check("cublasLtMatmulDescSetAttribute", set)
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here alone.
        give_back(|library| unsafe { (library.cublasLtMatmulDescDestroy)(self.0) });
    }
}

/// Which algorithms are welcome.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Self, Fault> {
        let mut preference = ptr::null_mut();
        // SAFETY: `preference` is a place for one pointer.
        let created = unsafe { (found()?.cublasLtMatmulPreferenceCreate)(&raw mut preference) };
        check("cublasLtMatmulPreferenceCreate", created)?;
        let created = Self(preference);
        created.set(Preferred::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_BYTES)?;
        created.set(Preferred::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &UNSPLIT)?;
        created.set(Preferred::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &ALIGN_BYTES)?;
        created.set(Preferred::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &ALIGN_BYTES)?;
        created.set(Preferred::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &ALIGN_BYTES)?;
        created.set(Preferred::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &ALIGN_BYTES)?;
        Ok(created)
    }

    fn set<T>(&self, attribute: Preferred, value: &T) -> Result<(), Fault> {
        let (value, bytes) = (ptr::from_ref(value).cast(), size_of::<T>());
        // SAFETY: as in `Description::set`.
        let set = unsafe {
            (found()?.cublasLtMatmulPreferenceSetAttribute)(self.0, attribute, value, bytes)
        };
        check("cublasLtMatmulPreferenceSetAttribute", set)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here alone.
        give_back(|library| unsafe { (library.cublasLtMatmulPreferenceDestroy)(self.0) });
    }
}

/// One way to compute products of one shape.
#[derive(Clone, Copy)]
pub(super) struct Algorithm(sys::cublasLtMatmulAlgo_t);

/// A product, described.
pub(super) struct Operation<'a> {
    product: &'a Product,
    description: Description,
    weight: Layout,
    x: Layout,
    out: Layout,
}

impl<'a> Operation<'a> {
    pub(super) fn new(product: &'a Product) -> Result<Self, Fault> {
        let Product { rows, inputs, outputs, bias, .. } = *product;
        Ok(Self {
            product,
            description: Description::new(bias)?,
            weight: Layout::new(Element::CUDA_R_16BF, outputs, inputs)?,
            x: Layout::new(Element::CUDA_R_16BF, rows, inputs)?,
            out: Layout::new(Element::CUDA_R_32F, rows, outputs)?,
        })
    }

    /// At most `count` algorithms, the best by cuBLASLt's own guess first.
    pub(super) fn algorithms(
        &self,
        handle: &Handle,
        count: usize,
    ) -> Result<Vec<Algorithm>, Fault> {
        let preference = Preference::new()?;
        let mut results = vec![Heuristic::NONE; count];
        let mut found_count = 0;
        // SAFETY: all that is described lives, and there is room for `count` results.
        let looked = unsafe {
            (found()?.cublasLtMatmulAlgoGetHeuristic)(
                handle.0,
                self.description.0,
                self.weight.0,
                self.x.0,
                self.out.0,
                self.out.0,
                preference.0,
                count as i32,
                results.as_mut_ptr(),
                &raw mut found_count,
            )
        };
        check("cublasLtMatmulAlgoGetHeuristic", looked)?;
        results.truncate(usize::try_from(found_count).unwrap_or(0));
        let works = results.iter().filter(|result| result.status == SUCCESS);
        Ok(works.map(|result| Algorithm(result.algorithm)).collect())
    }

    /// Enqueues the product with its result at `out` instead of where it says.
    ///
    /// # Safety
    /// All addresses are of as much device memory as the shape says, `workspace` of
    /// [`WORKSPACE_BYTES`], and `stream` lives, in the current context.
    pub(super) unsafe fn enqueue(
        &self,
        handle: &Handle,
        algorithm: &Algorithm,
        (out, workspace): (u64, u64),
        stream: *mut c_void,
    ) -> Result<(), Fault> {
        let (alpha, beta) = (1.0_f32, if self.product.residual.is_some() { 1.0_f32 } else { 0.0 });
        let residual = self.product.residual.unwrap_or(out);
        let at = |address: u64| ptr::without_provenance_mut::<c_void>(address as usize);
        // SAFETY: the caller's, and everything described lives.
        let enqueued = unsafe {
            (found()?.cublasLtMatmul)(
                handle.0,
                self.description.0,
                (&raw const alpha).cast(),
                at(self.product.weight),
                self.weight.0,
                at(self.product.x),
                self.x.0,
                (&raw const beta).cast(),
                at(residual),
                self.out.0,
                at(out),
                self.out.0,
                &raw const algorithm.0,
                at(workspace),
                WORKSPACE_BYTES,
                stream.cast(),
            )
        };
        check("cublasLtMatmul", enqueued)
    }
}
