//! A coordinator of a group: follows who leads, and for each term in which it leads itself has a
//! loop of its own, which begins as after a restart, with the journal, and of which nothing is
//! left when the term is over.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aqueduct_core::Tenure;
use aqueduct_journal::{AppendError, Journal, Standing};
use tokio::sync::{Notify, mpsc, watch};

use super::event_loop::{Ended, EventLoop, Inputs, Shown};
use super::ids::Ids;
use super::keeping::Found;
use super::seat::Seat;
use super::{Keeping, Never, seated};
use crate::config::Config;
use crate::discovery::{Discovery, Members};
use crate::peers::{Known, Passage};

/// A loop that could not write ends before it is known who leads; that is waited for.
const SETTLING: Duration = Duration::from_secs(5);
/// Who goes waits so long for another one to lead.
const HANDING_OVER: Duration = Duration::from_secs(1);

/// The part of a coordinator that stands for its group.
#[derive(Debug)]
pub struct Candidate {
    config: Config,
    members: Members,
    shown: Shown,
    seat: watch::Sender<Seat>,
    stopping: Arc<Notify>,
    passage: Arc<OnceLock<Passage>>,
    /// The coordinator has not ended while this is there.
    _alive: mpsc::Receiver<Never>,
}

/// Who serves, what is there as long as the coordinator is, and what it is told to stop by.
type OfSeat = (watch::Sender<Seat>, mpsc::Receiver<Never>, Arc<Notify>);

/// What ended a term.
#[derive(Debug, PartialEq, Eq)]
enum Over {
    /// Somebody else may lead.
    Deposed,
    /// The coordinator has.
    Stopped,
}

impl Candidate {
    pub(super) fn new(
        config: Config,
        members: Members,
        shown: Shown,
        ((seat, alive, stopping), passage): (OfSeat, Arc<OnceLock<Passage>>),
    ) -> Self {
        Self { config, members, shown, seat, stopping, passage, _alive: alive }
    }

    /// What comes to the coordinator while it follows is passed on by `passage`.
    #[must_use]
    pub fn passing(self, passage: Passage) -> Self {
        // It is given once, before it stands.
        self.passage.set(passage).ok();
        self
    }

    /// From now on the coordinator serves whenever the journal of `keeping` has it lead, and says
    /// otherwise who does, as `known` has it. It ends with its journal.
    pub fn stand(self, keeping: Keeping, known: watch::Receiver<Known>) {
        tokio::spawn(Terms { candidate: self, keeping, known, ids: None }.run());
    }
}

struct Terms {
    candidate: Candidate,
    keeping: Keeping,
    known: watch::Receiver<Known>,
    /// Where those of the last term ended.
    ids: Option<Ids>,
}

impl Terms {
    async fn run(mut self) {
        let mut standing = self.keeping.journal.standing();
        loop {
            let now = *standing.borrow_and_update();
            if let Standing::Leads { term } = now {
                match self.lead(term).await {
                    Ok(Over::Deposed) | Err(AppendError::Deadline(_)) => continue,
                    Ok(Over::Stopped) | Err(_) => break,
                }
            }
            self.follow(now);
            let Candidate { seat, stopping, .. } = &self.candidate;
            tokio::select! {
                changed = standing.changed() => if changed.is_err() { break },
                Ok(()) = self.known.changed() => {}
                () = stopping.notified() => break,
                () = seat.closed() => break,
            }
        }
        self.hand_over().await;
    }

    /// Has another member lead, if this one does, so that nobody has to find out that it goes.
    async fn hand_over(&self) {
        let journal = &self.keeping.journal;
        let mut standing = journal.standing();
        let is_over = async {
            journal.resign().await; // one whose disk hangs hears nothing
            standing.wait_for(|now| !matches!(now, Standing::Leads { .. })).await.ok();
        };
        if tokio::time::timeout(HANDING_OVER, is_over).await.is_err() {
            tracing::info!("nobody has taken over the lead");
        }
    }

    /// Says who leads.
    fn follow(&mut self, standing: Standing) {
        let Standing::Follows { leader } = standing else { return };
        let known = self.known.borrow_and_update();
        let addresses = leader.and_then(|leader| known.get(&leader).cloned());
        self.candidate.seat.send_if_modified(|seat| {
            let is_known = matches!(seat, Seat::Elsewhere(known) if *known == addresses);
            *seat = Seat::Elsewhere(addresses);
            !is_known
        });
    }

    /// Serves for as long as this coordinator leads in `term`.
    ///
    /// # Errors
    /// The journal has ended.
    async fn lead(&mut self, term: u64) -> Result<Over, AppendError> {
        let found = Found::read(self.keeping.clone(), Some(term)).await?;
        if !leads(&self.keeping.journal, term) {
            // What was read may be another leader's.
            return Ok(Over::Deposed);
        }
        let ear = self.keeping.journal.ear();
        tracing::info!(term, interrupted = found.live.len(), "this coordinator leads");
        let ids = Ids::of(ear.member());
        let ids = self.ids.iter().fold(ids, Ids::after);
        let Candidate { config, members, shown, seat, .. } = &self.candidate;
        let (mut event_loop, inputs, office, notices) = seated(config, shown.clone(), ids);
        event_loop.keep(found);
        let tenure = Some(Tenure { group: ear.group(), term });
        let cluster = shown.cluster.subscribe();
        tokio::spawn(Discovery::new(members.clone(), cluster, notices, tenure).run());
        seat.send_replace(Seat::Here(super::seat::Office { term: Some(term), ..office }));
        let (ended, over) = self.serve(term, event_loop, inputs).await;
        let Candidate { shown, seat, .. } = &self.candidate;
        seat.send_replace(Seat::Elsewhere(None));
        shown.clear();
        self.ids = Some(ended.ids);
        tracing::info!(term, "this coordinator does not lead any more");
        if !ended.as_wished {
            self.settle(term).await;
        }
        Ok(over)
    }

    /// Until the loop has ended, by itself or because it does not lead any more.
    async fn serve(&self, term: u64, event_loop: EventLoop, inputs: Inputs) -> (Ended, Over) {
        let (stop, depose) = (inputs.stopping.clone(), inputs.deposed.clone());
        let Candidate { seat, stopping, .. } = &self.candidate;
        let mut standing = self.keeping.journal.standing();
        let mut running = std::pin::pin!(event_loop.run(inputs));
        let over = tokio::select! {
            ended = &mut running => return (ended, Over::Deposed),
            _ = standing.wait_for(|now| *now != Standing::Leads { term }) => {
                depose.notify_one();
                Over::Deposed
            }
            () = stopping.notified() => {
                stop.notify_one();
                Over::Stopped
            }
            () = seat.closed() => {
                stop.notify_one();
                Over::Stopped
            }
        };
        (running.await, over)
    }

    /// Until it is known that another term has begun.
    async fn settle(&self, term: u64) {
        let mut standing = self.keeping.journal.standing();
        let is_over = standing.wait_for(|now| *now != Standing::Leads { term });
        if tokio::time::timeout(SETTLING, is_over).await.is_err() {
            tracing::error!(
                term,
                "the journal could not be written, though this coordinator leads"
            );
        }
    }
}

fn leads(journal: &Journal, term: u64) -> bool {
    *journal.standing().borrow() == Standing::Leads { term }
}
