//! The end of a pair that receives.

use std::sync::Arc;

use aqueduct_core::Refusal;
use aqueduct_kernels::{End, FabricError, MemorySet};
use aqueduct_proto::convert::frame::{FrameError, SetHeader};
use aqueduct_proto::convert::notice::Notice;
use aqueduct_proto::v1::hand_off_ack::Verdict as Answer;
use aqueduct_proto::v1::{HandOffAck, HandOffFrame};
use aqueduct_proto::{FABRIC_METADATA, GROUP_METADATA};
use tokio::task::spawn_blocking;
use tonic::metadata::{MetadataMap, MetadataValue};

use super::{Direct, Held, Joining, wait};
use crate::inbox::{Came, Inbox, Verdict};
use crate::link::codec;
use crate::service::{ack, judged};

/// Where sets land that come to this worker's device over one stream.
pub(crate) struct Dock {
    inbox: Arc<Inbox>,
    berth: Berth,
    /// The set that the sender was told to send.
    expected: Option<Notice>,
}

/// How the dock stands with the device at the other end.
enum Berth {
    /// With why nothing can land.
    Closed(String),
    Joining(Direct, Joining),
    Open(Direct, Held),
}

/// What came could not be used.
#[derive(Debug, thiserror::Error)]
enum LandingError {
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error(transparent)]
    Other(#[from] FrameError),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl Dock {
    /// The dock of a call with this metadata; where sender and `direct` can form a pair, this end
    /// joins, and `answer` tells the sender what to join.
    pub(crate) fn open(
        inbox: Arc<Inbox>,
        direct: Option<&Direct>,
        metadata: &MetadataMap,
        answer: &mut MetadataMap,
    ) -> Self {
        let berth = Berth::open(direct, metadata, answer).unwrap_or_else(Berth::Closed);
        Self { inbox, berth, expected: None }
    }

    /// Answers a notice as [`Inbox::deliver`] would answer its set. After an OK the set is on its
    /// way.
    ///
    /// # Errors
    /// A frame that cannot be used.
    pub(crate) async fn expect(&mut self, frame: &HandOffFrame) -> Result<HandOffAck, FrameError> {
        let notice = Notice::of(frame, self.inbox.bytes_max())?;
        if let Err(reason) = self.berth.settle().await {
            return Ok(ack(Answer::Corrupt, reason));
        }
        let SetHeader { key, layer, .. } = notice.set;
        let verdict = self.inbox.would_take(key, layer, &codec::shape(&notice.set));
        self.expected = (verdict == Verdict::Taken).then_some(notice);
        Ok(judged(verdict, key))
    }

    /// Receives the set under way, if there is one, and delivers it if it is what its notice said.
    pub(crate) async fn land(&mut self) -> Option<HandOffAck> {
        let notice = self.expected.take()?;
        let SetHeader { key, layer, .. } = notice.set;
        Some(match self.berth.receive(notice).await {
            Ok(set) => {
                let came = Came::Far { bytes: set.bytes() as u64, spared_bytes: 0 };
                judged(self.inbox.deliver(key, layer, Arc::new(set), came), key)
            }
            Err(error) => {
                tracing::warn!(%error, %key, layer, "a set did not come from device to device");
                self.berth = Berth::Closed(error.to_string());
                ack(Answer::Corrupt, error)
            }
        })
    }
}

impl Berth {
    /// # Errors
    /// Why there will be none.
    fn open(
        direct: Option<&Direct>,
        metadata: &MetadataMap,
        answer: &mut MetadataMap,
    ) -> Result<Self, String> {
        let direct = direct.ok_or("this worker's device reaches no other")?;
        let theirs = metadata.get(FABRIC_METADATA).ok_or("the sender has said no fabric")?;
        let ours = direct.fabric.name();
        if theirs.as_encoded_bytes() != ours.as_bytes() {
            tracing::warn!(?theirs, ours, "devices cannot reach each other: sets come over gRPC");
            return Err(format!("the sender's fabric is not {ours}"));
        }
        let leave = direct.leave().ok_or("too many peers are joining")?;
        let id = direct.fabric.invite().map_err(|error| {
            tracing::warn!(%error, "no group of devices: sets come over gRPC");
            error.to_string()
        })?;
        answer.insert_bin(GROUP_METADATA, MetadataValue::from_bytes(&id.0));
        Ok(Self::Joining(direct.clone(), direct.join(leave, id, End::Receives)))
    }

    /// Waits until this end has joined.
    ///
    /// # Errors
    /// Why it never will.
    async fn settle(&mut self) -> Result<(), String> {
        if let Self::Joining(direct, joining) = self {
            let direct = direct.clone();
            *self = match wait(joining).await {
                Ok(pair) => Self::Open(direct, Held(pair)),
                Err(error) => {
                    tracing::warn!(%error, "devices could not join: sets come over gRPC");
                    Self::Closed(error.to_string())
                }
            };
        }
        match self {
            Self::Closed(reason) => Err(reason.clone()),
            Self::Joining(..) | Self::Open(..) => Ok(()),
        }
    }

    async fn receive(&self, notice: Notice) -> Result<MemorySet, LandingError> {
        let Self::Open(direct, Held(pair)) = self else { return Err(FabricError::GivenUp.into()) };
        let (pair, patience) = (pair.clone(), direct.patience);
        let received = spawn_blocking(move || {
            let set = pair.receive(&codec::shape(&notice.set), patience)?;
            Ok((codec::encode_lists(&set), set))
        });
        let (lists, set) = wait(received).await?;
        notice.check(&lists)?;
        codec::validate(&set)?;
        Ok(set)
    }
}
