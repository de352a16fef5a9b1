//! What snapshots were made of, as far as this coordinator has seen it and any worker has them:
//! for those who look after the cluster, and for nothing that is computed.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_core::{MemoryPolicy, RequestId, SnapshotKey, TokenId, limits};

/// What is known.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    of: BTreeMap<SnapshotKey, (RequestId, MemoryPolicy)>,
    prompts: BTreeMap<RequestId, Prompt>,
    /// Of all prompts.
    tokens: usize,
}

/// The tokens of a request that left snapshots.
#[derive(Debug)]
struct Prompt {
    /// Position of the first of them.
    start: u32,
    tokens: Arc<[TokenId]>,
    /// How many snapshots there are of it.
    snapshots: usize,
}

/// What one snapshot was made of.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// Whose memory it was.
    pub(crate) request: RequestId,
    /// As used.
    pub(crate) policy: MemoryPolicy,
    start: u32,
    tokens: Arc<[TokenId]>,
}

impl Origin {
    /// The token at `position`, if it is known.
    pub(crate) fn token(&self, position: u32) -> Option<TokenId> {
        self.tokens.get(position.checked_sub(self.start)? as usize).copied()
    }
}

impl Origins {
    /// `snapshot` is made of `request`, whose tokens from position `start` on `tokens` gives if
    /// they are not known yet, or if they are more by now.
    pub(crate) fn insert(
        &mut self,
        snapshot: SnapshotKey,
        (request, policy): (RequestId, MemoryPolicy),
        (start, count): (u32, usize),
        tokens: impl FnOnce() -> Vec<TokenId>,
    ) {
        self.remove(&snapshot);
        let known = self.prompts.get(&request).map_or(0, |prompt| prompt.tokens.len());
        let snapshots = self.prompts.get(&request).map_or(0, |prompt| prompt.snapshots) + 1;
        if count > known {
            let tokens: Arc<[_]> = tokens().into();
            self.tokens = self.tokens - known + tokens.len();
            self.prompts.insert(request, Prompt { start, tokens, snapshots });
        } else if let Some(prompt) = self.prompts.get_mut(&request) {
            prompt.snapshots = snapshots;
        }
        self.of.insert(snapshot, (request, policy));
        while self.tokens > limits::SNAPSHOT_ORIGIN_TOKENS_MAX
            || self.of.len() > limits::SNAPSHOTS_MAX
        {
            let Some((&oldest, _)) = self.prompts.first_key_value() else { break };
            self.forget(oldest);
        }
    }

    /// No worker has it any more.
    pub(crate) fn remove(&mut self, snapshot: &SnapshotKey) {
        let Some((request, _)) = self.of.remove(snapshot) else { return };
        let Some(prompt) = self.prompts.get_mut(&request) else { return };
        prompt.snapshots -= 1;
        if prompt.snapshots == 0 {
            self.forget(request);
        }
    }

    /// What is known of it.
    pub(crate) fn get(&self, snapshot: &SnapshotKey) -> Option<Origin> {
        let &(request, policy) = self.of.get(snapshot)?;
        let Prompt { start, tokens, .. } = self.prompts.get(&request)?;
        Some(Origin { request, policy, start: *start, tokens: tokens.clone() })
    }

    fn forget(&mut self, request: RequestId) {
        let Some(prompt) = self.prompts.remove(&request) else { return };
        self.tokens -= prompt.tokens.len();
        self.of.retain(|_, (of, _)| *of != request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> SnapshotKey {
        SnapshotKey([byte; 32])
    }

    fn insert(origins: &mut Origins, byte: u8, request: u64, tokens: usize) {
        let of = (RequestId(request), MemoryPolicy::default());
        origins.insert(key(byte), of, (2, tokens), || vec![request as u32; tokens]);
    }

    #[test]
    fn prompts_go_with_their_last_snapshot() {
        let mut origins = Origins::default();
        insert(&mut origins, 1, 7, 4);
        insert(&mut origins, 2, 7, 4);
        insert(&mut origins, 2, 7, 6);
        let origin = origins.get(&key(1)).unwrap();
        assert_eq!([1, 2, 7, 8].map(|at| origin.token(at)), [None, Some(7), Some(7), None]);
        origins.remove(&key(1));
        assert!(origins.get(&key(1)).is_none() && origins.get(&key(2)).is_some());
        origins.remove(&key(2));
        assert_eq!((origins.tokens, origins.prompts.len(), origins.of.len()), (0, 0, 0));
    }

    #[test]
    fn the_oldest_prompts_go_first() {
        let (mut origins, half) = (Origins::default(), limits::SNAPSHOT_ORIGIN_TOKENS_MAX / 2);
        (1..4).for_each(|byte| insert(&mut origins, byte, byte.into(), half));
        let known = [1, 2, 3].map(|byte| origins.get(&key(byte)).is_some());
        assert_eq!((known, origins.tokens), ([false, true, true], 2 * half));
    }
}
