//! One sequence of a batch that cannot go on.

use std::sync::Arc;

use aqueduct_core::work::RetainedMass;
use aqueduct_engine::shards::{Spent, Standing};
use aqueduct_engine::{EngineError, Found, PortError, ShardPort};
use aqueduct_kernels::{BackendError, Cutoff, Heads, Shard};

use super::*;

/// Where a port fails, in layer 1.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Ask,
    States,
    Weigh,
    Candidates,
    Settle,
    Keep,
    Finish,
}

struct Failing<P> {
    port: P,
    fault: Fault,
}

impl<P> Failing<P> {
    fn check(&self, here: Fault, layer: usize) -> Result<(), PortError> {
        match self.fault == here && layer == 1 {
            true => Err(PortError::Deadline { layer, deadline_ms: 7 }),
            false => Ok(()),
        }
    }
}

impl<P: ShardPort> ShardPort for Failing<P> {
    fn ask(&mut self, layer: usize, q: &Arc<Heads>) -> Result<(), PortError> {
        self.check(Fault::Ask, layer)?;
        self.port.ask(layer, q)
    }

    fn states(&mut self, layer: usize) -> Result<Found, PortError> {
        self.check(Fault::States, layer)?;
        self.port.states(layer)
    }

    fn weigh(&mut self, layer: usize, spent: &Spent) -> Result<(), PortError> {
        self.check(Fault::Weigh, layer)?;
        self.port.weigh(layer, spent)
    }

    fn candidates(&mut self, layer: usize) -> Result<Vec<Standing>, PortError> {
        self.check(Fault::Candidates, layer)?;
        self.port.candidates(layer)
    }

    fn settle(&mut self, layer: usize, cutoffs: &Arc<[Cutoff]>) -> Result<(), PortError> {
        self.check(Fault::Settle, layer)?;
        self.port.settle(layer, cutoffs)
    }

    fn keep(&mut self, layer: usize, own: Arc<Shard>) -> Result<(), PortError> {
        self.check(Fault::Keep, layer)?;
        self.port.keep(layer, own)
    }

    fn finish(&mut self) -> Result<Vec<RetainedMass>, PortError> {
        self.check(Fault::Finish, 1)?;
        self.port.finish()
    }
}

/// A batch of `plans` in which the second ends as `spoil` has it: its error, and the logits of
/// the others.
fn with_a_broken_one<'m>(
    model: &'m Model,
    plans: &[Plan],
    fault: Option<Fault>,
    spoil: impl Fn(&mut Under<'m>, &mut u32),
) -> EngineError {
    let mut under: Vec<_> = plans.iter().map(|plan| plan.begin(model)).collect();
    let mut tokens: Vec<u32> = plans.iter().map(|plan| plan.seed % 7).collect();
    if let Under::Sets(sequence) = &mut under[0] {
        sequence.watch(); // reads in every layer, and is not told of others
    }
    spoil(&mut under[1], &mut tokens[1]);
    let mut ports: Vec<Option<Box<dyn ShardPort + 'm>>> = under
        .iter_mut()
        .enumerate()
        .map(|(idx, under)| match under {
            Under::Sets(_) => None,
            Under::Shards(sharded) => {
                let port = sharded.port_for_token(3);
                Some(match fault {
                    Some(fault) if idx == 1 => Box::new(Failing { port, fault }),
                    _ => Box::new(port) as Box<dyn ShardPort>,
                })
            }
        })
        .collect();
    let each = under.iter_mut().zip(&mut ports).zip(plans).zip(tokens);
    let turns = each.map(|(((under, port), plan), token)| match under {
        Under::Sets(sequence) => sequence.turn(token, &plan.policy),
        Under::Shards(sharded) => {
            let port = port.as_mut().expect("made above").as_mut();
            let past = Remembered::Shards(Past { chunks: sharded.chunks, port });
            Turn { token, position: sharded.end, policy: &plan.policy, past }
        }
    });
    let mut done = decode(model, turns.collect());
    let error = done.remove(1).unwrap_err();
    let others = plans.iter().enumerate().filter(|(idx, _)| *idx != 1);
    for ((_, plan), row) in others.zip(done) {
        let want = &Plan { tokens: 1, ..plan.clone() }.alone(model).logits[0];
        assert!(bits(&row.unwrap()) == *want, "{fault:?}: {plan:?}");
    }
    error
}

#[test]
fn a_port_that_fails_ends_its_own_sequence() {
    let model = model(KvDtype::Bf16, WeightDtype::F32, Arc::new(Reference));
    for policy in [MemoryPolicy::h2o(2, 3, 2), MemoryPolicy::dense()] {
        let mut plans = mixed(6);
        plans[1] = Plan { policy, prompt: 20, stores: vec![0, 1], ..plans[1].clone() };
        let scored = [Fault::Weigh, Fault::Candidates, Fault::Settle];
        let faults = [Fault::Ask, Fault::States, Fault::Keep, Fault::Finish];
        let scored = scored.into_iter().filter(|_| !policy.keeps_all());
        for fault in faults.into_iter().chain(scored) {
            let error = with_a_broken_one(&model, &plans, Some(fault), |_, _| {});
            let late = EngineError::Port(PortError::Deadline { layer: 1, deadline_ms: 7 });
            assert_eq!(error.to_string(), late.to_string(), "{fault:?}");
        }
    }
}

/// Layer 1 of its memory holds a key that is no number.
fn break_memory(under: &mut Under<'_>, model: &Model) {
    let Under::Sets(sequence) = under else { panic!("sets were planned") };
    let mut sets = sequence.memory().to_vec();
    let set = Arc::make_mut(&mut sets[1]);
    let nan = vec![f32::NAN; set.keys.k.kv_heads * set.keys.k.tokens * set.keys.k.head_dim];
    let k = &set.keys.k;
    set.keys.k =
        aqueduct_kernels::KvHeads::from_f32(k.kv_heads, k.tokens, k.head_dim, &nan, k.dtype());
    *sequence = Sequence::new(model, sets, LEAVES);
}

fn check_numbers(backend: Arc<dyn Backend>) {
    let model = model(KvDtype::Bf16, WeightDtype::Bf16, backend);
    let mut plans = mixed(6);
    plans[1] = Plan { policy: MemoryPolicy::h2o(2, 3, 2), stores: Vec::new(), ..plans[1].clone() };
    let error = with_a_broken_one(&model, &plans, None, |under, _| break_memory(under, &model));
    let is_number = matches!(error, EngineError::Backend(BackendError::NotFinite { .. }));
    assert!(is_number, "{error}");
    let vocab = model.shape().vocab;
    let error = with_a_broken_one(&model, &plans, None, |_, token| *token = vocab);
    let EngineError::Refused(refusal) = error else { panic!("{error}") };
    assert_eq!((refusal.field.as_str(), refusal.value), ("tokens[0]", vocab.to_string()));
}

#[test]
fn a_broken_number_ends_its_own_sequence() {
    check_numbers(Arc::new(Reference));
    check_numbers(Arc::new(Cpu::new(CpuOptions { threads: 2, isa: None }).unwrap()));
    check_numbers(Arc::new(Cuda::emulated(90, CudaOptions::default()).unwrap()));
}
