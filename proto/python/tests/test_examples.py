"""The examples of both SDKs run, and print the same."""
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import PROMPT, metric, wait_for
from serving import ROOT, Server
from test_secure import Guarded, guarded

__all__ = ['guarded']
HERE = ROOT / 'proto/python/examples'
RUST = pathlib.Path(os.environ['AQUEDUCT_BINARY']).parent / 'examples'


def printed(name: str, *args: str | os.PathLike[str]) -> str:
    """What both print."""
    assert (ROOT / f'proto/client/examples/{name}.rs').exists()
    ours, theirs = (
        subprocess.run([*command, *args], capture_output=True, text=True)
        for command in ([sys.executable, HERE / f'{name}.py'], [RUST / name]))
    assert (ours.returncode, theirs.returncode) == (0, 0), ours.stderr + theirs.stderr
    assert ours.stdout == theirs.stdout
    return ours.stdout


def test_there_are_no_others() -> None:
    names = {file.stem for file in HERE.glob('*.py')}
    assert names == {'generate', 'stream', 'session', 'cancel', 'secure', 'errors'}


@pytest.mark.parametrize('name, words', [
    ('generate', 'length after 32 tokens'),
    ('stream', '32 tokens, '),
    ('session', ' tokens known'),
])
def test_answers(url: str, name: str, words: str) -> None:
    assert words in printed(name, url, PROMPT)


def test_what_goes_wrong(url: str) -> None:
    assert printed('errors', url, PROMPT) == (
        'mend it: top_p = 2: must be above 0 and at most 1\nallow more time\n')


def test_cancelled(server: Server, url: str) -> None:
    assert printed('cancel', url, PROMPT) == 'left after 5 of 4096 tokens\n'
    wait_for(lambda: metric(server, 'num_requests_running') == 0)


def test_secured(guarded: Guarded, tmp_path: pathlib.Path) -> None:
    tls = guarded.tls
    assert tls.cert and tls.key
    key = tmp_path / 'api-key.txt'
    key.write_text(f'{guarded.key}\n')
    url = f'https://{guarded.server.grpc}'
    assert printed('secure', url, tls.ca, key, tls.cert, tls.key) == (
        'model on 1 workers\n')
