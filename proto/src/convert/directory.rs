//! Where a request's shards are.

use aqueduct_core::{Carry, Directory, Epoch, Refusal, limits};

use super::exchange::wire_dtype;
use super::shape::peer;
use super::{Under, bounded, required};
use crate::v1;
use crate::v1::shard_directory::Carry as WireCarry;

impl From<Directory> for v1::ShardDirectory {
    fn from(directory: Directory) -> Self {
        let (holder_idx, epoch) =
            directory.shards.into_iter().map(|(holder, epoch)| (holder, epoch.0)).unzip();
        let carry = match directory.carry {
            Carry::Queries => WireCarry::Queries,
            Carry::Keys => WireCarry::Keys,
            Carry::Fewest => WireCarry::Fewest,
        };
        Self {
            holders: directory.holders.into_iter().map(|peer| peer.0).collect(),
            holder_idx,
            epoch,
            carry: carry.into(),
            wire: v1::WireDtype::from(directory.wire).into(),
        }
    }
}

impl TryFrom<v1::ShardDirectory> for Directory {
    type Error = Refusal;

    fn try_from(wire: v1::ShardDirectory) -> Result<Self, Refusal> {
        bounded("holders", &wire.holders, limits::WORKERS_MAX)?;
        bounded("holder_idx", &wire.holder_idx, limits::PROMPT_TOKENS_MAX as usize)?;
        let (seen, want) = (wire.epoch.len(), wire.holder_idx.len());
        Refusal::unless_within("epoch", seen, want, want)?;
        let holders: Vec<_> =
            wire.holders.into_iter().map(peer).collect::<Result<_, _>>().under("holders")?;
        for &idx in &wire.holder_idx {
            if idx as usize >= holders.len() {
                let bound = format!("below holders = {}", holders.len());
                return Err(Refusal::new("holder_idx", idx, bound));
            }
        }
        let shards = wire.holder_idx.into_iter().zip(wire.epoch.into_iter().map(Epoch)).collect();
        Ok(Self {
            holders,
            shards,
            carry: carry(wire.carry)?,
            wire: required("wire", wire_dtype(wire.wire)?)?,
        })
    }
}

fn carry(wire: i32) -> Result<Carry, Refusal> {
    match WireCarry::try_from(wire) {
        Ok(WireCarry::Queries) => Ok(Carry::Queries),
        Ok(WireCarry::Keys) => Ok(Carry::Keys),
        Ok(WireCarry::Fewest) => Ok(Carry::Fewest),
        _ => Err(Refusal::new("carry", wire, "queries, keys or fewest")),
    }
}
