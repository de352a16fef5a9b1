"""Streams that are lost, against a server that tells each part of them as it was told to, and
against a real one that is killed."""
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import pytest
from conftest import PROMPT
from test_errors import AWAY, NEVER, QUICK

from aqueduct_client import (
    Accepted, ChoiceDone, Client, ClientError, ClientOptions, GenerateOptions, GoneError,
    Summary, TakenOverError, Token, UnavailableError,
)
from aqueduct_client.v1 import api_pb2 as api
from aqueduct_client.v1 import common_pb2 as common

Context = grpc.aio.ServicerContext[bytes, bytes]
Part = tuple[list[api.GenerateEvent], grpc.StatusCode, tuple[tuple[str, str], ...]]
REQUEST = 77
ACCEPTED = api.GenerateEvent(accepted=api.Accepted(request=REQUEST))
DONE = api.GenerateEvent(
    choice_done=api.ChoiceDone(tokens=3, reason=api.ChoiceDone.REASON_LENGTH))
SUMMARY = api.GenerateEvent(summary=api.Summary(
    policy=common.MemoryPolicy(kind=common.MemoryPolicy.KIND_DENSE),
    exchange=common.EXCHANGE_MOVE))


def token(idx: int) -> api.GenerateEvent:
    return api.GenerateEvent(token=api.Token(token_idx=idx, text=f'{idx} '))


class Told:
    """Tells one part after the other, and notes what it is asked."""

    def __init__(self, *parts: Part, keeps: bool = True) -> None:
        self.parts = list(parts)
        self.keeps = keeps
        self.asked: list[str | tuple[int, list[int]]] = []
        self.keys: list[str] = []
        self.parents: list[str] = []

    def add_to(self, server: grpc.aio.Server) -> None:
        stream = grpc.unary_stream_rpc_method_handler
        unary = grpc.unary_unary_rpc_method_handler
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
            'aqueduct.v1.Aqueduct', {
                'Generate': stream(self.generate), 'Resume': stream(self.resume),
                'Cancel': unary(self.cancel)}),))

    async def tell(self, context: Context) -> AsyncIterator[bytes]:
        events, end, metadata = self.parts.pop(0)
        sent = context.invocation_metadata() or ()
        self.parents += [str(value) for name, value in sent if name == 'traceparent']
        if self.keeps:
            await context.send_initial_metadata((('aqueduct-request', str(REQUEST)),))
        for event in events:
            yield event.SerializeToString()
        if end is grpc.StatusCode.OK:
            return
        if end is grpc.StatusCode.UNKNOWN:
            await asyncio.Event().wait()  # it hangs
        await context.abort(end, 'so it is', metadata)

    async def generate(self, message: bytes, context: Context) -> AsyncIterator[bytes]:
        request = api.GenerateRequest.FromString(message)
        self.asked.append('resumable' if request.resumable else 'once')
        self.keys.append(request.idempotency_key)
        async for event in self.tell(context):
            yield event

    async def resume(self, message: bytes, context: Context) -> AsyncIterator[bytes]:
        asked = api.ResumeRequest.FromString(message)
        self.asked.append((asked.request, list(asked.next)))
        async for event in self.tell(context):
            yield event

    async def cancel(self, message: bytes, context: Context) -> bytes:
        self.asked.append(f'cancel {api.CancelRequest.FromString(message).request}')
        return b''


@asynccontextmanager
async def started(told: Told) -> AsyncIterator[str]:
    """The URL of a server."""
    server = grpc.aio.server()
    told.add_to(server)
    port = server.add_insecure_port('127.0.0.1:0')
    await server.start()
    yield f'http://127.0.0.1:{port}'
    await server.stop(None)


@asynccontextmanager
async def connected(told: Told, options: ClientOptions = QUICK) -> AsyncIterator[Client]:
    async with started(told) as url, Client(url, options) as client:
        yield client


