//! Bits, bounds and garbage.

use std::sync::Weak;
use std::time::Duration;

use aqueduct_core::WireDtype;
use aqueduct_kernels::{AttentionState, Keys, KvHeads, Shard};
use aqueduct_proto::convert::call::Form;
use proptest::prelude::*;

use super::*;
use crate::exchange::conformance::{dense, numbers, place, queries, same_bits, shard};
use crate::link::conformance::{LAYER, fit};
use crate::tiny_model;

fn model() -> Arc<Model> {
    tiny_model::tiny(fit().kv)
}

fn call(ask: Ask, wire: WireDtype) -> Call {
    let deadline = Instant::now() + Duration::from_secs(9);
    Call { id: 7, ask, wire, deadline, asker: Weak::new() }
}

fn attend(tokens: u32, wire: WireDtype) -> Call {
    call(Ask::Attend { place: place(1, tokens, dense()), q: queries(tokens, 3) }, wire)
}

/// A state of `tokens` rows, of which the first saw nothing.
fn state(tokens: usize, seed: u32) -> AttentionState {
    let mut state = AttentionState::empty(4, tokens, 8);
    for row in 1..4 * tokens {
        state.m[row] = 30.0 * numbers(1, seed + row as u32)[0];
        state.l[row] = 1.0 + row as f32;
        let o = numbers(8, seed * 31 + row as u32);
        state.o[8 * row..8 * row + 8].copy_from_slice(&o);
    }
    state
}

fn states(tokens: usize) -> Reply {
    let nodes = place(1, tokens as u32, dense()).nodes();
    Reply::States(nodes.into_iter().map(|node| (node, state(tokens, node.first))).collect())
}

/// The answer to `call`, there and back.
fn answered(call: &Call, reply: Reply) -> Result<Reply, Refusal> {
    let (ask, _) = ask_message(call, Instant::now()).unwrap();
    let (header, payload) = reply_message(&ask, &Ok(reply))?;
    read_reply(call, &header, payload).map(Result::unwrap)
}

#[test]
fn exact_where_the_wire_is_exact() {
    let call = attend(3, WireDtype::F32);
    let (header, payload) = ask_message(&call, Instant::now()).unwrap();
    assert_eq!(header.payload_bytes(), Some(payload.remaining() as u64));
    let read = read_ask(&header, payload, &model()).unwrap();
    assert_eq!(format!("{read:?}"), format!("{:?}", call.ask));
    same_bits(&answered(&call, states(3)).unwrap(), &states(3));
}

#[test]
fn compact_where_it_is_not() {
    for (wire, bits) in [(WireDtype::Bf16, 8), (WireDtype::F16, 11)] {
        let Reply::States(seen) = answered(&attend(3, wire), states(3)).unwrap() else {
            panic!("states answer queries")
        };
        let Reply::States(want) = states(3) else { panic!("states") };
        for ((_, seen), (_, want)) in seen.into_iter().zip(want) {
            assert_eq!(seen.lse(), want.lse(), "sums are not rounded");
            let (seen, want) = (seen.output(), want.output());
            for (seen, want) in seen.data().iter().zip(want.data()) {
                let most = want.abs() / (1 << bits) as f32 + 1e-7;
                assert!((seen - want).abs() <= most, "{wire:?}: {seen}, {want}");
            }
        }
    }
}

#[test]
fn what_an_element_cannot_hold_is_refused() {
    let check = |value: f32, wire, fits: bool| {
        let mut q = (*queries(1, 1)).clone();
        q.data[5] = value;
        let call = call(Ask::Attend { place: place(1, 1, dense()), q: Arc::new(q) }, wire);
        let sent = ask_message(&call, Instant::now());
        assert_eq!(sent.is_ok(), fits, "{value} as {wire:?}");
        assert!(sent.err().is_none_or(|refusal| refusal.field == "q"));
    };
    check(65504.0, WireDtype::F16, true);
    check(65519.0, WireDtype::F16, true); // rounds down
    check(65520.0, WireDtype::F16, false);
    check(-70000.0, WireDtype::F16, false);
    check(-70000.0, WireDtype::Bf16, true);
    check(f32::MAX, WireDtype::Bf16, false); // rounds up
    check(f32::MAX, WireDtype::F32, true);
    check(f32::NAN, WireDtype::F32, false);
    check(f32::INFINITY, WireDtype::F32, false);
}

#[test]
fn states_that_cannot_be_are_refused() {
    let check = |change: fn(&mut AttentionState), field: &str| {
        let Reply::States(mut states) = states(2) else { panic!("states") };
        change(&mut states[0].1);
        let call = attend(2, WireDtype::F32);
        assert_eq!(answered(&call, Reply::States(states)).unwrap_err().field, field);
    };
    check(|state| state.m[2] = f32::NAN, "m");
    check(|state| state.m[2] = f32::INFINITY, "m");
    check(|state| state.m[2] = f32::NEG_INFINITY, "l");
    check(|state| state.l[2] = f32::INFINITY, "l");
    check(|state| state.l[2] = -1.0, "l");
    check(|state| state.l[0] = 1.0, "l");
    check(|state| state.o[0] = 1.0, "o");
    check(|state| state.o[17] = f32::NAN, "o");
}

