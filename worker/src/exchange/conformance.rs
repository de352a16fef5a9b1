//! What every way to a holder must do, whatever it is made of.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use aqueduct_core::{Epoch, MemoryPolicy, PolicyKind, RequestId, WireDtype};
use aqueduct_engine::shards::{Answer, Branch, Place, ShardKey, Spent};
use aqueduct_kernels::shard::cutoffs;
use aqueduct_kernels::{AttentionState, Heads, Keys, KvHeads, Shard};

use super::{Answered, Ask, Call, CallError, ExchangeLink, Holder, Reply};
use crate::doorbell::Doorbell;
use crate::link::conformance::{LAYER, fit};

pub(crate) const REQUEST: RequestId = RequestId(7);
const HEADS: usize = 4;

/// A link under test and the holder at its other end.
pub(crate) struct Rig {
    pub(crate) link: Box<dyn ExchangeLink>,
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) holder: Arc<Holder>,
    /// What lives as long as the rig.
    pub(crate) _keep: Box<dyn std::any::Any>,
}

/// Numbers that differ everywhere.
pub(crate) fn numbers(count: usize, seed: u32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.37 + seed as f32 * 1.7).sin()).collect()
}

/// `tokens` keys of chunk `chunk`, where every chunk has a thousand positions.
pub(crate) fn shard(chunk: u32, tokens: u32, end: u32) -> Arc<Shard> {
    let (kv_heads, head_dim) = (LAYER.kv_heads, LAYER.head_dim);
    let count = kv_heads * tokens as usize * head_dim;
    let rows = |seed| {
        KvHeads::from_f32(kv_heads, tokens as usize, head_dim, &numbers(count, seed), fit().kv)
    };
    let positions = (0..kv_heads).flat_map(|_| 1000 * chunk..1000 * chunk + tokens);
    let keys = Keys::new(positions.collect::<Vec<_>>(), rows(chunk), rows(chunk + 100));
    Arc::new(Shard::new(keys, end))
}

/// Somebody who waits for every answer.
pub(crate) fn asker() -> Weak<()> {
    static ASKER: LazyLock<Arc<()>> = LazyLock::new(Arc::default);
    Arc::downgrade(&ASKER)
}

pub(crate) fn dense() -> MemoryPolicy {
    MemoryPolicy { kind: PolicyKind::Dense, ..MemoryPolicy::default() }
}

pub(crate) fn h2o() -> MemoryPolicy {
    MemoryPolicy { kind: PolicyKind::H2o, sinks: 1, local: 2, heavy: 5, ..MemoryPolicy::default() }
}

/// A block of `tokens` behind four chunks, which asks about chunks 0 and 2.
pub(crate) fn place(layer: u32, tokens: u32, policy: MemoryPolicy) -> Place {
    Place {
        request: REQUEST,
        branch: Branch::PROMPT,
        layer,
        epoch: Epoch(3),
        start: 4000,
        tokens,
        chunks: 4,
        shards: vec![(0, Epoch(1)), (2, Epoch(2))].into(),
        policy,
    }
}

pub(crate) fn queries(tokens: u32, seed: u32) -> Arc<Heads> {
    let head_dim = LAYER.head_dim;
    let data = numbers(HEADS * tokens as usize * head_dim, seed);
    Arc::new(Heads { heads: HEADS, tokens: tokens as usize, head_dim, data: data.into() })
}

impl Rig {
    /// Gives the holder what `place` asks about, `tokens` keys each.
    pub(crate) fn put(&self, place: &Place, tokens: u32) {
        for &(chunk_idx, epoch) in place.shards.iter() {
            let Place { request, branch, layer, start, .. } = *place;
            let key = ShardKey { request, branch, layer, chunk_idx, epoch };
            self.holder.store().put(key, shard(chunk_idx, tokens, start)).unwrap();
        }
        self.holder.changed();
    }

    /// What the holder says to who stands beside it.
    pub(crate) fn told(&self, ask: &Ask) -> Reply {
        match self.holder.answer(ask).unwrap() {
            Answer::Ready(reply) => reply,
            Answer::NotYet => panic!("it is there"),
        }
    }

    pub(crate) fn send(&mut self, id: u64, ask: Ask, wire: WireDtype, patience: Duration) {
        let deadline = Instant::now() + patience;
        self.link.send(Box::new(Call { id, ask, wire, deadline, asker: asker() })).unwrap();
    }

    /// The next `count` answers, by call.
    pub(crate) fn wait(&mut self, count: usize) -> BTreeMap<u64, Answered> {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut answers = BTreeMap::new();
        loop {
            for answered in self.link.answers() {
                assert!(answers.insert(answered.id, answered).is_none(), "answered twice");
            }
            if answers.len() >= count {
                return answers;
            }
            assert!(Instant::now() < deadline, "answers are missing");
            self.doorbell.wait_until(Some(deadline));
        }
    }

