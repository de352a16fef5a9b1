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
    return lambda command: {flag for flag, _ in described(help_of(command))}


@pytest.fixture(scope='session')
def valued_flags_of(help_of):
    """Those of them that want a value."""
    return lambda command: {
        flag for flag, text in described(help_of(command)) if text.startswith(' <')
    }


@pytest.fixture(scope='session')
def variables_of(help_of):
    """The variable of the environment that stands for a flag, for each that has one."""

    def ask(command):
        variables = {}
        for flag, text in described(help_of(command)):
            if found := re.search(r'\[env:\s+(\w+)', text):
                variables[flag] = found[1]
        return variables

    return ask


def described(text):
    """(flag, what is said of it) for every flag of a help text; other lines are indented more."""
    parts = re.split(r'^ {6}--([a-z0-9-]+)', text, flags=re.M)
    return list(zip(parts[1::2], parts[2::2]))
