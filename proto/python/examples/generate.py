"""Continues a text and prints the whole answer:

python examples/generate.py http://127.0.0.1:7070 "Once upon a time"
"""
import asyncio
import sys

from aqueduct_client import Client, GenerateOptions


async def main(url: str = 'http://127.0.0.1:7070', prompt: str = 'Once upon a time') -> None:
    async with Client(url) as client:
        answer = await client.complete(prompt, GenerateOptions(max_tokens=32, temperature=0))
    for completion in answer.completions:
        print(completion.text)
        print(f'{completion.reason} after {answer.summary.output_tokens} tokens, '
              f'{answer.summary.prompt_tokens} of the prompt')


asyncio.run(main(*sys.argv[1:]))
