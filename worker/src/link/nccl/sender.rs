//! The end of a pair that sends.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_kernels::{End, FabricError, GroupId, Mark, MemorySet, Pair};
use aqueduct_proto::convert::frame::SetHeader;
use aqueduct_proto::convert::notice::Notice;
use aqueduct_proto::v1::hand_off_ack::Verdict;
use aqueduct_proto::{FABRIC_METADATA, GROUP_METADATA};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::metadata::MetadataMap;

use super::{Direct, Held, Joining, wait};
use crate::link::codec;
use crate::link::grpc::Call;

/// How a stream's sender stands with the device at its other end.
pub(crate) enum Bond {
    /// Nothing goes to it directly.
    Apart,
    Joining(Joining),
    Joined(Held),
}

/// A set that is to leave.
pub(crate) struct Departure {
    pub(crate) memory: Arc<MemorySet>,
    pub(crate) header: SetHeader,
    /// The point in the device's work behind which the set is there.
    pub(crate) made: Mark,
    /// How long may be waited until it is.
    pub(crate) patience: Duration,
}

impl Direct {
    /// Says to the receiver what this device brings.
    pub(crate) fn offer(&self, metadata: &mut MetadataMap) {
        if let Ok(name) = self.fabric.name().parse() {
            metadata.insert(FABRIC_METADATA, name);
        }
    }

    /// Begins to join where the receiver's answer names a group.
    pub(crate) fn answered(&self, metadata: &MetadataMap) -> Bond {
        let Some(id) = metadata.get_bin(GROUP_METADATA).and_then(|id| id.to_bytes().ok()) else {
            tracing::debug!("the peer's device cannot be reached from this one");
            return Bond::Apart;
        };
        let Ok(id) = <[u8; 128]>::try_from(&id[..]) else {
            tracing::warn!(bytes = id.len(), "a peer names a group that can be none");
            return Bond::Apart;
        };
        match self.leave() {
            Some(leave) => Bond::Joining(self.join(leave, GroupId(id), End::Sends)),
            None => Bond::Apart,
        }
    }

    /// When the point in this device's work has come that it was given so far.
    pub(crate) fn mark(&self) -> Mark {
        self.fabric.mark()
    }

    /// Sends a set from device to device and returns the receiver's verdict; nothing else may go
    /// over `call` meanwhile.
    ///
    /// # Errors
    /// Anything after which the pair is of no use; the receiver may have the set or not.
    pub(crate) async fn send(
        &self,
        bond: &Bond,
        call: &mut Call,
        departure: Departure,
    ) -> Result<(Verdict, String), String> {
        let Bond::Joined(Held(pair)) = bond else { return Err("no pair".into()) };
        let (pair, patience) = (pair.clone(), self.patience);
        let departure = Arc::new(departure);
        let notice = wait(spawn_blocking({
            let (pair, departure) = (pair.clone(), departure.clone());
            move || announce(pair.as_ref(), &departure)
        }));
        let frame = notice.await.map_err(|error| error.to_string())?.to_frame();
        let frame = frame.map_err(|refusal| refusal.to_string())?;
        call.send(frame).await?;
        let first = answer(call, patience).await?;
        if first.0 != Verdict::Ok {
            return Ok(first);
        }
        let sending = wait(spawn_blocking(move || {
            let Departure { memory, made, .. } = departure.as_ref();
            pair.send(memory, made, patience)
        }));
        let sent = async { sending.await.map_err(|error| error.to_string()) };
        let ((), second) = tokio::try_join!(sent, answer(call, patience))?;
        Ok(second)
    }
}

impl Bond {
    /// Whether sets can go directly by now.
    ///
    /// # Errors
    /// They never will: the pair could not be joined.
    pub(crate) async fn is_joined(&mut self) -> Result<bool, FabricError> {
        match std::mem::replace(self, Self::Apart) {
            Self::Joining(joining) if joining.is_finished() => {
                *self = Self::Joined(Held(wait(joining).await?));
            }
            other => *self = other,
        }
        Ok(matches!(self, Self::Joined(_)))
    }
}

/// Waits until the set is there, and says what it is.
fn announce(pair: &dyn Pair, departure: &Departure) -> Result<Notice, FabricError> {
    let Departure { memory, header, made, patience } = departure;
    pair.fetch_lists(memory, made, *patience)?;
    Ok(Notice::new(*header, &codec::encode_lists(memory)))
}

/// The next answer. One that the receiver could also have given to a part of the set leaves the
/// pair as it is; after any other it cannot be used.
async fn answer(call: &mut Call, patience: Duration) -> Result<(Verdict, String), String> {
    // The receiver may begin its wait later than this end, and says so when it is late itself.
    let patience = 2 * patience;
    let late = |_| format!("no answer within {patience:?}");
    match timeout(patience, call.answer()).await.map_err(late)?? {
        (Verdict::Corrupt | Verdict::Unspecified, message) => Err(message),
        answer => Ok(answer),
    }
}
