//! One own key: nothing but its row moves.

use std::sync::Arc;

use bytemuck::Pod;

use super::super::Shared;
use super::super::params::select::SelectReplace;
use super::super::resident::OnDevice;
use super::anew::{Stored, Tallies, address_or_null, row_bytes};
use super::{Answer, Job, SCRATCH_BYTES, sums};
use crate::array::Array;
use crate::backend::Selected;
use crate::memory::MemorySet;
use crate::select::cells_after;
use crate::tensor::{KvData, KvHeads};

/// Whether `array` may be overwritten where [`Shared::place`] puts it: the one copy of what is on
/// the device, or a new copy of what is on the host.
fn is_ours<T: Pod + Send + Sync>(shared: &Arc<Shared>, array: &mut Array<T>) -> bool {
    match array.sole_resident::<OnDevice<T>>() {
        Some(resident) => resident.is_sole(shared),
        None => array.resident::<OnDevice<T>>().is_none(),
    }
}

fn rows_are_ours(shared: &Arc<Shared>, heads: &mut KvHeads) -> bool {
    match &mut heads.data {
        KvData::F32(data) => is_ours(shared, data),
        KvData::Bf16(data) => is_ours(shared, data),
    }
}

impl Job<'_> {
    /// The set after one own key, of which at most one key goes.
    pub(super) fn step(&self, mut set: MemorySet) -> Answer<Selected> {
        let shared = self.shared;
        let keys = &mut set.keys;
        let rows = rows_are_ours(shared, &mut keys.k) && rows_are_ours(shared, &mut keys.v);
        if self.plan.given_up == 0 {
            let has_room = keys.len() < keys.k.tokens;
            return match rows && has_room {
                true => self.append(set),
                false => self.anew(&set, cells_after(set.keys.len(), self.selection)),
            };
        }
        let ours = rows
            && is_ours(shared, &mut keys.positions)
            && keys.table.as_mut().is_none_or(|table| is_ours(shared, table))
            && is_ours(shared, &mut set.score)
            && is_ours(shared, &mut set.votes);
        match ours {
            true => self.replace(set),
            false => self.anew(&set, self.plan.kept()),
        }
    }

    /// Puts the key in the next cell.
    fn append(&self, set: MemorySet) -> Answer<Selected> {
        let tallies = self.tallies(&set, true)?;
        let keys = &set.keys;
        let to = |heads: &KvHeads| -> Answer<KvHeads> {
            Ok(Stored::place(self.shared, heads)?.into_heads(heads, heads.tokens))
        };
        let (k, v) = (to(&keys.k)?, to(&keys.v)?);
        self.gather(keys, (&k, &v), None, keys.len())?;
        Ok(tallies.into_set(self, (k, v)))
    }

    /// Puts the key in the cell of the one that goes.
    fn replace(&self, set: MemorySet) -> Answer<Selected> {
        let (shared, own, keys) = (self.shared, self.own, &set.keys);
        let (kv_heads, count) = (own.kv_heads(), keys.len());
        let place = |array: &Array<f32>| shared.place(array);
        let (score, votes) = (place(&set.score)?, place(&set.votes)?);
        let (past_mass, own_mass) = (place(self.masses.0)?, place(self.masses.1)?);
        let positions = self.described(shared.place(&keys.positions)?);
        let table = match &keys.table {
            Some(table) => shared.place(table)?,
            None => OnDevice::room(shared, kv_heads * count)?,
        };
        let (k, v) = (Stored::place(shared, &keys.k)?, Stored::place(shared, &keys.v)?);
        let (own_k, own_v) = (Stored::place(shared, &own.k)?, Stored::place(shared, &own.v)?);
        let own_table = own.table.as_ref().map(|it| shared.place(it)).transpose()?;
        let sums = OnDevice::<f64>::room(shared, 2 * kv_heads)?;
        let ranking = &self.selection.ranking;
        let params = SelectReplace {
            positions: positions.address(),
            score: score.address(),
            votes: votes.address(),
            table: table.address(),
            past_mass: past_mass.address(),
            own_mass: own_mass.address(),
            sums: sums.address(),
            to: [k.address(), v.address()],
            own: [own_k.address(), own_v.address()],
            own_table: address_or_null(&own_table),
            keys: count as u32,
            cells: keys.k.tokens as u32,
            own_cells: own.k.tokens as u32,
            row_units: (row_bytes(&own.k) / 2) as u32,
            end: set.end,
            sinks: self.plan.candidates.start,
            recent: self.plan.candidates.end,
            fade: ranking.fade(1),
            new_votes: ranking.row_weight(0),
            age_normalised: ranking.age_normalised.into(),
            fresh_table: keys.table.is_none().into(),
            first_seen: self.selection.first_seen(set.end + 1),
        };
        shared.run_per_head("select_replace", kv_heads, SCRATCH_BYTES, &params)?;
        let cells = keys.k.tokens;
        let rows = (k.into_heads(&keys.k, cells), v.into_heads(&keys.v, cells));
        let (table, source, retained) = (Some(table), None, sums::retained(sums));
        let tallies = Tallies { positions, score, votes, table, source, retained };
        Ok(tallies.into_set(self, rows))
    }
}

