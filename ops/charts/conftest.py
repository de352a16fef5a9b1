"""Value sets are rendered once; processes are started once."""

import os
import subprocess
import sys

import pytest

sys.dont_write_bytecode = True

from chart import SETS, Manifests, values_of  # noqa: E402

rendered = {}


@pytest.fixture(params=SETS)
def manifests(request):
    """Every value set in turn."""
    return of_set(request.param)


@pytest.fixture
def value_set():
    return of_set


def of_set(name):
    if name not in rendered:
        rendered[name] = Manifests(values_of(name))
    return rendered[name]


@pytest.fixture(scope='session')
def binary():
    return os.environ['AQUEDUCT_BINARY']


@pytest.fixture(scope='session')
def flags_of(binary):
    """The flags of a command of the binary, by its own help."""
    seen = {}

    def ask(command):
        if command not in seen:
            text = subprocess.run(
                [binary, command, '--help'], capture_output=True, text=True, check=True
            )
            words = [
                line.split()[0]
                for line in text.stdout.splitlines()
                if line.strip().startswith('--')
            ]
            seen[command] = {word.removeprefix('--').rstrip(',') for word in words}
        return seen[command]

    return ask
