//! `aqueduct bench kernels`: every kernel beside what this machine could do at most.

mod attention;
mod case;
mod layer;
mod recurrent;

use std::time::{Duration, Instant};

use anyhow::Context;
use aqueduct_core::{Refusal, limits};
use aqueduct_kernels::cpu::peak::Path;
use aqueduct_kernels::{Cpu, CpuOptions};
use serde::Serialize;

use self::case::Case;
pub(super) use self::case::noise;
use crate::args::BenchKernelsArgs;
use crate::machine::{self, Machine};
use crate::timings::Timings;
use crate::{lines, report};

/// No repetition of a kernel begins later than this after the first.
const REPEATED_WITHIN: Duration = Duration::from_secs(3);

#[derive(Debug, Serialize)]
struct Row<'a> {
    kernel: &'static str,
    path: String,
    shape: &'a str,
    flop: u64,
    bytes: u64,
    /// Median over the repetitions.
    us: f64,
    peak_share: f64,
    bandwidth_share: f64,
    /// Longest less shortest.
    us_spread: f64,
    reps: usize,
    threads: usize,
    #[serde(flatten)]
    machine: &'a Machine,
    commit: &'static str,
}

/// Measures every kernel that the filter names.
///
/// # Errors
/// A number that is out of bounds, an instruction set that is not there, a filter that names
/// nothing.
pub(crate) async fn run(args: BenchKernelsArgs) -> anyhow::Result<()> {
    Refusal::unless_within("reps", args.reps, 1, u32::MAX)?;
    Refusal::unless_within("threads", args.threads, 0, limits::THREADS_MAX)?;
    let cpu = Cpu::new(CpuOptions { threads: args.threads, isa: args.isa.isa })?;
    let mut cases = case::all(&cpu);
    if let Some(words) = &args.filter {
        cases.retain(|case| case.is_named(words));
        if cases.is_empty() {
            let bound = "parts of a kernel's name, path and shape, such as `linear bf16 512x`";
            return Err(Refusal::new("filter", words, bound).into());
        }
    }
    let mut bench = Bench::new(cpu, args)?;
    bench.begin()?;
    for case in cases {
        bench.measure(case)?;
    }
    Ok(())
}

struct Bench {
    args: BenchKernelsArgs,
    cpu: Cpu,
    machine: Machine,
    /// Bytes per second.
    bandwidth: f64,
    /// Operations per second of the paths that were met.
    peaks: Vec<(Path, f64)>,
}

impl Bench {
    fn new(cpu: Cpu, args: BenchKernelsArgs) -> anyhow::Result<Self> {
        let bandwidth = cpu.read_bandwidth().context("memory for the bandwidth")?;
        Ok(Self { args, cpu, machine: Machine::look(), bandwidth, peaks: Vec::new() })
    }

    fn begin(&self) -> std::io::Result<()> {
        if self.args.json {
            return Ok(());
        }
        let (cpu, threads) = (&self.machine.cpu, self.cpu.threads());
        let unit = if threads == 1 { "thread" } else { "threads" };
        let read = self.bandwidth / 1e9;
        lines::say(&format!(
            "{cpu}, {}, {threads} {unit}, reads {read:.1} GB/s\n{}\n",
            self.cpu.isa(),
            line(["kernel", "path", "shape", "us", "GFLOP/s", "of peak", "GB/s", "of memory"])
        ))
    }

    fn measure(&mut self, case: Case) -> anyhow::Result<()> {
        let Case { kernel, path, shape, flop, bytes, prepare } = case;
        let peak = self.peak(path);
        let mut work = prepare(&self.cpu)?;
        work(&self.cpu)?; // the first finds nothing where it will be
        let (mut runs, started) = (Vec::new(), Instant::now());
        while runs.is_empty()
            || runs.len() < self.args.reps as usize && started.elapsed() < REPEATED_WITHIN
        {
            runs.push(work(&self.cpu)?);
        }
        let timings = Timings::of(&runs);
        let row = Row {
            kernel,
            path: path.to_string(),
            shape: &shape,
            flop,
            bytes,
            us: timings.median * 1e6,
            peak_share: flop as f64 / timings.median / peak,
            bandwidth_share: bytes as f64 / timings.median / self.bandwidth,
            us_spread: timings.spread * 1e6,
            reps: runs.len(),
            threads: self.cpu.threads(),
            machine: &self.machine,
            commit: machine::COMMIT,
        };
        self.tell(&row)?;
        Ok(())
    }

    /// Operations per second that `path` could do.
    fn peak(&mut self, path: Path) -> f64 {
        if let Some((_, peak)) = self.peaks.iter().find(|(known, _)| *known == path) {
            return *peak;
        }
        let peak = self.cpu.peak(path);
        self.peaks.push((path, peak));
        peak
    }

    fn tell(&self, row: &Row<'_>) -> std::io::Result<()> {
        if self.args.json {
            return lines::print(row);
        }
        let per_second = |count: u64| format!("{:.1}", count as f64 / row.us * 1e-3);
        let cells = [
            row.kernel,
            &row.path,
            row.shape,
            &format!("{:.1}", row.us),
            &per_second(row.flop),
            &report::percent(row.peak_share),
            &per_second(row.bytes),
            &report::percent(row.bandwidth_share),
        ];
        lines::say(&(line(cells) + "\n"))
    }
}

/// A line of the table, which is printed as it is measured.
fn line(cells: [&str; 8]) -> String {
    let [kernel, path, shape, us, flop, peak, bytes, bandwidth] = cells;
    format!(
        "{kernel:10} {path:17} {shape:27} {us:>10} {flop:>9} {peak:>9} {bytes:>7} {bandwidth:>10}"
    )
}
