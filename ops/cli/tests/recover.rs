//! Workers that die or hang at any moment, in the prefill and while tokens come, one and two at
//! once: the caller sees one stream, with the tokens and log probabilities of a run without fault.

mod binary;
mod random;
mod streamed;

use std::sync::Arc;

use binary::{Running, aqueduct, model, wait_for};
use random::Random;
use serde_json::{Value, json};
use streamed::Answer;

const WORKERS: usize = 4;
const TOKENS: usize = 200;

/// Four workers and their coordinator, each in a process of its own.
struct Fleet {
    workers: Vec<Option<Running>>,
    addresses: Vec<String>,
    coordinator: Arc<Running>,
    random: Random,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// SIGKILL: the system closes what the process had open.
    Kill,
    /// SIGSTOP: nothing is closed, and nobody answers.
    Hang,
}

/// When a fault comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Prefill,
    Decode,
}

fn worker(address: &str) -> Running {
    let args = ["worker", "--threads", "1", "--snapshot-bytes", "0", "--listen", address];
    Running::start(aqueduct().args(args).arg("--model").arg(model()))
}

impl Fleet {
    fn start(seed: u64) -> Self {
        let workers: Vec<_> = (0..WORKERS).map(|_| Some(worker("127.0.0.1:0"))).collect();
        let mut command = aqueduct();
        command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
        command.arg("--model").arg(model());
        for worker in workers.iter().flatten() {
            command.args(["--worker", worker.address("url")]);
        }
        let address = |worker: &Running| worker.address("address").to_owned();
        let addresses = workers.iter().flatten().map(address).collect();
        let coordinator = Arc::new(Running::start(&mut command));
        let fleet = Self { workers, addresses, coordinator, random: Random::new(seed) };
        fleet.wait_for_workers(WORKERS);
        fleet
    }

