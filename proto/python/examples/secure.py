"""Asks a server with certificates and API keys; the API key is in a file:

python examples/secure.py https://localhost:7070 ca.pem api-key.txt [cert.pem key.pem]
"""
import asyncio
import sys
from pathlib import Path

from aqueduct_client import Client, ClientOptions, DeniedError, TlsFiles


async def main(
    url: str, ca: str, api_key: str, cert: str | None = None, key: str | None = None
) -> None:
    tls = TlsFiles(ca, cert, key)
    options = ClientOptions(tls=tls, api_key=Path(api_key).read_text().strip())
    async with Client(url, options) as client:
        try:
            described = await client.describe()
        except DeniedError as error:
            sys.exit(f'{error}')
        print(f'{described.model} on {len(described.workers)} workers')


asyncio.run(main(*sys.argv[1:]))
