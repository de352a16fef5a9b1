//! What is said of several runs of one thing.

use std::time::Duration;

/// In seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Timings {
    /// Half of the runs took less.
    pub(crate) median: f64,
    /// The shortest.
    pub(crate) least: f64,
    /// Longest less shortest.
    pub(crate) spread: f64,
}

impl Timings {
    /// Of at least one run.
    ///
    /// # Panics
    /// Without runs.
    pub(crate) fn of(runs: &[Duration]) -> Self {
        let seconds = |run: &Duration| (*run).max(Duration::from_nanos(1)).as_secs_f64();
        let ends = |ends: (f64, f64), run| (ends.0.min(run), ends.1.max(run));
        let (least, most) = runs.iter().map(seconds).fold((f64::INFINITY, 0.0), ends);
        Self { median: median(runs.iter().map(seconds)), least, spread: most - least }
    }
}

/// The middle one, or the mean of the middle two.
///
/// # Panics
/// Without values.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        (values[middle - 1] + values[middle]) / 2.0
    } else {
        values[middle]
    }
}

/// Seconds that `share` of all waits do not exceed (nearest rank); 0 without waits.
pub(crate) fn percentile(waits: &[Duration], share: f64) -> f64 {
    let mut waits = waits.to_vec();
    waits.sort_unstable();
    let rank = (share * waits.len() as f64).ceil() as usize;
    waits.get(rank.max(1) - 1).map_or(0.0, Duration::as_secs_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_by_nearest_rank() {
        let waits: Vec<_> = (1..=200).rev().map(Duration::from_secs).collect();
        let check = |share, want| assert_eq!(percentile(&waits, share), want);
        check(0.5, 100.0);
        check(0.99, 198.0);
        check(1.0, 200.0);
        check(0.0, 1.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn the_median_of_odd_and_even_runs() {
        let check = |seconds: &[u64], median, least, spread| {
            let runs: Vec<_> = seconds.iter().map(|&s| Duration::from_secs(s)).collect();
            assert_eq!(Timings::of(&runs), Timings { median, least, spread });
        };
        check(&[3], 3.0, 3.0, 0.0);
        check(&[9, 1, 2], 2.0, 1.0, 8.0);
        check(&[4, 1, 2, 9], 3.0, 1.0, 8.0);
    }
}
