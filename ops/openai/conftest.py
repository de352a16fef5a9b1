"""One server for all tests: the built binary with the shipped model, on free ports."""
import json
import os
import pathlib
import subprocess
import sys

import openai
import pytest

sys.dont_write_bytecode = True
MODEL = pathlib.Path(__file__).parents[2] / 'model'


def start(model, *args):
    """The process, once it listens, and a client of it."""
    binary = os.environ['AQUEDUCT_BINARY']
    ports = ['--http', '127.0.0.1:0', '--grpc', '127.0.0.1:0']
    command = [binary, 'serve', '--model', str(model), *ports, *args]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    line = server.stdout.readline()
    assert line, f'{command} ended with {server.wait()}'
    url = f'http://{json.loads(line)["http"]}/v1'
    return server, openai.OpenAI(base_url=url, api_key='none', max_retries=0, timeout=60)


def serving(model, *args):
    server, client = start(model, *args)
    yield client
    server.terminate()
    assert server.wait(60) == 0


@pytest.fixture(scope='session')
def client():
    """Two workers, chunks of 64 tokens: prompts of a few sentences already cross the cluster."""
    yield from serving(MODEL, '--workers', '2', '--chunk', '64')
