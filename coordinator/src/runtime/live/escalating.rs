//! A prefill whose memory kept too little, which begins again under another policy.

use aqueduct_core::work::RetainedMass;
use aqueduct_core::{RequestId, Verdict};

use super::{Live, Prefill};
use crate::submit::{Escalation, Update};

impl Live {
    /// What is to be tried next, if the prefill is done and its memory kept too little.
    pub(crate) fn escalation(&self) -> Option<Escalation> {
        let floor =
            self.submission.floor.filter(|_| self.all_done() && self.prefilled.is_none())?;
        let lowest = RetainedMass::lowest_share(&self.retained());
        let Verdict::Again(next) = floor.judge(lowest, &self.policy, self.grid.chunk_tokens())
        else {
            return None;
        };
        let min_retained_mass = floor.min_retained_mass;
        Some(Escalation { policy: self.policy, lowest, min_retained_mass, next })
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
