//! One stream to a holder: every call that is pending goes out by it, answers come back.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::error::described;
use aqueduct_core::limits;
use aqueduct_proto::FINGERPRINT_METADATA;
use aqueduct_proto::convert::call::{Assembler, CallFrameError, Kind};
use aqueduct_proto::convert::pieces::Pieces;
use aqueduct_proto::v1::ExchangeFrame;
use aqueduct_proto::v1::worker_client::WorkerClient;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::Desk;
use crate::exchange::codec::{self, Answers};
use crate::exchange::outbox::Outbox;
use crate::exchange::{Ask, Call, CallError};
use crate::link::Remote;
use crate::link::grpc::connect;

/// A stream that nothing was asked over for this long is closed, and then so is its link.
pub(super) const IDLE: Duration = Duration::from_secs(60);
/// How long the answer to opening a stream may take.
const OPENING: Duration = Duration::from_millis(limits::CONNECT_DEADLINE_MS);

/// Why a stream is over.
pub(super) enum Ended {
    /// Nothing was asked for long.
    Idle,
    /// Another may do better.
    Broken(String),
    /// So may another with more patience.
    Silent(String),
    /// The peer is of another kind; another stream would end alike.
    Unfit(String),
}

/// An open stream.
pub(super) struct Session {
    outgoing: mpsc::Sender<ExchangeFrame>,
    incoming: Streaming<ExchangeFrame>,
    assembler: Assembler,
    answers: Answers,
    /// How long a call may be without a sign.
    patience: Duration,
    /// Calls that did not go out yet.
    unsent: VecDeque<u64>,
    /// What is left of the call that is going out.
    outbox: Outbox,
    has_answers: bool,
}

