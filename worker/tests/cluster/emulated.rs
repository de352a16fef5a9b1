//! Workers whose devices are emulated: sets stay on devices all the way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use aqueduct_core::{MemoryPolicy, RequestId};
use aqueduct_kernels::{
    Cuda, CudaOptions, End, Fabric, FabricError, GroupId, KvDtype, Mark, MemorySet, Pair, SetShape,
};
use aqueduct_worker::Direct;

use crate::rig::{Carrier, Job, Member, cluster, run};
use crate::tiny_model::tiny_on;

/// Where devices meet: the one that comes first leaves its device, the second makes the pair.
#[derive(Default)]
struct Meeting {
    groups: Mutex<HashMap<[u8; 128], Group>>,
    changed: Condvar,
    next: AtomicU64,
    moved: Arc<AtomicU64>,
}

enum Group {
    Waits(Arc<Cuda>),
    Made(Arc<dyn Pair>),
}

struct Emulated {
    cuda: Arc<Cuda>,
    meeting: Arc<Meeting>,
}

impl Fabric for Emulated {
    fn name(&self) -> &str {
        "emulated"
    }

    fn invite(&self) -> Result<GroupId, FabricError> {
        let mut id = [0; 128];
        let number = self.meeting.next.fetch_add(1, Ordering::SeqCst);
        id[..8].copy_from_slice(&number.to_le_bytes());
        Ok(GroupId(id))
    }

    fn join(&self, id: &GroupId, _: End, patience: Duration) -> Result<Arc<dyn Pair>, FabricError> {
        let Meeting { groups, changed, moved, .. } = self.meeting.as_ref();
        let mut groups = groups.lock().unwrap_or_else(PoisonError::into_inner);
        let end = match groups.insert(id.0, Group::Waits(self.cuda.clone())) {
            Some(Group::Waits(other)) => {
                let [theirs, ours] = Cuda::emulated_pair([other, self.cuda.clone()]);
                groups.insert(id.0, Group::Made(theirs));
                changed.notify_all();
                ours
            }
            Some(Group::Made(_)) => panic!("a group of three"),
            None => {
                let waits =
                    |groups: &mut HashMap<_, _>| matches!(groups.get(&id.0), Some(Group::Waits(_)));
                let waited = changed.wait_timeout_while(groups, patience, waits);
                let (mut groups, _) = waited.unwrap_or_else(PoisonError::into_inner);
                match groups.remove(&id.0) {
                    Some(Group::Made(ours)) => ours,
                    _ => return Err(FabricError::Deadline { what: "joining", patience }),
                }
            }
        };
        Ok(Arc::new(Counted { end, moved: moved.clone() }))
    }

    fn mark(&self) -> Mark {
        Mark::default()
    }
}

/// A pair that counts what has come on a device.
struct Counted {
    end: Arc<dyn Pair>,
    moved: Arc<AtomicU64>,
}

impl Pair for Counted {
    fn fetch_lists(
        &self,
        set: &MemorySet,
        made: &Mark,
        patience: Duration,
    ) -> Result<(), FabricError> {
        self.end.fetch_lists(set, made, patience)
    }

    fn send(&self, set: &MemorySet, made: &Mark, patience: Duration) -> Result<(), FabricError> {
        self.end.send(set, made, patience)
    }

    fn receive(&self, shape: &SetShape, patience: Duration) -> Result<MemorySet, FabricError> {
        let set = self.end.receive(shape, patience)?;
        self.moved.fetch_add(1, Ordering::SeqCst);
        Ok(set)
    }

    fn abort(&self) {
        self.end.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_one_device() {
    let kv = KvDtype::Bf16;
    let device = || Arc::new(Cuda::emulated(90, CudaOptions::default()).unwrap());
    let job = Job::new(43, MemoryPolicy::h2o(2, 3, 3));
    let alone = tiny_on(kv, device());
    let want = run(&mut cluster(&alone, 1, Carrier::Loopback).await, &job, 5).await;
    let meeting = Arc::<Meeting>::default();
    let mut members = Vec::new();
    for cuda in [device(), device()] {
        let fabric = Arc::new(Emulated { cuda: cuda.clone(), meeting: meeting.clone() });
        members.push(Member::with_device(tiny_on(kv, cuda), Direct::new(fabric)).await);
    }
    let mut answered_directly = 0;
    for request in 1.. {
        let before = meeting.moved.load(Ordering::SeqCst);
        let job = Job { request: RequestId(request), ..job.clone() };
        assert!(run(&mut members, &job, 5).await == want, "request {request}");
        answered_directly += u32::from(meeting.moved.load(Ordering::SeqCst) > before);
        if answered_directly == 2 {
            return;
        }
        assert!(request < 100, "no set went from device to device");
    }
}
