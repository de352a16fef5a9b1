//! Repetitions under the device's clock.

use std::time::Duration;

use aqueduct_kernels::BackendError;
use aqueduct_kernels::cuda::Cuda;

use crate::timings::Timings;

/// A repetition is as many calls as take this long, at most [`CALLS_MAX`].
const REPETITION: Duration = Duration::from_millis(20);
const CALLS_MAX: u32 = 200;
/// Repetitions of what others are measured by.
const ROOF_REPS: u32 = 5;

/// The time of one call of many that nobody waits for in between.
pub(super) fn measure<E: From<BackendError>>(
    cuda: &Cuda,
    reps: u32,
    work: &mut dyn FnMut() -> Result<(), E>,
) -> Result<Timings, E> {
    // The first finds nothing where it will be; at its third use a product's shape is measured.
    for _ in 0..3 {
        cuda.time(&mut *work)?;
    }
    let once = cuda.time(&mut *work)?.max(Duration::from_micros(1));
    let calls = (REPETITION.as_secs_f64() / once.as_secs_f64()).ceil();
    let calls = (calls as u32).clamp(1, CALLS_MAX);
    let mut repetition = || -> Result<Duration, E> {
        let all = cuda.time(|| (0..calls).try_for_each(|_| work()))?;
        Ok(all / calls)
    };
    let runs = (0..reps).map(|_| repetition()).collect::<Result<Vec<_>, _>>()?;
    cuda.time(|| Ok::<_, E>(()))?; // what was not finite belongs to this row
    Ok(Timings::of(&runs))
}

/// Of what is a roof for others.
pub(super) fn median_seconds(
    cuda: &Cuda,
    work: &mut dyn FnMut() -> Result<(), BackendError>,
) -> Result<f64, BackendError> {
    Ok(measure(cuda, ROOF_REPS, work)?.median)
}
