//! What a worker is: the shape of its model, its KV dtype, where it can be reached.

use aqueduct_core::work::{Base, NextHop, Peer, WorkerInfo};
use aqueduct_core::{Epoch, KvDtype, ModelShape, Refusal, WideHeads, WindowedLayers, limits};

use super::{Under, required};
use crate::v1;

/// Longest peer name and fingerprint, in bytes.
const NAME_BYTES_MAX: usize = 256;
/// Compute threads that one worker can sensibly claim.
const THREADS_MAX: u32 = 1 << 16;

impl From<KvDtype> for v1::KvDtype {
    fn from(kv: KvDtype) -> Self {
        match kv {
            KvDtype::F32 => Self::F32,
            KvDtype::Bf16 => Self::Bf16,
        }
    }
}

impl TryFrom<v1::KvDtype> for KvDtype {
    type Error = Refusal;

    fn try_from(wire: v1::KvDtype) -> Result<Self, Refusal> {
        match wire {
            v1::KvDtype::F32 => Ok(Self::F32),
            v1::KvDtype::Bf16 => Ok(Self::Bf16),
            v1::KvDtype::Unspecified => Err(Refusal::new("kv", "unspecified", "f32 or bf16")),
        }
    }
}

/// The dtype that must be named.
pub(super) fn kv(wire: i32) -> Result<KvDtype, Refusal> {
    v1::KvDtype::try_from(wire)
        .map_err(|_| Refusal::new("kv", wire, "f32 or bf16"))
        .and_then(KvDtype::try_from)
}

/// A shape of `$from` as one of `$to`, which has the same fields besides those of layers of some
/// kind: the compiler says where it has not.
macro_rules! as_shape {
    ($shape:expr, $from:path => $to:path, $as:expr, { $($field:ident),+ $(,)? }) => {{
        let $from { wide, windowed, $($field),+ } = $shape;
        let (wide, windowed) = $as(wide, windowed);
        $to { wide, windowed, $($field),+ }
    }};
    ($shape:expr, $from:path => $to:path, $as:expr) => {
        as_shape!($shape, $from => $to, $as, {
            vocab, layers, width, heads, kv_heads, head_dim, ffn, max_positions, recurrent_layers,
            state_bytes, kv_shared_layers,
        })
    };
}

impl From<ModelShape> for v1::ModelShape {
    fn from(shape: ModelShape) -> Self {
        as_shape!(shape, ModelShape => v1::ModelShape, kinds_on_wire)
    }
}

impl TryFrom<v1::ModelShape> for ModelShape {
    type Error = Refusal;

    fn try_from(wire: v1::ModelShape) -> Result<Self, Refusal> {
        let shape = as_shape!(wire, v1::ModelShape => ModelShape, kinds);
        shape.validate()?;
        Ok(shape)
    }
}

fn kinds_on_wire(
    WideHeads { layers, kv_heads, head_dim }: WideHeads,
    windowed: WindowedLayers,
) -> (Option<v1::WideHeads>, Option<v1::WindowedLayers>) {
    let wide = (layers > 0).then_some(v1::WideHeads { layers, kv_heads, head_dim });
    let WindowedLayers { layers, tokens } = windowed;
    (wide, (layers > 0).then_some(v1::WindowedLayers { layers, tokens }))
}

fn kinds(
    wide: Option<v1::WideHeads>,
    windowed: Option<v1::WindowedLayers>,
) -> (WideHeads, WindowedLayers) {
    let wide = wide.map(|v1::WideHeads { layers, kv_heads, head_dim }| WideHeads {
        layers,
        kv_heads,
        head_dim,
    });
    let windowed =
        windowed.map(|v1::WindowedLayers { layers, tokens }| WindowedLayers { layers, tokens });
    (wide.unwrap_or(WideHeads::NONE), windowed.unwrap_or(WindowedLayers::NONE))
}

/// A peer that a link can be made to.
pub(super) fn peer(wire: String) -> Result<Peer, Refusal> {
    let name =
        ["http://", "https://", "local://"].iter().find_map(|scheme| wire.strip_prefix(scheme));
    let well_formed =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    if wire.len() <= NAME_BYTES_MAX && name.is_some_and(well_formed) {
        Ok(Peer(wire))
    } else {
        let bound = format!("http(s)://host:port or local://name, at most {NAME_BYTES_MAX} bytes");
        Err(Refusal::new("peer", wire, bound))
    }
}

/// Hash digits, or any other word without spaces.
fn fingerprint(wire: String) -> Result<String, Refusal> {
    if (1..=NAME_BYTES_MAX).contains(&wire.len()) && wire.bytes().all(|b| b.is_ascii_graphic()) {
        Ok(wire)
    } else {
        Err(Refusal::new("fingerprint", wire, format!("1 to {NAME_BYTES_MAX} visible characters")))
    }
}

