//! A coordinator of a group: follows who leads, and for each term in which it leads itself has a
//! loop of its own, which begins as after a restart, with the journal, and of which nothing is
//! left when the term is over.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use aqueduct_core::{Tenure, limits};
use aqueduct_journal::{AppendError, Journal, Standing};
use tokio::sync::{Notify, mpsc, watch};

use super::carrying::Carriers;
use super::event_loop::{Ended, EventLoop, Inputs, Inquiry, Shown};
use super::ids::Ids;
use super::keeping::Found;
use super::leaving::Leaving;
use super::reach::reached;
use super::seat::{Office, Seat};
use super::{Coordinator, Keeping, Never, seated};
use crate::config::Config;
use crate::discovery::{Discovery, Members};
use crate::peers::{Known, Passage};

/// A loop that could not write ends before it is known who leads; that is waited for.
const SETTLING: Duration = Duration::from_secs(5);
/// Who goes waits so long for another one to lead.
const HANDING_OVER: Duration = Duration::from_secs(1);
/// Who goes waits so long for another member to be heard of, before it takes itself for alone.
const ALONE: Duration = Duration::from_secs(2);
/// Who is inside, and has not asked yet, is waited for so long: a prompt comes in and is tokenised.
const ASKING: Duration = Duration::from_secs(3);
/// Who leads and has had no worker for so long asks whether another member has any.
const LONELY: Duration = Duration::from_secs(5);
/// A member that was silent for so long may be gone.
const SILENCE: Duration = Duration::from_millis(limits::PEER_DEADLINE_MS);

/// The part of a coordinator that stands for its group.
#[derive(Debug)]
pub struct Candidate {
    config: Arc<Config>,
    members: Members,
    shown: Shown,
    seat: watch::Sender<Seat>,
    stopping: Arc<Notify>,
    passage: Arc<OnceLock<Passage>>,
    leaving: watch::Sender<Leaving>,
    carriers: Carriers,
    /// The coordinator has not ended while this is there.
    _alive: mpsc::Receiver<Never>,
}

/// What ended a term.
#[derive(Debug, PartialEq, Eq)]
enum Over {
    /// Somebody else may lead.
    Deposed,
    /// Somebody else is to lead.
    Left,
    /// The coordinator has.
    Stopped,
}

impl Candidate {
    /// That of `coordinator`, which is told by `seat` who serves, and has not ended while `alive`
    /// is there.
    pub(super) fn new(
        coordinator: &Coordinator,
        (seat, alive): (watch::Sender<Seat>, mpsc::Receiver<Never>),
        members: Members,
        shown: Shown,
    ) -> Self {
        Self {
            config: coordinator.config.clone(),
            members,
            shown,
            seat,
            stopping: coordinator.stopping.clone(),
            passage: coordinator.passage.clone(),
            leaving: coordinator.leaving.clone(),
            carriers: coordinator.carriers.clone(),
            _alive: alive,
        }
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
        let mut leaving = self.candidate.leaving.subscribe();
        loop {
            let now = *standing.borrow_and_update();
            if let Standing::Leads { term } = now {
                let led = self.lead(term).await;
                if led != Ok(Over::Left) {
                    self.hold_nobody();
                }
                match led {
                    Ok(Over::Left) => {
                        self.hand_over().await;
                        // Where it leads on, it is in the same term but with a loop of its own:
                        // the last one has written all that it told. It does not try again, as
                        // each try costs everybody time.
                        let leads_on = leads(&self.keeping.journal, term);
                        let now = Instant::now();
                        let next = if leads_on { Leaving::No } else { Leaving::By(now, now) };
                        self.candidate.leaving.send_replace(next);
                        continue;
                    }
                    Ok(Over::Deposed) | Err(AppendError::Deadline(_)) => continue,
                    Ok(Over::Stopped) | Err(_) => break,
                }
            }
            self.follow(now);
            let Candidate { seat, stopping, .. } = &self.candidate;
            tokio::select! {
                changed = standing.changed() => if changed.is_err() { break },
                Ok(()) = self.known.changed() => {}
                // Who is about to go would rather not lead.
                Ok(()) = leaving.changed() => self.keeping.journal.be_reluctant().await,
                () = stopping.notified() => break,
                () = seat.closed() => break,
            }
        }
        self.hand_over().await;
    }

    /// Has another member lead, if this one does, so that nobody has to find out that it goes.
    async fn hand_over(&self) {
        let journal = &self.keeping.journal;
        let mut tried = Vec::new();
        loop {
            let mut standing = journal.standing();
            let is_over = async {
                if matches!(*standing.borrow(), Standing::Leads { .. }) {
                    // One whose disk hangs hears nothing.
                    tried.push(journal.resign(&tried).await?);
                }
                let is_led = |now: &Standing| matches!(now, Standing::Follows { leader: Some(_) });
                standing.wait_for(is_led).await.ok().map(drop)
            };
            match tokio::time::timeout(HANDING_OVER, is_over).await {
                Ok(Some(())) => return,
                Ok(None) => break,
                // The next one.
                Err(_) if matches!(*journal.standing().borrow(), Standing::Leads { .. }) => {}
                Err(_) => break,
            }
        }
        tracing::info!("nobody has taken over the lead");
    }

