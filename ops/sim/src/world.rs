//! Time: what happens next, to whom, and what follows from it.

mod faults;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use aqueduct_core::work::{Command as Order, Event as Said};
use aqueduct_core::{ChunkKey, RequestId};
use aqueduct_engine::Model;
use aqueduct_kernels::MemorySet;

use crate::asked::{Asked, Completion};
use crate::coordinator::{Coordinator, Violation};
use crate::dice::Dice;
use crate::fault::Fault;
use crate::inbox::Verdict;
use crate::network::Network;
use crate::shards::{Reach, Ways};
use crate::worker::{Alarm, Effect, Worker};

/// Simulated time after which a request counts as stuck.
const STUCK_US: u64 = 2 * 3_600_000_000;
/// Time after the last outcome by which nothing may be held.
const SETTLE_US: u64 = 300_000_000;

/// What happens at some time.
enum Happening {
    Submit(usize),
    Leave(RequestId),
    Fault(Fault),
    Restart(usize),
    Undrain(usize),
    Tick,
    /// The coordinator tries to reach a worker.
    Dial(usize),
    /// One end of a session finds that it is gone.
    Lost {
        worker: usize,
        session: u64,
    },
    LostThere(At, u64),
    Order(At, u64, Box<Order>),
    Said {
        worker: usize,
        session: u64,
        said: Box<Said>,
    },
    Set {
        to: usize,
        from: At,
        key: ChunkKey,
        layer: u32,
        memory: Arc<MemorySet>,
    },
    Receipt(At, ChunkKey, u32),
    Wake(At, Alarm),
}

/// A worker's process: what was meant for one that has died reaches nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct At {
    worker: usize,
    life: u32,
}

/// A machine on which a worker runs.
struct Host {
    worker: Option<Worker>,
    life: u32,
    stands_still_until: u64,
    /// What its worker has room for.
    pool_tokens: u64,
    /// As the coordinator sees it.
    session: Option<u64>,
    /// Nothing overtakes on a session: when the last order, and the last event, arrives.
    last_order: u64,
    last_said: u64,
}

/// A cluster on its way through time.
pub(crate) struct World {
    now: u64,
    count: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    dice: Dice,
    network: Network,
    ways: Ways,
    hosts: Vec<Host>,
    coordinator: Coordinator,
    model: Arc<Model>,
    asked: Vec<(Arc<Asked>, Arc<Vec<Completion>>)>,
    sessions: u64,
    /// How far the coordinator's clock is ahead, in milliseconds.
    ahead_ms: u64,
    /// What must never happen, and did in a worker.
    broken: Option<Violation>,
    /// What happened, for a person.
    pub(crate) log: Option<Vec<String>>,
}

impl World {
    /// Workers that run, and what will be asked and will go wrong.
    pub(crate) fn new(
        mut dice: Dice,
        model: Arc<Model>,
        workers: usize,
        asked: Vec<(Arc<Asked>, Arc<Vec<Completion>>)>,
        faults: Vec<(u64, Fault)>,
    ) -> Self {
        let ways = Rc::new(RefCell::new(Reach::default()));
        let is_narrow = dice.chance(25);
        let host = |here| Host {
            worker: Some(Worker::new(model.clone(), here, ways.clone())),
            life: 0,
            stands_still_until: 0,
            pool_tokens: if is_narrow { dice.of(40..400) } else { u64::MAX },
            session: None,
            last_order: 0,
            last_said: 0,
        };
        let hosts = (0..workers).map(host).collect();
        let mut world = Self {
            now: 0,
            count: 0,
            agenda: BTreeMap::new(),
            dice,
            network: Network::default(),
            hosts,
            ways: ways.clone(),
            coordinator: Coordinator::default(),
            model: model.clone(),
            asked,
            sessions: 0,
            ahead_ms: 0,
            broken: None,
            log: None,
        };
        (0..workers).for_each(|worker| world.at(0, Happening::Dial(worker)));
        for idx in 0..world.asked.len() {
            let at_us = world.asked[idx].0.at_us + 1_000_000; // once workers are up
            world.at(at_us, Happening::Submit(idx));
        }
        for (at_us, fault) in faults {
            world.at(at_us, Happening::Fault(fault));
        }
        world
    }

    /// Runs until every request has ended and nothing of them is left.
    ///
    /// # Errors
    /// What must never happen, and did.
    pub(crate) fn run(mut self) -> (Result<Coordinator, Violation>, Option<Vec<String>>) {
        let outcome = self.live();
        (outcome.map(|()| self.coordinator), self.log)
    }

