//! Who serves: this coordinator, or another one of its group.

use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::Addresses;
use tokio::sync::{Notify, mpsc};

use super::event_loop::{Inbound, Inquiry};
use crate::submit::RequestError;

/// Which coordinator serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leader {
    /// This one; in a group, in this term.
    This {
        /// `None` where there is no group.
        term: Option<u64>,
    },
    /// The one that callers reach here.
    Other(Addresses),
    /// None, as far as this one knows.
    Nobody,
}

/// Where requests go.
#[derive(Debug, Clone)]
pub(crate) enum Seat {
    /// To the loop of this coordinator.
    Here(Office),
    /// To another one, where that is known.
    Elsewhere(Option<Addresses>),
}

/// How a loop is spoken to.
#[derive(Debug, Clone)]
pub(crate) struct Office {
    pub(crate) inbound: mpsc::Sender<Inbound>,
    pub(crate) inquiries: mpsc::Sender<Inquiry>,
    /// Wakes the loop for the wishes of callers.
    pub(crate) wished: Arc<Notify>,
    /// In which it leads a group.
    pub(crate) term: Option<u64>,
    /// When it began.
    pub(crate) since: Instant,
}

impl Leader {
    pub(super) fn of(seat: &Seat) -> Self {
        match seat {
            Seat::Here(office) => Self::This { term: office.term },
            Seat::Elsewhere(Some(addresses)) => Self::Other(addresses.clone()),
            Seat::Elsewhere(None) => Self::Nobody,
        }
    }

    /// Whether the calls that need the workers are answered here.
    ///
    /// # Errors
    /// Where to go instead.
    pub fn is_here(&self) -> Result<(), RequestError> {
        match self {
            Self::This { .. } => Ok(()),
            Self::Other(addresses) => Err(elsewhere(Some(addresses.clone()))),
            Self::Nobody => Err(elsewhere(None)),
        }
    }
}

impl Default for Leader {
    fn default() -> Self {
        Self::This { term: None }
    }
}

/// Why a request is not taken here.
pub(super) fn elsewhere(leader: Option<Addresses>) -> RequestError {
    match leader {
        Some(leader) => RequestError::Elsewhere(leader),
        None => RequestError::Unavailable("no coordinator leads at this moment".into()),
    }
}
