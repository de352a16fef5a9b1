//! The backend for NVIDIA's devices.
//!
//! Operations are enqueued on one stream and return at once; what they make stays on the device
//! until somebody reads it ([`crate::Array`]). Kernels are in `kernels/cu`; [`device::Device`]
//! is the seam below which there is a driver, or, in tests, an emulator.
//!
//! A kernel is chosen by what it can do with the shapes at hand and by what the device can do.
//! The `plain` kernels can do everything.
//!
//! One [`Cuda`] serves several threads. Each enqueues its operations in its own order on the one
//! stream; the memory of what was dropped goes to whoever asks next, which is safe because all
//! work on it is on that stream. The driver locks the stream while it enqueues one kernel or
//! copy, the pool its books while it looks a block up, copies to the device the buffer that they
//! go through. Nobody holds a lock while the device works, but for an upload that waits for room
//! in that buffer.

mod attention;
mod attention80;
mod attention90;
mod batch;
mod broken;
mod chain;
mod convert;
#[cfg(feature = "cuda")]
mod cublaslt;
pub(crate) mod device;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(all(feature = "cuda-emulator", target_arch = "x86_64", target_os = "linux"))]
pub mod emulated;
mod fast;
mod feed;
mod few;
pub(crate) mod gemm;
mod in_order;
mod input;
mod kept;
mod latent;
mod layers;
mod leave;
#[cfg(feature = "cuda")]
mod libraries;
mod linear;
mod measure;
#[cfg(feature = "cuda")]
mod module;
#[cfg(feature = "cuda")]
pub mod nccl;
mod open;
mod operands;
mod params;
#[cfg(any(feature = "cuda", feature = "cuda-emulator"))]
mod placed;
mod plain;
mod pool;
mod prepare;
mod recurrent;
pub(crate) mod resident;
mod selection;
mod sight;
#[cfg(feature = "cuda")]
mod table;

use std::sync::Arc;
use std::time::Duration;

use self::broken::Broken;
use self::device::{Address, Device, Fault, Launch};
use self::gemm::GemmLibrary;
use self::kept::Kept;
pub use self::leave::end_process;
#[cfg(feature = "cuda")]
pub use self::libraries::{NvidiaLibrary, libraries};
pub use self::measure::Span;
pub use self::open::CudaError;
use crate::array::Array;
use crate::backend::{
    Attended, AttentionOps, Backend, BackendError, LayerOps, Op, Qkv, Queries, Scope, Selected,
    SelectionOps, StateOps,
};
#[cfg(feature = "cuda")]
use crate::fabric::{Fabric, FabricError};
use crate::memory::{Keys, MemorySet, Selection};
use crate::state::AttentionState;
use crate::tensor::Rows;
use crate::weights::{Angles, LayerWeights, Linear, Matrix};

/// How a device is used.
#[derive(Debug, Clone, Copy)]
pub struct CudaOptions {
    /// Every operation waits for its result and reports what is wrong with it itself, instead of
    /// leaving that to whoever reads the result. Slow; for tests and for hunting.
    pub checked: bool,
    /// The most device memory to hold; `None` is nine tenths of what is free when it is opened.
    pub memory_bytes: Option<usize>,
    /// How long the device may get no further in what was asked of it before it counts as lost.
    pub patience: Duration,
    /// The most blocks of a kernel whose blocks take item after item; `None` is one for every
    /// multiprocessor. For tests: with few blocks small arrays are many rounds of each.
    pub blocks_max: Option<u32>,
    /// Kernels of chips after this compute capability are left out, 80 for those that every chip
    /// since 8.0 has, 0 for all but the plain ones; `None` leaves out none. For comparisons.
    pub capability_max: Option<u32>,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            checked: false,
            memory_bytes: None,
            patience: Duration::from_secs(120),
            blocks_max: None,
            capability_max: None,
        }
    }
}

/// A driver, and the pool over it.
#[cfg(feature = "cuda")]
type Driven = (Arc<driver::Driver>, Arc<pool::Pool<Arc<driver::Driver>>>);