    fn live(&mut self) -> Result<(), Violation> {
        let mut settled_at = None;
        while let Some(((time, _), happening)) = self.agenda.pop_first() {
            self.now = time;
            self.happen(happening)?;
            self.broken.take().map_or(Ok(()), Err)?;
            self.send_orders();
            self.expect_tick();
            let all = self.coordinator.live.len() == self.asked.len();
            let over = all && self.coordinator.live.values().all(|live| live.end.is_some());
            if over && settled_at.is_none() {
                settled_at = Some(self.now + SETTLE_US);
                self.at(self.now + SETTLE_US, Happening::Tick);
            }
            if settled_at.is_some_and(|settled_at| self.now >= settled_at) {
                return self.check_nothing_is_left();
            }
            if self.now > STUCK_US {
                let stuck = self.coordinator.live.iter().filter(|(_, live)| live.end.is_none());
                let stuck: Vec<_> = stuck.map(|(request, _)| request).collect();
                return Err(Violation(format!("stuck: {stuck:?}")));
            }
        }
        Err(Violation("time stands still".into()))
    }

    fn check_nothing_is_left(&mut self) -> Result<(), Violation> {
        for (worker, host) in self.hosts.iter_mut().enumerate() {
            let held = host.worker.as_mut().map(|worker| worker.holds(self.now));
            let held = held.unwrap_or_default();
            let bytes = host.worker.as_ref().map_or(0, |worker| worker.store().bytes());
            if bytes > 0 {
                return Err(Violation(format!(
                    "worker {worker} still holds shards of {bytes} bytes"
                )));
            }
            if !held.is_empty() {
                return Err(Violation(format!("worker {worker} still holds {held:?}")));
            }
        }
        Ok(())
    }

    fn at(&mut self, time: u64, happening: Happening) {
        self.count += 1;
        self.agenda.insert((time, self.count), happening);
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(log) = &mut self.log {
            log.push(format!("{:>10.3} s  {}", now as f64 / 1e6, what()));
        }
    }

    fn clock_ms(&self) -> u64 {
        self.now / 1000 + self.ahead_ms
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        if let Some(worker) = happening.worker() {
            let until = self.hosts[worker].stands_still_until;
            if self.now < until {
                self.at(until, happening);
                return Ok(());
            }
        }
        match happening {
            Happening::Submit(idx) => self.submit(idx)?,
            Happening::Leave(request) => self.coordinator.leave(self.clock_ms(), request)?,
            Happening::Fault(fault) => self.suffer(fault)?,
            Happening::Undrain(worker) => self.coordinator.drain(self.clock_ms(), worker, false)?,
            Happening::Restart(worker) => {
                self.note(|| format!("worker {worker} is back"));
                let ways = self.ways.clone();
                self.hosts[worker].worker = Some(Worker::new(self.model.clone(), worker, ways));
            }
            Happening::Tick => self.coordinator.tick(self.clock_ms())?,
            Happening::Dial(worker) => self.dial(worker)?,
            Happening::Lost { worker, session } => self.lost(worker, session)?,
            Happening::LostThere(at, session) => {
                let now = self.now;
                self.with(at, |worker| worker.close(now, session));
            }
            Happening::Order(at, session, order) => {
                let now = self.now;
                self.note(|| format!("worker {} reads {}", at.worker, brief(&*order)));
                self.with(at, |worker| worker.obey(now, session, *order));
            }
            Happening::Said { worker, session, said } => {
                if self.hosts[worker].session == Some(session) {
                    self.note(|| format!("worker {worker} says {}", brief(&*said)));
                    self.coordinator.hear(self.clock_ms(), worker, *said)?;
                }
            }
            Happening::Set { to, from, key, layer, memory } => {
                self.receive(to, from, key, layer, memory);
            }
            Happening::Receipt(at, key, layer) => {
                self.with(at, |worker| worker.acknowledged(key, layer));
            }
            Happening::Wake(at, alarm) => {
                let now = self.now;
                self.with(at, |worker| worker.wake(now, alarm));
            }
        }
        Ok(())
    }

    fn submit(&mut self, idx: usize) -> Result<(), Violation> {
        let (asked, truth) = self.asked[idx].clone();
        let cancel_at = asked.cancel_at_us.map(|at| at + 1_000_000);
        let request = self.coordinator.submit(self.clock_ms(), asked, truth)?;
        self.note(|| format!("{request} is asked"));
        if let Some(at) = cancel_at {
            self.at(at, Happening::Leave(request));
        }
        Ok(())
    }

