//! What must be gone when nobody asks any more.

use std::fmt;

use aqueduct_coordinator::runtime::Stats as Served;
use aqueduct_worker::Stats;
use serde::Serialize;

use super::caller::Tally;
use crate::report;

/// What a server holds while nobody asks.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(super) struct Left {
    queued: usize,
    running: usize,
    /// That a worker remembers.
    requests_held: u64,
    inbox_bytes: u64,
    outbox_bytes: u64,
    home_bytes: u64,
    shard_bytes: u64,
    /// Resident memory of the process.
    rss_bytes: u64,
    /// The same before, when the server was warm.
    rss_warm_bytes: u64,
}

impl Left {
    pub(super) fn look(served: &Served, workers: &[Stats]) -> Self {
        let sum = |of: fn(&Stats) -> u64| workers.iter().map(of).sum();
        Self {
            queued: served.queued,
            running: served.running,
            requests_held: sum(|stats| stats.requests),
            inbox_bytes: sum(|stats| stats.inbox_bytes),
            outbox_bytes: sum(|stats| stats.outbox_bytes),
            home_bytes: sum(|stats| stats.home_bytes),
            shard_bytes: sum(|stats| stats.shard_bytes),
            rss_bytes: resident_bytes(),
            rss_warm_bytes: 0,
        }
    }

    pub(super) fn since(self, warm: &Self) -> Self {
        Self { rss_warm_bytes: warm.rss_bytes, ..self }
    }

    /// Of requests; memory that the process keeps for reuse is another matter.
    pub(super) fn is_nothing(&self) -> bool {
        let Self { rss_bytes, rss_warm_bytes, .. } = *self;
        *self == Self { rss_bytes, rss_warm_bytes, ..Self::default() }
    }
}

/// Says what is wrong, if anything is.
///
/// # Errors
/// Failed requests, requests or bytes that are left, memory that has grown.
pub(super) fn judge(tally: &Tally, left: &Left, slack_mib: u64) -> anyhow::Result<()> {
    let most = left.rss_warm_bytes + left.rss_warm_bytes / 4 + (slack_mib << 20);
    if let Some(failure) = tally.failures.first() {
        anyhow::bail!("{} requests failed, the first: {failure}", tally.failed);
    }
    if tally.finished == 0 {
        anyhow::bail!("no request was answered");
    }
    if !left.is_nothing() {
        anyhow::bail!("something is left: {left:?}");
    }
    if left.rss_bytes > most {
        let [now, warm] = [left.rss_bytes, left.rss_warm_bytes].map(report::bytes);
        anyhow::bail!("resident memory has grown from {warm} to {now}");
    }
    Ok(())
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [warm, now] = [self.rss_warm_bytes, self.rss_bytes].map(report::bytes);
        let left = if self.is_nothing() { "nothing" } else { "something" };
        write!(f, "{left} left; resident memory {warm} when warm, {now} at the end")
    }
}

/// 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kibibytes.map_or(0, |kibibytes| kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_can_be_wrong_is_said() {
        let well = Tally { finished: 3, ..Tally::default() };
        let warm = 100 << 20;
        let clean = Left { rss_bytes: warm, rss_warm_bytes: warm, ..Left::default() };
        let check = |tally: &Tally, left: Left, said: &str| match judge(tally, &left, 64) {
            Ok(()) => assert_eq!(said, ""),
            Err(error) => assert!(error.to_string().contains(said) && !said.is_empty(), "{error}"),
        };
        check(&well, clean, "");
        check(&well, Left { rss_bytes: 189 << 20, ..clean }, "");
        check(&well, Left { rss_bytes: 190 << 20, ..clean }, "has grown from 100.00 MiB to 190");
        check(&well, Left { home_bytes: 1, ..clean }, "home_bytes: 1");
        check(&well, Left { outbox_bytes: 2, ..clean }, "outbox_bytes: 2");
        check(&well, Left { inbox_bytes: 3, ..clean }, "inbox_bytes: 3");
        check(&well, Left { shard_bytes: 4, ..clean }, "shard_bytes: 4");
        check(&well, Left { requests_held: 5, ..clean }, "requests_held: 5");
        check(&well, Left { running: 6, ..clean }, "running: 6");
        check(&Tally::default(), clean, "no request was answered");
        let mut bad = well;
        bad.fail("it hangs".into());
        check(&bad, clean, "1 requests failed, the first: it hangs");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory() {
        assert!(resident_bytes() > 1 << 20);
    }
}