#[test]
fn what_does_not_answer_the_ask_is_refused() {
    let refused = |change: fn(&mut CallHeader, &mut Vec<u8>)| {
        let call = attend(2, WireDtype::F32);
        let (ask, _) = ask_message(&call, Instant::now()).unwrap();
        let (mut header, payload) = reply_message(&ask, &Ok(states(2))).unwrap();
        let mut payload = payload.into_bytes().to_vec();
        change(&mut header, &mut payload);
        read_reply(&call, &header, payload.into()).unwrap_err().field
    };
    assert_eq!(refused(|header, _| header.block.layer += 1), "block");
    assert_eq!(refused(|header, _| header.block.epoch.0 += 1), "block");
    assert_eq!(refused(|header, _| header.kind = Kind::Shards), "kind");
    assert_eq!(refused(|header, _| header.heads = 2), "heads");
    assert_eq!(refused(|header, _| header.items = 0), "nodes");
    assert_eq!(refused(|_, payload| payload[4] ^= 1), "nodes");
    assert_eq!(refused(|_, payload| payload.truncate(99)), "payload");
    assert_eq!(refused(|_, payload| payload.push(0)), "payload.rest");
    assert_eq!(refused(|header, _| header.form = Form::Compact), "o"); // l, read as o
}

#[test]
fn asks_that_are_not_about_the_model_are_refused() {
    let refused = |change: fn(&mut CallHeader, &mut Vec<u8>)| {
        let call = attend(2, WireDtype::F32);
        let (mut header, payload) = ask_message(&call, Instant::now()).unwrap();
        let mut payload = payload.into_bytes().to_vec();
        change(&mut header, &mut payload);
        read_ask(&header, payload.into(), &model()).unwrap_err().field
    };
    assert_eq!(refused(|header, _| header.heads = 2), "heads");
    assert_eq!(refused(|header, _| header.head_dim = 16), "head_dim");
    assert_eq!(refused(|header, _| header.block.layer = 8), "layer");
    assert_eq!(refused(|_, payload| payload[8] = 0), "shards"); // the second is chunk 2
    assert_eq!(refused(|_, payload| payload[8] = 9), "shards");
    assert_eq!(refused(|_, payload| payload.truncate(40)), "payload");
    assert_eq!(refused(|header, _| header.kind = Kind::States), "kind");
}

/// What `lse` log-sum-exps and masses of chunks 0 and 2 say.
fn spent(lse: usize, masses: &[(u32, usize)]) -> Spent {
    let masses = masses.iter().map(|&(chunk, keys)| (chunk, numbers(keys, chunk)));
    Spent { lse: numbers(lse, 5).into(), masses: Arc::new(masses.collect()) }
}