    /// Asks and waits.
    pub(crate) fn call(&mut self, ask: Ask, wire: WireDtype) -> Result<Reply, CallError> {
        // A late copy of an answer finds no other call of its number.
        static NEXT: AtomicU64 = AtomicU64::new(1 << 32);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.send(id, ask, wire, Duration::from_secs(20));
        self.wait(1).remove(&id).unwrap().reply
    }

    /// Asks in full precision, and checks that nothing changes on the way.
    pub(crate) fn check(&mut self, ask: Ask) -> Reply {
        let reply = self.call(ask.clone(), WireDtype::F32).unwrap();
        same_bits(&reply, &self.told(&ask));
        reply
    }
}

/// As `==`, and of zeros also the sign; not where keys lie.
pub(crate) fn same_bits(seen: &Reply, want: &Reply) {
    assert!(seen == want, "an answer changed");
    assert!(written(seen) == written(want), "a sign changed");
}

fn written(reply: &Reply) -> String {
    let Reply::Keys(shards) = reply else { return format!("{reply:?}") };
    let parts = shards.values().flat_map(|shard| shard.parts());
    parts.map(|part| format!("{:?}", part.in_order())).collect()
}

/// Runs the whole suite; `rig(fingerprint)` makes a fresh link to a fresh holder of
/// [`tiny`](crate::tiny_model::tiny), which asks about another model where one is named.
pub(crate) fn suite(rig: impl Fn(Option<&str>) -> Rig) {
    every_kind_is_answered(rig(None));
    what_was_counted_elsewhere_is_taken_over(rig(None));
    messages_of_several_parts_arrive(rig(None));
    rounding_is_bounded(rig(None));
    many_calls_are_under_way_at_once(rig(None));
    what_is_not_there_yet_is_waited_for(rig(None));
    a_deadline_ends_the_wait(rig(None));
    what_is_forgotten_is_refused(rig(None));
    a_full_link_gives_calls_back(rig(None));
    another_model_is_no_peer(rig(Some("another")));
}

/// Of leaves of which others have a part: keys first, and masses instead of queries.
fn what_was_counted_elsewhere_is_taken_over(mut rig: Rig) {
    let place = Place { chunks: 9, ..place(0, 3, h2o()) };
    assert_eq!((place.nodes().len(), place.torn().len()), (0, 2));
    rig.put(&place, 20);
    let Reply::Keys(shards) = rig.check(Ask::Keys { place: place.clone() }) else { panic!("keys") };
    let count =
        |shard: &Shard, seed| numbers(shard.keys(), seed).into_iter().map(f32::abs).collect();
    let masses = shards.iter().map(|(chunk, shard)| (*chunk, count(shard, *chunk)));
    let masses = Arc::new(masses.collect());
    let spent = Spent { lse: vec![0.0; HEADS * 3].into(), masses };
    let weigh = |spent: &Spent| Ask::Weigh { place: place.clone(), spent: spent.clone() };
    let some = spent.masses.iter().take(1).map(|(chunk, masses)| (*chunk, masses.clone()));
    let some = Spent { masses: Arc::new(some.collect()), ..spent.clone() };
    let refused = |reply| matches!(reply, Err(CallError::Refused(_)));
    assert!(refused(rig.call(weigh(&some), WireDtype::F32)), "nobody sent queries");
    let short = spent.masses.iter().map(|(chunk, masses)| (*chunk, masses[1..].to_vec()));
    let short = Spent { masses: Arc::new(short.collect()), ..spent.clone() };
    assert!(refused(rig.call(weigh(&short), WireDtype::F32)), "a mass is missing");
    let Reply::Standing(standing) = rig.check(weigh(&spent)) else { panic!("candidates") };
    assert!(standing.iter().all(|head| head.len() == 6), "{standing:?}");
    let cutoffs = cutoffs(&[standing], 2, 5).into();
    let settle = Ask::Settle { place: place.clone(), cutoffs };
    let Reply::Settled(masses) = rig.check(settle) else { panic!("masses answer cutoffs") };
    assert_eq!(masses.len(), 2);
    assert!(refused(rig.call(weigh(&spent), WireDtype::F32)), "it is settled");
}

fn every_kind_is_answered(mut rig: Rig) {
    let place = place(0, 3, h2o());
    rig.put(&place, 20);
    let q = queries(3, 5);
    let keys = rig.check(Ask::Keys { place: place.clone() });
    assert!(matches!(keys, Reply::Keys(shards) if shards.len() == 2));
    let Reply::States(states) = rig.check(Ask::Attend { place: place.clone(), q }) else {
        panic!("states answer queries")
    };
    let state = states.into_iter().map(|(_, state)| state);
    let lse: Arc<[f32]> = state.reduce(|a, b| a.merge(&b)).unwrap().lse().into();
    let spent = Spent { lse, masses: Arc::default() };
    let weigh = Ask::Weigh { place: place.clone(), spent };
    let Reply::Standing(standing) = rig.check(weigh) else { panic!("candidates answer sums") };
    let mut some = cutoffs(&[standing], 2, 5);
    some[1] = aqueduct_kernels::Cutoff::None; // so that KV heads keep different numbers
    let settle = Ask::Settle { place: place.clone(), cutoffs: some.into() };
    let Reply::Settled(masses) = rig.check(settle) else { panic!("masses answer cutoffs") };
    assert_eq!(masses.len(), 2);
    let later = Place { start: place.end(), ..place };
    let Reply::Keys(shards) = rig.check(Ask::Keys { place: later }) else { panic!("keys") };
    assert!(shards.values().any(|shard| shard.parts().len() == 2), "{shards:?}");
}

