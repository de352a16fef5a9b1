//! The memory map: which keys one KV head of one layer remembers, why, and what they say.

use aqueduct_core::ask::{Question, Remembered, Rememberer, Reply};
use aqueduct_core::{MemoryPolicy, Refusal, TokenId, WorkerId, limits};
use aqueduct_proto::v1;
use aqueduct_proto::v1::show_memory_request::Of;

use super::{Operations, OperatorError, named, unknown};

/// Whose memory is shown, and what is known of it here.
struct Subject {
    view: v1::MemoryView,
    worker: WorkerId,
    of: Rememberer,
    policy: Option<MemoryPolicy>,
}

impl Operations {
    /// What one KV head of one layer remembers, of a request under way or in a snapshot; a page
    /// of it. A completion goes on meanwhile, so pages that are asked for one after another are
    /// of different moments.
    ///
    /// # Errors
    /// A request or snapshot that is not there, or has no memory yet; a layer or a head that is
    /// none; no answer.
    pub async fn memory(
        &self,
        asked: v1::ShowMemoryRequest,
    ) -> Result<v1::MemoryView, OperatorError> {
        let v1::ShowMemoryRequest { of, choice, layer, kv_head, start } = asked;
        Refusal::unless_within("choice", choice, 0, limits::CHOICES_MAX - 1)?;
        Refusal::unless_within("layer", layer, 0, limits::LAYERS_MAX - 1)?;
        Refusal::unless_within("kv_head", kv_head, 0, limits::HEADS_MAX - 1)?;
        let absent = || Refusal::new("request", "absent", "present, unless snapshot is");
        let subject = match of.ok_or_else(absent)? {
            Of::Request(request) => self.of_request(&request, choice).await?,
            Of::Snapshot(snapshot) => self.of_snapshot(&snapshot).await?,
        };
        let Subject { view, worker, of, policy } = subject;
        let question = Question::Memory { of, layer, head: kv_head, start };
        let Reply::Memory(remembered) = self.ask(worker, question).await? else {
            return Err(OperatorError::Silent);
        };
        let tokens = self.tokens(of, &remembered.positions).await?;
        let keys = self.keys(&remembered, policy.as_ref(), &tokens);
        let shown = remembered.start + remembered.positions.len() as u32;
        Ok(v1::MemoryView {
            worker: self.coordinator.name_of(worker),
            layer,
            layers: remembered.layers,
            kv_head,
            kv_heads: remembered.kv_heads,
            tokens: remembered.end,
            policy: policy.map_or_else(String::new, |policy| policy.to_string()),
            key_count: remembered.keys,
            keys,
            next: if shown < remembered.keys { shown } else { 0 },
            ..view
        })
    }

    async fn of_request(&self, name: &str, choice: u32) -> Result<Subject, OperatorError> {
        let found = self.coordinator.whereabouts(named(name)?).await?;
        let found = found.ok_or_else(|| unknown(name))?;
        let none = || OperatorError::Impossible("none of its chunks is done yet".to_owned());
        let worker = found.worker.ok_or_else(none)?;
        let view = v1::MemoryView { request: found.request.to_string(), ..Default::default() };
        let of = Rememberer::Request { request: found.run, choice };
        Ok(Subject { view, worker, of, policy: Some(found.policy) })
    }

    async fn of_snapshot(&self, name: &str) -> Result<Subject, OperatorError> {
        let found = self.find(name, "").await?;
        let (snapshot, worker) = (found.snapshot, found.workers[0]);
        let origin = self.coordinator.origins(vec![snapshot]).await?.pop().flatten();
        let request = origin.as_ref().map_or_else(String::new, |it| it.request.to_string());
        let snapshot_name = snapshot.to_string();
        let view = v1::MemoryView { request, snapshot: snapshot_name, ..Default::default() };
        let (of, policy) = (Rememberer::Snapshot(snapshot), origin.map(|origin| origin.policy));
        Ok(Subject { view, worker, of, policy })
    }

    /// The tokens at these positions, where they are known.
    async fn tokens(
        &self,
        of: Rememberer,
        positions: &[u32],
    ) -> Result<Vec<Option<TokenId>>, OperatorError> {
        Ok(match of {
            Rememberer::Request { request, choice } => {
                self.coordinator.tokens_at((request, choice), positions.to_vec()).await?
            }
            Rememberer::Snapshot(snapshot) => {
                let origin = self.coordinator.origins(vec![snapshot]).await?.pop().flatten();
                let token = |at: &u32| origin.as_ref().and_then(|origin| origin.token(*at));
                positions.iter().map(token).collect()
            }
        })
    }

    fn keys(
        &self,
        of: &Remembered,
        policy: Option<&MemoryPolicy>,
        tokens: &[Option<TokenId>],
    ) -> Vec<v1::KeyView> {
        let text =
            |token: TokenId| String::from_utf8_lossy(self.text.token_bytes(token)).into_owned();
        let key = |(idx, (&position, token)): (usize, (&u32, &Option<TokenId>))| v1::KeyView {
            position,
            kind: kind(position, of.end, policy).to_owned(),
            score: of.scores.get(idx).copied().unwrap_or(0.0),
            text: token.map_or_else(String::new, text),
        };
        of.positions.iter().zip(tokens).enumerate().map(key).collect()
    }
}

/// Why a key is kept, of a memory after `end` tokens.
fn kind(position: u32, end: u32, policy: Option<&MemoryPolicy>) -> &'static str {
    match policy {
        Some(policy) if !policy.keeps_all() => {
            let is_local = position >= end.saturating_sub(policy.local);
            match (position < policy.sinks, is_local) {
                (true, _) => "sink",
                (false, true) => "local",
                (false, false) => "heavy",
            }
        }
        _ => "kept",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kept_for_a_reason() {
        let policy = MemoryPolicy::h2o(2, 3, 4);
        let kinds = [0, 1, 2, 6, 7, 9].map(|position| kind(position, 10, Some(&policy)));
        assert_eq!(kinds, ["sink", "sink", "heavy", "heavy", "local", "local"]);
        assert_eq!(kind(1, 2, Some(&policy)), "sink");
        assert_eq!((kind(1, 2, None), kind(1, 2, Some(&MemoryPolicy::dense()))), ("kept", "kept"));
    }
}
