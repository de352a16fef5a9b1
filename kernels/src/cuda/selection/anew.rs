//! A set of its own: what stays is chosen, and then copied by the whole device.

use std::sync::Arc;

use bytemuck::Pod;
use half::bf16;

use super::super::Shared;
use super::super::device::Launch;
use super::super::params::select::{SelectGather, SelectJoin, SelectKeys};
use super::super::resident::OnDevice;
use super::{Answer, Job, Plan, RESERVED_BYTES, SCRATCH_BYTES, sums};
use crate::array::Array;
use crate::backend::{BackendError, Selected};
use crate::memory::{Keys, MemorySet};
use crate::tensor::{KvData, KvHeads};

/// Units that a block of `select_gather` copies.
const GATHER_UNITS: u32 = 1024;
/// Keys that a block of `select_join` copies.
const JOIN_KEYS: u32 = 256;

/// Keys or values on the device.
pub(super) enum Stored {
    F32(OnDevice<f32>),
    Bf16(OnDevice<bf16>),
}

impl Stored {
    pub(super) fn place(shared: &Arc<Shared>, heads: &KvHeads) -> Answer<Self> {
        Ok(match &heads.data {
            KvData::F32(data) => Self::F32(shared.place(data)?),
            KvData::Bf16(data) => Self::Bf16(shared.place(data)?),
        })
    }

    /// Room for `len` elements of the same dtype as `heads`.
    fn room(shared: &Arc<Shared>, heads: &KvHeads, len: usize) -> Answer<Self> {
        Ok(match &heads.data {
            KvData::F32(_) => Self::F32(OnDevice::room(shared, len)?),
            KvData::Bf16(_) => Self::Bf16(OnDevice::room(shared, len)?),
        })
    }

    pub(super) fn address(&self) -> u64 {
        match self {
            Self::F32(data) => data.address(),
            Self::Bf16(data) => data.address(),
        }
    }

    /// As `[kv_heads, cells, head_dim]` like `heads`.
    pub(super) fn into_heads(self, heads: &KvHeads, cells: usize) -> KvHeads {
        let data = match self {
            Self::F32(data) => KvData::F32(data.into_array()),
            Self::Bf16(data) => KvData::Bf16(data.into_array()),
        };
        KvHeads { tokens: cells, data, ..*heads }
    }
}

/// Bytes of a row of keys or values.
pub(super) fn row_bytes(heads: &KvHeads) -> usize {
    heads.head_dim * if matches!(heads.data, KvData::F32(_)) { 4 } else { 2 }
}

/// What stays, but for keys and values.
pub(super) struct Tallies {
    pub(super) positions: OnDevice<u32>,
    pub(super) score: OnDevice<f32>,
    pub(super) votes: OnDevice<f32>,
    pub(super) table: Option<OnDevice<u32>>,
    /// `[kv_heads, kept]` indices into past followed by own; `None` where everything stays.
    pub(super) source: Option<OnDevice<u32>>,
    pub(super) retained: Array<f64>,
}

impl Tallies {
    fn room(job: &Job<'_>, scattered: bool) -> Answer<Self> {
        let (shared, len) = (job.shared, job.own.kv_heads() * job.plan.kept());
        let chosen = || OnDevice::room(shared, len);
        Ok(Self {
            positions: job.described(OnDevice::room(shared, len)?),
            score: OnDevice::room(shared, len)?,
            votes: OnDevice::room(shared, len)?,
            table: scattered.then(chosen).transpose()?,
            source: (!job.selection.keep_all).then(chosen).transpose()?,
            retained: vec![0.0; 2].into(),
        })
    }

    pub(super) fn into_set(self, job: &Job<'_>, (k, v): (KvHeads, KvHeads)) -> Selected {
        let keys = Keys {
            positions: self.positions.into_array(),
            k,
            v,
            keys: job.plan.kept(),
            table: self.table.map(OnDevice::into_array),
        };
        let (score, votes) = (self.score.into_array(), self.votes.into_array());
        let end = job.plan.turn.next_end();
        Selected {
            memory: MemorySet { keys, score, votes, state: Array::default(), end },
            retained: self.retained,
        }
    }
}

/// The address of what may not be there, as kernels take it.
pub(super) fn address_or_null<T: Pod + Send + Sync>(array: &Option<OnDevice<T>>) -> u64 {
    array.as_ref().map_or(0, OnDevice::address)
}

