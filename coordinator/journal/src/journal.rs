//! A member at work: one task that holds the node and its store, takes whatever has come in
//! together, and so flushes the disk once for all of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::Refusal;
use aqueduct_core::journal::Record;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout_at;

use crate::ask::{Ask, Records, Reply};
use crate::config::Options;
use crate::node::{
    Applied, Broken, ELECTION_TICKS, Member, Node, Standing, TICK_MS, Ticket, Unable,
};
use crate::state::{Misfit, State};
use crate::store::{Store, StoreError};
use crate::{Ear, Message, MessageType, Write};

/// What is on its way to the task: whoever has more to say waits.
const ASKS_MAX: usize = 1024;
/// The node is told the time so often.
const TICK: Duration = Duration::from_millis(TICK_MS);
/// A write that takes longer has kept this member silent for so long that another one leads.
const SILENCE_MAX: Duration = Duration::from_millis(2 * ELECTION_TICKS as u64 * TICK_MS);

/// Carries messages to other members. It may lose them, and must not wait for them.
pub trait Transport: Send + 'static {
    /// Whoever is to be told what came of messages: of every snapshot, and of others that did not
    /// arrive. Called once, before anything is sent.
    fn open(&mut self, _: Ear) {}

    /// Sends `messages`, each to its `to`. Kind and receiver of those for which there is no room.
    fn send(&mut self, messages: Vec<Message>) -> Vec<(MessageType, u64)>;

    /// What member `from` said fits nothing here, and was not heard.
    fn refused(&mut self, _from: u64, _refusal: &Refusal) {}
}

/// A coordinator that is alone sends nothing.
impl Transport for () {
    fn send(&mut self, _: Vec<Message>) -> Vec<(MessageType, u64)> {
        Vec::new()
    }
}

