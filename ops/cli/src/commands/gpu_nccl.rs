//! `aqueduct gpu nccl`: memory sets through NCCL, in a group of one and between two devices.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use aqueduct_kernels::cuda::nccl::{Group, NcclFabric};
use aqueduct_kernels::cuda::{Cuda, CudaOptions};
use aqueduct_kernels::{
    End, Fabric, FabricError, Keys, KvData, KvDtype, KvHeads, Mark, MemorySet, SetShape,
};

use super::bench_kernels::noise;
use crate::args::GpuArg;
use crate::lines;

const PATIENCE: Duration = Duration::from_secs(20);
/// For what never comes.
const SHORT: Duration = Duration::from_secs(2);
const SETS: [(usize, KvDtype); 3] = [(1, KvDtype::F32), (77, KvDtype::Bf16), (1024, KvDtype::Bf16)];

/// Sends sets of several sizes to this device itself and, where there is another device, to that
/// one, and compares what comes.
///
/// # Errors
/// No device, what NCCL says, bits that changed. That NCCL is missing is none.
pub(crate) async fn run(args: GpuArg) -> anyhow::Result<()> {
    let devices = Cuda::devices()?.len();
    let cuda = Arc::new(Cuda::open(args.index, CudaOptions::default())?);
    let fabric = match NcclFabric::of(cuda.clone()) {
        Err(error @ FabricError::Missing { .. }) => {
            return Ok(lines::say(&format!("skipped: {error}\n"))?);
        }
        fabric => fabric?,
    };
    lines::say(&format!("{}\n", fabric.name()))?;
    to_itself(&cuda, &fabric)?;
    match (0..devices).find(|&index| index != args.index) {
        Some(index) => {
            let other = Cuda::open(index, CudaOptions::default())?;
            across(&cuda, &fabric, &NcclFabric::of(Arc::new(other))?)
        }
        None => Ok(lines::say("skipped: a pair of devices (there is one)\n")?),
    }
}

fn to_itself(cuda: &Cuda, fabric: &NcclFabric) -> anyhow::Result<()> {
    let group = Group::join(cuda, &fabric.invite()?, (0, 1), PATIENCE)?;
    for (keys, kv) in SETS {
        let set = set(cuda, keys, kv)?;
        let made = fabric.mark();
        group.fetch_lists(&set, &made, PATIENCE)?;
        ensure!(lists_are_on_host(&set) && !rows_are_on_host(&set), "lists alone are copied");
        let (started, shape) = (Instant::now(), SetShape::of(&set));
        let came = group.exchange(cuda, &made, &[(0, &set)], &[(0, shape)])?.land(PATIENCE)?;
        let us = micros(started);
        ensure!(came.iter().all(lists_are_on_host), "what came can be judged");
        ensure!(came == [set], "a set of {keys} keys changed on its way");
        lines::say(&format!("to itself {keys:5} keys of {kv:?} came in {us:.0} us\n"))?;
    }
    group.abort();
    let set = set(cuda, 1, KvDtype::F32)?;
    let refused = group.exchange(cuda, &Mark::default(), &[(0, &set)], &[]).err();
    let given_up = Some(FabricError::GivenUp);
    ensure!(refused == given_up, "a group that was given up goes on: {refused:?}");
    Ok(())
}

/// As the link does it: both ends join, one sends, the other receives; and who waits for nobody
/// stops waiting.
fn across(cuda: &Cuda, here: &NcclFabric, there: &NcclFabric) -> anyhow::Result<()> {
    let id = there.invite()?;
    let (from, to) =
        both(|| there.join(&id, End::Receives, PATIENCE), || here.join(&id, End::Sends, PATIENCE))?;
    for (keys, kv) in SETS {
        let set = set(cuda, keys, kv)?;
        let (made, shape) = (here.mark(), SetShape::of(&set));
        let started = Instant::now();
        from.fetch_lists(&set, &made, PATIENCE)?;
        let ((), came) =
            both(|| to.receive(&shape, PATIENCE), || from.send(&set, &made, PATIENCE))?;
        let us = micros(started);
        ensure!(lists_are_on_host(&came) && !rows_are_on_host(&came), "it lands on the device");
        ensure!(came == set, "a set of {keys} keys changed on its way");
        lines::say(&format!("to another {keys:5} keys of {kv:?} came in {us:.0} us\n"))?;
    }
    let (started, shape) = (Instant::now(), SetShape::of(&set(cuda, 77, KvDtype::Bf16)?));
    let nothing = to.receive(&shape, SHORT);
    ensure!(nothing.is_err(), "a set came that nobody sent");
    ensure!(started.elapsed() < 5 * SHORT, "a deadline was not kept");
    from.abort();
    lines::say("what nobody sends is not waited for\n")?;
    Ok(())
}

/// Both ends of what needs two: first the answer of the second.
fn both<A: Send, B>(
    first: impl FnOnce() -> Result<A, FabricError> + Send,
    second: impl FnOnce() -> Result<B, FabricError>,
) -> anyhow::Result<(B, A)> {
    thread::scope(|scope| {
        let first = scope.spawn(first);
        let second = second();
        let first = first.join().ok().context("the other end panicked")?;
        Ok((second?, first?))
    })
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

fn lists_are_on_host(set: &MemorySet) -> bool {
    set.keys.positions.on_host().is_some()
        && set.score.on_host().is_some()
        && set.votes.on_host().is_some()
}

fn rows_are_on_host(set: &MemorySet) -> bool {
    let is_on_host = |data: &KvData| match data {
        KvData::F32(data) => data.on_host().is_some(),
        KvData::Bf16(data) => data.on_host().is_some(),
    };
    is_on_host(&set.keys.k.data) || is_on_host(&set.keys.v.data)
}

/// A set of 8 KV heads of 128, on the device alone.
fn set(cuda: &Cuda, keys: usize, kv: KvDtype) -> anyhow::Result<MemorySet> {
    let (kv_heads, head_dim) = (8, 128);
    let count = kv_heads * keys;
    let heads = || KvHeads::from_f32(kv_heads, keys, head_dim, &noise(count * head_dim), kv);
    let positions: Vec<u32> = (0..keys as u32).map(|j| 3 * j).collect();
    Ok(MemorySet {
        keys: cuda.keys_here(&Keys::new(positions.repeat(kv_heads), heads(), heads()))?,
        score: cuda.here(&noise(count).into())?,
        votes: cuda.here(&noise(count).into())?,
        state: Default::default(),
        end: 3 * keys as u32,
    })
}
