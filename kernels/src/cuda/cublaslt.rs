//! cuBLASLt, where it is installed: bf16 products of many rows.
//!
//! It has several algorithms for a shape, and its own guess at the fastest is often not the
//! fastest. So a shape that keeps coming is measured once. But two workers that measure may
//! choose differently, and their bits must not differ by that: only algorithms whose results are
//! bit for bit those of the first guess are candidates. Then it does not matter who chose what,
//! nor when; sums are never split over the inputs, so most algorithms qualify.

mod library;
mod operation;

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::operation::{Algorithm, Handle, Operation, WORKSPACE_BYTES};
use super::device::{Address, Copies, Device, Fault};
use super::driver::Driver;
use super::gemm::{GemmLibrary, Product};
use super::libraries::file_of;
use super::pool::Pool;

/// The file of this machine's library.
pub(super) fn file() -> Result<PathBuf, Fault> {
    let file = file_of(library::found()?.cublasLtCreate as *const c_void);
    file.ok_or_else(|| Fault::new("libcublasLt", "its file is not known"))
}

/// Algorithms that are measured.
const CANDIDATES: usize = 8;
/// The use of a shape at which it is measured, and what its rows are a multiple of: chunks have
/// such sizes, and what a prompt's last chunk has may never come again behind its layers.
const MEASURED_USE: u32 = 3;
const MEASURED_ROWS: usize = 128;
/// Shapes that are remembered; then all are forgotten, which changes no bit.
const SHAPES_MAX: usize = 4096;
/// How often a candidate is timed, and how often it runs each time.
const TIMES: usize = 3;
const TIMED_RUNS: usize = 3;
/// Rows at either end of the result that candidates are compared on.
const COMPARED_ROWS: usize = 128;

/// The library on one device. Choosing an algorithm locks the shapes, for some milliseconds when
/// one is measured; enqueueing locks the workspace.
pub(crate) struct CublasLt {
    /// Destroying it waits for the device, so that of a lost one is not.
    handle: ManuallyDrop<Handle>,
    workspace: Address,
    /// A product may be several kernels, which take the workspace from one another: those of
    /// another thread's product must not come between them on the stream.
    enqueues: Mutex<()>,
    shapes: Mutex<HashMap<Shape, Plan>>,
    pool: Arc<Pool<Arc<Driver>>>,
    driver: Arc<Driver>,
}

/// What algorithms are chosen by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    rows: usize,
    inputs: usize,
    outputs: usize,
    bias: bool,
    residual: bool,
}

impl From<&Product> for Shape {
    fn from(product: &Product) -> Self {
        let Product { rows, inputs, outputs, bias, residual, .. } = *product;
        Self { rows, inputs, outputs, bias: bias.is_some(), residual: residual.is_some() }
    }
}

enum Plan {
    Takes {
        algorithm: Algorithm,
        uses: u32,
    },
    /// The library said no, and is not asked again.
    Refuses,
}

impl CublasLt {
    /// The library on `driver`'s device.
    ///
    /// # Errors
    /// It is not installed, or does not work here.
    pub(crate) fn open(driver: &Arc<Driver>, pool: &Arc<Pool<Arc<Driver>>>) -> Result<Self, Fault> {
        library::found()?;
        driver.bind("cublasLtCreate")?;
        Ok(Self {
            handle: ManuallyDrop::new(Handle::new()?),
            workspace: pool.allocate(WORKSPACE_BYTES)?,
            enqueues: Mutex::default(),
            shapes: Mutex::default(),
            pool: pool.clone(),
            driver: driver.clone(),
        })
    }

    fn shapes(&self) -> MutexGuard<'_, HashMap<Shape, Plan>> {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: the library does not take products of this shape.
    fn choose(&self, operation: &Operation<'_>, product: &Product) -> Option<Algorithm> {
        let mut shapes = self.shapes();
        if shapes.len() >= SHAPES_MAX {
            shapes.clear();
        }
        let shape = Shape::from(product);
        match shapes.get_mut(&shape) {
            None => match operation.algorithms(&self.handle, 1).map(|all| all.first().copied()) {
                Ok(Some(algorithm)) => {
                    shapes.insert(shape, Plan::Takes { algorithm, uses: 1 });
                    Some(algorithm)
                }
                other => {
                    let why = other.err().map_or_else(|| "it has none".into(), |it| it.to_string());
                    refuse(&mut shapes, shape, &why);
                    None
                }
            },
            Some(Plan::Refuses) => None,
            Some(Plan::Takes { algorithm, uses }) => {
                *uses = uses.saturating_add(1);
                if *uses == MEASURED_USE && product.rows.is_multiple_of(MEASURED_ROWS) {
                    match self.fastest(operation, product, *algorithm) {
                        Ok(Some(fastest)) => *algorithm = fastest,
                        Ok(None) => *uses = 0,
                        Err(_) => {} // the guess will do, or its use says what is wrong
                    }
                }
                Some(*algorithm)
            }
        }
    }

