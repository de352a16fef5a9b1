//! Who of a group of coordinators may give work: the leader of its latest term. One of an earlier
//! term may not know yet that it is deposed, so its sessions end here when its successor comes,
//! and it gets no other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aqueduct_core::{Refusal, Tenure, limits};
use aqueduct_proto::TERM_METADATA;
use tokio::sync::watch;

/// A group of which nobody has been here for so long is forgotten: it may have begun anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The latest terms of all groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tenures(Arc<Mutex<BTreeMap<u64, Group>>>);

#[derive(Debug)]
struct Group {
    latest: watch::Sender<u64>,
    /// When its last session ended; `None` while there is one.
    left: Option<Instant>,
    sessions: usize,
}

/// Why a coordinator gets no session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unwelcome {
    /// There was one of a later term.
    #[error(transparent)]
    Deposed(Refusal),
    /// Too many groups.
    #[error(transparent)]
    Full(Refusal),
}

/// Leave to have a session; the session is over when this is dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    tenures: Tenures,
    tenure: Tenure,
    latest: watch::Receiver<u64>,
}

impl Tenures {
    /// Lets the leader of a term in, unless there was one of a later term; sessions of earlier
    /// ones are over by that.
    ///
    /// # Errors
    /// A term that is over, or one group too many.
    pub(crate) fn enter(&self, tenure: Tenure, now: Instant) -> Result<Pass, Unwelcome> {
        let Tenure { group, term } = tenure;
        let mut groups = self.lock();
        let is_forgotten = |group: &Group| {
            group.left.is_some_and(|left| now.saturating_duration_since(left) > FORGOTTEN_AFTER)
        };
        groups.retain(|_, group| !is_forgotten(group));
        if !groups.contains_key(&group) {
            Refusal::unless_within("groups", groups.len() + 1, 1, limits::GROUPS_MAX)
                .map_err(Unwelcome::Full)?;
        }
        let known = groups.entry(group).or_insert_with(|| Group {
            latest: watch::Sender::new(term),
            left: None,
            sessions: 0,
        });
        let latest = *known.latest.borrow();
        if term < latest {
            let bound = format!("at least {latest}, of a leader that has been here");
            return Err(Unwelcome::Deposed(Refusal::new(TERM_METADATA, term, bound)));
        }
        known.latest.send_if_modified(|latest| std::mem::replace(latest, term) != term);
        known.sessions += 1;
        known.left = None;
        Ok(Pass { tenures: self.clone(), tenure, latest: known.latest.subscribe() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Group>> {
        // Every change is whole before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass {
    /// Resolves when a later term has come: what it was.
    pub(crate) async fn superseded(&mut self) -> Refusal {
        let term = self.tenure.term;
        // The group is known, and so told, for as long as a pass of it is there.
        let latest = self.latest.wait_for(|latest| *latest > term).await.map(|latest| *latest);
        let bound = format!("at least {}, whose leader has come", latest.unwrap_or(u64::MAX));
        Refusal::new(TERM_METADATA, term, bound)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(group) = self.tenures.lock().get_mut(&self.tenure.group) {
            group.sessions -= 1;
            group.left = (group.sessions == 0).then(Instant::now);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_later_term_ends_earlier_ones_of_its_group_alone() {
        let (tenures, now) = (Tenures::default(), Instant::now());
        let enter = |group, term| tenures.enter(Tenure { group, term }, now);
        let mut first = enter(1, 5).unwrap();
        let mut again = enter(1, 5).unwrap();
        let mut other = enter(2, 3).unwrap();
        assert_eq!(first.superseded().now_or_never(), None);
        let mut next = enter(1, 7).unwrap();
        for over in [&mut first, &mut again] {
            let refusal = over.superseded().now_or_never().unwrap().to_string();
            assert_eq!(refusal, "aqueduct-term = 5: must be at least 7, whose leader has come");
        }
        for goes_on in [&mut next, &mut other] {
            assert_eq!(goes_on.superseded().now_or_never(), None);
        }
        let refused = enter(1, 6).unwrap_err().to_string();
        assert!(refused.starts_with("aqueduct-term = 6: must be at least 7"), "{refused}");
        drop((first, again, next));
        assert!(enter(1, 6).is_err(), "the term outlives its sessions");
    }

    #[test]
    fn a_group_is_forgotten_when_nobody_has_been_here_for_long() {
        let tenures = Tenures::default();
        let enter = |group, term, now| tenures.enter(Tenure { group, term }, now);
        let now = Instant::now();
        let (left, stays) = (enter(1, 9, now).unwrap(), enter(2, 9, now).unwrap());
        drop(left);
        let later = Instant::now() + FORGOTTEN_AFTER;
        let much_later = later + Duration::from_secs(1);
        assert!(enter(1, 1, now).is_err());
        let anew = enter(1, 1, much_later).unwrap();
        assert!(enter(2, 1, much_later).is_err(), "it is still here");
        drop((anew, stays));
    }

    #[test]
    fn groups_are_bounded() {
        let (tenures, now) = (Tenures::default(), Instant::now());
        let enter = |group| tenures.enter(Tenure { group, term: 1 }, now);
        let all: Vec<_> =
            (0..limits::GROUPS_MAX as u64).map(|group| enter(group).unwrap()).collect();
        let refused = enter(u64::MAX).unwrap_err();
        assert!(matches!(refused, Unwelcome::Full(_)), "{refused}");
        assert_eq!(enter(0).unwrap().tenure.group, 0);
        drop(all);
    }
}
