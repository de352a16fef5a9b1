//! A request that is a turn of a session, and what it leaves for the next one.

use aqueduct_core::snapshot::Made;
use aqueduct_core::work::RetainedMass;
use aqueduct_core::{Session, WorkerId};

use super::super::session::Setting;
use super::Live;

impl Live {
    /// What completion `choice` left at `home`, where it has just ended by itself, if a session
    /// is to go on from it.
    pub(in crate::runtime) fn left_by_choice(
        &self,
        home: WorkerId,
        choice: u32,
    ) -> Option<(Made, Session)> {
        let goes_on = self.choices.get(choice as usize).is_some_and(|choice| choice.eos.is_none());
        let is_home = self.home == Some(home);
        (goes_on && is_home)
            .then(|| self.left())
            .flatten()
            .map(|session| (Made::Choice(choice), session))
    }

    /// What the prompt left, if a session is to go on from it, and who has it.
    pub(in crate::runtime) fn left_by_prompt(&self) -> Option<(WorkerId, Made, Session)> {
        let last = self.grid.chunk_count() - 1;
        let is_whole = self.submission.max_tokens == 0 && self.all_done();
        let (worker, _) = self.prefill.reports.get(&last).filter(|_| is_whole)?;
        self.left().map(|session| (*worker, Made::Chunk(last), session))
    }

    /// What the memory kept of the prompts of all turns, per layer.
    pub(in crate::runtime) fn retained_so_far(&self) -> Vec<RetainedMass> {
        self.retained()
    }

    fn left(&self) -> Option<Session> {
        self.submission.session.as_ref()?;
        let (wire, chunk_tokens) = (self.hand_off_wire(), self.grid.chunk_tokens());
        let setting = Setting::new(&self.model.fingerprint, &self.policy, wire, chunk_tokens);
        let drawn = self.choices.first().map_or(&[][..], |choice| &choice.tokens);
        let output: Vec<_> = drawn.iter().map(|drawn| drawn.token.token).collect();
        let tokens = (self.submission.prompt.as_slice(), output.as_slice());
        Some(setting.after(self.submission.goes_on(), tokens))
    }
}
