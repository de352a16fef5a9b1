//! What tells figures of one name apart.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Outcome {
    /// Every completion came to its end.
    Finished,
    /// With an error after it was accepted.
    Failed,
    /// Not accepted.
    Refused,
    /// The caller went away.
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OutcomeLabel {
    pub(super) outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReasonLabel {
    pub(super) reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ExchangeLabel {
    pub(super) exchange: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct WorkerLabel {
    pub(super) worker: String,
}
