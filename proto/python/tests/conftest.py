"""One server for most tests, and what all tests ask of it."""
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from serving import ROOT, Server, serving

PROMPT = 'I went to the woods because I wished to live deliberately, '
LONG = (ROOT / 'ops/demo/walden.txt').read_text()[:20_000]
DEADLINE_S = 60


@pytest.fixture(scope='session')
def server() -> Iterator[Server]:
    """Two workers, chunks of 64 tokens: prompts of a few sentences already cross the cluster."""
    with serving('--workers', '2', '--chunk', '64') as server:
        yield server


@pytest.fixture(scope='session')
def url(server: Server) -> str:
    return f'http://{server.grpc}'


def metric(server: Server, name: str) -> float:
    """What the server says of itself."""
    with urllib.request.urlopen(f'http://{server.http}/metrics', timeout=DEADLINE_S) as reply:
        lines = reply.read().decode().splitlines()
    value, = (line.split()[-1] for line in lines if line.startswith(f'{name} '))
    return float(value)


def wait_for(what: Callable[[], bool]) -> None:
    """Until it is so."""
    until = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < until, 'it never was so'
        time.sleep(0.02)
