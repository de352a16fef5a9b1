"""The same without an event loop."""
import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable

import pytest
from conftest import PROMPT, metric, wait_for
from serving import Server
from test_generate import ENDLESS, GREEDY, complete
from test_leaving import HANGS, OK, Paced
from test_resume import ACCEPTED, REQUEST, SUMMARY, Told, started, token

from aqueduct_client import (
    Accepted, ClosedError, GenerateOptions, InvalidArgumentError, Summary, Token,
)
from aqueduct_client.blocking import Client
from aqueduct_client.v1 import api_pb2 as api


def test_calls_and_streams(server: Server, url: str) -> None:
    with Client(url) as client:
        assert client.describe().model == 'model'
        assert client.tokenize(client.tokenize(PROMPT).ids).text == PROMPT
        assert client.complete(PROMPT, GREEDY).completions == complete(url).completions
        events = list(client.generate(PROMPT, GREEDY))
        assert isinstance(events[-1], Summary)
        with client.generate(PROMPT, ENDLESS) as stream:
            assert stream.accepted.prompt_tokens > 0
            for event in stream:
                if isinstance(event, Token):
                    break
        assert list(stream) == []
        wait_for(lambda: metric(server, 'num_requests_running') == 0)
        with pytest.raises(InvalidArgumentError, match='top_p'):
            client.generate(PROMPT, GenerateOptions(top_p=2))


def told_in_threads(told: Told, work: Callable[[str], None]) -> None:
    """`work` in a thread of its own, with the URL of a server in this one."""
    async def all_of_it() -> None:
        async with started(told) as url:
            await asyncio.to_thread(work, url)

    asyncio.run(all_of_it())


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread that makes a call, and what comes of it."""
    heard: list[object] = []

    def work() -> None:
        try:
            heard.append(call())
        except BaseException as error:
            heard.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(0.3)
    return thread, heard


def test_who_waits_in_another_thread_is_told_that_the_client_is_closed() -> None:
    told = Told(*[([ACCEPTED, token(0)], HANGS, ())] * 2)

    def work(url: str) -> None:
        client = Client(url)
        stream = client.generate(PROMPT)
        waiting = [in_thread(lambda: list(stream)), in_thread(lambda: client.complete(PROMPT))]
        client.close()
        for thread, heard in waiting:
            thread.join(5)
            assert [type(error) for error in heard] == [ClosedError]
        assert told.asked.count(f'cancel {REQUEST}') == 2

    told_in_threads(told, work)


def test_a_closed_client_does_nothing_more() -> None:
    def work(url: str) -> None:
        with Client(url) as client:
            stream = client.generate(PROMPT)
            closing = [in_thread(client.close)[0] for _ in range(3)]
        for thread in closing:
            thread.join(5)
            assert not thread.is_alive()
        for call in (client.describe, lambda: next(stream), lambda: client.complete(PROMPT)):
            with pytest.raises(ClosedError, match='the client is closed'):
                call()
        stream.close()
        client.close()

    told_in_threads(Told(([ACCEPTED], HANGS, ())), work)


def test_who_breaks_off_cancels() -> None:
    told = Told(([ACCEPTED, token(0)], HANGS, ()))

    def work(url: str) -> None:
        with Client(url) as client:
            for event in client.generate(PROMPT):
                if isinstance(event, Token):
                    break
            wait_for(lambda: f'cancel {REQUEST}' in told.asked)

    told_in_threads(told, work)


def test_a_client_that_is_not_closed_is_closed_all_the_same() -> None:
    told = Told(([ACCEPTED, token(0)], HANGS, ()))
    left = textwrap.dedent('''
        import sys
        from aqueduct_client.blocking import Client
        stream = Client(sys.argv[1]).generate('Once')
        next(stream)
    ''')

    def work(url: str) -> None:
        subprocess.run([sys.executable, '-c', left, url], check=True, timeout=60)
        wait_for(lambda: told.asked.count(f'cancel {REQUEST}') == 1)

    told_in_threads(told, work)


def drops(url: str) -> None:
    """The last reference to a stream, and with it to its client."""
    assert isinstance(next(Client(url).generate(PROMPT)), Accepted)


def drops_a_cycle(url: str) -> None:
    """What is collected at once, in any order."""
    held: list[object] = [Client(url).generate(PROMPT)]
    held.append(held)
    del held
    gc.collect()


@pytest.mark.parametrize('leaves', [drops, drops_a_cycle])
def test_a_stream_and_client_that_are_collected_cancel_once(
        leaves: Callable[[str], None]) -> None:
    times = 40
    told = Told(*[([ACCEPTED, token(0)], HANGS, ())] * times)
    cancelled = f'cancel {REQUEST}'

    def work(url: str) -> None:
        # Their thread comes in at any step of what collects them, not only where that waits.
        pause_s = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for so_many in range(1, times + 1):
                leaves(url)
                wait_for(lambda: told.asked.count(cancelled) >= so_many)
        finally:
            sys.setswitchinterval(pause_s)
        time.sleep(0.1)  # for one too many
        assert told.asked.count(cancelled) == times

    told_in_threads(told, work)


def test_threads_share_events() -> None:
    last = api.GenerateEvent(choice_done=api.ChoiceDone(tokens=10))
    told = Paced(([ACCEPTED, *map(token, range(10)), last, SUMMARY], OK, ()))

    def work(url: str) -> None:
        with Client(url) as client:
            stream = client.generate(PROMPT)
            reading = [in_thread(lambda: list(stream)) for _ in range(3)]
            for thread, _ in reading:
                thread.join(5)
        heard = [part for _, (part,) in reading if isinstance(part, list)]
        assert len(heard) == 3 and sum(map(len, heard)) == 13

    told_in_threads(told, work)


def test_a_fork_is_told_to_make_its_own_client() -> None:
    # In a process of its own: a fork of this one would have its tests.
    forked = textwrap.dedent('''
        import os, sys
        from aqueduct_client import ClosedError
        from aqueduct_client.blocking import Client
        client = Client(sys.argv[1])
        stream = client.generate('Once')
        if not os.fork():
            for call in (client.describe, lambda: next(stream)):
                try:
                    call()
                except ClosedError as error:
                    assert 'make one in each process' in str(error)
                else:
                    os._exit(1)
            stream.close()
            client.close()
            os._exit(0)
        assert os.wait()[1] == 0
        next(stream)
        client.close()
    ''')

    def work(url: str) -> None:
        subprocess.run([sys.executable, '-c', forked, url], check=True, timeout=60)

    told_in_threads(Told(([ACCEPTED], HANGS, ())), work)
