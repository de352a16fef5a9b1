//! How a coordinator comes to its journal.

use std::fmt;
use std::sync::Arc;

use aqueduct_core::journal::Kept;
use aqueduct_core::{Constraint, Form, Refusal, RequestId};
use aqueduct_journal::{AppendError, Journal, Standing};

use super::Coordinator;
use super::event_loop::Inbound;
use super::scribe::Clock;
use crate::keys::{Keys, Permit};
use crate::peers::Group;

/// Says how the model spells what a form allows.
pub type Constrain = dyn Fn(Form) -> Result<Constraint, Refusal> + Send + Sync;

/// Where requests are written down, and what it takes to run them again.
#[derive(Clone)]
pub struct Keeping {
    /// The journal.
    pub journal: Journal,
    /// A journal has grammars without the model's vocabulary.
    pub constrain: Arc<Constrain>,
    /// For whose limits what goes on counts; `None`: nobody's.
    pub keys: Option<Keys>,
    /// Whose journal it is; `None`: this coordinator's alone.
    pub group: Option<Group>,
}

impl fmt::Debug for Keeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeping").field("journal", &self.journal).finish_non_exhaustive()
    }
}

/// A journal as it was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) keeping: Keeping,
    /// In which it may be written; `None`: in any.
    pub(crate) term: Option<u64>,
    /// What time it is for what is in it.
    pub(crate) clock: Clock,
    /// What was under way.
    pub(crate) live: Vec<Interrupted>,
    /// The largest id in it.
    pub(crate) last: Option<RequestId>,
    /// Names of the workers that are to be left.
    pub(crate) drained: Vec<String>,
}

/// A request that was under way.
#[derive(Debug)]
pub(crate) struct Interrupted {
    pub(crate) request: RequestId,
    pub(crate) kept: Kept,
    /// Its place among those of its key, which is taken while it waits to go on.
    pub(crate) permit: Option<Permit>,
}

/// No coordinator goes on with what it has no journal of.
pub(crate) fn no_vocabulary() -> Refusal {
    Refusal::new("grammar", "of a journal", "one whose vocabulary is known")
}

impl Coordinator {
    /// From now on requests are written down before they are accepted, and so are their tokens.
    /// Those that were under way when the journal was written last go on, under their ids, as
    /// soon as there is a worker, but for what nobody can come back to: so many are they all.
    ///
    /// # Errors
    /// The journal, or this coordinator, has ended.
    pub async fn keep(&self, keeping: Keeping) -> Result<usize, AppendError> {
        let mut standing = keeping.journal.standing();
        let leads = standing.wait_for(|standing| matches!(standing, Standing::Leads { .. }));
        drop(leads.await.map_err(|_| AppendError::Ended)?);
        let found = Found::read(keeping, None).await?;
        let under_way = found.live.len();
        let office = self.office().map_err(|_| AppendError::Ended)?;
        let inbound = Inbound::Keep(Box::new(found));
        office.inbound.send(inbound).await.map_err(|_| AppendError::Ended)?;
        Ok(under_way)
    }
}

impl Found {
    /// What is in the journal by now, to be gone on with in `term`.
    pub(super) async fn read(keeping: Keeping, term: Option<u64>) -> Result<Self, AppendError> {
        let read = keeping.journal.read(|state| {
            let live = state.live().map(|(request, kept)| (request, kept.clone()));
            let drained = state.drained().map(str::to_owned).collect();
            (live.collect::<Vec<_>>(), state.last_request(), drained)
        });
        let (live, last, drained) = read.await?;
        let clock = Clock::new(keeping.journal.clock_ms().await?, term.is_none());
        let with_permit = |(request, kept): (RequestId, Kept)| {
            let holder = &kept.accepted.telling.holder;
            let permit = keeping.keys.as_ref().and_then(|keys| keys.go_on(holder));
            Interrupted { request, kept, permit }
        };
        let live = live.into_iter().map(with_permit).collect();
        Ok(Self { keeping, term, clock, live, last, drained })
    }
}
