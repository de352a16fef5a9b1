//! Which coordinators keep a journal together.

use aqueduct_core::{Refusal, limits, peers};
use aqueduct_journal::Identity;

/// The members of a group, as each of them is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Name and URL, ascending by name; a member's number is its place, from 1.
    members: Vec<(String, String)>,
    member: u64,
    id: u64,
    /// Which members, wherever they are, and which token.
    named: u64,
}

impl Group {
    /// The group of `peers`, each as `NAME=http://host:port`, seen by the one that is called
    /// `name`. `token` tells it from other groups that have or had the same members.
    ///
    /// # Errors
    /// Members that are none, or two of which are one; a name that is none of theirs.
    pub fn new(name: &str, peers: &[String], token: &str) -> Result<Self, Refusal> {
        Refusal::unless_within("peers", peers.len(), 1, limits::JOURNAL_MEMBERS_MAX)?;
        let most = limits::ADDRESS_BYTES_MAX;
        Refusal::unless_within("cluster_token bytes", token.len(), 1, most)?;
        let mut members = peers.iter().map(|peer| member(peer)).collect::<Result<Vec<_>, _>>()?;
        members.sort();
        for (idx, (name, url)) in members.iter().enumerate() {
            let is_twice = |other: &(String, String)| other.0 == *name || other.1 == *url;
            if members[..idx].iter().any(is_twice) {
                let bound = "members with a name and a URL of their own";
                return Err(Refusal::new("peers", format!("{name}={url}"), bound));
            }
        }
        let names: Vec<_> = members.iter().map(|(name, _)| name.as_str()).collect();
        let place = names.iter().position(|known| *known == name);
        let place = place.ok_or_else(|| {
            Refusal::new("id", name, format!("one of {}, as --peers says", names.join(", ")))
        })?;
        let words = members.iter().flat_map(|(name, url)| [name.as_str(), url.as_str()]);
        let (id, named) = (number(token, words), number(token, names));
        Ok(Self { member: place as u64 + 1, id, named, members })
    }

    /// As the journal knows it.
    pub fn identity(&self) -> Identity {
        let members = (1..=self.members.len() as u64).collect();
        Identity { member: self.member, members, group: self.id, named: self.named }
    }

    /// Where this member is reached by the others.
    pub fn url(&self) -> &str {
        &self.members[self.member as usize - 1].1
    }

    /// Number, name and URL of every member.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, &str, &str)> {
        (1..).zip(&self.members).map(|(member, (name, url))| (member, name.as_str(), url.as_str()))
    }

    /// Number and URL of all others.
    pub(crate) fn others(&self) -> impl Iterator<Item = (u64, &str)> {
        let others = self.all().filter(|(member, ..)| *member != self.member);
        others.map(|(member, _, url)| (member, url))
    }
}

fn member(peer: &str) -> Result<(String, String), Refusal> {
    let bound = "NAME=http://host:port (or https), the name of letters, digits, '-', '_' and '.'";
    let refusal = || Refusal::new("peers", peer, bound);
    let (name, url) = peer.split_once('=').ok_or_else(refusal)?;
    let is_one = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = (1..=limits::ADDRESS_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_one);
    match is_name && peers::is_address(url) {
        true => Ok((name.to_owned(), url.to_owned())),
        false => Err(refusal()),
    }
}

/// Groups of other members, or with another token, have another one.
fn number<'a>(token: &'a str, words: impl IntoIterator<Item = &'a str>) -> u64 {
    let mut hash = blake3::Hasher::new();
    for word in std::iter::once(token).chain(words) {
        hash.update(&(word.len() as u64).to_le_bytes());
        hash.update(word.as_bytes());
    }
    let hash = hash.finalize();
    u64::from_le_bytes(std::array::from_fn(|idx| hash.as_bytes()[idx]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, peers: &[&str], token: &str) -> Result<Group, Refusal> {
        let peers: Vec<_> = peers.iter().map(|&peer| peer.to_owned()).collect();
        Group::new(name, &peers, token)
    }

    #[test]
    fn members_are_numbered_alike_by_all_of_them() {
        let peers = ["b=http://h2:1", "a=http://h1:1", "c-0.x=http://h3:1"];
        let one = group("b", &peers, "t").unwrap();
        let two = group("a", &[peers[2], peers[0], peers[1]], "t").unwrap();
        assert_eq!((one.identity().member, two.identity().member), (2, 1));
        assert_eq!(one.identity().group, two.identity().group);
        assert_eq!((one.identity().members, one.url()), (vec![1, 2, 3], "http://h2:1"));
        let others: Vec<_> = one.others().collect();
        assert_eq!(others, [(1, "http://h1:1"), (3, "http://h3:1")]);
        for other in [group("a", &peers[..2], "t"), group("a", &peers, "u")] {
            let other = other.unwrap().identity();
            assert_ne!(other.group, one.identity().group);
            assert_ne!(other.named, one.identity().named);
        }
        let moved = ["a=http://h1:1", "b=http://h9:1", "c-0.x=http://h3:1"];
        let moved = group("b", &moved, "t").unwrap().identity();
        assert_ne!(moved.group, one.identity().group);
        assert_eq!(moved.named, one.identity().named);
    }

    #[test]
    fn what_is_no_group_is_refused() {
        let check = |name: &str, peers: &[&str], want: &str| {
            let refused = group(name, peers, "t").unwrap_err().to_string();
            assert!(refused.contains(want), "{refused}");
        };
        check("a", &[], "peers = 0: must be between 1 and 7");
        check("a", &["http://h1:1"], "peers = http://h1:1: must be NAME=");
        check("a", &["a=h1:1"], "must be NAME=");
        check("a", &["=http://h1:1"], "must be NAME=");
        check("a", &["a b=http://h1:1"], "must be NAME=");
        check("a", &["a=http://h1:1", "a=http://h2:1"], "of their own");
        check("a", &["a=http://h1:1", "b=http://h1:1"], "of their own");
        check("c", &["a=http://h1:1", "b=http://h2:1"], "id = c: must be one of a, b");
        let refused = group("a", &["a=http://h1:1"], "").unwrap_err();
        assert_eq!(refused.field, "cluster_token bytes");
    }
}
