//! API keys: who may call, and how much of the cluster one caller may have.
//!
//! The file holds hashes ([`KeyFile`]); a key itself is seen when it is made and never again. Keys
//! are 256 drawn bits, so a fast hash is as good as a slow one, and hashes are compared in
//! constant time.

mod file;
mod meter;
mod secret;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use aqueduct_core::Refusal;
use aqueduct_tls::{Caller, Fresh, Role};

pub use file::{KeyFile, KeyLimits, KeyRecord};
use meter::Meter;
pub use meter::{Limit, Permit};
pub use secret::Secret;

/// Why somebody may not call. The caller hears the same of the last two, the figures do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No key at all.
    #[error("an API key is required: send it as `Authorization: Bearer KEY`")]
    Missing,
    /// No key of ours.
    #[error("the API key is not valid")]
    Wrong,
    /// One that is not any more.
    #[error("the API key is not valid")]
    Revoked,
}

impl Denied {
    /// In a word, for figures.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Missing => "key_missing",
            Self::Wrong => "key_wrong",
            Self::Revoked => "key_revoked",
        }
    }
}

/// The keys of a file, which is looked at again when somebody calls, at most every second. Clones
/// are the same one.
#[derive(Clone)]
pub struct Keys(Arc<Shared>);

struct Shared {
    file: Fresh<KeyFile, Refusal>,
    /// By id of the key; they outlast the file's changes.
    meters: Mutex<BTreeMap<String, Arc<Meter>>>,
}

impl Keys {
    /// The keys of the file at `path`.
    ///
    /// # Errors
    /// A file that cannot be read, or is none of keys.
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        let own = path.to_owned();
        let file = Fresh::new(vec![path.to_owned()], Box::new(move || KeyFile::read(&own)))?;
        Ok(Self(Arc::new(Shared { file, meters: Mutex::default() })))
    }

    /// Who calls with this `Authorization` header.
    ///
    /// # Errors
    /// Nobody who may.
    pub fn check(&self, authorization: Option<&str>) -> Result<Holder, Denied> {
        let bearer = authorization.and_then(|header| header.split_once(' '));
        let shown = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let shown = Secret::shown(shown.ok_or(Denied::Missing)?.1.trim());
        let file = self.0.file.current();
        // Also where there is no such key something is compared.
        let record = shown.id().and_then(|id| file.find(id));
        let is_it = shown.is(record.map(KeyRecord::hash));
        match record.filter(|_| is_it) {
            None => Err(Denied::Wrong),
            Some(record) if record.revoked => Err(Denied::Revoked),
            Some(record) => Ok(Holder { meter: self.meter(record), record: record.clone() }),
        }
    }

    /// Takes the place of a request of the key `id` that was let in before, by whichever
    /// coordinator: it goes on, so its key has one less, even where that is less than none.
    pub(crate) fn go_on(&self, id: &str) -> Option<Permit> {
        let file = self.0.file.current();
        file.find(id).map(|record| self.meter(record).go_on(&record.limits))
    }

    fn meter(&self, record: &KeyRecord) -> Arc<Meter> {
        let mut meters = self.0.meters.lock().unwrap_or_else(PoisonError::into_inner);
        meters.entry(record.id.clone()).or_default().clone()
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("files", &self.0.file.files()).finish_non_exhaustive()
    }
}

/// What somebody is told who may not look after the cluster.
pub(crate) const OPERATORS_ONLY: &str =
    "this needs an API key made with --admin, or a certificate for operator.aqueduct";

/// Whether a caller may look after the cluster: by certificate, by key or, where neither is asked
/// for, at all.
pub(crate) fn may_operate<E>(
    caller: Option<&Caller>,
    holder: impl FnOnce() -> Result<Option<Holder>, E>,
) -> Result<bool, E> {
    if caller.is_some_and(|caller| caller.is(Role::Operator)) {
        return Ok(true);
    }
    Ok(match holder()? {
        Some(holder) => holder.is_admin(),
        None => caller.is_some_and(|caller| caller.may_be(Role::Operator)),
    })
}

/// Somebody who has shown a key.
#[derive(Debug, Clone)]
pub struct Holder {
    record: KeyRecord,
    meter: Arc<Meter>,
}

impl Holder {
    /// The public part of the key.
    pub fn id(&self) -> &str {
        &self.record.id
    }

    /// Whether it may look after the cluster.
    pub fn is_admin(&self) -> bool {
        self.record.admin
    }

    /// Takes the places of requests with prompts of so many tokens each: of all or of none.
    ///
    /// # Errors
    /// A prompt that is too long for this key, or more of them than it may ever have at once; too
    /// many requests at once, or tokens in a minute.
    pub fn admit(&self, prompts: &[u32]) -> Result<Vec<Permit>, crate::submit::RequestError> {
        let limits = &self.record.limits;
        let is_long = |tokens: &&u32| limits.prompt_tokens.is_some_and(|most| **tokens > most);
        if let (Some(most), Some(tokens)) = (limits.prompt_tokens, prompts.iter().find(is_long)) {
            let bound = format!("at most {most}, the limit of this API key");
            return Err(Refusal::new("prompt_tokens", tokens, bound).into());
        }
        if let Some(most) = limits.requests.filter(|most| prompts.len() > *most as usize) {
            let bound = format!("at most {most}, as many requests as this API key has at once");
            return Err(Refusal::new("prompt", format!("{} prompts", prompts.len()), bound).into());
        }
        self.meter.admit(prompts, limits)
    }
}
