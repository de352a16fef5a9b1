//! `aqueduct gpu check`: every kernel of a CUDA device against its definition.

mod large;
mod library;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use aqueduct_core::Refusal;
use aqueduct_kernels::conformance::CHECKS;
use aqueduct_kernels::conformance::random::{self, Figures};
use aqueduct_kernels::cuda::{Cuda, CudaOptions};
use serde::Serialize;

use crate::args::GpuCheckArgs;
use crate::lines;
use crate::machine;

/// A kernel that has not ended by then never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// Of kernels whose blocks take item after item, in the pass with few blocks: as many as an
/// emulated device has multiprocessors.
const FEW_BLOCKS: u32 = 4;

/// Of output, masses and what rows spend.
const ERROR_MAX: f64 = 5e-3;
const SPENT_ERROR_MAX: f64 = 1e-3;
/// Of the keys that the ranking by definition keeps.
const AGREED_MIN: f64 = 0.995;

#[derive(Debug, Serialize)]
struct Row<'a> {
    check: &'a str,
    passed: bool,
    /// What is wrong, or what was measured.
    said: String,
    ms: f64,
}

/// The last line: all checks before it were made.
#[derive(Debug, Serialize)]
struct Total<'a> {
    device: &'a str,
    passed: usize,
    failed: usize,
    commit: &'static str,
}

/// All checks of the suite, on a device that is used in one way.
struct Pass {
    /// Behind the names of checks.
    suffix: &'static str,
    options: CudaOptions,
}

impl Pass {
    fn all() -> [Self; 3] {
        let checked = CudaOptions { checked: true, patience: PATIENCE, ..CudaOptions::default() };
        // A chip has more multiprocessors than a check has items, so that no block takes two.
        let few = CudaOptions { blocks_max: Some(FEW_BLOCKS), ..checked };
        // As workers use it: nobody waits between operations, and memory is not poisoned.
        let unchecked = CudaOptions { checked: false, ..checked };
        [
            Self { suffix: "", options: checked },
            Self { suffix: ", few blocks", options: few },
            Self { suffix: ", unchecked", options: unchecked },
        ]
    }

    /// Whether a check can be made this way: those of broken numbers want each operation to tell
    /// of them itself, which unchecked it leaves to whoever reads what it made.
    fn can(&self, name: &str) -> bool {
        self.options.checked || !name.contains("broken")
    }
}

/// Runs all checks.
///
/// # Errors
/// No device, a filter that names nothing, a check that failed.
pub(crate) async fn run(args: GpuCheckArgs) -> anyhow::Result<()> {
    let (devices, index) = (Cuda::devices()?, args.device.index);
    let open = |options| Cuda::open(index, options);
    quieten_panics();
    let mut report = Report { json: args.json, skipped: args.from, passed: 0, failed: 0 };
    let wanted = |name: &str| args.filter.as_deref().is_none_or(|word| name.contains(word));
    for pass in Pass::all() {
        let checks = CHECKS.iter().filter(|(name, _)| pass.can(name));
        let checks = checks.map(|(name, check)| (format!("{name}{}", pass.suffix), check));
        let checks: Vec<_> = checks.filter(|(name, _)| wanted(name)).collect();
        if report.skips(checks.len()) {
            continue;
        }
        let cuda = open(pass.options)?;
        for (name, check) in checks {
            report.run(&cuda, &name, || {
                check(&cuda);
                Ok(String::new())
            })?;
        }
    }
    let [Pass { options, .. }, ..] = Pass::all();
    if wanted("random::layers") {
        random_layers(&open(options)?, &args, &mut report)?;
    }
    let cases = large::CASES.iter().filter(|case| wanted(&case.name())).collect::<Vec<_>>();
    if !report.skips(cases.len()) {
        large::compare_all(&open, &cases, &mut report)?;
    }
    let cases: Vec<_> = library::cases().into_iter().filter(|case| wanted(&case.name())).collect();
    if !report.skips(cases.len()) {
        library::compare_all(&open, &cases, &mut report)?;
    }
    if report.passed + report.failed + args.from == 0 {
        let filter = args.filter.unwrap_or_default();
        return Err(Refusal::new("filter", filter, "part of a check's name").into());
    }
    report.end(&devices[index])
}