/// Why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What is in it.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Why a record was not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// It was not even proposed.
    #[error(transparent)]
    Unable(#[from] Unable),
    /// It was agreed on, and changed nothing.
    #[error("it does not fit the journal: {0}")]
    Misfit(#[from] Misfit),
    /// The leader changed meanwhile: it may be there or not.
    #[error("the leader changed before it was agreed on")]
    Lost,
    /// It may be there later, or not.
    #[error("it was not agreed on within {0:?}")]
    Deadline(Duration),
    /// The journal has ended: its disk failed, or it was dropped.
    #[error("the journal has ended")]
    Ended,
}

/// A running journal. Clones are the same one; it ends when the last of them is dropped.
#[derive(Debug, Clone)]
pub struct Journal {
    asks: mpsc::Sender<Ask>,
    standing: watch::Receiver<Standing>,
    append_deadline: Duration,
    ear: Ear,
}

impl Journal {
    /// Opens the journal in `folder`, or makes one, and starts to keep it, on the current tokio
    /// runtime.
    ///
    /// # Errors
    /// A journal that is not this member's, or not whole.
    pub fn open(
        folder: &Path,
        options: Options,
        mut transport: impl Transport,
    ) -> Result<Self, OpenError> {
        let (store, saved) = Store::open(folder, &options.identity)?;
        let (append_deadline, member) = (options.append_deadline, options.identity.member);
        let is_of_group = options.identity.members.len() > 1;
        let node = Node::new(options, &saved)?;
        let (asks_sender, asks) = mpsc::channel(ASKS_MAX);
        let ear = Ear::new(&saved, member, &asks_sender);
        transport.open(ear.clone());
        let (standing_sender, standing) = watch::channel(node.standing());
        let keeper = Keeper {
            node,
            store: Arc::new(store),
            transport,
            standing: standing_sender,
            is_of_group,
            waiting: BTreeMap::new(),
            started: Instant::now(),
        };
        tokio::spawn(keeper.run(asks));
        Ok(Self { asks: asks_sender, standing, append_deadline, ear })
    }

    /// Adds a record. It is safe when this returns: on disk, with a majority of the members.
    ///
    /// # Errors
    /// It was not added, or that is not known yet.
    pub async fn append(&self, record: Record) -> Result<(), AppendError> {
        self.append_in(None, vec![record]).await.pop().unwrap_or(Ok(()))
    }

    /// The same of `records`, in their order, if this member still leads in `term` when their turn
    /// comes, or in any if that is `None`: whoever has stopped leading adds nothing, even if it
    /// leads again. Where one finds no room none behind it is added either, so that nothing is read
    /// before what it follows. What came of each. What the disk has not let the journal come to by
    /// the deadline is never added.
    pub async fn append_in(
        &self,
        term: Option<u64>,
        records: Vec<Record>,
    ) -> Vec<Result<(), AppendError>> {
        let asked = records.into_iter().map(|record| {
            let (reply, answer) = oneshot::channel();
            ((record, reply), answer)
        });
        let (records, answers): (Vec<_>, Vec<_>) = asked.unzip();
        let (records, _offer) = Records::offered(records);
        let until = Instant::now() + self.append_deadline;
        let late = || AppendError::Deadline(self.append_deadline);
        let sent = timeout_at(until.into(), self.asks.send(Ask::Append { records, term })).await;
        let sent = sent.map_err(|_| late()).and_then(|sent| sent.map_err(|_| AppendError::Ended));
        let mut results = Vec::with_capacity(answers.len());
        for answer in answers {
            results.push(match &sent {
                Err(error) => Err(error.clone()),
                Ok(()) => match timeout_at(until.into(), answer).await {
                    Ok(Ok(result)) => result,
                    Ok(Err(_)) => Err(AppendError::Ended),
                    Err(_) => Err(late()),
                },
            });
        }
        results
    }

    /// What `read` makes of the state: of all that was added before, on a member that leads.
    ///
    /// # Errors
    /// The journal has ended, or its disk takes its time.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&State) -> T + Send + 'static,
    ) -> Result<T, AppendError> {
        self.on_node(|node| read(node.state())).await
    }

    /// All members, if this one leads; nothing otherwise.
    ///
    /// # Errors
    /// The journal has ended, or its disk takes its time.
    pub async fn members(&self) -> Result<Vec<Member>, AppendError> {
        self.on_node(|node| node.members()).await
    }

    /// What time it is by the journal, as [`Node::clock_ms`] has it.
    ///
    /// # Errors
    /// The journal has ended, or its disk takes its time.
    pub async fn clock_ms(&self) -> Result<Option<u64>, AppendError> {
        self.on_node(|node| node.clock_ms()).await
    }

    /// What `act` makes of the node between two pieces of its work.
    async fn on_node<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<T, AppendError> {
        let (reply, answer) = oneshot::channel();
        let act = move |node: &mut Node| drop(reply.send(act(node)));
        let answered = async {
            let sent = self.asks.send(Ask::Do(Box::new(act))).await;
            sent.map_err(|_| AppendError::Ended)?;
            answer.await.map_err(|_| AppendError::Ended)
        };
        self.in_time(answered).await
    }

    async fn in_time<T>(
        &self,
        answered: impl Future<Output = Result<T, AppendError>>,
    ) -> Result<T, AppendError> {
        let deadline = self.append_deadline;
        let in_time = tokio::time::timeout(deadline, answered).await;
        in_time.unwrap_or(Err(AppendError::Deadline(deadline)))
    }

    /// What hears other members. It does not keep the journal running.
    pub fn ear(&self) -> Ear {
        self.ear.clone()
    }

    /// Has another member lead, if this one does, and says which: one that is there, and that was
    /// not `tried`. `None`: there is nobody.
    pub async fn resign(&self, tried: &[u64]) -> Option<u64> {
        let tried = tried.to_vec();
        let next = self.on_node(move |node| node.resign(&tried)).await;
        next.ok().flatten() // one that has ended does not lead
    }

    /// This member is about to go: from now on the others come before it when one is to lead.
    pub async fn be_reluctant(&self) {
        // One that has ended stands for nothing, and one whose disk hangs will hardly lead.
        let _ = self.on_node(Node::be_reluctant).await;
    }

    /// How this member stands, to be watched; it closes when the journal has ended.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }
}

struct Keeper<T> {
    node: Node,
    store: Arc<Store>,
    transport: T,
    standing: watch::Sender<Standing>,
    /// Whether there are others who may lead.
    is_of_group: bool,
    /// By where their record will stand.
    waiting: BTreeMap<Ticket, Reply>,
    started: Instant,
}

/// Why a journal ends before it is dropped.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("a write was broken off")]
    Broke(#[from] tokio::task::JoinError),
}

