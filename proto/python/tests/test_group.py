"""Coordinators that are killed, as processes, in the middle of a stream: it goes on, with every
token once, and with those of a run without the fault."""
import asyncio
import json
import os
import pathlib
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from conftest import DEADLINE_S, LONG, PROMPT, metric, wait_for
from serving import Server, launch, start

from aqueduct_client import (
    Accepted, ChoiceDone, Client, ClientOptions, GenerateEvent, GenerateOptions,
    InvalidArgumentError, MemoryPolicy, Progress, Summary, Token, UnavailableError, blocking,
)

OPTIONS = GenerateOptions(
    max_tokens=400, temperature=0.8, seed=11, chunk_tokens=64, stop=['no such words'],
    policy=MemoryPolicy(local=16, heavy=16))
COORDINATORS = 3
Fault = Callable[[], object] | None
IsTime = Callable[[GenerateEvent], bool]


def in_prefill(event: GenerateEvent) -> bool:
    return isinstance(event, Progress) and event.chunks_done > 4


def in_decode(event: GenerateEvent) -> bool:
    return isinstance(event, Token) and event.token_idx > 10


def own_address() -> str:
    """Of this process alone, so that a port that is free remains so."""
    pid = os.getpid()
    host = f'127.{pid >> 16 & 127 | 128}.{pid >> 8 & 255}.{pid & 255}'
    with socket.create_server((host, 0)) as listener:
        return f'{host}:{listener.getsockname()[1]}'


def told(url: str, is_time: IsTime = lambda event: False, fault: Fault = None) -> list[object]:
    """What a caller is told, but for progress and what depends on time; `fault` happens when it
    `is_time`."""
    async def work() -> list[object]:
        heard: list[object] = []
        happens = fault
        async with Client(url) as client, await client.generate(LONG[:12_000], OPTIONS) as events:
            async for event in events:
                if happens and is_time(event):
                    happens()
                    happens = None
                match event:
                    case Accepted():
                        heard.append(('accepted', event.prompt_tokens, event.seed))
                    case Token() | ChoiceDone():
                        heard.append(event)
                    case Summary():
                        heard.append(('summary', event.output_tokens))
        return heard

    return asyncio.run(work())


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


