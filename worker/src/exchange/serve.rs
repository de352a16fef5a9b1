//! The holder's end of a stream: asks come in as frames, answers go out as they are ready.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::{Refusal, limits};
use aqueduct_proto::convert::call::{
    Arrival, Assembler, CallBlock, CallFrameError, CallHeader, Kind, split,
};
use aqueduct_proto::convert::pieces::Pieces;
use aqueduct_proto::v1::ExchangeFrame;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tonic::{Status, Streaming};

use super::bytes::Writer;
use super::codec::{self, Message};
use super::holder::{Holder, Tell};
use super::outbox::Outbox;
use super::{CallError, Reply};

/// How often an asker hears that its asks are known.
const NOTICE_EVERY: Duration = Duration::from_millis(limits::EXCHANGE_RETRY_MS / 4);

/// One stream of one asker. When it ends, nobody wants its answers any more.
pub(crate) struct Desk {
    holder: Arc<Holder>,
    incoming: Streaming<ExchangeFrame>,
    assembler: Assembler,
    /// Bytes of each ask that is not answered yet.
    open: BTreeMap<u64, u64>,
    tell: mpsc::Sender<Message>,
    told: mpsc::Receiver<Message>,
    /// What is left of the answer that is being sent.
    outbox: Outbox,
}

/// Makes the answer's bytes where it was computed, and leaves them at the desk.
struct Teller {
    ask: CallHeader,
    desk: mpsc::Sender<Message>,
}

impl Tell for Teller {
    fn tell(self: Box<Self>, reply: Result<Reply, CallError>) {
        let message = codec::reply_message(&self.ask, &reply).unwrap_or_else(|refusal| {
            no_answer(&self.ask, CallError::Refused(refusal.to_string()))
        });
        // There is a place for every open ask; a desk that is closed is told nothing.
        let _ = self.desk.try_send(message);
    }

    fn is_wanted(&self) -> bool {
        !self.desk.is_closed()
    }
}

/// Answers that wait to be sent before no more is read.
const OUTBOX_MAX: usize = 64;

/// What says why there is no answer to `ask`.
fn no_answer(ask: &CallHeader, why: CallError) -> Message {
    codec::error_message(ask.call, ask.block, &why)
}

impl Desk {
    /// Serves what `incoming` asks of `holder`.
    pub(crate) fn open(holder: Arc<Holder>, incoming: Streaming<ExchangeFrame>) -> Self {
        let (tell, told) = mpsc::channel(limits::EXCHANGE_CALLS_MAX);
        let assembler = Assembler::bounded(limits::EXCHANGE_BYTES_MAX);
        let (open, outbox) = (BTreeMap::new(), Outbox::default());
        Self { holder, incoming, assembler, open, tell, told, outbox }
    }

    /// Serves until either end closes the stream.
    pub(crate) async fn run(mut self, outgoing: mpsc::Sender<Result<ExchangeFrame, Status>>) {
        let mut notice = interval(NOTICE_EVERY);
        notice.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Goes out before the rest of an answer, however long that takes.
        let mut owes_notice = false;
        loop {
            tokio::select! {
                () = outgoing.closed() => return,
                permit = outgoing.reserve(), if owes_notice || !self.outbox.is_empty() => {
                    let Ok(permit) = permit else { return };
                    let notice = mem::take(&mut owes_notice).then(|| self.waiting()).flatten();
                    if let Some(frame) = notice.or_else(|| self.outbox.pop()) {
                        permit.send(Ok(frame));
                    }
                }
                Some(message) = self.told.recv(), if self.outbox.is_empty() => self.send(message),
                // Who asks what is refused and does not read that is not heard further.
                frame = self.incoming.message(), if self.outbox.len() < OUTBOX_MAX => {
                    let Ok(Some(frame)) = frame else { return };
                    if let Err(status) = self.accept(frame) {
                        tracing::warn!(%status, "a stream of asks cannot be used");
                        let _ = outgoing.send(Err(status)).await; // or is gone
                        return;
                    }
                }
                _ = notice.tick(), if !self.open.is_empty() => owes_notice = true,
            }
        }
    }

    /// Takes a frame; an error ends the stream, and the asker asks again by another.
    fn accept(&mut self, frame: ExchangeFrame) -> Result<(), Status> {
        match self.assembler.accept(frame) {
            Ok(Arrival { is_whole: false, .. }) => Ok(()),
            Ok(Arrival { header, payload, .. }) => {
                let payload = mem::take(payload);
                self.ask(header, payload);
                Ok(())
            }
            Err(CallFrameError::Refused { call, refusal }) => {
                let ask = CallHeader::new(call, Kind::Unspecified, CallBlock::NONE);
                self.refuse(&ask, CallError::Refused(refusal.to_string()));
                Ok(())
            }
            Err(error @ CallFrameError::Convention { .. }) => {
                Err(Status::failed_precondition(error.to_string()))
            }
            Err(error) => Err(Status::data_loss(error.to_string())),
        }
    }

    fn ask(&mut self, header: CallHeader, payload: Pieces) {
        if self.open.contains_key(&header.call) {
            return; // a duplicate; the answer is on its way
        }
        let ask = match codec::read_ask(&header, payload, self.holder.model()) {
            Ok(ask) => ask,
            Err(refusal) => return self.refuse(&header, CallError::Refused(refusal.to_string())),
        };
        if let Err(refusal) = self.room_for(header.bytes) {
            return self.refuse(&header, CallError::Lost(refusal.to_string()));
        }
        self.open.insert(header.call, header.bytes);
        let teller = Teller { ask: header, desk: self.tell.clone() };
        let deadline = Instant::now() + Duration::from_millis(header.deadline_ms);
        self.holder.ask(ask, deadline, Box::new(teller));
    }

    fn room_for(&self, bytes: u64) -> Result<(), Refusal> {
        let (calls, most) = (self.open.len() + 1, limits::EXCHANGE_CALLS_MAX);
        Refusal::unless_within("asks of one stream", calls, 1, most)?;
        let bytes = self.open.values().sum::<u64>() + bytes;
        Refusal::unless_within("asked_bytes", bytes, 0, limits::EXCHANGE_BYTES_MAX)?;
        Ok(())
    }

    fn refuse(&mut self, ask: &CallHeader, why: CallError) {
        tracing::warn!(call = ask.call, %why, "an ask cannot be answered");
        self.send(no_answer(ask, why));
    }

    /// Puts an answer behind what is being sent.
    fn send(&mut self, message: Message) {
        let header = message.0;
        self.open.remove(&header.call);
        if let Err(refusal) = self.outbox.push(message) {
            self.refuse(&header, CallError::Refused(refusal.to_string()));
        }
    }

    /// The frame that names the open asks.
    fn waiting(&self) -> Option<ExchangeFrame> {
        let mut writer = Writer::default();
        self.open.keys().for_each(|&call| writer.u64(call));
        let header = CallHeader::new(0, Kind::Waiting, CallBlock::NONE);
        let items = self.open.len() as u32;
        let (header, payload) = writer.finish(CallHeader { items, ..header });
        split(&header, payload).ok()?.next()
    }
}