impl<T: Transport> Keeper<T> {
    async fn run(mut self, mut asks: mpsc::Receiver<Ask>) {
        if let Err(error) = self.keep(&mut asks).await {
            // Whoever waits is told by the end of its channel.
            tracing::error!(%error, "the journal has ended");
        }
    }

    async fn keep(&mut self, asks: &mut mpsc::Receiver<Ask>) -> Result<(), Failure> {
        let mut ticks = tokio::time::interval(TICK);
        let mut together = Vec::new();
        loop {
            self.work().await?;
            let standing = self.node.standing();
            self.standing.send_if_modified(|shown| std::mem::replace(shown, standing) != standing);
            tokio::select! {
                _ = ticks.tick() => {}
                count = asks.recv_many(&mut together, ASKS_MAX) => if count == 0 {
                    return Ok(());
                },
            }
            // First, however long the disk took: what has come is told of now.
            self.node.tick(self.started.elapsed().as_millis() as u64);
            together.drain(..).for_each(|ask| self.take(ask));
        }
    }

    fn take(&mut self, ask: Ask) {
        match ask {
            Ask::Append { records, term } => self.append(records.take(), term),
            Ask::Do(act) => act(&mut self.node),
            Ask::Hear { birth, message } => {
                let from = message.from;
                if let Err(refusal) = self.node.hear(birth, *message) {
                    self.transport.refused(from, &refusal);
                }
            }
            Ask::Sent { kind, to, arrived } => self.node.sent(kind, to, arrived),
        }
    }

    fn append(&mut self, records: Vec<(Record, Reply)>, term: Option<u64>) {
        let mut is_full = false;
        for (record, reply) in records {
            let proposed = match is_full {
                true => Err(Unable::Busy),
                false => self.node.propose(record, term),
            };
            is_full |= proposed == Err(Unable::Busy);
            match proposed {
                Ok(ticket) => drop(self.waiting.insert(ticket, reply)),
                Err(unable) => drop(reply.send(Err(unable.into()))),
            }
        }
    }

    async fn work(&mut self) -> Result<(), Failure> {
        let mut was_silent = false;
        while let Some(mut work) = self.node.work()? {
            let mut lost = self.transport.send(std::mem::take(&mut work.now));
            if let Some(write) = work.write.take() {
                let standing = self.is_of_group.then_some(&self.standing);
                was_silent |= flush(&self.store, write, standing).await?;
            }
            lost.append(&mut self.transport.send(std::mem::take(&mut work.after)));
            let applied = std::mem::take(&mut work.applied);
            work.done();
            lost.into_iter().for_each(|(kind, to)| self.node.sent(kind, to, false));
            applied.into_iter().for_each(|applied| settle(&mut self.waiting, applied));
        }
        if was_silent {
            self.node.abdicate();
        }
        if !self.node.is_leading() {
            let lost = std::mem::take(&mut self.waiting);
            lost.into_values().for_each(|reply| drop(reply.send(Err(AppendError::Lost))));
        }
        Ok(())
    }
}

/// On a thread that may wait for the disk. Returns whether that took too long for one of a group:
/// then `standing` shows it as nobody who leads, from that moment on.
async fn flush(
    store: &Arc<Store>,
    write: Write,
    standing: Option<&watch::Sender<Standing>>,
) -> Result<bool, Failure> {
    let store = store.clone();
    let mut writing = tokio::task::spawn_blocking(move || store.write(&write));
    let Some(standing) = standing else {
        writing.await??;
        return Ok(false);
    };
    if let Ok(done) = tokio::time::timeout(SILENCE_MAX, &mut writing).await {
        done??;
        return Ok(false);
    }
    tracing::warn!("the disk has not written for {SILENCE_MAX:?}");
    standing.send_if_modified(|shown| {
        let leads = matches!(shown, Standing::Leads { .. });
        if leads {
            *shown = Standing::Follows { leader: None };
        }
        leads
    });
    writing.await??;
    Ok(true)
}

/// Whoever waits for a record of this place is told: of another term's, that its own is lost.
fn settle(waiting: &mut BTreeMap<Ticket, Reply>, applied: Applied) {
    while let Some(first) = waiting.first_entry() {
        if first.key().index > applied.ticket.index {
            return;
        }
        let is_it = *first.key() == applied.ticket;
        let result = applied.result.map_err(AppendError::Misfit);
        drop(first.remove().send(if is_it { result } else { Err(AppendError::Lost) }));
    }
}