class Group:
    """Three coordinators of two workers."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.peers = ','.join(f'c{idx}=http://{own_address()}' for idx in range(COORDINATORS))
        ways = ['--listen', '127.0.0.1:0', '--threads', '1', '--snapshot-bytes', '0']
        self.workers = [launch('worker', *ways) for _ in range(2)]
        self.coordinators = [self.run(idx) for idx in range(COORDINATORS)]

    def run(self, idx: int) -> Server:
        process, at = launch(
            'coordinator', '--http', '127.0.0.1:0', '--grpc', '127.0.0.1:0', '--id', f'c{idx}',
            '--peers', self.peers, '--data-dir', self.folder / f'c{idx}',
            '--worker', *(at['url'] for _, at in self.workers))
        return Server(process, at['http'], at['grpc'])

    def leader(self) -> int:
        """Who leads, once all workers are there."""
        found: list[int] = []

        def is_found() -> bool:
            found[:] = [idx for idx in range(COORDINATORS) if self.leads(idx)]
            return bool(found)

        wait_for(is_found)
        return found[0]

    def leads(self, idx: int) -> bool:
        server = self.coordinators[idx]
        if server.process.poll() is not None:
            return False
        try:
            with urllib.request.urlopen(f'http://{server.http}/leader', timeout=DEADLINE_S) as at:
                return bool(json.load(at)['workers_up'] == len(self.workers))
        except urllib.error.HTTPError:
            return False

    def kill(self, idx: int) -> None:
        kill(self.coordinators[idx].process)

    @property
    def url(self) -> str:
        return ','.join(f'http://{server.grpc}' for server in self.coordinators)

    def end(self) -> None:
        for process in [*(server.process for server in self.coordinators),
                        *(process for process, _ in self.workers)]:
            kill(process)


@pytest.fixture(scope='module')
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    group = Group(tmp_path_factory.mktemp('group'))
    yield group
    group.end()


def test_streams_outlive_their_leaders(group: Group) -> None:
    group.leader()
    want = told(group.url)
    assert len(want) > 100
    for is_time in (in_prefill, in_decode):
        leader = group.leader()
        assert told(group.url, is_time, lambda: group.kill(leader)) == want
        successor = group.leader()
        assert successor != leader
        resumed = metric(group.coordinators[successor], 'streams_resumed_total')
        # All tokens may be on their way before the eleventh is read; the prompt's end is not.
        assert resumed >= 1 or is_time is in_decode, 'it was not cut'
        group.coordinators[leader] = group.run(leader)


def started(url: str, options: GenerateOptions, fault: Fault) -> tuple[int, list[int]]:
    """The request that a call is, and its tokens; `fault` happens once it is accepted, and then
    its caller is gone without a word, as one that is killed is."""
    gone: list[object] = []

    async def work() -> tuple[int, list[int]]:
        client = Client(url)
        events = await client.generate(LONG[:12_000], options)
        if fault:
            fault()
            gone.extend((client, events))  # neither is closed or collected before the loop is
            return events.accepted.request, []
        ids = [event.id async for event in events if isinstance(event, Token)]
        await client.close()
        return events.accepted.request, ids

    return asyncio.run(work())


def test_a_start_that_is_made_again_is_the_same_request(group: Group) -> None:
    leader = group.leader()
    _, want = started(group.url, OPTIONS, None)
    keyed = replace(OPTIONS, idempotency_key='mine')
    request, _ = started(group.url, keyed, lambda: group.kill(leader))
    group.leader()
    assert started(group.url, keyed, None) == (request, want), 'under way, with the next leader'
    assert started(group.url, keyed, None) == (request, want), 'ended'
    assert started(group.url, replace(keyed, idempotency_key='other'), None)[0] != request
    with pytest.raises(InvalidArgumentError, match='idempotency_key = mine: must be one of its'):
        started(group.url, replace(keyed, max_tokens=7), None)
    group.coordinators[leader] = group.run(leader)


def test_a_leader_that_hangs_is_left(group: Group) -> None:
    want = told(group.url)
    leader = group.leader()
    process = group.coordinators[leader].process
    assert told(group.url, in_decode, lambda: process.send_signal(signal.SIGSTOP)) == want
    process.send_signal(signal.SIGCONT)


def test_whoever_is_asked_the_leader_answers(group: Group) -> None:
    group.leader()
    for first in range(COORDINATORS):
        one = f'http://{group.coordinators[first].grpc}'
        with blocking.Client(one) as client:
            assert client.complete(PROMPT, OPTIONS).completions
            assert client.describe().model == 'model'
    nobody = f'http://{own_address()}'
    with blocking.Client(f'{nobody},{group.url}') as client:
        assert client.complete(PROMPT, OPTIONS).completions
    with pytest.raises(UnavailableError):
        with blocking.Client(f'{nobody},{nobody}', ClientOptions(call_deadline_s=0.5)):
            pass


def test_a_server_that_is_started_again_goes_on(tmp_path: pathlib.Path) -> None:
    at = {'--http': own_address(), '--grpc': own_address()}
    args = [part for pair in at.items() for part in pair]
    args += ['--workers', '2', '--threads', '1', '--snapshot-bytes', '0']
    running = [start(*args, '--data-dir', tmp_path)]

    def again() -> None:
        kill(running.pop().process)
        running.append(start(*args, '--data-dir', tmp_path))

    try:
        url = f'http://{at["--grpc"]}'
        wait_for(lambda: metric(running[0], 'workers_up') == 2)
        want = told(url)
        assert len(want) > 100
        for is_time in (in_prefill, in_decode):
            assert told(url, is_time, again) == want
            resumed = metric(running[0], 'streams_resumed_total')
            assert resumed >= 1 or is_time is in_decode, 'it was not cut'
    finally:
        kill(running[0].process)