    /// The fastest algorithm whose bits are those of `first` on the operands at hand; `None`
    /// where these operands cannot tell.
    fn fastest(
        &self,
        operation: &Operation<'_>,
        product: &Product,
        first: Algorithm,
    ) -> Result<Option<Algorithm>, Fault> {
        let Ok(scratch) = Scratch::new(&self.pool, product.rows * product.outputs * 4) else {
            return Ok(None); // no room to try others
        };
        let probe = Probe { library: self, operation, product, out: scratch.at };
        let want = probe.bits(&first)?;
        if want.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let mut best = (probe.time(&first)?, first);
        for other in operation.algorithms(&self.handle, CANDIDATES)?.iter().skip(1) {
            if probe.bits(other).is_ok_and(|bits| bits == want) {
                let time = probe.time(other)?;
                if time < best.0 {
                    best = (time, *other);
                }
            }
        }
        Ok(Some(best.1))
    }

    fn enqueue(
        &self,
        operation: &Operation<'_>,
        algorithm: &Algorithm,
        out: u64,
    ) -> Result<(), Fault> {
        let memory = (out, self.workspace.0);
        let _whole = self.enqueues.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: whoever filled the product in vouches for its addresses; the workspace is ours,
        // and the stream lives as long as the driver, whose context `multiply` has bound.
        unsafe { operation.enqueue(&self.handle, algorithm, memory, self.driver.stream().cast()) }
    }
}

/// Our own kernels multiply what the library does not: nothing that was asked for fails by it.
fn refuse(shapes: &mut HashMap<Shape, Plan>, shape: Shape, why: &str) {
    tracing::warn!(?shape, why, "cuBLASLt is not used for products of this shape");
    shapes.insert(shape, Plan::Refuses);
}

impl GemmLibrary for CublasLt {
    fn multiply(&self, product: &Product) -> bool {
        // What is wrong with the device itself is told by whatever is asked of it next.
        if self.driver.bind("cublasLtMatmul").is_err() {
            return false;
        }
        let shape = Shape::from(product);
        let refused = |fault: Fault| refuse(&mut self.shapes(), shape, &fault.to_string());
        let operation = match Operation::new(product) {
            Ok(operation) => operation,
            Err(fault) => {
                refused(fault);
                return false;
            }
        };
        let Some(algorithm) = self.choose(&operation, product) else { return false };
        self.enqueue(&operation, &algorithm, product.out).map_err(refused).is_ok()
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.pool.release(self.workspace);
        if self.driver.bind("cublasLtDestroy").is_ok() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.handle) };
        }
    }
}

/// Memory for a while.
struct Scratch<'a> {
    pool: &'a Pool<Arc<Driver>>,
    at: Address,
}

impl<'a> Scratch<'a> {
    fn new(pool: &'a Pool<Arc<Driver>>, bytes: usize) -> Result<Self, Fault> {
        Ok(Self { pool, at: pool.allocate(bytes)? })
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        self.pool.release(self.at);
    }
}

/// Algorithms tried on one product, with the result elsewhere.
struct Probe<'a> {
    library: &'a CublasLt,
    operation: &'a Operation<'a>,
    product: &'a Product,
    out: Address,
}

impl Probe<'_> {
    fn run(&self, algorithm: &Algorithm) -> Result<(), Fault> {
        self.library.enqueue(self.operation, algorithm, self.out.0)
    }

    /// What the algorithm makes of the first and of the last rows.
    fn bits(&self, algorithm: &Algorithm) -> Result<Vec<u8>, Fault> {
        self.run(algorithm)?;
        let row_bytes = self.product.outputs * 4;
        let rows = self.product.rows.min(COMPARED_ROWS);
        let mut bits = vec![0; 2 * rows * row_bytes];
        let (head, tail) = bits.split_at_mut(rows * row_bytes);
        self.library.driver.read(self.out, head)?;
        let last = (self.product.rows - rows) * row_bytes;
        self.library.driver.read(Address(self.out.0 + last as u64), tail)?;
        Ok(bits)
    }

    /// The shortest of several times: other threads may use the stream between two marks, but
    /// hardly every time. What they enqueued before is waited for.
    fn time(&self, algorithm: &Algorithm) -> Result<Duration, Fault> {
        let driver = &self.library.driver;
        let mut shortest = Duration::MAX;
        for _ in 0..TIMES {
            driver.wait(&driver.mark()?)?;
            let start = driver.mark()?;
            for _ in 0..TIMED_RUNS {
                self.run(algorithm)?;
            }
            shortest = shortest.min(driver.between(&start, &driver.mark()?)?);
        }
        Ok(shortest)
    }
}
