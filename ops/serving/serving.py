"""One server for tests: the binary that AQUEDUCT_BINARY names, on free ports."""
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / 'model'
# The slowest machine that runs these tests, with much beside them.
STOP_DEADLINE_S = 60


@dataclass(frozen=True)
class Server:
    """A process that listens, and where."""

    process: subprocess.Popen[str]
    http: str
    grpc: str


def launch(command: str, *args: str | os.PathLike[str],
           model: os.PathLike[str] = MODEL) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A process of the binary, once it listens, and where it does."""
    whole = [os.environ['AQUEDUCT_BINARY'], command, '--model', model, *args]
    process = subprocess.Popen(whole, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    line = process.stdout.readline()
    assert line, f'{whole} ended with {process.wait()}'
    return process, json.loads(line)


def start(*args: str | os.PathLike[str], model: os.PathLike[str] = MODEL) -> Server:
    """A server, once it listens; on free ports unless `args` name some."""
    ports = ['--http', '127.0.0.1:0', '--grpc', '127.0.0.1:0']
    process, addresses = launch('serve', *([] if '--http' in args else ports), *args, model=model)
    return Server(process, addresses['http'], addresses['grpc'])


@contextmanager
def serving(*args: str | os.PathLike[str],
            model: os.PathLike[str] = MODEL) -> Iterator[Server]:
    """A server that ends well when it is told to."""
    server = start(*args, model=model)
    try:
        yield server
    finally:
        server.process.terminate()
        assert server.process.wait(STOP_DEADLINE_S) == 0


def new_key(file: os.PathLike[str], *args: str) -> str:
    """An API key, made with `aqueduct keys new`."""
    binary = os.environ['AQUEDUCT_BINARY']
    command = [binary, 'keys', 'new', '--api-keys', os.fspath(file), *args]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    return made.stdout.strip()