fn random_layers(cuda: &Cuda, args: &GpuCheckArgs, report: &mut Report) -> anyhow::Result<()> {
    let (mut kept, mut agreed) = (0, 0);
    for seed in 0..args.seeds {
        report.run(cuda, &format!("random::layer {seed}"), || {
            let figures = random::layer(cuda, seed, args.rows_max.max(1));
            kept += figures.kept;
            agreed += figures.agreed;
            judge(&figures)
        })?;
    }
    report.run(cuda, "random::ranking", || {
        if kept == 0 && args.from > 0 {
            return Ok("the layers were checked by a process before this".to_owned());
        }
        let share = agreed as f64 / (kept as f64).max(1.0);
        let said = format!("{agreed} of {kept} keys, {:.3} %", 100.0 * share);
        if share >= AGREED_MIN { Ok(said) } else { Err(said) }
    })
}

fn judge(figures: &Figures) -> Result<String, String> {
    let Figures { what, output_error, mass_error, spent_error, .. } = figures;
    let said = format!(
        "{what}: output {output_error:.1e}, masses {mass_error:.1e}, spent {spent_error:.1e}"
    );
    let worst = output_error.max(*mass_error);
    match worst <= ERROR_MAX && *spent_error <= SPENT_ERROR_MAX {
        true => Ok(said),
        false => Err(said),
    }
}

thread_local! {
    /// Where and with what words the last check gave up.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A check that fails says so in the table, not on stderr.
fn quieten_panics() {
    std::panic::set_hook(Box::new(|info| {
        LAST_PANIC.with_borrow_mut(|last| *last = info.to_string().replace('\n', " "));
    }));
}

struct Report {
    json: bool,
    /// Checks that are still to be left out.
    skipped: usize,
    passed: usize,
    failed: usize,
}

impl Report {
    /// Whether all of the next `count` checks are to be left out, which are then done with.
    fn skips(&mut self, count: usize) -> bool {
        let skips = self.skipped >= count;
        self.skipped -= if skips { count } else { 0 };
        skips
    }

    fn run(
        &mut self,
        cuda: &Cuda,
        check: &str,
        work: impl FnOnce() -> Result<String, String>,
    ) -> anyhow::Result<()> {
        if self.skipped > 0 {
            self.skipped -= 1;
            return Ok(());
        }
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(work));
        let outcome = outcome.unwrap_or_else(|_| Err(LAST_PANIC.with_borrow_mut(std::mem::take)));
        let passed = outcome.is_ok();
        *(if passed { &mut self.passed } else { &mut self.failed }) += 1;
        let said = outcome.unwrap_or_else(|said| said);
        let ms = start.elapsed().as_secs_f64() * 1e3;
        let row = Row { check, passed, said, ms };
        match self.json {
            true => lines::print(&row)?,
            false => {
                let verdict = if passed { "ok" } else { "FAILED" };
                lines::say(&format!("{verdict:7} {check:52} {ms:>9.1} ms  {}\n", row.said))?;
            }
        }
        match passed {
            true => Ok(()),
            false => cuda.settle().with_context(|| format!("lost at {check}")),
        }
    }

    fn end(self, device: &str) -> anyhow::Result<()> {
        let Self { json, passed, failed, .. } = self;
        if json {
            lines::print(&Total { device, passed, failed, commit: machine::COMMIT })?;
        } else {
            lines::say(&format!("{device}: {passed} passed, {failed} failed\n"))?;
        }
        if failed > 0 {
            bail!("{failed} of {} checks failed on {device}", passed + failed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_differ_in_one_thing_each() {
        let [checked, few, unchecked] = Pass::all();
        assert!(checked.options.checked && checked.options.blocks_max.is_none());
        assert_eq!(few.options.blocks_max, Some(FEW_BLOCKS));
        assert!(few.options.checked && !unchecked.options.checked);
        let left_out = |pass: &Pass| CHECKS.iter().filter(|(name, _)| !pass.can(name)).count();
        assert_eq!([&checked, &few, &unchecked].map(left_out), [0, 0, 5]);
    }

    #[test]
    fn checks_that_are_left_out_are_counted_over_all_passes() {
        let mut report = Report { json: true, skipped: 5, passed: 0, failed: 0 };
        assert!(report.skips(3) && report.skips(0) && report.skips(2));
        assert!(!report.skips(1) && report.skips(0));
        let mut report = Report { skipped: 2, ..report };
        assert!(!report.skips(3), "the third is to be made");
        assert_eq!(report.skipped, 2);
    }
}