impl Job<'_> {
    /// Positions of what stays, with what is known of them.
    pub(super) fn described(&self, positions: OnDevice<u32>) -> OnDevice<u32> {
        positions.known_within(0..self.plan.turn.next_end()).known_held(self.plan.held)
    }

    /// A set of its own, in order of position, with `cells` of each head.
    pub(super) fn anew(&self, past: &MemorySet, cells: usize) -> Answer<Selected> {
        let tallies = self.tallies(past, false)?;
        let heads = |own: &KvHeads| {
            let to = Stored::room(self.shared, own, own.kv_heads * cells * own.head_dim)?;
            Ok::<_, BackendError>(to.into_heads(own, cells))
        };
        let (k, v) = (heads(&self.own.k)?, heads(&self.own.v)?);
        self.gather(&past.keys, (&k, &v), tallies.source.as_ref(), 0)?;
        Ok(tallies.into_set(self, (k, v)))
    }

    /// Positions, scores and votes of what stays; and its cells, if keys stay where they are.
    pub(super) fn tallies(&self, past: &MemorySet, scattered: bool) -> Answer<Tallies> {
        let table = past.keys.table.as_ref().filter(|_| scattered);
        let table = table.map(|it| self.shared.place(it)).transpose()?;
        match self.selection.keep_all {
            true => self.join(past, table),
            false => self.choose(past, table),
        }
    }

    fn choose(&self, past: &MemorySet, table: Option<OnDevice<u32>>) -> Answer<Tallies> {
        let (shared, Plan { turn, candidates, .. }) = (self.shared, &self.plan);
        let (kv_heads, all) = (self.own.kv_heads(), turn.past + turn.own);
        let ranking = self.selection.ranking;
        let votes_now = self.voting.of(shared, ranking, turn.own)?;
        let place = |array: &Array<f32>| shared.place(array);
        let (score, votes) = (place(&past.score)?, place(&past.votes)?);
        let (past_mass, own_mass) = (place(self.masses.0)?, place(self.masses.1)?);
        let positions = shared.place(&past.keys.positions)?;
        let mut kept = Tallies::room(self, table.is_some())?;
        let sums = OnDevice::<f64>::room(shared, 2 * kv_heads)?;
        let inside =
            SCRATCH_BYTES + RESERVED_BYTES + 4 * all <= shared.device.properties().shared_bytes;
        let ranks = (!inside).then(|| OnDevice::<u32>::room(shared, kv_heads * all)).transpose()?;
        let params = SelectKeys {
            positions: positions.address(),
            score: score.address(),
            votes: votes.address(),
            table: address_or_null(&table),
            past_mass: past_mass.address(),
            own_mass: own_mass.address(),
            own_votes: votes_now.own.address(),
            ranks: address_or_null(&ranks),
            kept_positions: kept.positions.address(),
            kept_score: kept.score.address(),
            kept_votes: kept.votes.address(),
            kept_table: address_or_null(&kept.table),
            source: address_or_null(&kept.source),
            sums: sums.address(),
            past: turn.past as u32,
            own: turn.own as u32,
            kept: self.plan.kept() as u32,
            end: turn.end,
            sinks: candidates.start,
            recent: candidates.end,
            fade: ranking.fade(turn.own),
            past_votes: votes_now.past,
            age_normalised: ranking.age_normalised.into(),
            first_seen: self.selection.first_seen(turn.next_end()),
        };
        let shared_bytes = SCRATCH_BYTES + if inside { 4 * all } else { 0 };
        shared.run_per_head("select_keys", kv_heads, shared_bytes, &params)?;
        kept.retained = sums::retained(sums);
        Ok(kept)
    }

    fn join(&self, past: &MemorySet, table: Option<OnDevice<u32>>) -> Answer<Tallies> {
        let (shared, turn) = (self.shared, &self.plan.turn);
        let (score, votes) = (shared.place(&past.score)?, shared.place(&past.votes)?);
        let positions = shared.place(&past.keys.positions)?;
        let kept = Tallies::room(self, table.is_some())?;
        let params = SelectJoin {
            positions: positions.address(),
            score: score.address(),
            votes: votes.address(),
            table: address_or_null(&table),
            kept_positions: kept.positions.address(),
            kept_score: kept.score.address(),
            kept_votes: kept.votes.address(),
            kept_table: address_or_null(&kept.table),
            past: turn.past as u32,
            own: turn.own as u32,
            end: turn.end,
            unused: 0,
        };
        let blocks = (self.plan.kept() as u32).div_ceil(JOIN_KEYS);
        if blocks > 0 {
            shared.run(&Launch {
                kernel: "select_join",
                grid: [blocks, self.own.kv_heads() as u32, 1],
                threads: JOIN_KEYS,
                shared_bytes: 0,
                params: bytemuck::bytes_of(&params),
            })?;
        }
        Ok(kept)
    }

    /// Copies keys `first..` of what stays, and their values, to where they belong in `to`.
    pub(super) fn gather(
        &self,
        past: &Keys,
        to: (&KvHeads, &KvHeads),
        source: Option<&OnDevice<u32>>,
        first: usize,
    ) -> Answer<()> {
        let (shared, own, kept) = (self.shared, self.own, self.plan.kept());
        let tables = |keys: &Keys| keys.table.as_ref().map(|it| shared.place(it)).transpose();
        let (past_table, own_table) = (tables(past)?, tables(own)?);
        let place = |k: &KvHeads, v: &KvHeads| {
            Ok::<_, BackendError>([Stored::place(shared, k)?, Stored::place(shared, v)?])
        };
        let (from, new, to_rows) =
            (place(&past.k, &past.v)?, place(&own.k, &own.v)?, place(to.0, to.1)?);
        let addresses = |arrays: &[Stored; 2]| arrays.each_ref().map(Stored::address);
        let bytes = row_bytes(&own.k);
        let units = [("select_gather16", 16), ("select_gather4", 4)];
        let whole = units.into_iter().find(|&(_, unit)| bytes.is_multiple_of(unit));
        let (kernel, unit) = whole.unwrap_or(("select_gather2", 2));
        let params = SelectGather {
            past: addresses(&from),
            own: addresses(&new),
            to: addresses(&to_rows),
            past_table: address_or_null(&past_table),
            own_table: address_or_null(&own_table),
            source: source.map_or(0, OnDevice::address),
            past_keys: past.len() as u32,
            own_keys: own.len() as u32,
            past_cells: past.k.tokens as u32,
            own_cells: own.k.tokens as u32,
            to_cells: to.0.tokens as u32,
            first: first as u32,
            kept: kept as u32,
            row_units: (bytes / unit) as u32,
        };
        let blocks = ((kept - first) as u32 * params.row_units).div_ceil(GATHER_UNITS);
        if blocks == 0 {
            return Ok(());
        }
        let (grid, params) = ([blocks, own.kv_heads() as u32, 2], bytemuck::bytes_of(&params));
        shared.run(&Launch { kernel, grid, threads: GATHER_UNITS / 4, shared_bytes: 0, params })
    }
}
