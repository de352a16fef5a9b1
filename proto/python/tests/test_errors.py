"""What can go wrong is a class for each thing that a caller can do about it; what is safe is
tried again."""
import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import pytest
from conftest import PROMPT
from test_generate import run

from aqueduct_client import (
    Accepted, BusyError, CancelledByServerError, Client, ClientError, ClientOptions,
    DeadlineError, DeniedError, GenerateOptions, InvalidArgumentError, Retry,
    ServerFailureError, SessionLostError, Summary, UnavailableError,
)
from aqueduct_client.v1 import api_pb2 as api
from aqueduct_client.v1 import common_pb2 as common

QUICK = ClientOptions(retry=Retry(tries=3, first_delay_s=0.01))
BUSY = grpc.StatusCode.RESOURCE_EXHAUSTED
AWAY = grpc.StatusCode.UNAVAILABLE
AGAIN = ('grpc-retry-pushback-ms', '1')
NEVER = ('grpc-retry-pushback-ms', '-1')
NAMED = ('x-request-id', 'mine')


class Scripted:
    """Fails as the script says, then answers."""

    def __init__(self, *script: tuple[grpc.StatusCode, tuple[tuple[str, str], ...]]) -> None:
        self.script = list(script)
        self.calls = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        stream = grpc.unary_stream_rpc_method_handler(self.generate)
        unary = grpc.unary_unary_rpc_method_handler
        server.add_generic_rpc_handlers((
            grpc.method_handlers_generic_handler(
                'aqueduct.v1.Aqueduct', {'Generate': stream, 'Describe': unary(self.describe)}),
            grpc.method_handlers_generic_handler(
                'grpc.health.v1.Health', {'Check': unary(self.health)}),
        ))

    async def health(
        self, message: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        return b''

    async def describe(
        self, message: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        await self.fail(context)
        return api.DescribeReply(kv=common.KV_DTYPE_F32).SerializeToString()

    async def generate(
        self, message: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        await self.fail(context)
        yield api.GenerateEvent(accepted=api.Accepted(seed=5)).SerializeToString()
        policy = common.MemoryPolicy(kind=common.MemoryPolicy.KIND_DENSE)
        summary = api.Summary(policy=policy, exchange=common.EXCHANGE_MOVE)
        yield api.GenerateEvent(summary=summary).SerializeToString()

    async def fail(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self.calls += 1
        if self.script:
            code, metadata = self.script.pop(0)
            await context.abort(code, 'top_p = 2: must be at most 1', metadata)


async def start(handler: Scripted, port: int = 0) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    handler.add_to(server)
    port = server.add_insecure_port(f'127.0.0.1:{port}')
    await server.start()
    return server, port


@asynccontextmanager
async def connected(handler: Scripted) -> AsyncIterator[Client]:
    server, port = await start(handler)
    async with Client(f'http://127.0.0.1:{port}', QUICK) as client:
        yield client
    await server.stop(None)


async def generated(client: Client) -> None:
    events = [event async for event in await client.generate(PROMPT)]
    assert [type(event) for event in events] == [Accepted, Summary]


async def once(client: Client) -> None:
    await client.generate(PROMPT, GenerateOptions(resumable=False))


async def described(client: Client) -> None:
    await client.describe()


@pytest.mark.parametrize('call, script, calls', [
    (generated, [(BUSY, (AGAIN,))] * 2, 3),
    (generated, [(AWAY, (NAMED,))], 2),
    # It may have been accepted, but counts once.
    (generated, [(AWAY, ())] * 3, 4),
    (described, [(BUSY, (AGAIN,)), (AWAY, ())], 3),
])
def test_what_is_safe_is_tried_again(
    call: Callable[[Client], Awaitable[None]],
    script: list[tuple[grpc.StatusCode, tuple[tuple[str, str], ...]]], calls: int,
) -> None:
    async def work() -> None:
        handler = Scripted(*script)
        async with connected(handler) as client:
            await call(client)
        assert handler.calls == calls

    asyncio.run(work())


@pytest.mark.parametrize('call, script, calls, kind', [
    (generated, [(BUSY, (AGAIN,))] * 3, 3, BusyError),
    (generated, [(BUSY, ())], 1, BusyError),
    (generated, [(BUSY, (NEVER,))], 1, BusyError),
    # It may have been accepted.
    (once, [(AWAY, ())], 1, UnavailableError),
    (described, [(AWAY, ())] * 3, 3, UnavailableError),
    (described, [(grpc.StatusCode.INTERNAL, ())], 1, ServerFailureError),
    (generated, [(grpc.StatusCode.INVALID_ARGUMENT, ())], 1, InvalidArgumentError),
    (generated, [(grpc.StatusCode.FAILED_PRECONDITION, ())], 1, SessionLostError),
    (generated, [(grpc.StatusCode.DEADLINE_EXCEEDED, ())], 1, DeadlineError),
    (generated, [(grpc.StatusCode.CANCELLED, ())], 1, CancelledByServerError),
    (generated, [(grpc.StatusCode.UNAUTHENTICATED, ())], 1, DeniedError),
])
def test_the_rest_is_an_error_that_keeps_what_the_server_said(
    call: Callable[[Client], Awaitable[None]],
    script: list[tuple[grpc.StatusCode, tuple[tuple[str, str], ...]]], calls: int,
    kind: type[ClientError],
) -> None:
    async def work() -> None:
        handler = Scripted(*script)
        async with connected(handler) as client:
            with pytest.raises(kind, match='top_p = 2') as raised:
                await call(client)
        assert type(raised.value) is kind
        assert handler.calls == calls
        if isinstance(raised.value, BusyError):
            assert raised.value.retry_after_s == (0.001 if AGAIN in script[0][1] else 1)

    asyncio.run(work())


def test_a_server_that_comes_back_is_found() -> None:
    async def work() -> None:
        server, port = await start(Scripted())
        patient = ClientOptions(retry=Retry(tries=30, first_delay_s=0.02))
        async with Client(f'http://127.0.0.1:{port}', patient) as client:
            await server.stop(None)
            call = asyncio.create_task(client.generate(PROMPT))
            with pytest.raises(UnavailableError):
                await Client(f'http://127.0.0.1:{port}', QUICK).connect()
            server, _ = await start(Scripted(), port)
            assert (await call).accepted.seed == 5
        await server.stop(None)

    asyncio.run(work())


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        port = taken.getsockname()[1]
    with pytest.raises(UnavailableError, match='refused'):
        async def work() -> None:
            async with Client(f'http://127.0.0.1:{port}', QUICK):
                pass

        asyncio.run(work())


@pytest.mark.parametrize('options, words', [
    (GenerateOptions(top_p=2), 'top_p = 2'),
    (GenerateOptions(choices=65), 'choices = 65: must be between 1 and 64'),
    (GenerateOptions(stop=['']), 'stop'),
    (GenerateOptions(session='yesterday'), 'session'),
])
def test_a_real_server_refuses_by_field(url: str, options: GenerateOptions, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        run(url, lambda client: client.generate(PROMPT, options))


def test_what_never_reaches_a_server() -> None:
    for url in ('127.0.0.1:7070', 'https://127.0.0.1:7070', 'http://'):
        with pytest.raises(InvalidArgumentError, match='url'):
            Client(url)
    for key in ('', 'two words', 'é', 'x' * 129):
        with pytest.raises(InvalidArgumentError, match='api_key') as raised:
            ClientOptions(api_key=key)
        assert not key or key not in str(raised.value)
    assert 'secret' not in repr(ClientOptions(api_key='aq_1_secret'))
