//! `aqueduct gpu bench`: the kernels of a CUDA device beside what an H100 could do at most.

mod cases;
mod scene;

use std::time::Duration;

use aqueduct_core::Refusal;
use aqueduct_kernels::BackendError;
use aqueduct_kernels::cuda::{Cuda, CudaOptions};
use serde::Serialize;

use self::cases::Case;
use self::scene::Scene;
use crate::args::GpuBenchArgs;
use crate::timings::Timings;
use crate::{lines, machine};

/// A repetition is as many calls as take this long, at most [`CALLS_MAX`].
const REPETITION: Duration = Duration::from_millis(20);
const CALLS_MAX: u32 = 200;

#[derive(Debug, Serialize)]
struct Row<'a> {
    kernel: &'a str,
    /// What the floor and the target are made of.
    bound: &'a str,
    /// Median over the repetitions.
    us: f64,
    /// Longest less shortest.
    us_spread: f64,
    floor_us: f64,
    target_us: f64,
    of_floor: f64,
    met: bool,
    tflops: f64,
    gbps: f64,
    reps: u32,
    device: &'a str,
    commit: &'static str,
}

/// Times every case that the filter names.
///
/// # Errors
/// No device, a number out of bounds, a filter that names nothing, a device that fails.
pub(crate) async fn run(args: GpuBenchArgs) -> anyhow::Result<()> {
    Refusal::unless_within("reps", args.reps, 1, u32::MAX)?;
    let devices = Cuda::devices()?;
    let cuda = Cuda::open(args.device.index, CudaOptions::default())?;
    let scene = Scene::new(&cuda)?;
    let mut cases = cases::all(&cuda, &scene)?;
    if let Some(word) = &args.filter {
        cases.retain(|case| case.kernel.contains(word.as_str()));
        if cases.is_empty() {
            return Err(Refusal::new("filter", word, "part of a kernel's name").into());
        }
    }
    if !args.json {
        let heading = ["us", "floor", "of floor", "target", "", "TFLOP/s", "GB/s"];
        lines::say(&line(&devices[args.device.index], heading.map(str::to_owned)))?;
    }
    for case in cases {
        let Case { kernel, bound, floor_us, target_us, flop, bytes, mut work } = case;
        let timings = measure(&cuda, args.reps, &mut *work)?;
        let us = timings.median * 1e6;
        let row = Row {
            kernel,
            bound,
            us,
            us_spread: timings.spread * 1e6,
            floor_us,
            target_us,
            of_floor: floor_us / us,
            met: us <= target_us,
            tflops: flop / us * 1e-6,
            gbps: bytes / us * 1e-3,
            reps: args.reps,
            device: &devices[args.device.index],
            commit: machine::COMMIT,
        };
        tell(&row, args.json)?;
    }
    Ok(())
}

/// The time of one call of many that nobody waits for in between.
fn measure(
    cuda: &Cuda,
    reps: u32,
    work: &mut dyn FnMut() -> Result<(), BackendError>,
) -> Result<Timings, BackendError> {
    cuda.time(&mut *work)?; // the first finds nothing where it will be
    let once = cuda.time(&mut *work)?.max(Duration::from_micros(1));
    let calls = (REPETITION.as_secs_f64() / once.as_secs_f64()).ceil();
    let calls = (calls as u32).clamp(1, CALLS_MAX);
    let mut repetition = || -> Result<Duration, BackendError> {
        let all = cuda.time(|| (0..calls).try_for_each(|_| work()))?;
        Ok(all / calls)
    };
    let runs = (0..reps).map(|_| repetition()).collect::<Result<Vec<_>, _>>()?;
    Ok(Timings::of(&runs))
}

fn tell(row: &Row<'_>, json: bool) -> std::io::Result<()> {
    if json {
        return lines::print(row);
    }
    let verdict = if row.met { "met" } else { "missed" };
    let cells = [
        format!("{:.1}", row.us),
        format!("{:.1}", row.floor_us),
        format!("{:.0} %", 100.0 * row.of_floor),
        format!("{:.1}", row.target_us),
        verdict.to_owned(),
        format!("{:.0}", row.tflops),
        format!("{:.0}", row.gbps),
    ];
    lines::say(&line(row.kernel, cells))
}

fn line(name: &str, [us, floor, of_floor, target, met, tflops, gbps]: [String; 7]) -> String {
    format!(
        "{name:34} {us:>10} {floor:>9} {of_floor:>9} {target:>9} {met:7} {tflops:>8} {gbps:>7}\n"
    )
}