    /// Callers who were held for the next leader are not any more, though this one has ended in
    /// another way than it was about to; where it leads again it hands over.
    fn hold_nobody(&self) {
        let now = Instant::now();
        self.candidate.leaving.send_if_modified(|leaving| {
            let holds = *leaving == Leaving::Now;
            if holds {
                *leaving = Leaving::By(now, now);
            }
            holds
        });
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
        let office = Office { term: Some(term), ..office };
        event_loop.keep(found);
        let tenure = Some(Tenure { group: ear.group(), term });
        let cluster = shown.cluster.subscribe();
        tokio::spawn(Discovery::new(members.clone(), cluster, notices, tenure).run());
        seat.send_replace(Seat::Here(office.clone()));
        let (ended, over) = self.serve(term, (event_loop, inputs), office).await;
        let Candidate { shown, seat, carriers, .. } = &self.candidate;
        seat.send_replace(Seat::Elsewhere(None));
        match over {
            Over::Stopped => ended.left.into_iter().for_each(|left| left.end()),
            Over::Deposed | Over::Left => carriers.take(ended.left, seat),
        }
        shown.clear();
        self.ids = Some(ended.ids);
        tracing::info!(term, "this coordinator does not lead any more");
        if !ended.as_wished {
            self.settle(term).await;
        }
        Ok(over)
    }

    /// Until the loop has ended, by itself or because it does not lead any more.
    async fn serve(
        &self,
        term: u64,
        (event_loop, inputs): (EventLoop, Inputs),
        office: Office,
    ) -> (Ended, Over) {
        let (stop, depose) = (inputs.stopping.clone(), inputs.deposed.clone());
        let Candidate { seat, stopping, .. } = &self.candidate;
        let mut standing = self.keeping.journal.standing();
        let mut running = std::pin::pin!(event_loop.run(inputs));
        let over = tokio::select! {
            ended = &mut running => {
                let over = if ended.leaves { Over::Left } else { Over::Deposed };
                return (ended, over);
            }
            never = self.have_it_leave(office) => match never {},
            never = self.give_way() => match never {},
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
        let ended = running.await;
        // It may have been about to go when somebody else had come already.
        let over = if ended.leaves && over == Over::Deposed { Over::Left } else { over };
        (ended, over)
    }

    /// When it is to hand the lead over, and another member may take it, the loop ends what it has.
    async fn have_it_leave(&self, office: Office) -> Never {
        let mut leaving = self.candidate.leaving.subscribe();
        let wished = leaving.wait_for(|leaving| matches!(leaving, Leaving::By(..))).await;
        if let Ok(Leaving::By(from, by)) = wished.map(|leaving| *leaving) {
            self.keeping.journal.be_reluctant().await;
            let over = Arc::<Notify>::default();
            let told = over.clone();
            let prepare: Inquiry = Box::new(move |it| it.prepare((from, by), told));
            // A loop that has ended leads no more.
            if office.inquiries.send(prepare).await.is_ok() {
                over.notified().await;
                match tokio::time::timeout(ALONE, self.others_are_there()).await {
                    Ok(()) => {
                        // From now on callers wait for the next one; those who are inside are
                        // waited for until they have asked.
                        self.candidate.leaving.send_replace(Leaving::Now);
                        if let Some(passage) = self.candidate.passage.get() {
                            tokio::time::timeout(ASKING, passage.all_have_asked()).await.ok();
                        }
                        self.candidate.seat.send_replace(Seat::Elsewhere(None));
                        let leave: Inquiry = Box::new(EventLoop::leave);
                        office.inquiries.send(leave).await.ok();
                    }
                    Err(_) => {
                        tracing::info!("there is nobody to whom the lead could be handed over");
                        self.candidate.leaving.send_replace(Leaving::No);
                    }
                }
            }
        }
        std::future::pending().await
    }

    /// Where no worker is reached from here, though another member reaches some, that one is to
    /// lead: the way to them may be broken from here alone. What goes on is carried on from there.
    async fn give_way(&self) -> Never {
        let Candidate { passage, members, shown, .. } = &self.candidate;
        let mut cluster = shown.cluster.subscribe();
        while let Some(passage) = passage.get() {
            if cluster.wait_for(|cluster| cluster.workers_up() == 0).await.is_err() {
                break;
            }
            let come = cluster.wait_for(|cluster| cluster.workers_up() > 0);
            if tokio::time::timeout(LONELY, come).await.is_ok() {
                continue;
            }
            // One that accepts connections and does no work does none for others.
            let urls = members.urls.borrow().clone();
            let are_there = async || reached(&urls).await > 0;
            if are_there().await {
                continue;
            }
            let (some, mut tried) = passage.reaches_workers().await;
            // They may all have come back while it was asked.
            if some.is_empty() || are_there().await || cluster.borrow().workers_up() > 0 {
                continue;
            }
            tracing::warn!(?some, "no worker is reached from here, but from other members");
            for _ in some {
                let Some(next) = self.keeping.journal.resign(&tried).await else { break };
                tokio::time::sleep(HANDING_OVER).await;
                tried.push(next); // it does not take over: this one leads on
                if cluster.borrow().workers_up() > 0 {
                    break;
                }
            }
        }
        std::future::pending().await
    }

    /// Until so many other members are heard that they and this one agree on who leads.
    async fn others_are_there(&self) {
        let silence_ms = SILENCE.as_millis() as u64;
        loop {
            let members = self.keeping.journal.members().await.unwrap_or_default();
            let is_there = |ms: u64| ms < silence_ms;
            let there = members.iter().filter(|it| it.leads || it.silent_ms.is_some_and(is_there));
            let there = there.count();
            if there > 1 && 2 * there > members.len() {
                return;
            }
            tokio::time::sleep(ALONE / 10).await;
        }
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
