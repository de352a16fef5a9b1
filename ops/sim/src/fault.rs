//! What goes wrong, and when.

use crate::dice::Dice;

/// Something that goes wrong with the cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// A process dies and another one takes its place later.
    Crash { worker: usize, back_after_us: u64 },
    /// A process stands still for some time.
    Hang { worker: usize, for_us: u64 },
    /// Two nodes do not reach each other; the coordinator is the node behind the last worker.
    Cut { a: usize, b: usize, for_us: u64 },
    /// A worker computes slower from now on.
    Slow { worker: usize, times: u64 },
    /// An operator has a worker left for some time.
    Drain { worker: usize, for_us: u64 },
    /// The coordinator's clock jumps ahead.
    Jump { ms: u64 },
}

/// Faults of a run, ascending; none begins later than `end_us`.
pub(crate) fn any_faults(dice: &mut Dice, workers: usize, end_us: u64) -> Vec<(u64, Fault)> {
    let count = dice.of(0..14);
    let mut faults: Vec<_> = (0..count).map(|_| (dice.of(0..end_us), any(dice, workers))).collect();
    faults.sort_by_key(|(at, _)| *at);
    faults
}

fn any(dice: &mut Dice, workers: usize) -> Fault {
    let worker = dice.idx(workers);
    let short = |dice: &mut Dice| match dice.of(0..3) {
        0 => dice.of(1_000..500_000),
        1 => dice.of(500_000..4_000_000),
        _ => dice.of(4_000_000..40_000_000),
    };
    match dice.of(0..12) {
        0..4 => Fault::Crash { worker, back_after_us: short(dice) },
        4..6 => Fault::Hang { worker, for_us: short(dice) },
        6..8 => Fault::Cut { a: worker, b: dice.idx(workers + 1), for_us: short(dice) },
        8..10 => Fault::Drain { worker, for_us: short(dice) },
        10 => Fault::Slow { worker, times: dice.of(1..12) },
        _ => Fault::Jump { ms: dice.of(1..30_000) },
    }
}
