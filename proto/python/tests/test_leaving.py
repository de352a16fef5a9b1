"""Who leaves an answer, or closes a client, ends the request on the server, soon, and everybody
who still waits is told."""
import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest
from conftest import PROMPT
from test_errors import QUICK
from test_resume import ACCEPTED, DONE, REQUEST, SUMMARY, Context, Told, connected, token

from aqueduct_client import (
    Client, ClientError, ClosedError, GenerateEvent, Generation, TakenOverError, Token,
)

HANGS = grpc.StatusCode.UNKNOWN
OK = grpc.StatusCode.OK
CANCELLED = f'cancel {REQUEST}'
# Before a server that hangs is left, and for a machine with much else to do.
SOON_S = 2.0 + 2.0


class Deaf(Told):
    """Hears nobody who leaves."""

    async def cancel(self, message: bytes, context: Context) -> bytes:
        await asyncio.Event().wait()
        return b''


class Slow(Told):
    """Takes its time to accept."""

    async def generate(self, message: bytes, context: Context) -> AsyncIterator[bytes]:
        await asyncio.sleep(0.3)
        async for event in super().generate(message, context):
            yield event


class Paced(Told):
    """Leaves time to wait for each event."""

    async def tell(self, context: Context) -> AsyncIterator[bytes]:
        async for event in super().tell(context):
            yield event
            await asyncio.sleep(0.05)


def endless() -> Told:
    return Told(([ACCEPTED, token(0), token(1)], HANGS, ()))


def run(told: Told, work: Callable[[Client], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with connected(told) as client:
            await work(client)

    asyncio.run(asyncio.wait_for(all_of_it(), 30))


async def until_cancelled(told: Told) -> None:
    while CANCELLED not in told.asked:
        await asyncio.sleep(0.01)


def test_who_breaks_off_cancels() -> None:
    told = endless()

    async def work(client: Client) -> None:
        async for event in await client.generate(PROMPT):
            if isinstance(event, Token):
                break
        await until_cancelled(told)

    run(told, work)


def test_what_a_cycle_holds_is_cancelled_when_it_is_collected() -> None:
    told = endless()

    async def work(client: Client) -> None:
        holder: list[object] = [await client.generate(PROMPT)]
        holder.append(holder)
        del holder
        await asyncio.to_thread(gc.collect)
        await until_cancelled(told)

    run(told, work)


def test_the_end_of_a_client_cancels_what_is_open() -> None:
    told = endless()
    held: list[Generation] = []

    async def work(client: Client) -> None:
        held.append(await client.generate(PROMPT))

    run(told, work)
    assert told.asked == ['resumable', CANCELLED]


def test_a_start_that_is_left_is_cancelled() -> None:
    told = Slow(([ACCEPTED], HANGS, ()))

    async def work(client: Client) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.generate(PROMPT), 0.1)

    run(told, work)
    assert told.asked == ['resumable', CANCELLED]


def test_a_server_that_hangs_keeps_nobody_for_long() -> None:
    async def work(client: Client) -> None:
        begun = time.monotonic()
        async with await client.generate(PROMPT):
            pass
        assert time.monotonic() - begun < SOON_S
        held = await client.generate(PROMPT)
        begun = time.monotonic()
        await client.close()
        assert time.monotonic() - begun < SOON_S
        with pytest.raises(ClosedError):
            await anext(held)

    run(Deaf(([ACCEPTED], HANGS, ()), ([ACCEPTED], HANGS, ())), work)


def test_who_reads_is_told_that_the_client_is_closed() -> None:
    told = endless()

    async def work(client: Client) -> None:
        events = await client.generate(PROMPT)

        async def read() -> list[GenerateEvent]:
            return [event async for event in events]

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.2)
        await asyncio.gather(client.close(), client.close())
        with pytest.raises(ClosedError, match='the client is closed'):
            await reading
        with pytest.raises(ClosedError):
            await anext(events)
        assert told.asked == ['resumable', CANCELLED]

    run(told, work)


def test_who_waits_for_a_lost_stream_is_told_too() -> None:
    told = Told(([ACCEPTED], grpc.StatusCode.UNAVAILABLE, ()),
                *[([], grpc.StatusCode.UNAVAILABLE, ())] * 99)

    async def work(client: Client) -> None:
        reading = asyncio.create_task(client.complete(PROMPT))
        await asyncio.sleep(1)  # so that pauses are long
        begun = time.monotonic()
        await client.close()
        with pytest.raises(ClosedError, match='the client is closed'):
            await reading
        assert time.monotonic() - begun < 0.3

    run(told, work)


@pytest.mark.parametrize('call', [
    Client.connect, Client.describe, lambda client: client.generate(PROMPT),
    lambda client: client.tokenize(PROMPT), lambda client: client.complete(PROMPT)])
def test_a_closed_client_does_nothing_more(call: Callable[[Client], Awaitable[object]]) -> None:
    async def work(client: Client) -> None:
        await client.close()
        await client.close()
        with pytest.raises(ClosedError, match='the client is closed'):
            await call(client)

    run(Told(), work)


def test_a_call_under_way_is_ended_with_the_client() -> None:
    async def work(client: Client) -> None:
        calls = [asyncio.create_task(client.complete(PROMPT)) for _ in range(3)]
        await asyncio.sleep(0.1)
        await client.close()
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, ClosedError)
        assert not any(call.cancelled() for call in calls)

    run(Slow(*[([ACCEPTED], HANGS, ())] * 3), work)


def test_an_event_that_is_not_waited_for_is_no_end() -> None:
    async def work(client: Client) -> None:
        events = await client.generate(PROMPT)
        heard = [await anext(events) for _ in range(3)]
        assert len(heard) == 3
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.05)
        for _ in range(2):
            with pytest.raises(ClosedError, match='a task that read it was cancelled'):
                await anext(events)

    run(endless(), work)


def test_tasks_share_events() -> None:
    told = Paced(([ACCEPTED, token(0), token(1), token(2), DONE, SUMMARY], OK, ()))

    async def work(client: Client) -> None:
        events = await client.generate(PROMPT)

        async def read() -> list[GenerateEvent]:
            return [event async for event in events]

        heard = [event for part in await asyncio.gather(*(read() for _ in range(4)))
                 for event in part]
        assert len(heard) == 6
        tokens = [event.token_idx for event in heard if isinstance(event, Token)]
        assert sorted(tokens) == [0, 1, 2]

    run(told, work)


def test_all_who_share_a_stream_hear_how_it_fails() -> None:
    async def work(client: Client) -> None:
        events = await client.generate(PROMPT)
        await anext(events)
        calls = [asyncio.ensure_future(anext(events)) for _ in range(4)]
        for heard in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(heard, TakenOverError)
        with pytest.raises(TakenOverError):
            await anext(events)

    run(Told(([ACCEPTED], grpc.StatusCode.ABORTED, ())), work)


def test_a_client_that_never_connected_has_nothing_open() -> None:
    async def work() -> Client:
        client = Client('http://127.0.0.1:1', QUICK)
        with pytest.raises(ClientError):
            await client.__aenter__()
        return client

    client = asyncio.run(work())
    with pytest.raises(ClosedError):
        asyncio.run(client.describe())