/// What all operations of one device share.
pub(crate) struct Shared {
    library: Option<Box<dyn GemmLibrary>>,
    /// What `device` is, where it is no emulator.
    #[cfg(feature = "cuda")]
    driver: Option<Driven>,
    pub(crate) device: Box<dyn Device>,
    pub(crate) options: CudaOptions,
    /// [`chain::CHAINS`] times one [`Broken`] as u32: kernels write that of the thread which
    /// enqueued them where they meet a number that is not finite.
    broken: Address,
}

impl Shared {
    fn new(device: Box<dyn Device>, options: CudaOptions) -> Result<Self, Fault> {
        let none = [0; size_of::<[u32; chain::CHAINS]>()];
        let broken = device.allocate(none.len())?;
        device.write(broken, &none)?;
        Ok(Self {
            library: None,
            #[cfg(feature = "cuda")]
            driver: None,
            device,
            options,
            broken,
        })
    }

    /// A library for products that [fit](gemm::Product::fits); the kernels multiply the rest.
    pub(crate) fn gemm_library(&self) -> Option<&dyn GemmLibrary> {
        self.library.as_deref()
    }

    /// Where kernels that the calling thread enqueues report a number that is not finite.
    pub(crate) fn broken_at(&self) -> u64 {
        self.broken_of(chain::begun()).0
    }

    fn broken_of(&self, chain: usize) -> Address {
        Address(self.broken.0 + (chain * size_of::<u32>()) as u64)
    }

    /// Waits for everything, and reports a number that was not finite if an operation of the
    /// calling thread met one since the last time. Who reads what others have made hears nothing
    /// of them, and takes nothing from them: only this thread's kernels write its word, and none
    /// is enqueued between the two copies.
    pub(crate) fn broken(&self) -> Result<(), BackendError> {
        let Some(chain) = chain::known() else { return self.alive() };
        let (at, mut code) = (self.broken_of(chain), [0; size_of::<u32>()]);
        self.device.read(at, &mut code).map_err(|it| self.fault(it))?;
        self.told(at, code)
    }

    /// Copies to the host, and reports as [`broken`](Self::broken) does, behind one wait.
    pub(crate) fn read(&self, from: Address, to: &mut [u8]) -> Result<(), BackendError> {
        let Some(chain) = chain::known() else {
            return self.device.read(from, to).map_err(|it| self.fault(it));
        };
        let (at, mut code) = (self.broken_of(chain), [0; size_of::<u32>()]);
        self.device.read_both((from, to), (at, &mut code)).map_err(|it| self.fault(it))?;
        self.told(at, code)
    }

    /// What a word says, which lies `at` and is taken back.
    fn told(&self, at: Address, code: [u8; size_of::<u32>()]) -> Result<(), BackendError> {
        let code = u32::from_ne_bytes(code);
        let Some(&met) = Broken::ALL.iter().find(|&&it| it as u32 == code) else { return Ok(()) };
        self.device.write(at, &0_u32.to_ne_bytes()).map_err(|it| self.fault(it))?;
        Err(met.error())
    }

    /// Waits for everything, and says whether the device can still be asked. Whoever is to hear of
    /// a number that was not finite still does.
    fn alive(&self) -> Result<(), BackendError> {
        self.device.read(self.broken, &mut [0; size_of::<u32>()]).map_err(|it| self.fault(it))
    }

    /// Enqueues a kernel.
    pub(crate) fn run(&self, launch: &Launch<'_>) -> Result<(), BackendError> {
        self.device.launch(launch).map_err(|it| self.fault(it))
    }

    /// What an operation made, after it is checked if the options say so.
    pub(crate) fn done<R>(&self, result: R) -> Result<R, BackendError> {
        if self.options.checked {
            self.broken()?;
        }
        Ok(result)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.device.release(self.broken);
    }
}

/// A CUDA device.
pub struct Cuda {
    pub(crate) shared: Arc<Shared>,
    /// Weights of norms, and the few of recurrent layers: up to ten a layer.
    norms: Kept,
    /// Cosines and sines of the blocks under way.
    angles: Kept,
    /// What the rows of a block weigh, the same in all its layers.
    row_weights: Kept,
    /// What logits fall by with distance, of all heads or of some.
    slopes: Kept,
    voting: selection::Voting,
}

