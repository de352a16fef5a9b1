//! Coordinators of a group, as they are shown.

use aqueduct_journal::Member;
use aqueduct_proto::v1;

use crate::peers::Group;

/// A member answers ten times in this long.
const SILENT_MS: u64 = 1000;
/// What is said of members, in the order in which they are listed.
const STATES: [&str; 5] = ["leads", "follows", "away", "unheard", "unknown"];

/// By state and name; `known` is what the journal says, if it does.
pub(super) fn entries(group: &Group, known: Option<Vec<Member>>) -> Vec<v1::MemberEntry> {
    let entry = |(number, name, address): (u64, &str, &str)| {
        let of_it = |known: &Vec<Member>| known.iter().find(|it| it.member == number).copied();
        let known = known.as_ref().and_then(of_it);
        v1::MemberEntry {
            name: name.to_owned(),
            address: address.to_owned(),
            state: state(known).to_owned(),
            silent_seconds: known.and_then(|it| it.silent_ms).unwrap_or(0) as f64 / 1e3,
            entries_behind: known.map_or(0, |it| it.entries_behind),
        }
    };
    let mut entries: Vec<_> = group.all().map(entry).collect();
    entries.sort_by_key(|entry| STATES.iter().position(|state| *state == entry.state));
    entries
}

/// In a word.
fn state(member: Option<Member>) -> &'static str {
    let [leads, follows, away, unheard, unknown] = STATES;
    match member {
        None => unknown,
        Some(Member { leads: true, .. }) => leads,
        Some(Member { silent_ms: None, .. }) => unheard,
        Some(Member { silent_ms: Some(SILENT_MS..), .. }) => away,
        Some(_) => follows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_stands_first_and_whoever_is_not_heard_last() {
        let peers = ["a", "b", "c", "d"].map(|name| format!("{name}=http://{name}:1"));
        let group = Group::new("b", &peers, "t").unwrap();
        let check = |known: Option<[(u64, bool, Option<u64>); 4]>, want: &str| {
            let member =
                |(member, leads, silent_ms)| Member { member, leads, silent_ms, entries_behind: 0 };
            let known = known.map(|known| known.map(member).to_vec());
            let shown = entries(&group, known);
            let shown: Vec<_> =
                shown.iter().map(|it| format!("{} {}", it.name, it.state)).collect();
            assert_eq!(shown.join(", "), want);
        };
        check(None, "a unknown, b unknown, c unknown, d unknown");
        check(
            Some([
                (1, false, None),
                (2, true, Some(0)),
                (3, false, Some(999)),
                (4, false, Some(1000)),
            ]),
            "b leads, c follows, d away, a unheard",
        );
    }
}
