//! How long those remain members whom etcd does not list any more when it is back.

use std::time::Duration;

use tokio::time::Instant;

/// Two leases' time, in which workers may register with an etcd that has lost its data or their
/// leases.
#[derive(Debug)]
pub(crate) struct Grace {
    ttl: Duration,
    /// What etcd was at when it was listed last.
    revision: i64,
    /// When it went away, if it has not been listed since.
    lost_at: Option<Instant>,
    over_at: Option<Instant>,
}

impl Grace {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { ttl, revision: 0, lost_at: None, over_at: None }
    }

    /// Etcd is away, or is so still.
    pub(crate) fn lost(&mut self, now: Instant) {
        self.lost_at.get_or_insert(now);
    }

    /// Etcd has listed who is there as of `revision`; `missed`: not all that are members.
    pub(crate) fn listed(&mut self, missed: bool, revision: i64, now: Instant) {
        let broke = self.lost_at.take().map_or(Duration::ZERO, |lost_at| now - lost_at);
        // A short break, after which etcd has what it had, gives nobody more time.
        let goes_on = revision >= self.revision && broke < self.ttl;
        let over_at = self.over_at.filter(|_| goes_on).unwrap_or(now + 2 * self.ttl);
        self.over_at = missed.then_some(over_at);
        self.revision = revision;
    }

    /// When whoever is still not listed goes, if somebody is missed.
    pub(crate) fn over_at(&self) -> Option<Instant> {
        self.over_at
    }

    /// They went.
    pub(crate) fn end(&mut self) {
        self.over_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL_S: u64 = 10;

    #[test]
    fn nobody_has_more_time_because_etcd_goes_away_once_more() {
        // When it went (if it did), when it listed, and whether somebody was missed as of which
        // revision; and when the time of those that were is over, in seconds.
        type Listing = (Option<u64>, u64, bool, i64);
        let check = |listings: &[Listing], over_at: Option<u64>| {
            let started = Instant::now();
            let at = |s| started + Duration::from_secs(s);
            let mut grace = Grace::new(Duration::from_secs(TTL_S));
            for &(lost_at, listed_at, missed, revision) in listings {
                if let Some(lost_at) = lost_at {
                    grace.lost(at(lost_at));
                    // Each try that fails says so again.
                    grace.lost(at(listed_at));
                }
                grace.listed(missed, revision, at(listed_at));
            }
            assert_eq!(grace.over_at(), over_at.map(at), "{listings:?}");
        };
        check(&[(None, 0, false, 7)], None);
        check(&[(None, 0, false, 7), (Some(5), 6, true, 7)], Some(26));
        // Short breaks, and then a long one, in which leases may have ended.
        check(&[(Some(5), 6, true, 7), (Some(8), 17, true, 7)], Some(26));
        check(&[(Some(5), 6, true, 7), (Some(8), 9, true, 8), (Some(20), 25, true, 8)], Some(26));
        check(&[(Some(5), 6, true, 7), (Some(8), 18, true, 7)], Some(38));
        // It has lost what it had.
        check(&[(Some(5), 6, true, 7), (Some(8), 9, true, 2)], Some(29));
        // All came back, and somebody went later.
        check(&[(Some(5), 6, true, 7), (Some(8), 9, false, 8)], None);
        let anew = [(Some(5), 6, true, 7), (Some(8), 9, false, 8), (Some(10), 11, true, 8)];
        check(&anew, Some(31));
    }

    #[test]
    fn it_ends() {
        let now = Instant::now();
        let mut grace = Grace::new(Duration::from_secs(TTL_S));
        grace.listed(true, 1, now);
        grace.end();
        assert_eq!(grace.over_at(), None);
    }
}
