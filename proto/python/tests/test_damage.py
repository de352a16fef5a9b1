"""Streams that break where no server would end them, and answers of servers that are newer, or
not ready."""
import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import pytest
from conftest import PROMPT
from test_errors import QUICK
from test_resume import ACCEPTED, DONE, REQUEST, SUMMARY, Part, Told, run, started, token

from aqueduct_client import (
    Accepted, Answer, ChoiceDone, Client, ClientOptions, GenerateOptions, ServerFailureError,
    StopReason, Summary, Token, UnavailableError, wire,
)
from aqueduct_client.v1 import api_pb2 as api
from aqueduct_client.v1 import common_pb2 as common

OK = grpc.StatusCode.OK
HANGS = grpc.StatusCode.UNKNOWN
REST: Part = ([ACCEPTED, token(0), token(1), token(2), DONE, SUMMARY], OK, ())
# Of HTTP/2: frames of these kinds, and what a stream is reset for.
DATA, RST_STREAM = 0, 3
NO_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 0, 2, 7, 8, 11
HEADER_BYTES = 9


class Proxy:
    """Resets the first stream after its second frame of data."""

    def __init__(self, port: int, code: int) -> None:
        self.port = port
        self.code = code
        self.frames: dict[bytes, int] = {}
        self.reset: bytes | None = None

    async def serve(self, down: asyncio.StreamReader, up: asyncio.StreamWriter) -> None:
        answers, asks = await asyncio.open_connection('127.0.0.1', self.port)
        ways = self.pass_bytes(down, asks), self.pass_frames(answers, up)
        await asyncio.gather(*ways, return_exceptions=True)

    async def pass_bytes(self, down: asyncio.StreamReader, up: asyncio.StreamWriter) -> None:
        with contextlib.closing(up):
            while part := await down.read(65_536):
                up.write(part)

    async def pass_frames(self, down: asyncio.StreamReader, up: asyncio.StreamWriter) -> None:
        with contextlib.closing(up):
            while True:
                header = await down.readexactly(HEADER_BYTES)
                payload = await down.readexactly(int.from_bytes(header[:3]))
                stream = header[5:]
                if stream == self.reset:
                    continue
                up.write(header + payload)
                self.frames[stream] = self.frames.get(stream, 0) + (header[3] == DATA)
                if self.frames[stream] == 2 and self.reset is None:
                    self.reset = stream
                    await asyncio.sleep(0.1)  # or it undoes what came just before it
                    up.write(struct.pack('>BHBB', 0, 4, RST_STREAM, 0) + stream
                             + struct.pack('>I', self.code))


@asynccontextmanager
async def behind_a_proxy(told: Told, code: int) -> AsyncIterator[Client]:
    async with started(told) as url:
        proxy = Proxy(int(url.rpartition(':')[2]), code)
        listening = await asyncio.start_server(proxy.serve, '127.0.0.1', 0)
        port = listening.sockets[0].getsockname()[1]
        async with Client(f'http://127.0.0.1:{port}', QUICK) as client:
            yield client
        listening.close()


@pytest.mark.parametrize(
    'code', [NO_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM])
def test_a_stream_that_a_proxy_resets_goes_on(code: int) -> None:
    told = Told(([ACCEPTED, token(0)], HANGS, ()), REST)

    async def work() -> Answer:
        async with behind_a_proxy(told, code) as client:
            return await client.complete(PROMPT)

    assert asyncio.run(work()).completions[0].text == '0 1 2 '
    assert told.asked == ['resumable', (REQUEST, [1])]


@pytest.mark.parametrize('code', [NO_ERROR, CANCEL])
def test_one_that_cannot_go_on_was_lost_on_the_way(code: int) -> None:
    async def work() -> None:
        told = Told(([ACCEPTED, token(0)], HANGS, ()), keeps=False)
        async with behind_a_proxy(told, code) as client:
            with pytest.raises(UnavailableError, match='RST_STREAM'):
                await client.complete(PROMPT, GenerateOptions(resumable=False))

    asyncio.run(work())


def completed(*parts: Part) -> tuple[Answer, Told]:
    """An answer, and what its server was asked."""
    told, answers = Told(*parts), []

    async def work(client: Client) -> None:
        answers.append(await client.complete(PROMPT))

    run(told, work)
    return answers[0], told


def test_a_stream_that_ends_without_a_summary_goes_on() -> None:
    answer, told = completed(([ACCEPTED, token(0)], OK, ()), ([], OK, ()), REST)
    assert answer.completions[0].text == '0 1 2 '
    assert told.asked == ['resumable', (REQUEST, [1]), (REQUEST, [1])]


def test_a_start_that_ends_without_a_word_is_made_again() -> None:
    answer, told = completed(([], OK, ()), REST)
    assert answer.completions[0].text == '0 1 2 '
    assert told.keys[0] == told.keys[1]


def test_what_never_ends_well_is_away() -> None:
    async def work(client: Client) -> None:
        with pytest.raises(UnavailableError, match='ended without a summary'):
            await client.complete(PROMPT)

    run(Told(([ACCEPTED], OK, ()), *[([], OK, ())] * 9), work, ClientOptions(resume_within_s=0.3))


def test_what_a_newer_server_says_is_passed_over() -> None:
    unknown = api.GenerateEvent.FromString(b'\x7a\x02\x08\x01')
    done = api.GenerateEvent(choice_done=api.ChoiceDone(tokens=1))
    done.choice_done.MergeFromString(b'\x10\x63')  # reason 99
    answer, _ = completed(
        ([unknown, ACCEPTED, unknown, token(0), unknown, done, SUMMARY], OK, ()))
    completion, = answer.completions
    assert (completion.text, completion.reason) == ('0 ', StopReason.OTHER)


@pytest.mark.parametrize('resumable', [True, False])
@pytest.mark.parametrize('events, words', [
    ([ACCEPTED, token(0), token(2)], 'token_idx = 2: must be at most 1'),
    ([ACCEPTED, token(0), DONE], 'choice_done.tokens = 3: must be at most 1'),
])
def test_a_text_with_a_hole_is_an_error(
    events: list[api.GenerateEvent], words: str, resumable: bool
) -> None:
    told = Told((events, HANGS, ()), keeps=resumable)

    async def work(client: Client) -> None:
        with pytest.raises(ServerFailureError, match=words):
            await client.complete(PROMPT, GenerateOptions(resumable=resumable))

    run(told, work)
    # Its server does not know that nobody reads on.
    assert (f'cancel {REQUEST}' in told.asked) is resumable


def test_events_of_a_stream_that_repeats_itself_come_once() -> None:
    told = Told(([ACCEPTED, token(0), token(0), token(1), token(2), DONE, DONE, SUMMARY], OK, ()))

    async def work(client: Client) -> None:
        kinds = [type(event) async for event in await client.generate(PROMPT)]
        assert kinds == [Accepted, Token, Token, Token, ChoiceDone, Summary]

    run(told, work)


def test_a_server_without_workers_has_no_model_yet() -> None:
    described = wire.description(api.DescribeReply(model='model'))
    assert (described.model, described.shape, described.kv) == ('model', None, None)
    ready = api.DescribeReply(kv=common.KV_DTYPE_BF16, shape=common.ModelShape(layers=6))
    ready.workers.add(up=True)
    ready.workers.add(state='drained')
    assert [worker.state for worker in wire.description(ready).workers] == ['up', 'drained']
    shape = wire.description(ready).shape
    assert shape and shape.layers == 6
