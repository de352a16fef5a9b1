//! NCCL as a [`Fabric`]: groups of two.

use std::sync::Arc;
use std::time::Duration;

use super::{Group, NCCL, invite, name};
use crate::cuda::Cuda;
use crate::fabric::{End, Fabric, FabricError, GroupId, Mark, Pair, SetShape};
use crate::memory::MemorySet;

/// The rank of the end that sends, and of the one that receives.
const SENDER: usize = 0;
const RECEIVER: usize = 1;

/// A device and this machine's NCCL.
pub struct NcclFabric {
    cuda: Arc<Cuda>,
    name: String,
}

impl NcclFabric {
    /// Of a device with a driver.
    ///
    /// # Errors
    /// [`FabricError::Missing`].
    pub fn of(cuda: Arc<Cuda>) -> Result<Self, FabricError> {
        if cuda.shared.driver.is_none() {
            let reason = "the device has no driver".to_owned();
            return Err(FabricError::Missing { fabric: NCCL, reason });
        }
        Ok(Self { cuda, name: name()? })
    }
}

impl Fabric for NcclFabric {
    fn name(&self) -> &str {
        &self.name
    }

    fn invite(&self) -> Result<GroupId, FabricError> {
        invite()
    }

    fn join(
        &self,
        id: &GroupId,
        end: End,
        patience: Duration,
    ) -> Result<Arc<dyn Pair>, FabricError> {
        let rank = match end {
            End::Sends => SENDER,
            End::Receives => RECEIVER,
        };
        let group = Group::join(&self.cuda, id, (rank, 2), patience)?;
        Ok(Arc::new(NcclPair { cuda: self.cuda.clone(), group }))
    }

    fn mark(&self) -> Mark {
        let driver = self.cuda.shared.driver.as_ref();
        let event = driver.and_then(|(driver, _)| driver.mark().ok());
        event.map_or_else(Mark::default, Mark::new)
    }
}

/// A member of a group of two.
struct NcclPair {
    cuda: Arc<Cuda>,
    group: Group,
}

impl Pair for NcclPair {
    fn fetch_lists(
        &self,
        set: &MemorySet,
        made: &Mark,
        patience: Duration,
    ) -> Result<(), FabricError> {
        self.group.fetch_lists(set, made, patience)
    }

    fn send(&self, set: &MemorySet, made: &Mark, patience: Duration) -> Result<(), FabricError> {
        let flight = self.group.exchange(&self.cuda, made, &[(RECEIVER, set)], &[])?;
        flight.land(patience).map(drop)
    }

    fn receive(&self, shape: &SetShape, patience: Duration) -> Result<MemorySet, FabricError> {
        let receives = [(SENDER, *shape)];
        let flight = self.group.exchange(&self.cuda, &Mark::default(), &[], &receives)?;
        let mut sets = flight.land(patience)?;
        sets.pop().ok_or(FabricError::GivenUp)
    }

    fn abort(&self) {
        self.group.abort();
    }
}
