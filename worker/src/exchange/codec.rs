//! Asks and answers as bytes, as docs/WIRE.md lays them out.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::work::RetainedMass;
use aqueduct_core::{Epoch, Refusal, limits};
use aqueduct_engine::Model;
use aqueduct_engine::shards::{Branch, Masses, Place, Spent};
use aqueduct_kernels::{Candidate, Cutoff, Heads, LayerSpec};
use aqueduct_proto::convert::call::{Arrival, CallBlock, CallHeader, Kind, TEXT_BYTES_MAX};
use aqueduct_proto::convert::pieces::Pieces;
use bytes::Buf;

use super::bytes::{Reader, Writer};
use super::{Ask, Call, CallError, Reply, shards, states};

/// A message's header and bytes.
pub type Message = (CallHeader, Pieces);

/// `call` as it travels at `now`.
///
/// # Errors
/// Queries that the wire's dtype cannot hold.
pub fn ask_message(call: &Call, now: Instant) -> Result<Message, Refusal> {
    let place = call.ask.place();
    let mut writer = Writer::default();
    for &(chunk, epoch) in place.shards.iter() {
        writer.u32s([chunk, epoch.0]);
    }
    let mut header = CallHeader::new(call.id, kind_of(&call.ask), block_of(place));
    match &call.ask {
        Ask::Attend { q, .. } => {
            (header.heads, header.head_dim) = (q.heads as u32, q.head_dim as u32);
            writer.elements("q", read(&q.data)?, call.wire)?;
        }
        Ask::Weigh { spent, .. } => {
            header.heads = (spent.lse.len() / place.tokens.max(1) as usize) as u32;
            writer.f32s(&spent.lse);
            put_masses(&mut writer, place, &spent.masses);
        }
        Ask::Settle { cutoffs, .. } => {
            header.heads = cutoffs.len() as u32;
            cutoffs.iter().for_each(|cutoff| put_cutoff(&mut writer, cutoff));
        }
        Ask::Keys { .. } => {}
    }
    header.dtype = call.wire;
    header.form = states::form_of(call.wire);
    header.items = place.shards.len() as u32;
    header.policy = Some(place.policy);
    let left = call.deadline.saturating_duration_since(now).as_millis() as u64;
    header.deadline_ms = left.min(limits::REQUEST_DEADLINE_MS);
    Ok(writer.finish(header))
}

/// The ask that a message is, of a block of `model`.
///
/// # Errors
/// What cannot be about such a model, or is no number.
pub fn read_ask(header: &CallHeader, payload: Pieces, model: &Model) -> Result<Ask, Refusal> {
    let CallBlock { request, branch, layer, epoch, start, tokens, chunks } = header.block;
    Refusal::unless_within("layer", layer, 0, model.shape().layers - 1)?;
    let unknown = || Refusal::new("layer", layer, "one of the model's");
    let LayerSpec { heads, kv_heads, head_dim, .. } =
        model.spec_of(layer as usize).ok_or_else(unknown)?;
    let exactly = |field, seen, want: usize| {
        Refusal::unless_within(field, seen, want as u32, want as u32).map(drop)
    };
    let mut shards = Vec::with_capacity(payload.remaining().min(8 * header.items as usize) / 8);
    let mut reader = Reader::new(payload);
    for _ in 0..header.items {
        shards.push((reader.u32()?, Epoch(reader.u32()?)));
    }
    let ascend = shards.windows(2).all(|pair| pair[0].0 < pair[1].0);
    if !ascend || shards.last().is_some_and(|last| last.0 >= chunks) {
        let bound = format!("ascending below chunks = {chunks}");
        return Err(Refusal::new("shards", format!("{shards:?}"), bound));
    }
    let policy = header.policy.ok_or_else(|| Refusal::new("policy", "absent", "present"))?;
    let shards = shards.into();
    let branch = Branch(branch);
    let place = Place { request, branch, layer, epoch, start, tokens, chunks, shards, policy };
    let rows = heads * tokens as usize;
    let ask = match header.kind {
        Kind::Attend => {
            exactly("heads", header.heads, heads)?;
            exactly("head_dim", header.head_dim, head_dim)?;
            let data = reader.elements("q", rows * head_dim, header.dtype)?;
            let q = Heads { data: data.into(), ..Heads::zeros(heads, 0, head_dim) };
            Ask::Attend { place, q: Arc::new(Heads { tokens: tokens as usize, ..q }) }
        }
        Kind::Weigh => {
            exactly("heads", header.heads, heads)?;
            let lse = reader.finite("lse", rows)?.into();
            let masses = Arc::new(take_counted(&mut reader, &place)?);
            Ask::Weigh { place, spent: Spent { lse, masses } }
        }
        Kind::Settle => {
            exactly("heads", header.heads, kv_heads)?;
            let cutoffs = (0..kv_heads).map(|_| take_cutoff(&mut reader));
            Ask::Settle { place, cutoffs: cutoffs.collect::<Result<_, _>>()? }
        }
        Kind::Keys => Ask::Keys { place },
        other => return Err(Refusal::new("kind", other.as_str_name(), "an ask")),
    };
    reader.finish()?;
    Ok(ask)
}

