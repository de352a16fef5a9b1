//! A cluster of the real plan and the real engine under a simulated network and clock.
//!
//! One seed makes a run: what is asked, how messages are delayed, lost and doubled, which
//! processes die, stand still or are cut off, and when. After every run each request has ended
//! once, its tokens are those of a node that nothing happens to, none was told twice, and no
//! worker holds anything. And no chunk, and no completion, has waited in vain for memory that was
//! acknowledged: that comes no second time, so all that it costs is time, which nobody would see.
//!
//! What is simulated is what the runtime and the device thread do around plan and engine:
//! sessions, inboxes, hand-offs, snapshots of prompts that begin alike, the way to shards.
//! Conversations and the journal are not here.
#![forbid(unsafe_code)]

mod asked;
mod coordinator;
mod dice;
mod fault;
mod inbox;
mod model;
mod network;
mod shards;
mod worker;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_engine::Model;
use aqueduct_plan::{End, Failure};

use crate::asked::Asked;
pub use crate::coordinator::Violation;
use crate::dice::Dice;
use crate::fault::any_faults;
use crate::world::World;

/// When the last fault begins, in microseconds.
const FAULTS_END_US: u64 = 40_000_000;

/// What became of the requests of a run, by kind, and how often something was done for them.
pub type Outcomes = BTreeMap<&'static str, usize>;

/// What runs share.
pub struct Simulator {
    model: Arc<Model>,
    /// Of a quarter of all seeds: one of its layers remembers in a state.
    hybrid: Arc<Model>,
}

impl Default for Simulator {
    fn default() -> Self {
        Self { model: model::model(false), hybrid: model::model(true) }
    }
}

impl Simulator {
    /// One run; `log`, if there is one, gets what happened.
    ///
    /// # Errors
    /// What must never happen, and did.
    pub fn run(&self, seed: u64, log: Option<&mut Vec<String>>) -> Result<Outcomes, Violation> {
        let mut dice = Dice::new(seed);
        let workers = dice.of(1..6) as usize;
        let requests = dice.of(1..15);
        let faults = any_faults(&mut dice, workers, FAULTS_END_US);
        let is_hybrid = seed % 4 == 2;
        let model = if is_hybrid { &self.hybrid } else { &self.model };
        let mut asked = Vec::new();
        for _ in 0..requests {
            let mut one = Asked::any(&mut dice);
            one.sharded &= !is_hybrid;
            let truth = one.truth(model).map_err(|error| Violation(error.to_string()))?;
            asked.push((Arc::new(one), Arc::new(truth)));
        }
        let mut world = World::new(dice, model.clone(), workers, asked, faults);
        world.log = log.is_some().then(Vec::new);
        let (coordinator, happened) = world.run();
        if let Some(log) = log {
            *log = happened.unwrap_or_default();
        }
        let coordinator = coordinator?;
        let mut outcomes = Outcomes::from([
            ("chunks hedged", coordinator.hedges() as usize),
            ("handed over", coordinator.handed_over),
            ("snapshots restored", coordinator.restored),
        ]);
        for live in coordinator.live.values() {
            let kind = match &live.end {
                Some(End::Finished) => "finished",
                Some(End::Cancelled) => "cancelled",
                Some(End::Failed(Failure::Deadline)) => "deadline",
                Some(End::Failed(Failure::Busy(_))) => "busy",
                Some(End::Failed(_)) => "unavailable",
                None => "none",
            };
            *outcomes.entry(kind).or_default() += 1;
        }
        Ok(outcomes)
    }
}
