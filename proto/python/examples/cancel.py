"""Reads five tokens of a long answer and leaves: no worker computes the rest.

python examples/cancel.py http://127.0.0.1:7070 "Once upon a time"
"""
import asyncio
import sys

from aqueduct_client import Client, GenerateOptions, Token


async def main(url: str = 'http://127.0.0.1:7070', prompt: str = 'Once upon a time') -> None:
    options = GenerateOptions(max_tokens=4096, temperature=0, ignore_eos=True)
    read = 0
    async with Client(url) as client, await client.generate(prompt, options) as events:
        async for event in events:
            read += isinstance(event, Token)
            if read == 5:
                break  # leaving `async with` cancels, and so does the cancellation of a task
    print(f'left after {read} of {options.max_tokens} tokens')


asyncio.run(main(*sys.argv[1:]))
