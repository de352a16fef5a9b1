"""One server for all tests: the built binary with the shipped model, on free ports."""
import openai
import pytest

from serving import Server, serving


def client_of(server: Server):
    url = f'http://{server.http}/v1'
    return openai.OpenAI(base_url=url, api_key='none', max_retries=0, timeout=60)


@pytest.fixture(scope='session')
def client():
    """Two workers, chunks of 64 tokens: prompts of a few sentences already cross the cluster."""
    with serving('--workers', '2', '--chunk', '64') as server:
        yield client_of(server)
