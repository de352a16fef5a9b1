//! A device that could not do something, and one that can do nothing any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aqueduct_core::MemoryPolicy;
use aqueduct_core::work::{Event, FailureKind, Outputs};
use aqueduct_kernels::{
    Angles, Array, AttentionOps, AttentionState, Backend, BackendError, Keys, KvDtype, LayerOps,
    LayerWeights, Linear, Matrix, MemorySet, MixerOps, Op, Qkv, Queries, Reference, Rows, Selected,
    Selection, SelectionOps, StateOps,
};
use aqueduct_worker::{LoopbackHub, Worker};

use crate::rig::{Job, Member, in_process, prefill};
use crate::tiny_model::tiny_on;

const SOON: Duration = Duration::from_secs(20);

/// A device that can be broken.
#[derive(Default)]
struct Fragile {
    /// It refuses what it is asked.
    refuses: AtomicBool,
    /// It never answers again.
    lost: AtomicBool,
}

impl Fragile {
    fn fault(is_so: &AtomicBool) -> Result<(), BackendError> {
        match is_so.load(Ordering::Acquire) {
            true => Err(BackendError::Device { device: "fragile".into(), what: "no".into() }),
            false => Ok(()),
        }
    }

    fn break_down(&self, lost: bool) {
        self.refuses.store(true, Ordering::Release);
        self.lost.store(lost, Ordering::Release);
    }
}

impl StateOps for Fragile {}

impl AttentionOps for Fragile {
    fn attend(&self, queries: Queries<'_>, keys: &Keys) -> Result<AttentionState, BackendError> {
        Reference.attend(queries, keys)
    }

    fn weigh(
        &self,
        queries: Queries<'_>,
        keys: &Keys,
        lse: &[f32],
        row_weights: &[f32],
    ) -> Result<Array<f32>, BackendError> {
        Reference.weigh(queries, keys, lse, row_weights)
    }
}

impl SelectionOps for Fragile {
    fn select(
        &self,
        past: Arc<MemorySet>,
        own: &Keys,
        masses: (&Array<f32>, &Array<f32>),
        selection: &Selection,
    ) -> Result<Selected, BackendError> {
        Reference.select(past, own, masses, selection)
    }
}

impl LayerOps for Fragile {
    fn pack(&self, weight: Matrix, bias: Option<Vec<f32>>) -> Result<Linear, BackendError> {
        Reference.pack(weight, bias)
    }

    fn linear(&self, x: &Rows, weight: &Linear) -> Result<Rows, BackendError> {
        Reference.linear(x, weight)
    }

    fn project(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        at: (u32, &Angles),
        queries: usize,
    ) -> Result<Qkv, BackendError> {
        Self::fault(&self.refuses)?;
        Reference.project(layer, x, at, queries)
    }

    fn finish(
        &self,
        layer: &LayerWeights,
        x: &Rows,
        attention: &Rows,
    ) -> Result<Rows, BackendError> {
        Reference.finish(layer, x, attention)
    }

    fn embed(&self, table: &Linear, tokens: &[u32], scale: f32) -> Result<Rows, BackendError> {
        Reference.embed(table, tokens, scale)
    }

    fn norm(&self, x: &Rows, weight: &Arc<[f32]>, eps: f32) -> Rows {
        Reference.norm(x, weight, eps)
    }
}

impl MixerOps for Fragile {}

impl Backend for Fragile {
    fn name(&self) -> &'static str {
        "fragile"
    }

    fn supports(&self, op: Op) -> bool {
        Reference.supports(op)
    }

    fn alive(&self) -> Result<(), BackendError> {
        Self::fault(&self.lost)
    }
}

async fn member() -> (Arc<Fragile>, Member) {
    let device = Arc::new(Fragile::default());
    let (model, hub) = (tiny_on(KvDtype::F32, device.clone()), LoopbackHub::default());
    let worker = Worker::start(model.clone(), in_process(&model, &hub)).unwrap();
    (device, Member::join(worker).await)
}

fn job() -> Job {
    Job { outputs: Outputs::None, ..Job::new(5, MemoryPolicy::h2o(2, 3, 3)) }
}

/// A session ends without a word of what failed: a failure that is told ends its request.
async fn ends_silently(mut member: Member) {
    tokio::time::timeout(SOON, member.worker.ended()).await.expect("nobody hears of it");
    assert!(member.worker.has_ended());
    let rest = async {
        while let Some(event) = member.events.recv().await {
            let is_told = matches!(event, Event::ChunkFailed { .. } | Event::DecodeFailed { .. });
            assert!(!is_told, "{event:?}");
        }
    };
    tokio::time::timeout(SOON, rest).await.expect("the session ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_refuses_once_goes_on() {
    let (device, mut member) = member().await;
    device.break_down(false);
    let job = job();
    member.assign(job.assignment(0, 0, (&member.peer, 0))).await;
    assert_eq!(member.failure().await, (job.key(0, 0), FailureKind::Internal));
    device.refuses.store(false, Ordering::Release);
    let next = Job { request: aqueduct_core::RequestId(2), ..job };
    let mut members = [member];
    prefill(&mut members, &next).await;
    assert!(!members[0].worker.has_ended());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_device_is_lost_ends_at_its_next_chunk() {
    let (device, member) = member().await;
    device.break_down(true);
    member.assign(job().assignment(0, 0, (&member.peer, 0))).await;
    ends_silently(member).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_device_is_lost_ends_at_its_next_token() {
    let (device, member) = member().await;
    let mut members = [member];
    prefill(&mut members, &job()).await;
    let [member] = members;
    device.break_down(true);
    member.send(job().decode(2, 50)).await;
    ends_silently(member).await;
}
