//! `aqueduct gpu bench`: the kernels of a CUDA device beside what the chip could do at most.

mod attention;
mod bench;
mod decode;
mod dense;
mod measure;
mod row;
mod shape;
mod whole;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use aqueduct_core::Refusal;
use aqueduct_kernels::cuda::{Cuda, CudaOptions};
use serde::Serialize;

use self::bench::Bench;
use self::measure::measure;
use self::row::{ALL, Row};
use self::shape::EIGHT_B;
use crate::args::GpuBenchArgs;
use crate::{lines, machine};

/// A kernel that has not ended by then never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// A row that was measured.
#[derive(Debug, Serialize)]
struct Measured {
    kernel: &'static str,
    /// What the floor and the target are made of.
    bound: String,
    /// Median over the repetitions.
    us: f64,
    /// Longest less shortest.
    us_spread: f64,
    floor_us: f64,
    /// Time taken over the floor.
    over_floor: f64,
    /// What the project wants to reach, where it wants something.
    target_us: Option<f64>,
    met: Option<bool>,
    tflops: f64,
    gbps: f64,
    reps: u32,
}

/// A row that could not be measured.
#[derive(Debug, Serialize)]
struct Failed {
    kernel: &'static str,
    failed: String,
}

/// The last line: all rows before it were tried.
#[derive(Debug, Serialize)]
struct End<'a> {
    device: &'a str,
    rows: usize,
    failed: usize,
    commit: &'static str,
}

/// Times every row that the filter names.
///
/// # Errors
/// No device, a number out of bounds, a filter that names nothing, a row that failed, a device
/// that is lost.
pub(crate) async fn run(args: GpuBenchArgs) -> anyhow::Result<()> {
    Refusal::unless_within("reps", args.reps, 1, u32::MAX)?;
    Refusal::unless_within("from", args.from, 0, ALL.len())?;
    let wanted = |row: &&Row| args.filter.as_deref().is_none_or(|word| row.kernel.contains(word));
    let rows: Vec<&Row> = ALL.iter().filter(wanted).skip(args.from).collect();
    if let Some(word) = args.filter.filter(|_| rows.is_empty() && args.from == 0) {
        return Err(Refusal::new("filter", word, "part of a kernel's name").into());
    }
    let devices = Cuda::devices()?;
    let options = CudaOptions { patience: PATIENCE, ..CudaOptions::default() };
    let cuda = Arc::new(Cuda::open(args.device.index, options)?);
    let device = &devices[args.device.index];
    let bench = Bench::new(cuda, device.to_string(), EIGHT_B);
    if !args.json {
        let heading = ["us", "floor", "over", "target", "", "TFLOP/s", "GB/s"];
        lines::say(&line(device, heading.map(str::to_owned)))?;
    }
    let mut failed = 0;
    for row in &rows {
        match timed(&bench, row, args.reps) {
            Ok(measured) => tell(&measured, args.json)?,
            Err(error) => {
                failed += 1;
                tell_failed(row.kernel, &error, args.json)?;
                bench.cuda.settle().with_context(|| format!("lost at {}", row.kernel))?;
            }
        }
    }
    if args.json {
        let commit = machine::COMMIT;
        lines::print(&End { device, rows: rows.len(), failed, commit })?;
    }
    if failed > 0 {
        bail!("{failed} of {} rows failed on {device}", rows.len());
    }
    Ok(())
}

fn timed(bench: &Bench, row: &Row, reps: u32) -> anyhow::Result<Measured> {
    let mut work = (row.make)(bench)?;
    let timings = measure(&bench.cuda, reps, &mut *work.run)?;
    let us = timings.median * 1e6;
    Ok(Measured {
        kernel: row.kernel,
        bound: work.bound,
        us,
        us_spread: timings.spread * 1e6,
        floor_us: work.floor_us,
        over_floor: us / work.floor_us,
        target_us: work.target_us,
        met: work.target_us.map(|target_us| us <= target_us),
        tflops: work.flop / us * 1e-6,
        gbps: work.bytes / us * 1e-3,
        reps,
    })
}

fn tell(row: &Measured, json: bool) -> std::io::Result<()> {
    if json {
        return lines::print(row);
    }
    let verdict = match row.met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "",
    };
    let cells = [
        format!("{:.1}", row.us),
        format!("{:.1}", row.floor_us),
        format!("{:.2}", row.over_floor),
        row.target_us.map_or_else(String::new, |target_us| format!("{target_us:.1}")),
        verdict.to_owned(),
        format!("{:.0}", row.tflops),
        format!("{:.0}", row.gbps),
    ];
    lines::say(&line(row.kernel, cells))
}

fn tell_failed(kernel: &'static str, error: &anyhow::Error, json: bool) -> std::io::Result<()> {
    let failed = format!("{error:#}");
    match json {
        true => lines::print(&Failed { kernel, failed }),
        false => lines::say(&format!("{kernel:34} FAILED: {failed}\n")),
    }
}

fn line(name: &str, [us, floor, over, target, met, tflops, gbps]: [String; 7]) -> String {
    format!("{name:34} {us:>10} {floor:>9} {over:>6} {target:>9} {met:7} {tflops:>8} {gbps:>7}\n")
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::shape::Shape;
    use super::*;

    const SMALL: Shape = Shape {
        width: 256,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        ffn: 128,
        vocab: 300,
        layers: 2,
        chunk: 80,
        memory: 32,
        depth: 256,
        prompt: 240,
        product: 128,
        span_bytes: 40 << 10,
    };

    /// Every row is made and runs, on kernels of either generation, and says what is finite.
    #[test]
    fn rows_run_on_the_emulator() {
        for capability in [90, 80] {
            let cuda = Cuda::emulated(capability, CudaOptions::default()).unwrap();
            let bench = Bench::new(Arc::new(cuda), String::new(), SMALL);
            for row in ALL {
                let measured = timed(&bench, row, 1);
                let measured = measured.unwrap_or_else(|error| panic!("{}: {error:#}", row.kernel));
                let Measured { us, floor_us, over_floor, tflops, gbps, .. } = measured;
                for figure in [us, floor_us, over_floor, tflops + gbps] {
                    assert!(figure.is_finite() && figure > 0.0, "{measured:?}");
                }
            }
        }
    }

    #[test]
    fn a_model_that_is_too_large_is_refused() {
        let cuda = Cuda::emulated(90, CudaOptions::default()).unwrap();
        let bench = Bench::new(Arc::new(cuda), String::new(), Shape { vocab: 1 << 40, ..SMALL });
        let error = format!("{:#}", whole::prefill(&bench).err().unwrap());
        assert!(error.starts_with("weights of 562950.0 GB: emulated: allocate"), "{error}");
        bench.cuda.settle().unwrap();
    }

    /// The figures that the issue states for one layer.
    #[test]
    fn floors_are_those_of_the_issue() {
        let gflop = |flop: f64| (flop / 1e9).round();
        assert_eq!(gflop(EIGHT_B.attention_flop(EIGHT_B.memory)), 206.0);
        assert_eq!(gflop(EIGHT_B.masses_flop(EIGHT_B.chunk)), 103.0);
        assert_eq!(gflop(EIGHT_B.layer_flop()), 1787.0);
        assert_eq!(EIGHT_B.kv_bytes(EIGHT_B.depth), 128 << 20);
        assert_eq!(EIGHT_B.model_bytes() / 1_000_000_000, 15);
        let pairs = EIGHT_B.attention_flop(0) + EIGHT_B.past_flop();
        assert_eq!(pairs, EIGHT_B.attention_flop(EIGHT_B.memory));
    }
}
