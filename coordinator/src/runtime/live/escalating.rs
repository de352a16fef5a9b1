//! A prefill whose memory kept too little, which begins again under another policy.

use aqueduct_core::work::RetainedMass;
use aqueduct_core::{Refusal, RequestId, Verdict};
use aqueduct_plan::Job;

use super::{Live, Prefill};
use crate::submit::{Escalation, Update};

impl Live {
    /// What is to be tried next, if the prefill is done and its memory kept too little: the first
    /// policy under which `could_be` says that it could be served, or the last of all.
    pub(crate) fn escalation(&mut self, could_be: impl Fn(&Job) -> bool) -> Option<Escalation> {
        let floor =
            self.submission.floor.filter(|_| self.all_done() && self.prefilled.is_none())?;
        let lowest = RetainedMass::lowest_share(&self.retained());
        let (policy, chunk_tokens) = (self.policy, self.grid.chunk_tokens());
        let mut found = None;
        let mut tried = policy;
        while let Verdict::Again(next) = floor.judge(lowest, &tried, chunk_tokens) {
            (found, tried) = (Some(next), next);
            // Sets of several chunks may take more room than all keys do once.
            self.policy = next;
            let job = self.job();
            self.policy = policy;
            if could_be(&job) {
                break;
            }
        }
        let min_retained_mass = floor.min_retained_mass;
        found.map(|next| Escalation { policy, lowest, min_retained_mass, next })
    }

    /// What `refusal` of a memory set that no worker has room for is told as: the caller asked for
    /// the floor that led there, and may never have thought of that policy.
    pub(crate) fn refused(&self, refusal: Refusal) -> Refusal {
        let Some(last) = self.escalations.last().filter(|_| self.carry().is_none()) else {
            return refusal;
        };
        let Escalation { policy, lowest, min_retained_mass, next } = last;
        let bound = format!(
            "at most what there is room for: {policy} kept {lowest:.4} of the attention mass in \
             the layer that kept least, so the policy was escalated to {next}, and {refusal}"
        );
        Refusal::new("min_retained_mass", min_retained_mass, bound)
    }

    /// Begins again as `run`, which nobody has heard of.
    pub(crate) fn escalate(&mut self, run: RequestId, escalation: Escalation) {
        tracing::info!(request = %self.request, %run, %escalation, "prefilled again");
        self.run = run;
        self.policy = escalation.next;
        self.prefill = Prefill { prefix: self.prefix(), ..Prefill::default() };
        self.trail.note("prefilled again", None, escalation);
        self.escalations.push(escalation);
        self.placed.clear();
        self.mailbox.push(Update::Escalated(escalation));
    }
}
