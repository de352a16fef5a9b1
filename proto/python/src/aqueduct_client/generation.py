"""The events of one request, over as many connections as it takes."""
import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import grpc

from . import wire
from .config import ClientOptions
from .errors import REQUEST_ID, UnavailableError, error_of, gone, is_lost, said, unreadable
from .events import Accepted, ChoiceDone, Escalated, GenerateEvent, Summary, Token
from .tracing import CallSpan
from .v1 import api_pb2 as api

# Metadata by which a server says by what number a request can be come back to.
ANSWER_ID = 'aqueduct-request'
# Before a lost stream is asked for again; twice as long each time, up to the longest pause.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0

Call = grpc.aio.UnaryStreamCall[Any, api.GenerateEvent]
Metadata = tuple[tuple[str, str], ...]


class Leg(NamedTuple):
    """One connection's part of a stream, and who tells it."""

    url: str
    call: Call
    named: Metadata
    """What was sent with it."""


class Connection(Protocol):
    """What a stream needs of its client."""

    @property
    def options(self) -> ClientOptions: ...

    def resume(self, request: int, following: Sequence[int], until: float,
               named: Metadata) -> Leg: ...

    def lost(self, leg: Leg, status: grpc.aio.AioRpcError) -> None: ...

    def cancel(self, request: int) -> asyncio.Task[None]: ...


class Patience:
    """How often, and for how long, what was lost is asked for again."""

    def __init__(self, within_s: float, until: float) -> None:
        self._within_s = within_s
        self._until = until
        self._lost_at: float | None = None
        self._pause_s = FIRST_PAUSE_S

    @property
    def is_needed(self) -> bool:
        """Whether something was lost, and nothing new has come since."""
        return self._lost_at is not None

    def renew(self) -> None:
        """Something new has come."""
        self._lost_at, self._pause_s = None, FIRST_PAUSE_S

    def pause_s(self) -> float | None:
        """How soon to ask again; `None` where it is time to give up."""
        now, pause_s = time.monotonic(), self._pause_s
        self._lost_at = self._lost_at or now
        self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        give_up_at = min(self._until, self._lost_at + self._within_s)
        return pause_s if now + pause_s < give_up_at else None


class Standing:
    """What a caller has of an answer that it can come back to."""

    def __init__(self, request: int, choices: int, patience: Patience) -> None:
        self.request = request
        self.following = [0] * choices
        """Of each completion, its tokens and its end."""
        self.patience = patience
        """With a loss behind which nothing new has come yet."""
        self.is_accepted = False
        self.escalations = 0
        self.escalations_here = 0
        """Of these, how many this connection has told."""

    def takes(self, event: GenerateEvent) -> bool:
        """Whether an event is new; then it is no more."""
        is_new = self._is_new(event)
        self.is_accepted = True
        self.escalations = max(self.escalations, self.escalations_here)
        if is_new:
            self.patience.renew()
        return is_new

    def _is_new(self, event: GenerateEvent) -> bool:
        match event:
            case Accepted():
                return not self.is_accepted
            case Escalated():
                self.escalations_here += 1
                return self.escalations_here > self.escalations
            case Token():
                return self._takes_one(event.choice, event.token_idx)
            case ChoiceDone():
                return self._takes_one(event.choice, event.tokens)
        return True

    def _takes_one(self, choice: int, idx: int) -> bool:
        if choice >= len(self.following):
            return True  # one that nobody asked for is for the caller to see
        is_new = self.following[choice] == idx
        self.following[choice] += is_new
        return is_new


class Generation(AsyncIterator[GenerateEvent]):
    """The events of one request; ends after the summary. Leaving its `async with`, `aclose`, or
    the cancellation of the task that waits for an event, cancels the request on every worker."""

    def __init__(self, client: Connection, leg: Leg, standing: Standing | None,
                 until: float, span: CallSpan) -> None:
        self._client = client
        self._leg = leg
        self._standing = standing
        self._until = until
        self._next: GenerateEvent | None = None
        self._is_over = False
        self._was_lost = False
        self._span = span
        self.accepted: Accepted
        """The first event, which comes with the others too."""
        self.request_id = ''
        """By which the server's log knows the request: the caller's own, or a new one."""

    @classmethod
    async def begun(cls, client: Connection, leg: Leg, choices: int, until: float,
                    span: CallSpan) -> Self:
        """Waits until the server has accepted a request."""
        event = await _read(leg.call)
        if not isinstance(event, Accepted):
            raise unreadable(f'a stream that begins with {event}')
        metadata = await leg.call.initial_metadata()
        request = said(metadata, ANSWER_ID)
        patience = Patience(client.options.resume_within_s, until)
        standing = Standing(int(request), choices, patience) if request.isdecimal() else None
        begun = cls(client, leg, standing, until, span)
        begun.accepted, begun.request_id = event, said(metadata, REQUEST_ID)
        span.begun(begun.request_id)
        begun._next = event
        if standing:
            standing.takes(event)
        return begun

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.aclose()

    async def __anext__(self) -> GenerateEvent:
        event, self._next = self._next, None
        if event is None:
            event = await self._event()
        if isinstance(event, Summary):
            self._end()
        return event

    async def _event(self) -> GenerateEvent:
        if self._is_over:
            raise StopAsyncIteration
        try:
            return await self._new_event()
        except asyncio.CancelledError:
            if self._is_over:  # by `aclose`, in another task
                raise StopAsyncIteration from None
            self._leave()
            raise
        except Exception as error:
            self._end(error)
            raise

    async def _new_event(self) -> GenerateEvent:
        while True:
            try:
                event = await _read(self._leg.call)
            except grpc.aio.AioRpcError as status:
                await self._come_back(status)
                continue
            if self._standing is None or self._standing.takes(event):
                return event

    async def _come_back(self, status: grpc.aio.AioRpcError) -> None:
        """Asks for the rest of a stream that was lost."""
        standing = self._standing
        if standing is None or not is_lost(status):
            raise (gone if self._was_lost else error_of)(status) from status
        self._was_lost = True
        pause_s = standing.patience.pause_s()
        if pause_s is None:
            raise error_of(status) from status
        self._client.lost(self._leg, status)
        await asyncio.sleep(pause_s)
        standing.escalations_here = 0
        self._leg = self._client.resume(
            standing.request, standing.following, self._until, self._leg.named)

    def _end(self, error: Exception | None = None) -> None:
        self._is_over = True
        self._span.end(error)

    def _leave(self) -> asyncio.Task[None] | None:
        was_over, self._next = self._is_over, None
        self._end()
        self._leg.call.cancel()
        # Without a word it would go on for a while, for who may come back.
        standing = self._standing
        return self._client.cancel(standing.request) if standing and not was_over else None

    async def aclose(self) -> None:
        """Cancels the request, unless it has ended."""
        cancelling = self._leave()
        if cancelling:
            await cancelling


async def _read(call: Call) -> GenerateEvent:
    message = await call.read()
    if isinstance(message, api.GenerateEvent):
        return wire.event(message)
    raise UnavailableError('the stream ended without a summary')
