"""The connection and its calls."""
import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import grpc

from . import wire
from .config import ClientOptions
from .errors import (
    REQUEST_ID, ClientError, UnavailableError, error_of, is_unheard, pushback_s, unreadable,
)
from .events import Answer, ChoiceDone, Completion, Description, Summary, Token, Tokenized
from .generation import Generation, Leg, Metadata, Patience
from .options import GenerateOptions, Prompt
from .routes import Routes
from .tracing import CallSpan
from .v1 import api_pb2 as api

T = TypeVar('T')
HEALTH = '/grpc.health.v1.Health/Check'


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
        self._cancelling: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    async def connect(self) -> None:
        """Reaches the server, with as many tries as the options allow: `UnavailableError` says
        why it could not be reached. Calls connect by themselves, and again when they must."""
        await self._reached(time.monotonic() + self._options.call_deadline_s)

    async def close(self) -> None:
        """Hangs up: what is under way is cancelled."""
        if self._cancelling:
            await asyncio.wait(self._cancelling, timeout=self._options.call_deadline_s)
        await self._routes.close()

    async def generate(
        self, prompt: Prompt, options: GenerateOptions = GenerateOptions()
    ) -> Generation:
        """Prefills a prompt and generates from it. What the server refuses is raised here, later
        errors by the stream. A server that is busy, or has no worker yet, is asked again. A
        stream that is lost goes on where it was lost, unless the options say otherwise, and so
        does one whose beginning was lost: it is begun once."""
        until = time.monotonic() + options.deadline_s
        message = wire.request(prompt, options)
        span = CallSpan()
        named = span.metadata()
        if options.request_id is not None:
            named += ((REQUEST_ID, options.request_id),)
        is_keyed = bool(message.idempotency_key)
        lost = Patience(self._options.resume_within_s, until) if is_keyed else None

        async def attempt() -> Generation:
            await self._reached(until, lost if lost and lost.is_needed else None)
            leg = self._stream('Generate', message, until, named)
            return await Generation.begun(self, leg, options.choices or 1, until, span)

        try:
            return await self._repeated(
                attempt, until, lambda status: not is_unheard(status), lost)
        except BaseException as error:
            span.end(error if isinstance(error, Exception) else None)
            raise

    async def complete(
        self, prompt: Prompt, options: GenerateOptions = GenerateOptions()
    ) -> Answer:
        """The whole answer at once; as `generate` otherwise."""
        texts: dict[int, str] = {}
        completions: dict[int, Completion] = {}
        async with await self.generate(prompt, options) as events:
            async for event in events:
                match event:
                    case Token():
                        texts[event.choice] = texts.get(event.choice, '') + event.text
                    case ChoiceDone():
                        text = texts.get(event.choice, '') + event.text
                        completions[event.choice] = Completion(text, event.reason)
                    case Summary():
                        ended = tuple(completions[choice] for choice in sorted(completions))
                        return Answer(ended, event)
        raise unreadable('a stream without a summary')

    async def tokenize(self, prompt: Prompt) -> Tokenized:
        """Text or turns to token ids, token ids to text."""
        message = wire.tokenize_request(prompt)
        reply = await self._call(_path('Tokenize'), message, api.TokenizeReply)
        return Tokenized(tuple(reply.ids), reply.text)

    async def describe(self) -> Description:
        """What is served, and by which workers."""
        message = api.DescribeRequest()
        reply = await self._call(_path('Describe'), message, api.DescribeReply)
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
            with contextlib.suppress(ClientError):
                await self._call(_path('Cancel'), api.CancelRequest(request=request),
                                 api.CancelReply)

        task = asyncio.create_task(cancelled())
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)
        return task

    @property
    def options(self) -> ClientOptions:
        """How it connects."""
        return self._options

    def _stream(
        self, method: str, message: wire.M, until: float,
        named: Metadata,
    ) -> Leg:
        if not self._routes.is_open:
            raise UnavailableError('the client is closed')
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

    async def _call(self, path: str, message: wire.M, reply: type[wire.N]) -> wire.N:
        """A call that changes nothing, however often it is made."""
        until = time.monotonic() + self._options.call_deadline_s

        async def attempt() -> wire.N:
            channel = await self._reached(until)
            method: grpc.aio.UnaryUnaryMultiCallable[wire.M, wire.N] = channel.unary_unary(
                path,
                request_serializer=type(message).SerializeToString,
                response_deserializer=reply.FromString,
            )
            left_s = max(until - time.monotonic(), 0)
            return await method(message, timeout=left_s, metadata=self._metadata())

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
        patience = min(until, time.monotonic() + self._options.call_deadline_s)
        while True:
            asked = self._routes.current
            try:
                return await attempt()
            except grpc.aio.AioRpcError as status:
                delay_s: float | None = None
                last = until
                if status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    delay_s = None if next(delays_s, None) is None else pushback_s(status)
                elif lost and is_unheard(status):
                    self._routes.move(asked, status)
                    delay_s = lost.pause_s()
                elif status.code() is grpc.StatusCode.UNAVAILABLE and is_safe(status):
                    delay_s, last = self._routes.move(asked, status), patience
                    if delay_s is None:
                        delay_s = next(delays_s, None)
                if delay_s is None or time.monotonic() + delay_s >= last:
                    raise error_of(status) from status
            await asyncio.sleep(delay_s)