#[test]
fn what_was_counted_arrives_and_nothing_else() {
    for masses in [&[][..], &[(2, 6)], &[(0, 4), (2, 6)]] {
        let spent = spent(8, masses);
        let ask = call(Ask::Weigh { place: place(1, 2, dense()), spent }, WireDtype::Bf16);
        let (header, payload) = ask_message(&ask, Instant::now()).unwrap();
        let read = read_ask(&header, payload.clone(), &model()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{:?}", ask.ask));
        let refused = |change: fn(&mut Vec<u8>)| {
            let mut payload = payload.clone().into_bytes().to_vec();
            change(&mut payload);
            read_ask(&header, payload.into(), &model()).unwrap_err().field
        };
        // Shards are 16 bytes, log-sum-exps 32, then there are two counts.
        assert_eq!(refused(|payload| payload.truncate(52)), "payload");
        assert_eq!(refused(|payload| payload[51] = 0xff), "payload");
        assert_eq!(refused(|payload| payload.push(0)), "payload.rest");
        if !masses.is_empty() {
            let nan = |payload: &mut Vec<u8>| {
                let last = payload.len() - 4;
                payload[last..].copy_from_slice(&f32::NAN.to_le_bytes());
            };
            assert_eq!(refused(nan), "masses");
        }
    }
}

#[test]
fn empty_shards_arrive() {
    let ask = call(Ask::Keys { place: place(1, 2, dense()) }, WireDtype::F32);
    let held = [(0, shard(0, 0, 5)), (2, shard(2, 3, 4000))].into();
    same_bits(&answered(&ask, Reply::Keys(held)).unwrap(), &{
        Reply::Keys([(0, shard(0, 0, 5)), (2, shard(2, 3, 4000))].into())
    });
}

#[test]
fn a_shard_is_one_set_of_all_heads_or_one_for_each() {
    let ask = call(Ask::Keys { place: place(1, 2, dense()) }, WireDtype::F32);
    let part = |kv_heads: usize| {
        let head_dim = LAYER.head_dim;
        let numbers = |seed| numbers(kv_heads * 3 * head_dim, seed);
        let rows = |seed| KvHeads::from_f32(kv_heads, 3, head_dim, &numbers(seed), fit().kv);
        let positions: Vec<u32> = (0..kv_heads).flat_map(|_| 0..3).collect();
        Shard::new(Keys::new(positions, rows(1), rows(2)), 3).parts()[0].clone()
    };
    let taken = |heads: &[usize]| {
        let parts = || heads.iter().map(|kv_heads| part(*kv_heads)).collect();
        let shard = || Arc::new(Shard::of_parts(parts(), 3));
        answered(&ask, Reply::Keys([(0, shard()), (2, shard())].into()))
    };
    for heads in [&[4][..], &[1, 1, 1, 1]] {
        assert!(taken(heads).is_ok(), "{heads:?}");
    }
    for heads in [&[2, 1, 1][..], &[1, 1, 2], &[2, 2]] {
        assert_eq!(taken(heads).unwrap_err().field, "kv_heads", "{heads:?}");
    }
}

/// The answer that `payload` is when it comes in parts that end at `cuts`.
fn pieced(
    call: &Call,
    header: CallHeader,
    mut payload: Pieces,
    mut cuts: Vec<usize>,
) -> Result<Reply, Refusal> {
    let (mut answers, mut came, whole) =
        (Answers::default(), Pieces::default(), payload.remaining());
    cuts.push(whole);
    for (part_idx, cut) in cuts.iter().enumerate() {
        came.push(payload.copy_to_bytes(cut - (whole - payload.remaining())));
        let (is_whole, part_idx) = (part_idx + 1 == cuts.len(), part_idx as u32);
        let arrival = Arrival { header, part_idx, payload: &mut came, is_whole };
        if let Some(reply) = answers.read(call, arrival)? {
            assert!(is_whole);
            return Ok(reply.unwrap());
        }
    }
    panic!("the last part has come")
}

fn keys() -> (Call, CallHeader, Pieces, Reply) {
    let ask = call(Ask::Keys { place: place(1, 2, dense()) }, WireDtype::F32);
    let reply = Reply::Keys([(0, shard(0, 5, 5)), (2, shard(2, 3, 4000))].into());
    let (sent, _) = ask_message(&ask, Instant::now()).unwrap();
    let (header, payload) = reply_message(&sent, &Ok(reply.clone())).unwrap();
    (ask, header, payload, reply)
}

#[test]
fn keys_that_come_in_parts_are_refused_as_soon_as_they_are_wrong() {
    let (call, header, payload, _) = keys();
    let refused = |change: fn(&mut CallHeader, &mut Vec<u8>)| {
        let (mut header, mut bytes) = (header, payload.clone().into_bytes().to_vec());
        change(&mut header, &mut bytes);
        let cut = bytes.len() / 2;
        pieced(&call, header, bytes.into(), vec![cut]).unwrap_err().field
    };
    assert_eq!(refused(|header, _| header.block.layer += 1), "block");
    assert_eq!(refused(|header, _| header.items = 3), "items");
    assert_eq!(refused(|header, _| header.heads = 9), "kv_heads");
    assert_eq!(refused(|_, bytes| bytes[0] ^= 1), "chunk");
    assert_eq!(refused(|_, bytes| bytes[8] = 200), "parts");
    assert_eq!(refused(|_, bytes| bytes.truncate(200)), "payload");
    assert_eq!(refused(|_, bytes| bytes.push(0)), "payload.rest");
    // A middle without its beginning.
    let mut came = payload.clone();
    let arrival = Arrival { header, part_idx: 1, payload: &mut came, is_whole: false };
    assert_eq!(Answers::default().read(&call, arrival).unwrap_err().field, "part_idx");
}

proptest! {
    #[test]
    fn keys_are_the_same_however_they_come(
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let (call, header, payload, want) = keys();
        let mut cuts: Vec<_> =
            cuts.into_iter().map(|cut| cut.index(payload.remaining())).collect();
        cuts.sort_unstable();
        same_bits(&pieced(&call, header, payload, cuts).unwrap(), &want);
    }

    #[test]
    fn garbage_never_panics(
        kind in 1..12i32,
        payload in prop::collection::vec(any::<u8>(), 0..600),
        (heads, head_dim, items) in (0u32..6, 0u32..10, 0u32..9),
        raw: bool,
        (wire, ask) in (0usize..3, 0usize..4),
    ) {
        let dtype = [WireDtype::F32, WireDtype::Bf16, WireDtype::F16][wire];
        let place = place(1, 2, dense());
        let ask = match ask {
            0 => Ask::Attend { place, q: queries(2, 1) },
            1 => Ask::Weigh { place, spent: spent(8, &[]) },
            2 => Ask::Settle { place, cutoffs: vec![Cutoff::All; 2].into() },
            _ => Ask::Keys { place },
        };
        let call = call(ask, dtype);
        let (sent, _) = ask_message(&call, Instant::now()).unwrap();
        let kind = Kind::try_from(kind).unwrap();
        let form = if raw { Form::Raw } else { Form::Compact };
        let header = CallHeader { kind, heads, head_dim, items, form, ..sent };
        let _ = read_ask(&header, payload.clone().into(), &model());
        let _ = read_reply(&call, &header, payload.clone().into());
        let _ = read_waiting(&header, payload.into());
    }
}
