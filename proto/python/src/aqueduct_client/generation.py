"""The events of one request, over as many connections as it takes."""
import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import grpc

from . import wire
from .config import ClientOptions
from .errors import REQUEST_ID, UnavailableError, error_of, gone, is_lost, said, unreadable
from .events import Accepted, ChoiceDone, Escalated, GenerateEvent, Summary, Token
from .v1 import api_pb2 as api

# Metadata by which a server says by what number a request can be come back to.
ANSWER_ID = 'aqueduct-request'
# Before a lost stream is asked for again; twice as long each time, up to the longest pause.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0

Call = grpc.aio.UnaryStreamCall[Any, api.GenerateEvent]


class Connection(Protocol):
    """What a stream needs of its client."""

    @property
    def options(self) -> ClientOptions: ...

    def resume(self, request: int, following: Sequence[int], until: float) -> Call: ...

    def cancel(self, request: int) -> asyncio.Task[None]: ...


class Standing:
    """What a caller has of an answer that it can come back to."""

    def __init__(self, request: int, choices: int) -> None:
        self.request = request
        self.following = [0] * choices
        """Of each completion, its tokens and its end."""
        self.lost_at: float | None = None
        """Since when nothing new has come, if the stream was lost meanwhile."""
        self.pause_s = FIRST_PAUSE_S
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
            self.lost_at, self.pause_s = None, FIRST_PAUSE_S
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

    def __init__(self, client: Connection, call: Call, standing: Standing | None,
                 until: float) -> None:
        self._client = client
        self._call = call
        self._standing = standing
        self._until = until
        self._next: GenerateEvent | None = None
        self._is_over = False
        self._was_lost = False
        self.accepted: Accepted
        """The first event, which comes with the others too."""
        self.request_id = ''
        """By which the server's log knows the request: the caller's own, or a new one."""

    @classmethod
    async def begun(cls, client: Connection, call: Call, choices: int, until: float) -> Self:
        """Waits until the server has accepted a request."""
        event = await _read(call)
        if not isinstance(event, Accepted):
            raise unreadable(f'a stream that begins with {event}')
        metadata = await call.initial_metadata()
        request = said(metadata, ANSWER_ID)
        standing = Standing(int(request), choices) if request.isdecimal() else None
        begun = cls(client, call, standing, until)
        begun.accepted, begun.request_id = event, said(metadata, REQUEST_ID)
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
        self._is_over = self._is_over or isinstance(event, Summary)
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
        except Exception:
            self._is_over = True
            raise

    async def _new_event(self) -> GenerateEvent:
        while True:
            try:
                event = await _read(self._call)
            except grpc.aio.AioRpcError as status:
                await self._come_back(status)
                continue
            if self._standing is None or self._standing.takes(event):
                return event

    async def _come_back(self, status: grpc.aio.AioRpcError) -> None:
        """Asks for the rest of a stream that was lost."""
        standing, now = self._standing, time.monotonic()
        if standing is None or not is_lost(status):
            raise (gone if self._was_lost else error_of)(status) from status
        self._was_lost = True
        standing.lost_at = standing.lost_at or now
        give_up_at = min(self._until, standing.lost_at + self._client.options.resume_within_s)
        if now + standing.pause_s >= give_up_at:
            raise error_of(status) from status
        await asyncio.sleep(standing.pause_s)
        standing.pause_s = min(2 * standing.pause_s, LONGEST_PAUSE_S)
        standing.escalations_here = 0
        self._call = self._client.resume(standing.request, standing.following, self._until)

    def _leave(self) -> asyncio.Task[None] | None:
        was_over, self._is_over, self._next = self._is_over, True, None
        self._call.cancel()
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
