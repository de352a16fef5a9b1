//! Requests that have ended, as far as anything is still known of them.

use std::collections::VecDeque;

use aqueduct_core::limits;
use aqueduct_proto::v1;

/// The last ones.
#[derive(Debug, Default)]
pub(crate) struct History(VecDeque<Past>);

/// One of them.
#[derive(Debug)]
pub(crate) struct Past {
    pub(crate) view: v1::RequestView,
    pub(crate) trace: v1::RequestTrace,
}

impl Past {
    /// In a line.
    pub(crate) fn entry(&self) -> v1::RequestEntry {
        self.view.request.clone().unwrap_or_default()
    }
}

impl History {
    /// Remembers one more, and forgets the oldest of too many.
    pub(crate) fn push(&mut self, past: Past) {
        if self.0.len() == limits::ENDED_REQUESTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(past);
    }

    /// The latest one that is called so, by us or by its caller.
    pub(crate) fn find(&self, name: &str) -> Option<&Past> {
        let is_it = |past: &&Past| {
            let entry = past.view.request.as_ref();
            entry.is_some_and(|entry| entry.id == name || entry.caller_id == name)
        };
        self.0.iter().rev().find(is_it)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Past> {
        self.0.iter()
    }
}
