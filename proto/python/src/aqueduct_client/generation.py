"""The events of one request, over as many connections as it takes."""
import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import grpc

from . import wire
from .config import ClientOptions
from .errors import (
    REQUEST_ID, ClosedError, ServerFailureError, ended_early, error_of, gone, is_lost, said,
    unreadable,
)
from .events import Accepted, GenerateEvent, Summary
from .standing import Patience, Standing
from .tracing import CallSpan
from .v1 import api_pb2 as api

# Metadata by which a server says by what number a request can be come back to.
ANSWER_ID = 'aqueduct-request'

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

    def began(self, running: 'Running') -> None: ...

    def ended(self, running: 'Running') -> None: ...


class Running:
    """A request that goes on at a server, until it has ended or is left, which cancels it there,
    once. Its client holds it, whoever else does: what collects a stream and its client at once
    may end them in any order, and in any thread. All of this is the loop's to call."""

    def __init__(self, client: Connection, leg: Leg, request: int | None, span: CallSpan) -> None:
        self._client = client
        self.leg = leg
        """The connection that tells it now."""
        self._request = request
        self._span = span
        self.over = asyncio.Event()
        self.failure: Exception | None = None
        """What whoever reads on gets, in place of the end of the events."""
        client.began(self)

    def end(self, failure: Exception | None = None) -> None:
        """It is over."""
        self.failure = failure
        self.over.set()
        self._span.end(failure)
        self._client.ended(self)

    def leave(self, failure: Exception | None = None) -> asyncio.Task[None] | None:
        """Begins to cancel it, unless it has ended. Whoever reads on gets `failure`, or the end
        of the events."""
        if self.over.is_set():
            return None
        self._span.end()
        self.end(failure)
        self.leg.call.cancel()
        # Without a word it would go on for a while, for who may come back.
        return None if self._request is None else self._client.cancel(self._request)


class Generation(AsyncIterator[GenerateEvent]):
    """The events of one request; ends after the summary. Leaving its `async with`, `aclose`, the
    cancellation of a task that waits for an event, or the loss of the last reference to it,
    cancels the request on every worker. Tasks that read it together share its events."""

    def __init__(self, client: Connection, leg: Leg, standing: Standing, until: float,
                 span: CallSpan) -> None:
        self._running = Running(client, leg, standing.request, span)
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._standing = standing
        self._until = until
        self._span = span
        self._reading = asyncio.Lock()
        self._next: GenerateEvent | None = None
        self._was_lost = False
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
        number = said(metadata, ANSWER_ID)
        request = int(number) if number.isdecimal() else None
        standing = Standing(request, choices, Patience(client.options, until))
        begun = cls(client, leg, standing, until, span)
        begun.accepted, begun.request_id = event, said(metadata, REQUEST_ID)
        span.begun(begun.request_id)
        begun._next = event
        standing.takes(event)
        return begun

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._running.over.is_set():
            return
        self._span.end()
        # Any thread may collect this; the calls are the loop's. A loop that is closed has none.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._running.leave)

    async def __anext__(self) -> GenerateEvent:
        before = cancels()
        try:
            async with self._reading:
                return await self._event()
        except asyncio.CancelledError:
            if self._running.over.is_set() and cancels() == before:
                # It was another task that left it.
                raise self._end_of_events() from None
            self._running.leave(
                ClosedError('the stream was left: a task that read it was cancelled'))
            raise

    async def _event(self) -> GenerateEvent:
        if self._running.over.is_set():
            raise self._end_of_events()
        event, self._next = self._next, None
        try:
            event = event or await self._new_event()
        except Exception as error:
            self._fail(error)
            raise
        if isinstance(event, Summary):
            self._running.end()
        return event

    def _end_of_events(self) -> Exception:
        return self._running.failure or StopAsyncIteration()

    async def _new_event(self) -> GenerateEvent:
        while True:
            try:
                event = await _read(self._running.leg.call)
            except grpc.aio.AioRpcError as status:
                await self._come_back(status)
                continue
            if self._standing.takes(event):
                return event

    async def _come_back(self, status: grpc.aio.AioRpcError) -> None:
        """Asks for the rest of a stream that was lost."""
        standing = self._standing
        if standing.request is None or not is_lost(status):
            raise (gone if self._was_lost else error_of)(status) from status
        self._was_lost = True
        pause_s = standing.patience.pause_s()
        if pause_s is None:
            raise error_of(status) from status
        self._client.lost(self._running.leg, status)
        await self._sleep(pause_s)
        standing.escalations_here = 0
        self._running.leg = self._client.resume(
            standing.request, standing.following, self._until, self._running.leg.named)

    async def _sleep(self, pause_s: float) -> None:
        """Until it is time, or it was left."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._running.over.wait(), pause_s)
            raise asyncio.CancelledError

    def _fail(self, error: Exception) -> None:
        # A server whose answer cannot be read goes on with it otherwise.
        if isinstance(error, ServerFailureError):
            self._span.end(error)
            self._running.leave(error)
        elif not self._running.over.is_set():
            self._running.end(error)

    async def aclose(self) -> None:
        """Cancels the request, unless it has ended."""
        cancelling = self._running.leave()
        if cancelling:
            await asyncio.shield(cancelling)


def cancels() -> int:
    """How often the task that runs was cancelled."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


async def _read(call: Call) -> GenerateEvent:
    while True:
        message = await call.read()
        if message is None:  # gRPC's word for bytes that it could not read
            raise unreadable('a message that is no event')
        if not isinstance(message, api.GenerateEvent):
            raise ended_early()
        event = wire.event(message)
        if event is not None:
            return event
