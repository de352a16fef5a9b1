"""Certificates and keys: who may, and who may not and why."""
import asyncio
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import trustme
from conftest import PROMPT
from serving import Server, new_key, serving

from aqueduct_client import (
    BusyError, Client, ClientOptions, Description, DeniedError, GenerateOptions,
    InvalidArgumentError, Retry, TlsFiles, UnavailableError,
)

ONCE = Retry(tries=1)


@dataclass(frozen=True)
class Guarded:
    """A server that asks for certificates and keys, and who may call it."""

    server: Server
    tls: TlsFiles
    key: str


@pytest.fixture(scope='module')
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp('certificates')
    authority = trustme.CA()
    ca = folder / 'ca.pem'
    authority.cert_pem.write_to_path(ca)
    files: dict[str, list[pathlib.Path]] = {}
    for name in ('127.0.0.1', 'alice'):
        signed = authority.issue_cert(name)
        files[name] = [folder / f'{name}.pem', folder / f'{name}.key']
        signed.cert_chain_pems[0].write_to_path(files[name][0])
        signed.private_key_pem.write_to_path(files[name][1])
    key = new_key(folder / 'keys.json', '--name', 'alice', '--tokens-per-minute', '60')
    cert, secret = files['127.0.0.1']
    with serving('--api-keys', folder / 'keys.json', '--tls-cert', cert, '--tls-key', secret,
                 '--tls-ca', ca) as server:
        yield Guarded(server, TlsFiles(ca, *files['alice']), key)


def describe(guarded: Guarded, options: ClientOptions) -> Description:
    async def work() -> Description:
        async with Client(f'https://{guarded.server.grpc}', options) as client:
            return await client.describe()

    return asyncio.run(work())


def test_who_may(guarded: Guarded) -> None:
    options = ClientOptions(tls=guarded.tls, api_key=guarded.key)
    assert describe(guarded, options).model == 'model'


@pytest.mark.parametrize('key', [None, 'aq_0000000000000000_wrong'])
def test_keys_that_open_nothing(guarded: Guarded, key: str | None) -> None:
    with pytest.raises(DeniedError, match='key'):
        describe(guarded, ClientOptions(tls=guarded.tls, api_key=key))


def test_a_key_has_limits(guarded: Guarded) -> None:
    async def work() -> None:
        options = ClientOptions(tls=guarded.tls, api_key=guarded.key)
        async with Client(f'https://{guarded.server.grpc}', options) as client:
            ask = GenerateOptions(max_tokens=60, ignore_eos=True, deadline_s=30)
            await client.complete(PROMPT, ask)
            with pytest.raises(BusyError, match='API key') as raised:
                await client.complete(PROMPT, ask)
            # Later than the call may last: no other try is made of it.
            assert raised.value.retry_after_s > 30

    asyncio.run(work())


def test_certificates_that_open_nothing(
    guarded: Guarded, tmp_path: pathlib.Path
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / 'other.pem')
    for files in (TlsFiles(tmp_path / 'other.pem'), TlsFiles(guarded.tls.ca)):
        with pytest.raises(UnavailableError):
            describe(guarded, ClientOptions(tls=files, api_key=guarded.key, retry=ONCE))
    for files in (TlsFiles(tmp_path / 'none.pem'), TlsFiles(guarded.tls.ca, guarded.tls.cert)):
        with pytest.raises(InvalidArgumentError, match='tls'):
            describe(guarded, ClientOptions(tls=files))