def run(told: Told, work: Callable[[Client], Awaitable[None]],
        options: ClientOptions = QUICK) -> None:
    async def all_of_it() -> None:
        async with connected(told, options) as client:
            await work(client)

    asyncio.run(all_of_it())


def test_every_token_comes_once() -> None:
    told = Told(
        ([ACCEPTED, token(0), token(1)], AWAY, ()),
        ([], AWAY, ()),
        ([ACCEPTED, token(1), token(2)], AWAY, ()),
        ([ACCEPTED, DONE, SUMMARY], grpc.StatusCode.OK, ()))

    async def work(client: Client) -> None:
        events = [event async for event in await client.generate(PROMPT)]
        kinds = [type(event) for event in events]
        assert kinds == [Accepted, Token, Token, Token, ChoiceDone, Summary]
        assert [event.text for event in events if isinstance(event, Token)] == ['0 ', '1 ', '2 ']

    run(told, work)
    assert told.asked == ['resumable', (REQUEST, [2]), (REQUEST, [2]), (REQUEST, [3])]


def test_a_start_whose_answer_is_lost_is_the_same_one_again() -> None:
    told = Told(
        ([], AWAY, ()),
        ([], AWAY, ()),
        ([ACCEPTED, SUMMARY], grpc.StatusCode.OK, ()),
        ([ACCEPTED, SUMMARY], grpc.StatusCode.OK, ()),
        ([ACCEPTED, SUMMARY], grpc.StatusCode.OK, ()))

    async def work(client: Client) -> None:
        await client.complete(PROMPT)
        await client.complete(PROMPT)
        await client.complete(PROMPT, GenerateOptions(idempotency_key='mine'))

    run(told, work)
    first, again, third, other, own = told.keys
    assert first and first == again == third != other and own == 'mine'


@pytest.mark.parametrize('parts, keeps, kind', [
    ([([ACCEPTED, token(0)], AWAY, ())], False, UnavailableError),
    ([([ACCEPTED, token(0)], AWAY, (NEVER,))], True, UnavailableError),
    ([([ACCEPTED], AWAY, ()), ([], grpc.StatusCode.NOT_FOUND, ())], True, GoneError),
    ([([ACCEPTED], grpc.StatusCode.ABORTED, ())], True, TakenOverError),
    ([([ACCEPTED], AWAY, ())] + [([], AWAY, ())] * 9, True, UnavailableError),
])
def test_what_is_not_gone_on_with(
    parts: list[Part], keeps: bool, kind: type[ClientError]
) -> None:
    async def work(client: Client) -> None:
        with pytest.raises(kind) as raised:
            await client.complete(PROMPT)
        assert type(raised.value) is kind

    run(Told(*parts, keeps=keeps), work, ClientOptions(resume_within_s=0.3))


def test_who_does_not_want_it_is_not_kept() -> None:
    told = Told(([ACCEPTED, SUMMARY], grpc.StatusCode.OK, ()),
                ([ACCEPTED, SUMMARY], grpc.StatusCode.OK, ()))

    async def work(client: Client) -> None:
        await client.complete(PROMPT, GenerateOptions(resumable=False))
        await client.complete(PROMPT, GenerateOptions(prompt_logprobs=True))

    run(told, work)
    assert told.asked == ['once', 'once']
    assert told.keys == ['', '']


async def by_closing(client: Client) -> None:
    await (await client.generate(PROMPT)).aclose()


async def by_cancelling_the_task(client: Client) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in await client.generate(PROMPT):
            begun.set()

    reading = asyncio.create_task(read())
    await begun.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


@pytest.mark.parametrize('leave', [by_closing, by_cancelling_the_task])
def test_who_leaves_says_so(leave: Callable[[Client], Awaitable[None]]) -> None:
    told = Told(([ACCEPTED], grpc.StatusCode.UNKNOWN, ()))
    run(told, leave)
    assert told.asked == ['resumable', f'cancel {REQUEST}']