/// The answer to the ask of `header`.
///
/// # Errors
/// Outputs that the wire's dtype cannot hold, or what could not be read from its device.
pub fn reply_message(
    ask: &CallHeader,
    reply: &Result<Reply, CallError>,
) -> Result<Message, Refusal> {
    let mut header = CallHeader::new(ask.call, Kind::Lost, ask.block);
    (header.dtype, header.form) = (ask.dtype, ask.form);
    let mut writer = Writer::default();
    match reply {
        Ok(Reply::States(states)) => states::put(&mut header, &mut writer, states)?,
        Ok(Reply::Standing(standing)) => {
            header.kind = Kind::Standing;
            header.heads = standing.len() as u32;
            header.items = standing.iter().map(Vec::len).sum::<usize>() as u32;
            writer.u32s(standing.iter().map(|head| head.len() as u32));
            standing.iter().flatten().for_each(|one| put_candidate(&mut writer, one));
        }
        Ok(Reply::Settled(masses)) => {
            header.kind = Kind::Settled;
            header.items = masses.len() as u32;
            for (chunk, mass) in masses {
                writer.u32s([*chunk]);
                writer.f64s([mass.kept, mass.total]);
            }
        }
        Ok(Reply::Keys(held)) => shards::put(&mut header, &mut writer, held)?,
        Err(error) => return Ok(error_message(ask.call, ask.block, error)),
    }
    Ok(writer.finish(header))
}

/// Why there is no answer to `call`.
pub fn error_message(call: u64, block: CallBlock, error: &CallError) -> Message {
    let (kind, text) = match error {
        CallError::Refused(text) => (Kind::Refused, text),
        CallError::Lost(text) => (Kind::Lost, text),
    };
    let mut writer = Writer::default();
    writer.text(text, TEXT_BYTES_MAX as usize);
    writer.finish(CallHeader::new(call, kind, block))
}

/// Reads the answers of one stream. The keys of shards, which are long, are read as they come.
#[derive(Debug, Default)]
pub struct Answers {
    shards: Option<shards::Taking>,
}

impl Answers {
    /// The answer to `call`, once it has come to its end.
    ///
    /// # Errors
    /// What does not answer this ask, or cannot be.
    pub fn read(
        &mut self,
        call: &Call,
        arrival: Arrival<'_>,
    ) -> Result<Option<Result<Reply, CallError>>, Refusal> {
        let Arrival { header, part_idx, payload, is_whole } = arrival;
        let comes_in_parts = header.kind == Kind::Shards && !(part_idx == 0 && is_whole);
        if !comes_in_parts {
            return is_whole.then(|| read_reply(call, &header, mem::take(payload))).transpose();
        }
        if part_idx == 0 {
            answers(call, &header)?;
            self.shards = Some(shards::Taking::new(&header, call.ask.place()));
        }
        let taking = self.shards.as_mut().filter(|taking| *taking.header() == header);
        let taking = taking.ok_or_else(|| Refusal::new("part_idx", part_idx, "0 at first"))?;
        taking.take(payload)?;
        if !is_whole {
            return Ok(None);
        }
        let shards = self.shards.take().map(|taking| taking.finish(payload)).transpose()?;
        Reader::new(mem::take(payload)).finish()?;
        Ok(shards.map(|shards| Ok(Reply::Keys(shards))))
    }
}

/// The answer to `call` that a message is.
///
/// # Errors
/// What does not answer this ask, or cannot be.
pub fn read_reply(
    call: &Call,
    header: &CallHeader,
    payload: Pieces,
) -> Result<Result<Reply, CallError>, Refusal> {
    let place = call.ask.place();
    let text = |payload: Pieces| String::from_utf8_lossy(&payload.into_bytes()).into_owned();
    match header.kind {
        Kind::Refused => return Ok(Err(CallError::Refused(text(payload)))),
        Kind::Lost => return Ok(Err(CallError::Lost(text(payload)))),
        _ => answers(call, header)?,
    }
    let mut reader = Reader::new(payload);
    let reply = match &call.ask {
        Ask::Attend { q, .. } => Reply::States(states::take(header, &mut reader, (place, q))?),
        Ask::Weigh { .. } => Reply::Standing(take_standing(header, &mut reader)?),
        Ask::Settle { .. } => Reply::Settled(take_masses(place, header, &mut reader)?),
        Ask::Keys { .. } => Reply::Keys(shards::take(header, &mut reader, place)?),
    };
    reader.finish()?;
    Ok(Ok(reply))
}