fn messages_of_several_parts_arrive(mut rig: Rig) {
    let place = place(1, 60_000, dense());
    rig.put(&place, 2);
    rig.check(Ask::Attend { place: place.clone(), q: queries(60_000, 1) });
    let big = Place { layer: 2, start: 200_000, ..place };
    rig.put(&big, 100_000);
    rig.check(Ask::Keys { place: big });
}

fn rounding_is_bounded(mut rig: Rig) {
    let place = place(1, 5, dense());
    rig.put(&place, 30);
    let ask = Ask::Attend { place, q: queries(5, 2) };
    let merged = |reply: Reply| match reply {
        Reply::States(states) => {
            states.into_iter().map(|(_, state)| state).reduce(|a, b| a.merge(&b)).unwrap()
        }
        other => panic!("{other:?} is no state"),
    };
    let output = |state: &AttentionState| state.output().data().to_vec();
    let want = merged(rig.told(&ask));
    for (wire, most) in [(WireDtype::Bf16, 2e-2), (WireDtype::F16, 2e-3)] {
        let seen = merged(rig.call(ask.clone(), wire).unwrap());
        let off = output(&seen).into_iter().zip(output(&want)).map(|(a, b)| (a - b).abs());
        assert!(off.fold(0.0, f32::max) < most, "{wire:?}");
    }
}

fn many_calls_are_under_way_at_once(mut rig: Rig) {
    let place = place(3, 2, dense());
    rig.put(&place, 10);
    let ask = |id: u64| Ask::Attend { place: place.clone(), q: queries(2, id as u32) };
    for id in 0..200 {
        rig.send(id, ask(id), WireDtype::F32, Duration::from_secs(20));
    }
    for (id, answered) in rig.wait(200) {
        same_bits(&answered.reply.unwrap(), &rig.told(&ask(id)));
    }
}

fn what_is_not_there_yet_is_waited_for(mut rig: Rig) {
    let (early, late) = (place(4, 2, dense()), place(5, 2, dense()));
    rig.put(&early, 10);
    rig.send(1, Ask::Keys { place: late.clone() }, WireDtype::F32, Duration::from_secs(20));
    rig.send(2, Ask::Keys { place: early.clone() }, WireDtype::F32, Duration::from_secs(20));
    assert!(rig.wait(1).contains_key(&2), "the other one is not there");
    rig.put(&late, 11);
    let reply = rig.wait(1).remove(&1).unwrap().reply.unwrap();
    same_bits(&reply, &rig.told(&Ask::Keys { place: late }));
}

fn a_deadline_ends_the_wait(mut rig: Rig) {
    let ask = Ask::Keys { place: place(6, 2, dense()) };
    rig.send(1, ask.clone(), WireDtype::F32, Duration::from_millis(50));
    let lost = rig.wait(1).remove(&1).unwrap().reply;
    assert!(matches!(lost, Err(CallError::Lost(_))), "{lost:?}");
    rig.put(ask.place(), 4);
    rig.check(ask);
}

fn what_is_forgotten_is_refused(mut rig: Rig) {
    rig.holder.store().forget(REQUEST);
    let refused = rig.call(Ask::Keys { place: place(0, 2, dense()) }, WireDtype::F32);
    assert!(matches!(&refused, Err(CallError::Refused(why)) if why.contains("request")));
    rig.holder.store().claim(REQUEST);
    let place = place(0, 2, dense());
    rig.put(&place, 4);
    rig.check(Ask::Keys { place });
}

fn a_full_link_gives_calls_back(mut rig: Rig) {
    let ask = Ask::Keys { place: place(7, 2, dense()) };
    let mut taken = 0;
    let deadline = Instant::now() + Duration::from_millis(300);
    for id in 0..2 * aqueduct_core::limits::EXCHANGE_CALLS_MAX as u64 {
        let (ask, wire) = (ask.clone(), WireDtype::F32);
        let call = Call { id, ask, wire, deadline, asker: asker() };
        match rig.link.send(Box::new(call)) {
            Ok(()) => taken += 1,
            Err(back) => assert_eq!(back.id, id),
        }
    }
    let answers = rig.wait(taken);
    assert!(answers.values().all(|answered| answered.reply.is_err()));
    rig.put(ask.place(), 4);
    rig.check(ask);
}

fn another_model_is_no_peer(mut rig: Rig) {
    let place = place(0, 2, dense());
    rig.put(&place, 4);
    let lost = rig.call(Ask::Keys { place }, WireDtype::F32);
    assert!(matches!(&lost, Err(CallError::Lost(why)) if why.contains("model")), "{lost:?}");
}