#[cfg(all(test, feature = "cuda-emulator", target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::*;
    use crate::backend::SelectionOps;
    use crate::cuda::{Cuda, CudaOptions};
    use crate::memory::{Keys, Ranking, Selection};
    use crate::tensor::KvDtype;

    const RANKING: Ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };

    /// Addresses of keys, values and scores.
    fn addresses(set: &MemorySet) -> [u64; 3] {
        let rows = |heads: &KvHeads| match &heads.data {
            KvData::F32(data) => data.resident::<OnDevice<f32>>().unwrap().address(),
            KvData::Bf16(_) => panic!("f32 was given"),
        };
        let score = set.score.resident::<OnDevice<f32>>().unwrap();
        [rows(&set.keys.k), rows(&set.keys.v), score.address()]
    }

    /// The set after the key at its end.
    fn step(cuda: &Cuda, set: Arc<MemorySet>, selection: &Selection) -> MemorySet {
        let row = KvHeads::from_f32(2, 1, 4, &[set.end as f32; 8], KvDtype::F32);
        let own = Keys::new(vec![set.end; 2], row.clone(), row);
        let voting = if selection.keep_all { 0 } else { 2 };
        let mass = |count: usize| Array::from(vec![1.0; voting * count]);
        let masses = (&mass(set.keys.len()), &mass(1));
        cuda.select(set, &own, masses, selection).unwrap().memory
    }

    #[test]
    fn a_full_set_stays_where_it_is_and_a_growing_one_mostly() {
        let cuda = Cuda::emulated(90, CudaOptions::default()).unwrap();
        let full = Selection {
            keep_all: false,
            sinks: 1,
            local: 2,
            heavy: 3,
            ranking: RANKING,
            window: None,
        };
        let dense = Selection { keep_all: true, ..full };
        for (selection, moves) in [(full, 0), (dense, 1)] {
            let mut set = MemorySet::empty(2, 4, KvDtype::F32);
            for _ in 0..8 {
                set = step(&cuda, Arc::new(set), &selection);
            }
            let mut moved = 0;
            for _ in 0..30 {
                let before = addresses(&set);
                set = step(&cuda, Arc::new(set), &selection);
                let after = addresses(&set);
                moved += usize::from(before[..2] != after[..2]);
                assert!(selection.keep_all || before == after);
            }
            assert_eq!(moved, moves, "{selection:?}");
            assert!(set.keys.positions.on_host().is_none(), "nothing was read");
        }
    }

    #[test]
    fn what_others_hold_is_left_alone() {
        let cuda = Cuda::emulated(90, CudaOptions::default()).unwrap();
        let full = Selection {
            keep_all: false,
            sinks: 1,
            local: 2,
            heavy: 3,
            ranking: RANKING,
            window: None,
        };
        let mut set = MemorySet::empty(2, 4, KvDtype::F32);
        for _ in 0..8 {
            set = step(&cuda, Arc::new(set), &full);
        }
        // Another set with the same arrays, and one that shares but keys and values.
        let others: [fn(&MemorySet) -> MemorySet; 2] =
            [MemorySet::clone, |set| MemorySet { score: vec![0.0; 12].into(), ..set.clone() }];
        for other in others {
            let (before, other) = (addresses(&set), other(&set));
            let positions: Vec<u32> = set.clone().keys.positions.into_vec();
            set = step(&cuda, Arc::new(set), &full);
            assert!(before.iter().zip(addresses(&set)).all(|(&before, after)| before != after));
            assert_eq!(other.keys.positions, positions);
        }
    }
}
