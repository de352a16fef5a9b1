//! Which journal each other member keeps: whoever has lost its disk keeps another one, and what it
//! confirmed before is not there any more.

use std::collections::BTreeMap;

/// Journals that one member has lost, of which this one knows.
const LOST_MAX: usize = 64;

/// By member: journals that are gone, and last the one that it keeps.
#[derive(Debug, Default)]
pub(super) struct Births(BTreeMap<u64, Vec<Birth>>);

#[derive(Debug)]
struct Birth {
    birth: u64,
    /// Whether it has said something after it was gone.
    haunts: bool,
}

/// Whose words they are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Of a member as it is known, or was not known before.
    Known,
    /// Of one that has lost its disk since it was last heard.
    Reborn,
    /// What was still under way of one that has lost its disk; or two have one number, and take
    /// each other's journal for lost.
    Gone {
        /// The journal that is there since.
        kept: u64,
        /// Whether the one that is gone says something for the first time.
        is_first: bool,
    },
}

impl Births {
    /// `member` says something, and that its journal has this birth.
    pub(super) fn note(&mut self, member: u64, birth: u64) -> Whose {
        let births = self.0.entry(member).or_default();
        match births.iter().position(|known| known.birth == birth) {
            Some(at) if at + 1 == births.len() => return Whose::Known,
            Some(at) => {
                let is_first = !std::mem::replace(&mut births[at].haunts, true);
                return Whose::Gone { kept: births[births.len() - 1].birth, is_first };
            }
            None => births.push(Birth { birth, haunts: false }),
        }
        if births.len() > LOST_MAX {
            births.remove(0);
        }
        if births.len() == 1 { Whose::Known } else { Whose::Reborn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_that_is_gone_says_nothing_more() {
        let mut births = Births::default();
        let mut check = |member, birth, want| assert_eq!(births.note(member, birth), want);
        check(2, 7, Whose::Known);
        check(2, 7, Whose::Known);
        check(3, 8, Whose::Known);
        check(2, 9, Whose::Reborn);
        check(2, 7, Whose::Gone { kept: 9, is_first: true });
        check(2, 7, Whose::Gone { kept: 9, is_first: false });
        check(2, 9, Whose::Known);
        check(3, 8, Whose::Known);
        (10..200).for_each(|birth| check(2, birth, Whose::Reborn));
    }
}
