"""The connection and its calls."""
import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import grpc

from . import wire
from .config import ClientOptions, target_of
from .errors import (
    REQUEST_ID, ClientError, UnavailableError, error_of, pushback_s, said, unreadable,
)
from .events import Answer, ChoiceDone, Completion, Description, Summary, Token, Tokenized
from .generation import Call, Generation
from .options import GenerateOptions, Prompt
from .v1 import api_pb2 as api

T = TypeVar('T')
MESSAGE_BYTES_MAX = 256 << 20
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
        """`http://host:port`, or `https://host:port` where `options.tls` is given."""
        self._target = target_of(url, options)
        self._options = options
        self._channel: grpc.aio.Channel | None = None
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
        channel, self._channel = self._channel, None
        if channel:
            await channel.close(None)

    async def generate(
        self, prompt: Prompt, options: GenerateOptions = GenerateOptions()
    ) -> Generation:
        """Prefills a prompt and generates from it. What the server refuses is raised here, later
        errors by the stream. A server that is busy, or has no worker yet, is asked again; a
        request that may have been accepted is never sent twice. A stream that is lost goes on
        where it was lost, unless the options say otherwise."""
        until = time.monotonic() + options.deadline_s
        message = wire.request(prompt, options)
        named = () if options.request_id is None else ((REQUEST_ID, options.request_id),)

        async def attempt() -> Generation:
            await self._reached(until)
            call = self._stream('Generate', message, until, named)
            return await Generation.begun(self, call, options.choices or 1, until)

        return await self._repeated(attempt, until, _was_refused)

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

    def resume(self, request: int, following: Sequence[int], until: float) -> Call:
        """The rest of an answer, for who has so many events of each completion."""
        message = api.ResumeRequest(request=request, next=following)
        return self._stream('Resume', message, until)

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
        named: tuple[tuple[str, str], ...] = (),
    ) -> Call:
        if self._channel is None:
            raise UnavailableError('the client is closed')
        call: grpc.aio.UnaryStreamMultiCallable[wire.M, api.GenerateEvent]
        call = self._channel.unary_stream(
            _path(method),
            request_serializer=type(message).SerializeToString,
            response_deserializer=api.GenerateEvent.FromString,
        )
        left_s = max(until - time.monotonic(), 0)
        return call(message, timeout=left_s, metadata=(*self._metadata(), *named))

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

    async def _reached(self, until: float) -> grpc.aio.Channel:
        """A channel with a connection. What could not be sent can always be sent again."""
        if self._channel is None:
            self._channel = self._opened()
        channel = self._channel
        if channel.get_state() is grpc.ChannelConnectivity.READY:
            return channel
        check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            HEALTH, request_serializer=bytes, response_deserializer=bytes)

        async def attempt() -> None:
            try:
                await check(b'', timeout=max(until - time.monotonic(), 0))
            except grpc.aio.AioRpcError as status:
                # Any other answer is one: somebody is there.
                if status.code() in (grpc.StatusCode.UNAVAILABLE,
                                     grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise

        await self._repeated(attempt, until, lambda status: True)
        return channel

    def _opened(self) -> grpc.aio.Channel:
        bounds = [(f'grpc.max_{way}_message_length', MESSAGE_BYTES_MAX)
                  for way in ('send', 'receive')]
        # As soon as the tries that are made here; gRPC's own pauses are minutes.
        bounds += [(f'grpc.{which}_reconnect_backoff_ms', ms)
                   for which, ms in (('initial', 50), ('max', 1000))]
        tls = self._options.tls
        if tls is None:
            return grpc.aio.insecure_channel(self._target, options=bounds)
        return grpc.aio.secure_channel(self._target, tls.credentials(), options=bounds)

    async def _repeated(
        self, attempt: Callable[[], Awaitable[T]], until: float,
        is_safe: Callable[[grpc.aio.AioRpcError], bool],
    ) -> T:
        """Tries while the server is busy and says when to come again, and while nobody is there
        and another try can do no harm."""
        delays_s = self._options.retry.delays_s()
        while True:
            try:
                return await attempt()
            except grpc.aio.AioRpcError as status:
                delay_s = next(delays_s, None)
                if status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    delay_s = None if delay_s is None else pushback_s(status)
                elif status.code() is not grpc.StatusCode.UNAVAILABLE or not is_safe(status):
                    delay_s = None
                if delay_s is None or time.monotonic() + delay_s >= until:
                    raise error_of(status) from status
            await asyncio.sleep(delay_s)


def _was_refused(status: grpc.aio.AioRpcError) -> bool:
    """Whether the server itself said so, and so has not accepted the request: it names what it
    answers, a connection that is lost does not."""
    return bool(said(status.trailing_metadata(), REQUEST_ID))