    /// Lets a process do something, if it is still the same, and carries out what it wants.
    fn with<T>(&mut self, at: At, act: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        self.look_around();
        let host = self.hosts.get_mut(at.worker).filter(|host| host.life == at.life)?;
        let worker = host.worker.as_mut()?;
        let result = act(worker);
        for effect in worker.effects() {
            self.carry_out(at, effect);
        }
        Some(result)
    }

    /// Whose shards are in reach of whom now.
    fn look_around(&mut self) {
        let (now, count) = (self.now, self.hosts.len());
        let store = |host: &Host| {
            let answers = host.stands_still_until <= now;
            host.worker.as_ref().filter(|_| answers).map(Worker::store)
        };
        let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b)));
        let apart = pairs.filter(|(a, b)| self.network.open_at(*a, *b, now) > now).collect();
        let breaks_after = self.dice.chance(1).then(|| self.dice.of(0..30));
        let stores = self.hosts.iter().map(store).collect();
        *self.ways.borrow_mut() = Reach { stores, apart, breaks_after };
    }

    fn carry_out(&mut self, from: At, effect: Effect) {
        match effect {
            Effect::Broken(what) => self.broken = Some(Violation(what)),
            Effect::Wake { after_us, alarm } => {
                let jitter = self.dice.of(0..1000);
                self.at(self.now + after_us + jitter, Happening::Wake(from, alarm));
            }
            Effect::Say(session, said) => {
                let worker = from.worker;
                let arrival = self.arrival(worker, self.coordinator_node());
                let last = &mut self.hosts[worker].last_said;
                *last = arrival.max(*last);
                let (at, said) = (*last, Box::new(said));
                self.at(at, Happening::Said { worker, session, said });
            }
            Effect::Hand { to, key, layer, memory } => {
                // Some are lost, some come twice; those that are corrupt are as good as lost.
                let copies = match self.dice.of(0..100) {
                    0..5 => 0,
                    5..10 => 2,
                    _ => 1,
                };
                for _ in 0..copies {
                    let arrival = self.arrival(from.worker, to);
                    let memory = memory.clone();
                    self.at(arrival, Happening::Set { to, from, key, layer, memory });
                }
            }
        }
    }

    /// When something that is sent now arrives.
    fn arrival(&mut self, a: usize, b: usize) -> u64 {
        let open = if a == b { self.now } else { self.network.open_at(a, b, self.now) };
        open + Network::delay(&mut self.dice)
    }

    fn coordinator_node(&self) -> usize {
        self.hosts.len()
    }

    fn receive(&mut self, to: usize, from: At, key: ChunkKey, layer: u32, set: Arc<MemorySet>) {
        let (now, at) = (self.now, At { worker: to, life: self.hosts[to].life });
        let verdict = self.with(at, |worker| worker.deliver(now, key, layer, set));
        if matches!(verdict, Some(Verdict::Taken | Verdict::Stale)) && !self.dice.chance(3) {
            let arrival = self.arrival(to, from.worker);
            self.at(arrival, Happening::Receipt(from, key, layer));
        }
    }

    fn send_orders(&mut self) {
        for (worker, order) in std::mem::take(&mut self.coordinator.orders) {
            let Some(session) = self.hosts[worker].session else { continue };
            let arrival = self.arrival(self.coordinator_node(), worker);
            let host = &mut self.hosts[worker];
            host.last_order = arrival.max(host.last_order);
            let (time, at) = (host.last_order, At { worker, life: host.life });
            self.at(time, Happening::Order(at, session, Box::new(order)));
        }
    }

    fn expect_tick(&mut self) {
        let Some(due_ms) = self.coordinator.next_deadline_ms() else { return };
        let due = due_ms.saturating_sub(self.ahead_ms).saturating_mul(1000).max(self.now + 1);
        let is_expected = self.agenda.iter().take_while(|((at, _), _)| *at <= due);
        if !is_expected.into_iter().any(|(_, happening)| matches!(happening, Happening::Tick)) {
            self.at(due, Happening::Tick);
        }
    }
}

impl Happening {
    /// Whose process must run for it.
    fn worker(&self) -> Option<usize> {
        match self {
            Self::LostThere(at, _)
            | Self::Order(at, ..)
            | Self::Receipt(at, ..)
            | Self::Wake(at, _) => Some(at.worker),
            Self::Set { to, .. } => Some(*to),
            _ => None,
        }
    }
}

/// The first words of what is said.
fn brief(said: &impl std::fmt::Debug) -> String {
    format!("{said:?}").chars().take(150).collect()
}