impl From<NextHop> for v1::NextHop {
    fn from(next: NextHop) -> Self {
        Self { peer: next.peer.0, epoch: next.epoch.0, base: next.base.map(Into::into) }
    }
}

impl TryFrom<v1::NextHop> for NextHop {
    type Error = Refusal;

    fn try_from(wire: v1::NextHop) -> Result<Self, Refusal> {
        let base = wire.base.map(Base::try_from).transpose().under("base")?;
        Ok(Self { peer: peer(wire.peer)?, epoch: Epoch(wire.epoch), base })
    }
}

impl From<Base> for v1::Base {
    fn from(base: Base) -> Self {
        Self { chunk_idx: base.chunk_idx, epoch: base.epoch.0, end: base.end }
    }
}

impl TryFrom<v1::Base> for Base {
    type Error = Refusal;

    fn try_from(wire: v1::Base) -> Result<Self, Refusal> {
        let most = limits::PROMPT_TOKENS_MAX;
        let chunk_idx = Refusal::unless_within("chunk_idx", wire.chunk_idx, 0, most - 1)?;
        // Each of the chunks up to it has a token at least.
        let end = Refusal::unless_within("end", wire.end, chunk_idx + 1, most)?;
        Ok(Self { chunk_idx, epoch: Epoch(wire.epoch), end })
    }
}

/// A pool's size; 0 on the wire is no bound.
pub fn pool_tokens(wire: u64) -> u64 {
    if wire == 0 { u64::MAX } else { wire }
}

/// The other way.
pub fn pool_tokens_to_wire(pool_tokens: u64) -> u64 {
    if pool_tokens == u64::MAX { 0 } else { pool_tokens }
}

fn device(device: String) -> Result<String, Refusal> {
    Refusal::unless_within("device bytes", device.len(), 0, limits::DEVICE_BYTES_MAX)?;
    Ok(device)
}

impl From<WorkerInfo> for v1::WorkerInfo {
    fn from(info: WorkerInfo) -> Self {
        Self {
            peer: info.peer.0,
            fingerprint: info.fingerprint,
            shape: Some(info.shape.into()),
            kv: v1::KvDtype::from(info.kv).into(),
            threads: info.threads,
            device: info.device,
            convention: info.convention,
            pool_tokens: pool_tokens_to_wire(info.pool_tokens),
            keeps_snapshots: info.keeps_snapshots,
        }
    }
}

impl TryFrom<v1::WorkerInfo> for WorkerInfo {
    type Error = Refusal;

    fn try_from(wire: v1::WorkerInfo) -> Result<Self, Refusal> {
        Ok(Self {
            peer: peer(wire.peer)?,
            fingerprint: fingerprint(wire.fingerprint)?,
            shape: required("shape", wire.shape)?.try_into().under("shape")?,
            kv: kv(wire.kv)?,
            threads: Refusal::unless_within("threads", wire.threads, 1, THREADS_MAX)?,
            device: device(wire.device)?,
            convention: wire.convention,
            pool_tokens: pool_tokens(wire.pool_tokens),
            keeps_snapshots: wire.keeps_snapshots,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::arbitrary;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_by_field() {
        let check = |change: fn(&mut v1::WorkerInfo), field: &str| {
            let mut wire = v1::WorkerInfo::from(arbitrary::example_info());
            assert!(WorkerInfo::try_from(wire.clone()).is_ok());
            change(&mut wire);
            assert_eq!(WorkerInfo::try_from(wire).unwrap_err().field, field);
        };
        check(|info| info.peer = "10.0.0.1:7400".into(), "peer");
        check(|info| info.peer = "http://".into(), "peer");
        check(|info| info.peer = format!("local://{}", "x".repeat(300)), "peer");
        check(|info| info.fingerprint.clear(), "fingerprint");
        check(|info| info.shape = None, "shape");
        check(|info| info.shape.as_mut().unwrap().kv_heads = 0, "shape.kv_heads");
        check(|info| info.kv = 0, "kv");
        check(|info| info.threads = 0, "threads");
        check(|info| info.device = "x".repeat(limits::DEVICE_BYTES_MAX + 1), "device bytes");
    }

    proptest! {
        #[test]
        fn survives_the_wire(info in arbitrary::info(), next in arbitrary::next_hop()) {
            let wire = v1::WorkerInfo::from(info.clone());
            prop_assert_eq!(WorkerInfo::try_from(wire), Ok(info));
            let wire = v1::NextHop::from(next.clone());
            prop_assert_eq!(NextHop::try_from(wire), Ok(next));
        }
    }
}
