//! What coordinators of one group say to each other: raft's messages, where callers reach whom,
//! what callers ask of one that does not lead, and what those want to hear who asked one that led
//! before. Whoever is away, hangs or is slow costs the
//! others nothing: each has lanes of its own, which are bounded, and every call between members has
//! a deadline.

mod carriage;
mod carried;
mod desk;
mod escort;
mod group;
mod lane;
mod passage;
mod reach;
mod unheard;

pub use desk::{serve, serve_with};
pub use group::Group;
pub use passage::{Answers, Calls, Passage};
pub use unheard::{Reason, Unheard};

pub(crate) use carriage::Carriage;
pub(crate) use carried::Heard;
pub(crate) use escort::{Escort, Made, NotNow};
pub(crate) use passage::{Counted, PassedOn, has_asked};

use std::collections::BTreeMap;

use aqueduct_core::{Addresses, Refusal};
use aqueduct_journal::{Ear, Message, MessageType, Transport};
use aqueduct_proto::convert::peers::Envelope;
use aqueduct_tls::ClientTls;

use lane::{Lanes, Route};

/// Where callers reach other members, by their number; those who have said so.
pub type Known = BTreeMap<u64, Addresses>;

/// Carries a journal's messages to the other members.
#[derive(Debug)]
pub struct Post {
    /// By member; none until the journal is open.
    lanes: BTreeMap<u64, Lanes>,
    group: Group,
    addresses: Addresses,
    tls: Option<ClientTls>,
    unheard: Unheard,
}

impl Post {
    /// To the members of `group`, who are told that callers reach this one at `addresses`, and are
    /// spoken to as `tls` says: in plaintext if it is `None`. What they say that fits nothing here
    /// is counted in `unheard`.
    ///
    /// # Errors
    /// Addresses that are none, or of members to whom nobody could speak.
    pub fn new(
        group: Group,
        addresses: Addresses,
        tls: Option<ClientTls>,
        unheard: Unheard,
    ) -> Result<Self, Refusal> {
        addresses.validate()?;
        for url in group.others().map(|(_, url)| url) {
            lane::endpoint(url, tls.is_some())?;
        }
        Ok(Self { lanes: BTreeMap::new(), group, addresses, tls, unheard })
    }
}

impl Transport for Post {
    fn open(&mut self, ear: Ear) {
        let from = ear.member();
        for (to, url) in self.group.others() {
            // It was checked when this was made.
            let Ok(endpoint) = lane::endpoint(url, self.tls.is_some()) else { continue };
            let addresses = self.addresses.clone();
            let envelope = Envelope { group: ear.group(), from, to, addresses, birth: ear.birth() };
            let route = Route { endpoint, tls: self.tls.clone(), envelope };
            self.lanes.insert(to, Lanes::start(&route, &ear));
        }
    }

    fn send(&mut self, messages: Vec<Message>) -> Vec<(MessageType, u64)> {
        let mut lost = Vec::new();
        for message in messages {
            let (kind, to) = (message.msg_type, message.to);
            let took = self.lanes.get(&to).is_some_and(|lanes| lanes.put(message));
            lost.extend((!took).then_some((kind, to)));
        }
        lost
    }
    fn refused(&mut self, from: u64, refusal: &Refusal) {
        self.unheard.count(Reason::State, from, refusal);
    }
}
