//! Coordinators that refuse this worker: its operator reads its log, and not theirs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aqueduct_proto::convert::peers::refusal;
use aqueduct_tls::Caller;
use tonic::metadata::MetadataMap;

/// Who is refused is tried again all the time; a refusal that goes on is told again after so long.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// Refusals that are remembered, so that nobody fills the log with reasons of their own making.
const TOLD_MAX: usize = 64;

/// What was told, by whom and why.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<(Option<IpAddr>, String), Instant>>);

impl Refusals {
    /// Warns if the coordinator that opens a session says that it has refused this worker.
    pub(crate) fn hear(&self, caller: Option<&Caller>, metadata: &MetadataMap) {
        let Some(reason) = refusal(metadata) else { return };
        let coordinator = caller.and_then(|caller| caller.address).map(|address| address.ip());
        if self.is_news((coordinator, reason.clone()), Instant::now()) {
            let coordinator = coordinator.map(tracing::field::display);
            tracing::warn!(coordinator, reason, "a coordinator refuses this worker");
        }
    }

    fn is_news(&self, told: (Option<IpAddr>, String), now: Instant) -> bool {
        // Every change is whole before anything can panic.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, since| now.saturating_duration_since(*since) < TOLD_AGAIN_AFTER);
        let is_news = !all.contains_key(&told) && all.len() < TOLD_MAX;
        if is_news {
            all.insert(told, now);
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_goes_on_is_told_now_and_then() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let told = |last: u8, why: &str| (Some(IpAddr::from([10, 0, 0, last])), why.to_owned());
        assert!(refusals.is_news(told(1, "another model"), now));
        assert!(!refusals.is_news(told(1, "another model"), now + TOLD_AGAIN_AFTER / 2));
        assert!(refusals.is_news(told(2, "another model"), now), "of another coordinator");
        assert!(refusals.is_news(told(1, "another version"), now), "for another reason");
        let later = now + TOLD_AGAIN_AFTER;
        assert!(refusals.is_news(told(1, "another model"), later));
        let many = (0..2 * TOLD_MAX).map(|idx| told(3, &idx.to_string()));
        let news = many.filter(|told| refusals.is_news(told.clone(), later));
        assert_eq!(news.count(), TOLD_MAX - 1, "the others are forgotten");
    }
}
