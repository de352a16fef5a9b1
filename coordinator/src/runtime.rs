//! The runtime: the plan's hands. [`Coordinator`] is the handle that API layers hold; behind
//! it one task owns the plan ([`event_loop`]), and one task per worker keeps its session. In a
//! group of coordinators there is such a loop where one leads, anew for each term ([`terms`]).

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use aqueduct_core::{Refusal, RequestId, WorkerId, limits};
use aqueduct_journal::AppendError;
use aqueduct_tls::ClientTls;
use tokio::sync::{Notify, mpsc, oneshot, watch};

mod attaching;
mod carrying;
mod event_loop;
mod history;
mod ids;
mod keeping;
mod leaving;
mod live;
mod mailbox;
mod operator;
mod origins;
mod pace;
mod prefix;
mod reach;
mod scribe;
mod seat;
mod serving;
mod session;
mod status;
mod terms;
mod trail;

pub(crate) use event_loop::Wanted;
pub use keeping::{Constrain, Keeping};
pub(crate) use operator::Silent;
pub(crate) use origins::Origin;
pub use seat::Leader;
pub use status::{Cluster, ModelInfo, Stats, WorkerState, WorkerStatus};
pub use terms::Candidate;

use crate::config::Config;
use crate::discovery::{Discovery, Members};
use crate::dispatch::{Notice, Session};
use crate::peers::Passage;
use crate::submit::{RequestError, Submission, Update};
use carrying::Carriers;
use event_loop::{Arrival, DrainOrder, EventLoop, Inbound, Inputs, Outputs, Shown};
use ids::Ids;
pub(crate) use leaving::Leaving;
use live::Asked;
use mailbox::Mailbox;
use seat::{Office, Seat};

/// Requests on their way into the loop, which takes them at once.
const ARRIVALS_MAX: usize = 64;
/// Questions of operators on their way into it.
const INQUIRIES_MAX: usize = 16;
/// What was written, and has not been heard of: one thing is at a time.
const WRITTEN_MAX: usize = 1;

/// A new leader's workers may take so long to come before a request is refused for want of them.
const WORKERS_COME: Duration = Duration::from_secs(5);

type NoticeSender = mpsc::Sender<(WorkerId, Notice)>;

/// A coordinator before it is known who serves.
type Unseated = (Coordinator, watch::Sender<Seat>, mpsc::Receiver<Never>, Shown);

/// A request that is taken up: what was asked for, if not the prompt's tokens, and what is known
/// of it, from its beginning.
pub(crate) type Attached = (Submission, RequestHandle);

/// What is never sent.
#[derive(Debug)]
pub(crate) enum Never {}

/// Why a coordinator could not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// An option is out of bounds.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// A running coordinator. Clones are the same one; it stops when the last of them, and of its
/// requests' handles, is dropped, or when it is told to.
#[derive(Debug, Clone)]
pub struct Coordinator {
    config: Arc<Config>,
    seat: watch::Receiver<Seat>,
    closing: Arc<watch::Sender<bool>>,
    stopping: Arc<Notify>,
    /// Closed when it has ended.
    life: mpsc::Sender<Never>,
    cluster: watch::Receiver<Cluster>,
    stats: watch::Receiver<Stats>,
    /// To others of its group, when it has joined one.
    passage: Arc<OnceLock<Passage>>,
    /// Whether it is to hand the lead over.
    leaving: watch::Sender<Leaving>,
    carriers: Carriers,
    /// Where its group finds workers.
    roll: Option<watch::Receiver<BTreeSet<String>>>,
}

impl Coordinator {
    /// Starts a coordinator of the workers behind `sessions`, on the current tokio runtime.
    /// It takes requests as soon as a worker has said hello.
    ///
    /// # Errors
    /// An option out of bounds; no session, or more than [`limits::WORKERS_MAX`].
    pub fn start(config: Config, sessions: Vec<Session>) -> Result<Self, StartError> {
        Refusal::unless_within("workers", sessions.len(), 1, limits::WORKERS_MAX)?;
        let (coordinator, notices) = Self::of(config, known(&sessions))?;
        for (idx, session) in sessions.into_iter().enumerate() {
            session.spawn(WorkerId(idx as u32), notices.clone(), coordinator.watch());
        }
        Ok(coordinator)
    }

    /// Starts a coordinator of the workers at `urls`, which come and go and are spoken to as `tls`
    /// says: in plaintext if it is `None`. A worker that is not among them any more remains for as
    /// long as its session goes on.
    ///
    /// # Errors
    /// An option out of bounds.
    pub fn follow(
        config: Config,
        urls: watch::Receiver<BTreeSet<String>>,
        tls: Option<ClientTls>,
    ) -> Result<Self, StartError> {
        let (coordinator, notices) = Self::of(config, Cluster::default())?;
        let members = Members { urls, tls };
        tokio::spawn(Discovery::new(members, coordinator.watch(), notices, None).run());
        Ok(coordinator)
    }

