"""The connection and its calls."""
import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from . import wire
from .config import ClientOptions
from .errors import (
    REQUEST_ID, ClientError, ClosedError, error_of, is_away, is_unheard, pushback_s, unreadable,
)
from .events import Answer, ChoiceDone, Completion, Description, Summary, Token, Tokenized
from .fields import seconds
from .generation import Generation, Leg, Metadata, Running, cancels
from .options import GenerateOptions, Prompt
from .routes import Routes
from .standing import Patience
from .tracing import CallSpan
from .v1 import api_pb2 as api

T = TypeVar('T')
HEALTH = '/grpc.health.v1.Health/Check'
# How long the cancellation of a request that was left may take: a server that hangs does not
# keep its callers.
CANCEL_WITHIN_S = 2.0

SERVICE = api.DESCRIPTOR.services_by_name['Aqueduct']


def _path(method: str) -> str:
    return f'/{SERVICE.full_name}/{SERVICE.methods_by_name[method].name}'


class Client:
    """A connection to a coordinator, for one event loop and any number of its tasks:

        async with Client('http://127.0.0.1:7070') as client:
            async with await client.generate('Once upon a time') as events:
                async for event in events:
                    ...
    """

    def __init__(self, url: str, options: ClientOptions = ClientOptions()) -> None:
        """`http://host:port`, or `https://host:port` where `options.tls` is given. Of a group of
        coordinators as many as are known, separated by commas: the one that leads is asked,
        whoever that is, and looked for as long as a connection may take."""
        self._routes = Routes(url, options)
        self._options = options
        self._calls: set[asyncio.Task[Any]] = set()
        self._open: set[Running] = set()
        self._cancelling: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    async def connect(self) -> None:
        """Reaches the server, with as many tries as the options allow: `UnavailableError` says
        why it could not be reached. Calls connect by themselves, and again when they must."""
        await self._run(self._reached(self._call_until()))

    async def close(self) -> None:
        """Hangs up: what is under way is cancelled, here with `ClosedError` and on the server."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._hang_up())
        await asyncio.shield(self._closing)

    async def _hang_up(self) -> None:
        for running in list(self._open):
            running.leave(ClosedError('the client is closed'))
        while self._calls:
            for call in self._calls:
                call.cancel()
            await asyncio.wait(self._calls)
        # Each of them has a bound of its own; a start that was left adds one.
        while self._cancelling:
            await asyncio.wait(self._cancelling)
        await self._routes.close()

    async def generate(
        self, prompt: Prompt, options: GenerateOptions = GenerateOptions()
    ) -> Generation:
        """Prefills a prompt and generates from it. What the server refuses is raised here, later
        errors by the stream. A server that is busy, or has no worker yet, is asked again. A
        stream that is lost goes on where it was lost, unless the options say otherwise, and so
        does one whose beginning was lost: it is begun once."""
        return await self._run(self._generate(prompt, options))

    async def _generate(self, prompt: Prompt, options: GenerateOptions) -> Generation:
        message = wire.request(prompt, options)
        until = time.monotonic() + seconds('deadline_s', options.deadline_s)
        named: Metadata = ()
        if options.request_id is not None:
            named = ((REQUEST_ID, wire.caller_id(options.request_id)),)
        is_keyed = bool(message.idempotency_key)
        lost = Patience(self._options, until) if is_keyed else None
        span = CallSpan()
        named += span.metadata()

        async def attempt() -> Generation:
            await self._reached(until, lost if lost and lost.is_needed else None)
            leg = self._stream('Generate', message, until, named)
            begun = Generation.begun(self, leg, message.choices or 1, until, span)
            return await self._begun(begun, is_keyed)

        try:
            return await self._repeated(
                attempt, until, lambda status: not is_unheard(status), lost)
        except BaseException as error:
            span.end(error if isinstance(error, Exception) else None)
            raise

    async def _begun(self, work: Coroutine[Any, Any, Generation], is_keyed: bool) -> Generation:
        """A start; one that is left while it is made, and may be made, is cancelled."""
        beginning = asyncio.create_task(work)
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            if not is_keyed:  # its server takes the end of the connection for the same
                beginning.cancel()
            self._keep(self._unmade(beginning))
            raise

    async def _unmade(self, beginning: asyncio.Task[Generation]) -> None:
        # Only an answer says by what number the server knows the request.
        await asyncio.wait([beginning], timeout=CANCEL_WITHIN_S)
        beginning.cancel()
        begun, = await asyncio.gather(beginning, return_exceptions=True)
        if isinstance(begun, Generation):
            await begun.aclose()

    async def complete(
        self, prompt: Prompt, options: GenerateOptions = GenerateOptions()
    ) -> Answer:
        """The whole answer at once; as `generate` otherwise."""
        texts: dict[int, str] = {}
        thoughts: dict[int, str] = {}
        completions: dict[int, Completion] = {}
        async with await self.generate(prompt, options) as events:
            async for event in events:
                match event:
                    case Token():
                        texts[event.choice] = texts.get(event.choice, '') + event.text
                        thoughts[event.choice] = thoughts.get(event.choice, '') + event.reasoning
                    case ChoiceDone():
                        text = texts.get(event.choice, '') + event.text
                        thought = thoughts.get(event.choice, '') + event.reasoning
                        completions[event.choice] = Completion(text, event.reason, thought)
                    case Summary():
                        ended = tuple(completions[choice] for choice in sorted(completions))
                        return Answer(ended, event)
        raise unreadable('a stream without a summary')

    async def tokenize(self, prompt: Prompt) -> Tokenized:
        """Text or turns to token ids, token ids to text."""
        message = wire.tokenize_request(prompt)
        reply = await self._run(
            self._call('Tokenize', message, api.TokenizeReply, self._call_until()))
        return Tokenized(tuple(reply.ids), reply.text)

    async def describe(self) -> Description:
        """What is served, and by which workers."""
        message = api.DescribeRequest()
        reply = await self._run(
            self._call('Describe', message, api.DescribeReply, self._call_until()))
        return wire.description(reply)

    def resume(self, request: int, following: Sequence[int], until: float,
               named: Metadata) -> Leg:
        """The rest of an answer, for who has so many events of each completion."""
        message = api.ResumeRequest(request=request, next=following)
        return self._stream('Resume', message, until, named)

    def lost(self, leg: Leg, status: grpc.aio.AioRpcError) -> None:
        """A stream broke off; the next call asks another coordinator, if there is one."""
        self._routes.move(leg.url, status)

    def cancel(self, request: int) -> asyncio.Task[None]:
        """Ends a request that goes on without its caller; one that is not known has ended."""
        async def cancelled() -> None:
            until = time.monotonic() + CANCEL_WITHIN_S
            message = api.CancelRequest(request=request)
            with contextlib.suppress(ClientError):
                await self._call('Cancel', message, api.CancelReply, until)

        return self._keep(cancelled())

    def began(self, running: Running) -> None:
        """A request is to be left when the client closes."""
        self._open.add(running)

    def ended(self, running: Running) -> None:
        """It has ended, or was left."""
        self._open.discard(running)

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work of nobody else, for which `close` waits."""
        task = asyncio.create_task(work)
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)
        return task

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Work that the end of the client ends."""
        if self._closing:
            work.close()
            raise ClosedError('the client is closed')
        task = asyncio.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        before = cancels()
        try:
            return await task
        except asyncio.CancelledError:
            if self._closing and cancels() == before:
                raise ClosedError('the client is closed') from None
            raise

    def _call_until(self) -> float:
        return time.monotonic() + seconds('call_deadline_s', self._options.call_deadline_s)

    @property
    def options(self) -> ClientOptions:
        """How it connects."""
        return self._options

    def _stream(
        self, method: str, message: wire.M, until: float,
        named: Metadata,
    ) -> Leg:
        call: grpc.aio.UnaryStreamMultiCallable[wire.M, api.GenerateEvent]
        call = self._routes.channel().unary_stream(
            _path(method),
            request_serializer=type(message).SerializeToString,
            response_deserializer=api.GenerateEvent.FromString,
        )
        left_s = max(until - time.monotonic(), 0)
        metadata = (*self._metadata(), *named)
        begun = call(message, timeout=left_s, metadata=metadata)
        return Leg(self._routes.current, begun, named)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        key = self._options.api_key
        return () if key is None else (('authorization', f'Bearer {key}'),)

    async def _call(self, method: str, message: wire.M, reply: type[wire.N],
                    until: float) -> wire.N:
        """A call that changes nothing, however often it is made."""
        async def attempt() -> wire.N:
            channel = await self._reached(until)
            call: grpc.aio.UnaryUnaryMultiCallable[wire.M, wire.N] = channel.unary_unary(
                _path(method),
                request_serializer=type(message).SerializeToString,
                response_deserializer=reply.FromString,
            )
            left_s = max(until - time.monotonic(), 0)
            return await call(message, timeout=left_s, metadata=self._metadata())

        return await self._repeated(attempt, until, lambda status: True)

    async def _reached(self, until: float, lost: Patience | None = None) -> grpc.aio.Channel:
        """A channel with a connection. What could not be sent can always be sent again."""
        async def attempt() -> grpc.aio.Channel:
            channel = self._routes.channel()
            if channel.get_state() is grpc.ChannelConnectivity.READY:
                return channel
            check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                HEALTH, request_serializer=bytes, response_deserializer=bytes)
            try:
                await check(b'', timeout=max(until - time.monotonic(), 0))
            except grpc.aio.AioRpcError as status:
                # Any other answer is one: somebody is there.
                if status.code() in (grpc.StatusCode.UNAVAILABLE,
                                     grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise
            return channel

        return await self._repeated(attempt, until, lambda status: True, lost)

    async def _repeated(
        self, attempt: Callable[[], Awaitable[T]], until: float,
        is_safe: Callable[[grpc.aio.AioRpcError], bool], lost: Patience | None = None,
    ) -> T:
        """Tries while the server is busy and says when to come again, and while nobody is there,
        or another one leads, and another try can do no harm; what `lost` is about, because it
        counts once however often it is sent, also where nobody has answered."""
        delays_s = self._options.retry.delays_s()
        patience = min(until, self._call_until())
        while True:
            asked = self._routes.current
            try:
                return await attempt()
            except grpc.aio.AioRpcError as status:
                delay_s: float | None = None
                last = until
                if lost and is_unheard(status):
                    self._routes.move(asked, status)
                    delay_s = lost.pause_s()
                    patience = min(until, self._call_until())
                elif status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    delay_s = None if next(delays_s, None) is None else pushback_s(status)
                elif is_away(status) and is_safe(status):
                    delay_s, last = self._routes.move(asked, status), patience
                    if delay_s is None:
                        delay_s = next(delays_s, None)
                if delay_s is None or time.monotonic() + delay_s >= last:
                    raise error_of(status) from status
            await asyncio.sleep(delay_s)
