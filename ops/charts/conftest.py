"""Value sets are rendered once; processes are started once."""

import functools
import os
import re
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
def help_of(binary):
    """What a command of the binary says of itself."""

    @functools.cache
    def ask(command):
        asked = [binary, command, '--help']
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout

    return ask


@pytest.fixture(scope='session')
def flags_of(help_of):
    """The flags of a command of the binary."""
    return lambda command: set(re.findall(r'^ +--([a-z0-9-]+)', help_of(command), re.M))
