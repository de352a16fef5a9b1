//! Which journal each other member keeps: whoever has lost its disk keeps another one, and what it
//! confirmed before is not there any more.

use std::collections::BTreeMap;

/// Journals that one member has lost, of which this one knows.
const LOST_MAX: usize = 64;

/// By member: journals that are gone, and last the one that it keeps.
#[derive(Debug, Default)]
pub(super) struct Births(BTreeMap<u64, Vec<u64>>);

/// Whose words they are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Of a member as it is known, or was not known before.
    Known,
    /// Of one that has lost its disk since it was last heard.
    Reborn,
    /// What was still under way of one that has lost its disk.
    Gone,
}

impl Births {
    /// `member` says something, and that its journal has this birth.
    pub(super) fn note(&mut self, member: u64, birth: u64) -> Whose {
        let births = self.0.entry(member).or_default();
        match births.iter().position(|known| *known == birth) {
            Some(at) if at + 1 == births.len() => return Whose::Known,
            Some(_) => return Whose::Gone,
            None => births.push(birth),
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
        check(2, 7, Whose::Gone);
        check(2, 9, Whose::Known);
        check(3, 8, Whose::Known);
        (10..200).for_each(|birth| check(2, birth, Whose::Reborn));
    }
}
