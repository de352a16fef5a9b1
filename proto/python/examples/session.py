"""Two turns of a conversation; the second costs only its own tokens:

python examples/session.py http://127.0.0.1:7070 "Once upon a time"
"""
import asyncio
import sys

from aqueduct_client import NEW_SESSION, Client, GenerateOptions, SessionLostError


async def main(url: str = 'http://127.0.0.1:7070', prompt: str = 'Once upon a time') -> None:
    async with Client(url) as client:
        session: str | None = NEW_SESSION
        for said in (prompt, ' And then?'):
            options = GenerateOptions(max_tokens=8, temperature=0, session=session)
            try:
                answer = await client.complete(said, options)
            except SessionLostError:
                sys.exit('no worker keeps it any more: begin again with all that was said')
            print(answer.completions[0].text)
            print(f'{answer.summary.cached_tokens} of {answer.summary.prompt_tokens} tokens known')
            session = answer.summary.session


asyncio.run(main(*sys.argv[1:]))
