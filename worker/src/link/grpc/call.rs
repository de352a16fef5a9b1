//! A `HandOff` call as its sender sees it: frames go, and each has one answer, in their order.

use std::time::Duration;

use aqueduct_core::error::described;
use aqueduct_core::limits;
use aqueduct_proto::FINGERPRINT_METADATA;
use aqueduct_proto::v1::hand_off_ack::Verdict;
use aqueduct_proto::v1::worker_client::WorkerClient;
use aqueduct_proto::v1::{HandOffAck, HandOffFrame};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::link::Remote;
use crate::link::nccl::{Bond, Direct};

/// How long the answer to a call may take.
const PATIENCE: Duration = Duration::from_millis(limits::CONNECT_DEADLINE_MS);
/// How long a connection may take.
const REACH: Duration = Duration::from_millis(limits::PEER_REACH_MS);

/// An open call.
pub(crate) struct Call {
    frames: mpsc::Sender<HandOffFrame>,
    answers: Streaming<HandOffAck>,
}

impl Call {
    /// Calls `peer`, and says what the devices at both ends are to each other.
    pub(super) async fn open(
        peer: &Remote,
        fingerprint: &str,
        direct: Option<&Direct>,
    ) -> Result<(Self, Bond), String> {
        let mut client = WorkerClient::new(connect(peer).await?)
            .max_decoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX);
        let (frames, outgoing) = mpsc::channel(limits::LINK_WINDOW_FRAMES);
        let mut request = tonic::Request::new(ReceiverStream::new(outgoing));
        let fingerprint = fingerprint.parse().map_err(|_| "fingerprint is not ASCII".to_owned())?;
        request.metadata_mut().insert(FINGERPRINT_METADATA, fingerprint);
        if let Some(direct) = direct {
            direct.offer(request.metadata_mut());
        }
        let call = timeout(PATIENCE, client.hand_off(request)).await;
        let response = call.map_err(|_| "no answer to the call".to_owned())?;
        let response = response.map_err(|status| described(&status))?;
        let bond = direct.map_or(Bond::Apart, |direct| direct.answered(response.metadata()));
        Ok((Self { frames, answers: response.into_inner() }, bond))
    }

    /// Whether the peer has ended it, though nothing was said meanwhile.
    pub(super) fn is_over(&self) -> bool {
        self.frames.is_closed()
    }

    /// Sends a set's frames, a window at a time, and returns the first verdict that is not OK,
    /// or OK when all are taken.
    pub(super) async fn send_set(
        &mut self,
        frames: &[HandOffFrame],
    ) -> Result<(Verdict, String), String> {
        let (mut sent, mut acked) = (0, 0);
        let mut worst = None;
        loop {
            while worst.is_none()
                && sent < frames.len()
                && sent - acked < limits::LINK_WINDOW_FRAMES
            {
                self.send(frames[sent].clone()).await?;
                sent += 1;
            }
            if acked == sent {
                return Ok(worst.unwrap_or((Verdict::Ok, String::new())));
            }
            let answer = self.answer().await?;
            acked += 1;
            if answer.0 != Verdict::Ok && worst.is_none() {
                worst = Some(answer);
            }
        }
    }

    /// Sends one frame.
    pub(crate) async fn send(&self, frame: HandOffFrame) -> Result<(), String> {
        self.frames.send(frame).await.map_err(|_| "the stream ended".to_owned())
    }

    /// Waits for the next answer.
    pub(crate) async fn answer(&mut self) -> Result<(Verdict, String), String> {
        let ack = self.answers.message().await.map_err(|status| described(&status))?;
        let ack = ack.ok_or("the peer ended the stream")?;
        Ok((ack.verdict(), ack.message))
    }
}

/// A connection to `peer`.
pub(crate) async fn connect(Remote { peer, tls }: &Remote) -> Result<Channel, String> {
    aqueduct_tls::scheme_of("peer", &peer.0, tls.is_some()).map_err(|error| error.to_string())?;
    let endpoint = Endpoint::from_shared(peer.0.clone())
        .map_err(|error| error.to_string())?
        .connect_timeout(REACH)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_millis(limits::PING_INTERVAL_MS))
        .keep_alive_timeout(Duration::from_millis(limits::PING_TIMEOUT_MS))
        .max_frame_size(limits::HTTP2_FRAME_BYTES_MAX)
        .initial_stream_window_size(limits::HTTP2_WINDOW_BYTES)
        .initial_connection_window_size(limits::HTTP2_WINDOW_BYTES);
    let connected = aqueduct_tls::connect(&endpoint, tls.as_ref()).await;
    connected.map_err(|error| described(&error))
}
