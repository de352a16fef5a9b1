//! Ids of requests. Workers know requests by them, and may still remember those of a coordinator
//! that is gone: no two coordinators of a group, and no two lives of one, draw the same.

use std::time::{SystemTime, UNIX_EPOCH};

use aqueduct_core::{RequestId, limits};

/// Members of a group are numbered below this.
const STEP: u64 = 8;
const _: () = assert!((limits::JOURNAL_MEMBERS_MAX as u64) < STEP);

/// Ids of one coordinator, ascending.
#[derive(Debug)]
pub(crate) struct Ids {
    next: u64,
}

impl Ids {
    /// Of the member with this number, or 0 where there is no group; from now on.
    pub(crate) fn of(member: u64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let first = (now.as_micros() as u64) << 8;
        Self { next: first - first % STEP + member % STEP }
    }

    /// The next one.
    pub(crate) fn draw(&mut self) -> RequestId {
        let id = RequestId(self.next);
        self.next += STEP;
        id
    }

    /// Those up to `last` are taken.
    pub(crate) fn pass(&mut self, last: Option<RequestId>) {
        let taken = last.map_or(0, |last| last.0 + 1);
        let steps = taken.saturating_sub(self.next).div_ceil(STEP);
        self.next += steps * STEP;
    }

    /// Goes on where those of an earlier time ended, should the clock have gone back.
    pub(crate) fn after(self, earlier: &Self) -> Self {
        Self { next: self.next.max(earlier.next) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_draw_different_ids() {
        let mut members: Vec<_> = (0..=limits::JOURNAL_MEMBERS_MAX as u64).map(Ids::of).collect();
        let last = members.iter().map(|ids| ids.next).max().map(|last| RequestId(last + 1000));
        members.iter_mut().for_each(|ids| ids.pass(last));
        let mut round = || members.iter_mut().map(Ids::draw).collect::<Vec<_>>();
        let drawn: Vec<_> = (0..30).flat_map(|_| round()).collect();
        assert!(drawn.iter().all(|id| Some(*id) > last));
        let different: std::collections::BTreeSet<_> = drawn.iter().collect();
        assert_eq!(different.len(), drawn.len());
    }

    #[test]
    fn ids_ascend_over_clocks_that_go_back() {
        let early = Ids { next: 80 };
        assert_eq!(Ids { next: 40 }.after(&early).next, 80);
        assert_eq!(Ids { next: 96 }.after(&early).next, 96);
        let mut ids = Ids { next: 83 };
        ids.pass(None);
        ids.pass(Some(RequestId(82)));
        assert_eq!(ids.draw(), RequestId(83));
        ids.pass(Some(RequestId(91)));
        assert_eq!(ids.draw(), RequestId(99));
    }
}