/// Checks that a message is of the block and kind that answer `call`.
fn answers(call: &Call, header: &CallHeader) -> Result<(), Refusal> {
    if header.block != block_of(call.ask.place()) {
        return Err(Refusal::new("block", format!("{:?}", header.block), "the one that asked"));
    }
    let want = match &call.ask {
        Ask::Attend { .. } => Kind::States,
        Ask::Weigh { .. } => Kind::Standing,
        Ask::Settle { .. } => Kind::Settled,
        Ask::Keys { .. } => Kind::Shards,
    };
    match header.kind == want {
        true => Ok(()),
        false => Err(Refusal::new("kind", header.kind.as_str_name(), want.as_str_name())),
    }
}

/// Elements on the host.
pub(super) fn read(array: &aqueduct_kernels::Array<f32>) -> Result<&[f32], Refusal> {
    array.host().map_err(|error| Refusal::new("device", error, "one that can be read"))
}

fn kind_of(ask: &Ask) -> Kind {
    match ask {
        Ask::Attend { .. } => Kind::Attend,
        Ask::Weigh { .. } => Kind::Weigh,
        Ask::Settle { .. } => Kind::Settle,
        Ask::Keys { .. } => Kind::Keys,
    }
}

fn block_of(place: &Place) -> CallBlock {
    let Place { request, branch, layer, epoch, start, tokens, chunks, .. } = *place;
    CallBlock { request, branch: branch.0, layer, epoch, start, tokens, chunks }
}

fn put_candidate(writer: &mut Writer, one: &Candidate) {
    writer.f32s(&[one.rank]);
    writer.u32s([one.position]);
}

fn take_candidate(reader: &mut Reader) -> Result<Candidate, Refusal> {
    let candidate = Candidate { rank: reader.f32()?, position: reader.u32()? };
    if candidate.rank.is_nan() {
        return Err(Refusal::new("rank", candidate.rank, "a number"));
    }
    Ok(candidate)
}

/// What was counted for the holder, shard by shard.
fn put_masses(writer: &mut Writer, place: &Place, masses: &Masses) {
    let of = |(chunk, _): &(u32, Epoch)| masses.get(chunk).map_or(&[][..], Vec::as_slice);
    let each = || place.shards.iter().map(of);
    writer.u32s(each().map(|masses| masses.len() as u32));
    each().for_each(|masses| writer.f32s(masses));
}

fn take_counted(reader: &mut Reader, place: &Place) -> Result<Masses, Refusal> {
    let counts = reader.u32s(place.shards.len())?;
    let each = place.shards.iter().zip(counts).filter(|(_, count)| *count > 0);
    let masses = each.map(|(shard, count)| Ok((shard.0, reader.finite("masses", count as usize)?)));
    masses.collect()
}

const ZERO: Candidate = Candidate { rank: 0.0, position: 0 };

fn put_cutoff(writer: &mut Writer, cutoff: &Cutoff) {
    let (which, last) = match cutoff {
        Cutoff::None => (0, &ZERO),
        Cutoff::All => (1, &ZERO),
        Cutoff::Last(last) => (2, last),
    };
    writer.u32s([which]);
    put_candidate(writer, last);
}

fn take_cutoff(reader: &mut Reader) -> Result<Cutoff, Refusal> {
    let which = reader.u32()?;
    let last = take_candidate(reader)?;
    match which {
        0 => Ok(Cutoff::None),
        1 => Ok(Cutoff::All),
        2 => Ok(Cutoff::Last(last)),
        _ => Err(Refusal::new("cutoff", which, "0, 1 or 2")),
    }
}

fn take_standing(header: &CallHeader, reader: &mut Reader) -> Result<Vec<Vec<Candidate>>, Refusal> {
    let counts = reader.u32s(header.heads as usize)?;
    let sum: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    Refusal::unless_within("candidates", sum, u64::from(header.items), u64::from(header.items))?;
    let head = |&count: &u32| (0..count).map(|_| take_candidate(reader)).collect();
    counts.iter().map(head).collect()
}

fn take_masses(
    place: &Place,
    header: &CallHeader,
    reader: &mut Reader,
) -> Result<Vec<(u32, RetainedMass)>, Refusal> {
    let count = place.shards.len() as u32;
    Refusal::unless_within("items", header.items, count, count)?;
    let mass = |&(want, _): &(u32, Epoch)| {
        let chunk = reader.u32()?;
        Refusal::unless_within("chunk", chunk, want, want)?;
        let [kept, total] = [reader.f64()?, reader.f64()?];
        for (field, value) in [("kept", kept), ("total", total)] {
            Refusal::unless_within(field, value, 0.0, f64::MAX)?;
        }
        Ok((chunk, RetainedMass { kept, total }))
    };
    place.shards.iter().map(mass).collect()
}

/// The calls that a message names.
///
/// # Errors
/// Another length than that of its items.
pub(super) fn read_waiting(header: &CallHeader, payload: Pieces) -> Result<Vec<u64>, Refusal> {
    let mut reader = Reader::new(payload);
    (0..header.items).map(|_| reader.u64()).collect()
}

#[cfg(test)]
mod tests;