impl Cuda {
    const NORMS_MAX: usize = 2048;
    const ANGLES_MAX: usize = 16;
    const ROW_WEIGHTS_MAX: usize = 4;
    const SLOPES_MAX: usize = 128;

    fn new(shared: Shared) -> Self {
        let (norms, angles) = (Kept::new(Self::NORMS_MAX), Kept::new(Self::ANGLES_MAX));
        let row_weights = Kept::new(Self::ROW_WEIGHTS_MAX);
        let slopes = Kept::new(Self::SLOPES_MAX);
        let voting = selection::Voting::default();
        Self { shared: Arc::new(shared), norms, angles, row_weights, slopes, voting }
    }
}

impl StateOps for Cuda {}

impl AttentionOps for Cuda {
    fn attend(&self, queries: Queries<'_>, keys: &Keys) -> Result<AttentionState, BackendError> {
        attention::attend(self, queries, keys)
    }

    fn weigh(
        &self,
        queries: Queries<'_>,
        keys: &Keys,
        lse: &[f32],
        row_weights: &[f32],
    ) -> Result<Array<f32>, BackendError> {
        attention::weigh(self, queries, keys, lse, row_weights)
    }

    fn attend_all(&self, queries: Queries<'_>, scope: Scope<'_>) -> Result<Attended, BackendError> {
        attention::attend_all(self, queries, scope)
    }

    fn attend_rest(
        &self,
        queries: Queries<'_>,
        scope: Scope<'_>,
        own: &AttentionState,
    ) -> Result<Attended, BackendError> {
        attention::attend_rest(self, queries, scope, own)
    }
}

impl SelectionOps for Cuda {
    fn select(
        &self,
        past: Arc<MemorySet>,
        own: &Keys,
        masses: (&Array<f32>, &Array<f32>),
        selection: &Selection,
    ) -> Result<Selected, BackendError> {
        self.select_keys(past, own, masses, selection)
    }
}

impl LayerOps for Cuda {
    fn pack(&self, weight: Matrix, bias: Option<Vec<f32>>) -> Result<Linear, BackendError> {
        linear::pack(&self.shared, &weight, bias)
    }

    fn linear(&self, x: &Rows, weight: &Linear) -> Result<Rows, BackendError> {
        layers::linear(self, x, weight)
    }

    fn project(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        at: (u32, &Angles),
        queries: usize,
    ) -> Result<Qkv, BackendError> {
        layers::project(self, layer, x, at, queries)
    }

    fn project_each(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        positions: &[u32],
        angles: &Angles,
    ) -> Result<Vec<Qkv>, BackendError> {
        batch::project_each(self, layer, x, positions, angles)
    }

    fn finish(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        attention: &Rows,
    ) -> Result<Rows, BackendError> {
        layers::finish(self, layer, x, attention)
    }

    fn embed(&self, table: &Linear, tokens: &[u32], scale: f32) -> Result<Rows, BackendError> {
        layers::embed(self, table, tokens, scale)
    }

    fn norm(&self, x: &Rows, weight: &Arc<[f32]>, eps: f32) -> Rows {
        layers::norm(self, x, weight, eps)
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        match self.shared.device.properties().capability {
            80..90 => "cuda 8.x",
            90 => "cuda 9.0",
            _ => "cuda",
        }
    }

    fn supports(&self, op: Op) -> bool {
        match op {
            Op::Attention { head_dim, group, kv: _ } => {
                (1..=attention::HEAD_DIM_MAX).contains(&head_dim) && group > 0
            }
            Op::Layers => true,
            // Rows that are fewer than their own keys take other kernels, and few rows another
            // product than many.
            Op::Pages | Op::LastRows => false,
        }
    }

    fn alive(&self) -> Result<(), BackendError> {
        self.shared.alive()
    }

    fn sound(&self) -> Result<(), BackendError> {
        self.shared.broken()
    }

    #[cfg(feature = "cuda")]
    fn fabric(self: Arc<Self>) -> Result<Option<Arc<dyn Fabric>>, FabricError> {
        nccl::NcclFabric::of(self).map(|fabric| Some(Arc::new(fabric) as Arc<dyn Fabric>))
    }
}
