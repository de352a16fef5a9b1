//! Commands, events and requests: any bytes are converted or refused, and what was converted
//! survives the way back and forth.
#![no_main]
#![forbid(unsafe_code)]

use aqueduct_core::work::{Command, Event};
use aqueduct_core::{MemoryPolicy, Quality, Refusal};
use aqueduct_proto::convert::exchange::{exchange, wire_dtype};
use aqueduct_proto::convert::generate::{policy_or, sampling_or};
use aqueduct_proto::convert::quality::quality;
use aqueduct_proto::v1::{GenerateRequest, WorkerCommand, WorkerEvent};
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 3 {
        0 => there_and_back::<WorkerCommand, Command>(bytes),
        1 => there_and_back::<WorkerEvent, Event>(bytes),
        _ => request(bytes),
    }
});

/// Compared as text, where a NaN equals itself.
fn there_and_back<Wire, Word>(bytes: &[u8])
where
    Wire: Message + Default + From<Word>,
    Word: TryFrom<Wire, Error = Refusal> + Clone + std::fmt::Debug,
{
    let Ok(Ok(word)) = Wire::decode(bytes).map(Word::try_from) else { return };
    let again = Word::try_from(Wire::from(word.clone())).expect("it was within bounds");
    assert_eq!(format!("{word:?}"), format!("{again:?}"));
}

fn request(bytes: &[u8]) {
    let Ok(wire) = GenerateRequest::decode(bytes) else { return };
    for quality in [quality(wire.quality).unwrap_or_default(), Quality::Exact] {
        if let Ok(policy) = policy_or(MemoryPolicy::default(), wire.policy, quality) {
            assert_eq!(policy.validate(), Ok(()));
            assert!(policy.keeps_all() || quality != Quality::Exact);
        }
    }
    let _ = sampling_or(aqueduct_core::Sampling::default(), wire.sampling);
    let _ = (exchange(wire.exchange), wire_dtype(wire.wire));
}
