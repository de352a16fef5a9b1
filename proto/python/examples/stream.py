"""Continues a text and prints the answer as it comes, and how the prefill goes on:

python examples/stream.py http://127.0.0.1:7070 "Once upon a time"
"""
import asyncio
import sys

from aqueduct_client import ChoiceDone, Client, Escalated, GenerateOptions, Progress, Summary, Token


async def main(url: str = 'http://127.0.0.1:7070', prompt: str = 'Once upon a time') -> None:
    options = GenerateOptions(max_tokens=32, temperature=0)
    async with Client(url) as client, await client.generate(prompt, options) as events:
        async for event in events:
            match event:
                case Progress():
                    print(f'chunk {event.chunks_done}/{event.chunk_count}', file=sys.stderr)
                case Escalated():
                    print(f'again with {event.next}', file=sys.stderr)
                case Token():
                    print(event.text, end='', flush=True)
                case ChoiceDone():
                    print(event.text)
                case Summary():
                    print(f'{event.output_tokens} tokens, {event.memory_bytes} bytes of memory')


asyncio.run(main(*sys.argv[1:]))