impl Session {
    /// Calls `peer`.
    pub(super) async fn open(
        peer: &Remote,
        fingerprint: &str,
        patience: Duration,
    ) -> Result<Self, Ended> {
        let channel = connect(peer).await.map_err(Ended::Broken)?;
        let mut client = WorkerClient::new(channel)
            .max_decoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX);
        let (outgoing, frames) = mpsc::channel(limits::EXCHANGE_WINDOW_FRAMES);
        let mut request = tonic::Request::new(ReceiverStream::new(frames));
        let fingerprint =
            fingerprint.parse().map_err(|_| Ended::Unfit("fingerprint is not ASCII".to_owned()))?;
        request.metadata_mut().insert(FINGERPRINT_METADATA, fingerprint);
        let answer = timeout(OPENING, client.exchange(request)).await;
        let answer = answer.map_err(|_| Ended::Broken("no answer to the call".to_owned()))?;
        Ok(Self {
            outgoing,
            incoming: answer.map_err(|status| ended(&status))?.into_inner(),
            assembler: Assembler::bounded(limits::EXCHANGE_BYTES_MAX),
            answers: Answers::default(),
            patience,
            unsent: VecDeque::new(),
            outbox: Outbox::default(),
            has_answers: false,
        })
    }

    /// Whether anything was answered.
    pub(super) fn has_answers(&self) -> bool {
        self.has_answers
    }

    /// Carries the calls of `desk` until the stream is over.
    pub(super) async fn run(&mut self, desk: &mut Desk) -> Ended {
        let now = Instant::now();
        self.unsent.extend(desk.pending.iter_mut().map(|(&id, one)| {
            one.seen = now;
            id
        }));
        loop {
            if let Err(ended) = self.step(desk).await {
                return ended;
            }
        }
    }

    async fn step(&mut self, desk: &mut Desk) -> Result<(), Ended> {
        while self.outbox.is_empty() && self.encode_next(desk).await {}
        let wake = desk.next_deadline().into_iter().chain(self.overdue_at(desk)).min();
        let wake = wake.unwrap_or_else(|| Instant::now() + IDLE);
        let outgoing = self.outgoing.clone(); // what waits for room borrows it
        tokio::select! {
            frame = self.incoming.message() => match frame {
                Ok(Some(frame)) => self.accept(desk, frame)?,
                Ok(None) => return Err(Ended::Broken("the peer ended the stream".to_owned())),
                Err(status) => return Err(ended(&status)),
            },
            permit = outgoing.reserve(), if !self.outbox.is_empty() => {
                let (Ok(permit), Some(frame)) = (permit, self.outbox.pop()) else {
                    return Err(Ended::Broken("the stream ended".to_owned()));
                };
                permit.send(frame);
            }
            Some(call) = desk.queue.recv() => self.unsent.push_back(desk.take(call)),
            () = sleep_until(wake.into()) => return self.look_after(desk),
        }
        Ok(())
    }

    /// Takes care of what is late.
    fn look_after(&self, desk: &mut Desk) -> Result<(), Ended> {
        if desk.pending.is_empty() {
            return Err(Ended::Idle);
        }
        desk.expire("no answer");
        match self.overdue_at(desk) {
            Some(at) if at <= Instant::now() => {
                Err(Ended::Silent(format!("no sign of a call for {:?}", self.patience)))
            }
            _ => Ok(()),
        }
    }

    /// When the first call that went out will have been without a sign for too long.
    fn overdue_at(&self, desk: &Desk) -> Option<Instant> {
        let is_out = |id: &u64| !self.unsent.contains(id);
        let out = desk.pending.iter().filter(|(id, _)| is_out(id));
        Some(out.map(|(_, one)| one.seen).min()? + self.patience)
    }

    /// Makes frames of the next call; `false` when there is none.
    async fn encode_next(&mut self, desk: &mut Desk) -> bool {
        let Some(id) = self.unsent.pop_front() else { return false };
        let Some(one) = desk.pending.get_mut(&id) else { return true }; // it was given up
        match encode(one.call.clone()).await {
            Ok(message) => {
                one.bytes.0 += message.0.bytes;
                one.seen = Instant::now();
                if let Err(refusal) = self.outbox.push(message) {
                    desk.answer(id, Err(CallError::Refused(refusal.to_string())));
                }
            }
            Err(error) => desk.answer(id, Err(error)),
        }
        true
    }

    fn accept(&mut self, desk: &mut Desk, frame: ExchangeFrame) -> Result<(), Ended> {
        let (bytes, now) = (frame.payload.len() as u64, Instant::now());
        let arrival = match self.assembler.accept(frame) {
            Ok(arrival) => arrival,
            // The holder's own answer cannot be used: asking again would bring the same.
            Err(CallFrameError::Refused { call, refusal }) => {
                desk.answer(call, Err(CallError::Refused(refusal.to_string())));
                return Ok(());
            }
            Err(error @ CallFrameError::Convention { .. }) => {
                return Err(Ended::Unfit(error.to_string()));
            }
            Err(error) => return Err(Ended::Broken(error.to_string())),
        };
        let id = arrival.header.call;
        if arrival.header.kind == Kind::Waiting {
            let known = codec::read_waiting(&arrival.header, mem::take(arrival.payload))
                .map_err(|refusal| Ended::Broken(refusal.to_string()))?;
            for id in known {
                desk.pending.entry(id).and_modify(|one| one.seen = now);
            }
            return Ok(());
        }
        let Some(one) = desk.pending.get_mut(&id) else {
            *arrival.payload = Pieces::default(); // a late answer, or the same a second time
            return Ok(());
        };
        one.bytes.1 += bytes;
        one.seen = now;
        let reply = self.answers.read(&one.call, arrival);
        let reply = reply.map_err(|refusal| CallError::Refused(refusal.to_string()));
        if let Some(reply) = reply.unwrap_or_else(|refused| Some(Err(refused))) {
            self.has_answers = true;
            desk.answer(id, reply);
        }
        Ok(())
    }
}

/// The call's message. Queries may still be on a device, which may be slow, or lost.
async fn encode(call: Arc<Call>) -> Result<codec::Message, CallError> {
    let is_here = !matches!(&call.ask, Ask::Attend { q, .. } if q.data.on_host().is_none());
    let encoded = if is_here {
        codec::ask_message(&call, Instant::now())
    } else {
        let left = call.deadline.saturating_duration_since(Instant::now());
        let encode = spawn_blocking(move || codec::ask_message(&call, Instant::now()));
        let lost = |what: String| CallError::Lost(format!("the queries: {what}"));
        let encoded = timeout(left, encode).await.map_err(|error| lost(error.to_string()))?;
        encoded.map_err(|error| lost(error.to_string()))?
    };
    encoded.map_err(|refusal| CallError::Refused(refusal.to_string()))
}

fn ended(status: &Status) -> Ended {
    match status.code() {
        Code::FailedPrecondition | Code::Unimplemented => Ended::Unfit(status.message().to_owned()),
        _ => Ended::Broken(described(status)),
    }
}
