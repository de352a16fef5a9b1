//! What hears other members.

use tokio::sync::mpsc;

use crate::ask::Ask;
use crate::{Message, MessageType, Node, Saved};

/// A member's ear: what others say goes in here, and what came of what was said to them. It does
/// not keep its journal running, and hears nothing when that has ended.
#[derive(Debug, Clone)]
pub struct Ear {
    group: u64,
    member: u64,
    birth: u64,
    asks: mpsc::WeakSender<Ask>,
}

impl Ear {
    pub(crate) fn new(saved: &Saved, member: u64, asks: &mpsc::Sender<Ask>) -> Self {
        Self { group: saved.group, birth: saved.birth, member, asks: asks.downgrade() }
    }

    /// Which group its journal is of.
    pub fn group(&self) -> u64 {
        self.group
    }

    /// Whose it is.
    pub fn member(&self) -> u64 {
        self.member
    }

    /// Drawn when its journal was made; one that is made in its place has another one.
    pub fn birth(&self) -> u64 {
        self.birth
    }

    /// Another member, whose journal has this birth, says something. Whether anybody heard it.
    pub async fn hear(&self, birth: u64, message: Message) -> bool {
        self.ask(Ask::Hear { birth, message: Box::new(message) }).await
    }

    /// A message came to the member that it was for, or did not.
    pub async fn sent(&self, kind: MessageType, to: u64, arrived: bool) {
        self.ask(Ask::Sent { kind, to, arrived }).await;
    }

    /// A member of another group has one of our numbers: if this journal is new, what was in its
    /// place was that group's, and none is to begin beside it. Where there is no room to say so it
    /// is said when that member comes again.
    pub fn begins_late(&self) {
        if let Some(asks) = self.asks.upgrade() {
            let _ = asks.try_send(Ask::Do(Box::new(Node::begins_late)));
        }
    }

    async fn ask(&self, ask: Ask) -> bool {
        match self.asks.upgrade() {
            Some(asks) => asks.send(ask).await.is_ok(),
            None => false,
        }
    }
}