    fn wait_for_workers(&self, up: usize) {
        let is_so = || (self.coordinator.metric("workers_up") == up as f64).then_some(());
        wait_for(&format!("{up} workers"), is_so);
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn fault(&mut self, fault: Fault, victims: &[usize]) {
        for &victim in victims {
            match fault {
                Fault::Kill => self.workers[victim] = None,
                Fault::Hang => self.workers[victim].as_ref().unwrap().signal("STOP"),
            }
        }
    }

    /// Everybody is there again: what was killed is started again, what hangs wakes up.
    fn heal(&mut self, fault: Fault, victims: &[usize]) {
        self.wait_for_workers(WORKERS - victims.len());
        for &victim in victims {
            match fault {
                Fault::Kill => self.workers[victim] = Some(worker(&self.addresses[victim])),
                Fault::Hang => self.workers[victim].as_ref().unwrap().signal("CONT"),
            }
        }
        self.wait_for_workers(WORKERS);
    }

    /// What comes of `ask`; at `moment` the fault happens to `victims`.
    fn answer(&mut self, ask: &Value, moment: Moment, fault: Option<(Fault, &[usize])>) -> Answer {
        let when = match moment {
            Moment::Prefill => streamed::Moment::Prefill(10 + self.below(60) as u64),
            Moment::Decode => streamed::Moment::Decode(
                self.below(ask["max_tokens"].as_u64().unwrap() as usize / 4),
            ),
        };
        let coordinator = self.coordinator.clone();
        streamed::answer_with(&coordinator, ask, when, || {
            if let Some((fault, victims)) = fault {
                self.fault(fault, victims);
            }
        })
    }

    /// Faults at random moments leave the answer what it is, and cost something: they did not
    /// come when all was done.
    fn check(&mut self, ask: &Value, faults: &[(Moment, Fault, &[usize])]) {
        let want = self.answer(ask, Moment::Prefill, None);
        let before = self.coordinator.metric("chunk_retries_total");
        for &(moment, fault, victims) in faults {
            let seen = self.answer(ask, moment, Some((fault, victims)));
            assert!(seen == want, "{moment:?} {fault:?} {victims:?}: {seen:?} instead of {want:?}");
            self.heal(fault, victims);
        }
        assert!(self.coordinator.metric("chunk_retries_total") > before, "nothing was done again");
    }
}

fn ask(chars: usize, memory: Value, more: Value) -> Value {
    let mut ask = streamed::ask(chars, TOKENS, memory);
    ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ask
}

fn handed_on(more: Value) -> Value {
    ask(30_000, json!({ "chunk_tokens": 64, "local": 16, "heavy": 16 }), more)
}

#[test]
fn a_dead_worker_changes_no_bit_at_any_moment() {
    let mut fleet = Fleet::start(1);
    let kill = |moment, victims| (moment, Fault::Kill, victims);
    // Each of them in turn: one is the home, and one has what the last chunk was given.
    let one: Vec<&[usize]> = vec![&[0], &[1], &[2], &[3]];
    let mut faults: Vec<_> = one.iter().map(|victims| kill(Moment::Decode, *victims)).collect();
    let victim = [fleet.below(WORKERS)];
    faults.push(kill(Moment::Prefill, &victim));
    faults.push(kill(Moment::Prefill, &[1, 2]));
    faults.push(kill(Moment::Decode, &[0, 3]));
    fleet.check(&handed_on(json!({})), &faults);
}

#[test]
fn a_dead_holder_changes_no_bit_at_any_moment() {
    let mut fleet = Fleet::start(2);
    let dense = json!({ "chunk_tokens": 256, "policy": "dense" });
    let faults: [(_, _, &[usize]); 5] = [
        (Moment::Decode, Fault::Kill, &[0]),
        (Moment::Decode, Fault::Kill, &[1]),
        (Moment::Decode, Fault::Kill, &[2]),
        (Moment::Decode, Fault::Kill, &[1, 3]),
        (Moment::Prefill, Fault::Kill, &[2]),
    ];
    fleet.check(&ask(12_000, dense, json!({})), &faults);
    let pruned = json!({ "chunk_tokens": 128, "local": 16, "heavy": 16, "exchange": "stay" });
    let faults: [(_, _, &[usize]); 2] =
        [(Moment::Decode, Fault::Kill, &[0]), (Moment::Decode, Fault::Kill, &[3])];
    fleet.check(&ask(12_000, pruned, json!({})), &faults);
}

#[test]
fn a_worker_that_hangs_changes_no_bit_at_any_moment() {
    let mut fleet = Fleet::start(3);
    let faults: [(_, _, &[usize]); 3] = [
        (Moment::Prefill, Fault::Hang, &[1]),
        (Moment::Decode, Fault::Hang, &[0, 1]),
        (Moment::Decode, Fault::Hang, &[2, 3]),
    ];
    fleet.check(&handed_on(json!({})), &faults);
    let dense = json!({ "chunk_tokens": 256, "policy": "dense" });
    let faults: [(_, _, &[usize]); 2] =
        [(Moment::Decode, Fault::Hang, &[0]), (Moment::Decode, Fault::Hang, &[1])];
    fleet.check(&ask(12_000, dense, json!({})), &faults);
}

#[test]
fn a_worker_that_stands_still_is_helped_before_it_counts_as_hung() {
    let mut fleet = Fleet::start(6);
    let ask = handed_on(json!({}));
    let want = fleet.answer(&ask, Moment::Prefill, None);
    for victim in 0..WORKERS {
        let hedges = || fleet.coordinator.metric("chunk_hedges_total");
        let before = hedges();
        let seen =
            streamed::answer_with(&fleet.coordinator, &ask, streamed::Moment::Prefill(20), || {
                let victim = fleet.workers[victim].as_ref().unwrap();
                victim.signal("STOP");
                wait_for("somebody else", || (hedges() > before).then_some(()));
                victim.signal("CONT");
            });
        assert!(seen == want, "{victim}: {seen:?} instead of {want:?}");
    }
}

#[test]
fn grammars_and_penalties_go_on_where_they_were() {
    let mut fleet = Fleet::start(4);
    let digits = json!({ "type": "integer", "minimum": 0, "maximum": 9 });
    let schema = json!({ "type": "array", "items": digits, "minItems": 60, "maxItems": 70 });
    let schema = json!({ "name": "digits", "schema": schema });
    let more = json!({
        "response_format": { "type": "json_schema", "json_schema": schema },
        "frequency_penalty": 0.7, "repetition_penalty": 1.2,
    });
    let faults: [(_, _, &[usize]); 4] = [
        (Moment::Decode, Fault::Kill, &[0]),
        (Moment::Decode, Fault::Kill, &[1]),
        (Moment::Decode, Fault::Kill, &[2]),
        (Moment::Decode, Fault::Kill, &[3]),
    ];
    fleet.check(&handed_on(more), &faults);
}

#[test]
fn all_workers_may_go_as_long_as_one_comes_back() {
    let mut fleet = Fleet::start(5);
    let ask = handed_on(json!({}));
    let want = fleet.answer(&ask, Moment::Prefill, None);
    let all: Vec<usize> = (0..WORKERS).collect();
    let (address, coordinator) = (fleet.addresses[2].clone(), fleet.coordinator.clone());
    let again = std::thread::spawn(move || {
        wait_for("no worker", || (coordinator.metric("workers_up") == 0.0).then_some(()));
        worker(&address)
    });
    let seen = fleet.answer(&ask, Moment::Decode, Some((Fault::Kill, &all)));
    assert!(seen == want);
    drop(again.join().unwrap());
}

/// A request survives four losses in a row, and any number between which it comes further.
#[test]
fn an_answer_survives_more_losses_than_in_a_row() {
    const LOSSES: usize = 7;
    let mut fleet = Fleet::start(6);
    let memory = json!({ "chunk_tokens": 64, "local": 16, "heavy": 16 });
    let ask = ask(4_000, memory, json!({ "max_tokens": 1500 }));
    let coordinator = fleet.coordinator.clone();
    let want = streamed::answer(&coordinator, &ask, |_| {});
    let drawn = || coordinator.metric("generation_tokens_total");
    let (mut losses, mut before) = (0, drawn());
    let seen = streamed::answer(&coordinator, &ask, |_| {
        if losses == LOSSES || drawn() <= before {
            return;
        }
        fleet.workers.fill_with(|| None);
        wait_for("no worker", || (coordinator.metric("workers_up") == 0.0).then_some(()));
        before = drawn();
        fleet.workers[0] = Some(worker(&fleet.addresses[0]));
        losses += 1;
    });
    assert_eq!(losses, LOSSES, "the answer was there before");
    assert!(seen == want);
}