    /// A coordinator that leads the workers behind `members` whenever its group has it lead,
    /// which begins with [`Candidate::stand`].
    ///
    /// # Errors
    /// An option out of bounds.
    pub fn in_group(config: Config, members: Members) -> Result<(Self, Candidate), StartError> {
        let (mut coordinator, seat, alive, shown) = Self::before(config, Cluster::default())?;
        coordinator.roll = Some(members.urls.clone());
        let candidate = Candidate::new(&coordinator, (seat, alive), members, shown);
        Ok((coordinator, candidate))
    }

    /// A coordinator, and where it hears of its workers.
    fn of(config: Config, known: Cluster) -> Result<(Self, NoticeSender), StartError> {
        let (coordinator, seat, alive, shown) = Self::before(config, known)?;
        let (event_loop, inputs, office, notices) = seated(&coordinator.config, shown, Ids::of(0));
        let inputs = Inputs { stopping: coordinator.stopping.clone(), ..inputs };
        seat.send_replace(Seat::Here(office));
        tokio::spawn(async move {
            event_loop.run(inputs).await.left.into_iter().for_each(|left| left.end());
            drop(alive);
        });
        Ok((coordinator, notices))
    }

    /// One that nobody serves yet; where it is said who does, what is there until it has ended,
    /// and where it is said what everybody may see.
    fn before(config: Config, known: Cluster) -> Result<Unseated, StartError> {
        config.validate()?;
        let (seat_sender, seat) = watch::channel(Seat::Elsewhere(None));
        let (life, alive) = mpsc::channel(1);
        let (shown, cluster, stats) = Shown::new(known);
        let passage = Arc::<OnceLock<Passage>>::default();
        let coordinator = Self {
            config: Arc::new(config),
            seat,
            closing: Arc::default(),
            stopping: Arc::default(),
            life,
            cluster,
            stats,
            carriers: Carriers::new(passage.clone()),
            passage,
            leaving: watch::Sender::new(Leaving::No),
            roll: None,
        };
        Ok((coordinator, seat_sender, alive, shown))
    }

    /// Waits until `workers` of them are up; false when that has not come within `deadline`.
    pub async fn wait_for_workers(&self, workers: usize, deadline: Duration) -> bool {
        let mut cluster = self.cluster.clone();
        let enough = cluster.wait_for(|cluster| cluster.workers_up() >= workers);
        tokio::time::timeout(deadline, enough).await.is_ok_and(|seen| seen.is_ok())
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`RequestError::Refused`] when it is wrong, `Busy` when the queue is full,
    /// `Unavailable` when no worker is up.
    pub async fn submit(&self, submission: Submission) -> Result<RequestHandle, RequestError> {
        if !self.is_open() {
            // Where nobody takes over in its place it is not worth waiting for.
            let goes_on = self.passage().is_some_and(Passage::carries);
            let why = || RequestError::Unavailable("the coordinator is shutting down".into());
            return Err(if goes_on { RequestError::Stopping } else { why() });
        }
        // Who comes this far came when it led.
        let office = self.office().map_err(|error| match error {
            RequestError::Unavailable(_) => RequestError::Stopping,
            error => error,
        })?;
        self.workers_come(&office).await;
        let Some(model) = self.cluster.borrow().model.clone() else {
            // A term that is over has taken its workers along.
            let is_over = office.inbound.is_closed();
            let why = || RequestError::Unavailable("no worker has connected yet".into());
            return Err(if is_over { RequestError::Stopping } else { why() });
        };
        let asked = Asked::of(submission, model, &self.config)?;
        let mailbox = Arc::new(Mailbox::new(office.wished.clone()));
        let reader = Reader(mailbox.clone());
        let (reply, answer) = oneshot::channel();
        let arrival = Arrival { asked, mailbox, reply };
        let inbound = Inbound::Request(Box::new(arrival));
        office.inbound.send(inbound).await.map_err(|_| RequestError::Stopping)?;
        let request = answer.await.map_err(|_| RequestError::Stopping)??;
        Ok(RequestHandle { request, reader, _inbound: office.inbound })
    }

    /// Gives the worker with this name or address nothing new or, unless `draining`, something
    /// again. How it stands then.
    ///
    /// # Errors
    /// There is no such worker, or the next coordinator would not know of it.
    pub async fn drain(&self, worker: &str, draining: bool) -> Result<WorkerStatus, NotDrained> {
        let bound = "the name or address of a worker";
        let unknown = || NotDrained::Unknown(Refusal::new("worker", worker, bound));
        let found = self.cluster.borrow().find(worker).map(|status| status.worker);
        let (done, heard) = oneshot::channel();
        let order = DrainOrder { worker: found.ok_or_else(unknown)?, draining, done };
        // A coordinator that has ended, or does not lead, has no workers.
        let office = self.office().map_err(|_| unknown())?;
        office.inbound.send(Inbound::Drain(order)).await.map_err(|_| unknown())?;
        heard.await.unwrap_or(Err(AppendError::Ended)).map_err(NotDrained::Unwritten)?;
        self.cluster.borrow().find(worker).cloned().ok_or_else(unknown)
    }

    /// Waits until it has no requests, and those have ended that others lead for callers here.
    pub async fn idle(&self) {
        let mut stats = self.stats.clone();
        let is_idle = |stats: &Stats| stats.running == 0 && stats.queued == 0;
        stats.wait_for(is_idle).await.ok(); // one that has ended has none
        self.carriers.idle().await;
        if let Some(passage) = self.passage() {
            passage.idle().await;
        }
    }

    /// The way to whichever other coordinator of its group leads.
    pub(crate) fn passage(&self) -> Option<&Passage> {
        self.passage.get()
    }

    /// Ends this coordinator and all its clones: requests under way fail as unavailable, and
    /// workers may go without being missed.
    pub async fn stop(&self) {
        self.stopping.notify_one();
        self.ended().await;
        self.carriers.stop();
    }

    /// Until it has ended, which it does by itself only when its journal cannot be written.
    pub async fn ended(&self) {
        self.life.closed().await;
    }

    /// Which coordinator of the group serves: this one, where there is no group.
    pub fn leader(&self) -> Leader {
        Leader::of(&self.seat.borrow())
    }

    /// # Errors
    /// Where requests go instead, if this coordinator does not lead.
    fn office(&self) -> Result<Office, RequestError> {
        match &*self.seat.borrow() {
            Seat::Here(office) => Ok(office.clone()),
            Seat::Elsewhere(leader) => Err(seat::elsewhere(leader.clone())),
        }
    }

    /// The model and the workers.
    pub fn describe(&self) -> Cluster {
        self.cluster.borrow().clone()
    }

    /// What people call a worker, and commands know.
    pub(crate) fn name_of(&self, worker: WorkerId) -> String {
        self.cluster.borrow().name_of(worker)
    }

    /// The cluster, to be watched.
    pub fn watch(&self) -> watch::Receiver<Cluster> {
        self.cluster.clone()
    }

    /// Figures.
    pub fn stats(&self) -> Stats {
        self.stats.borrow().clone()
    }

    /// The options it was started with.
    pub fn config(&self) -> &Config {
        &self.config
    }
}

/// Why an operator's order did not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotDrained {
    /// There is no such worker.
    #[error(transparent)]
    Unknown(Refusal),
    /// It is so here, and nowhere else.
    #[error("it was not written down, order it once more: {0}")]
    Unwritten(AppendError),
}

/// A request under way. Dropping it cancels the request on every worker.
#[derive(Debug)]
pub struct RequestHandle {
    request: RequestId,
    reader: Reader,
    /// Keeps the coordinator running.
    _inbound: mpsc::Sender<Inbound>,
}

impl RequestHandle {
    /// Its id.
    pub fn request_id(&self) -> RequestId {
        self.request
    }

    /// The next update; `None` after the last one and after an error.
    pub async fn next(&mut self) -> Option<Result<Update, RequestError>> {
        self.reader.0.next().await
    }

    /// Ends one completion, for instance at a stop string; its `ChoiceDone` still comes.
    pub fn stop_choice(&self, choice: u32) {
        self.reader.0.stop(choice);
    }
}

/// The caller's end of a mailbox; it stands for the caller from the moment of submission, so a
/// caller that goes away while its request is being queued cancels it too.
#[derive(Debug)]
struct Reader(Arc<Mailbox>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

fn known(sessions: &[Session]) -> Cluster {
    let status = |(idx, session): (usize, &Session)| {
        WorkerStatus::connecting(WorkerId(idx as u32), session.name().to_owned())
    };
    Cluster { model: None, workers: sessions.iter().enumerate().map(status).collect() }
}

/// A loop that has not begun, what it listens to, how it is spoken to, and where it hears of its
/// workers.
fn seated(config: &Config, shown: Shown, ids: Ids) -> (EventLoop, Inputs, Office, NoticeSender) {
    let (inbound_sender, inbound) = mpsc::channel(ARRIVALS_MAX);
    let (written_sender, written) = mpsc::channel(WRITTEN_MAX);
    let (notices_sender, notices) = mpsc::channel(limits::EVENTS_MAX);
    let (inquiries_sender, inquiries) = mpsc::channel(INQUIRIES_MAX);
    let (stopping, deposed, wished) = (Arc::default(), Arc::default(), Arc::<Notify>::default());
    let outputs = Outputs { shown, written: written_sender, wished: wished.clone() };
    let event_loop = EventLoop::new(config.clone(), outputs, ids);
    let office = Office {
        inbound: inbound_sender,
        inquiries: inquiries_sender,
        wished: wished.clone(),
        term: None,
        since: Instant::now(),
    };
    let inputs = Inputs { inbound, notices, inquiries, written, wished, stopping, deposed };
    (event_loop, inputs, office, notices_sender)
}
