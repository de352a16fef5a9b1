"""What can go wrong is a class for each thing that a caller can do about it:

python examples/errors.py http://127.0.0.1:7070 "Once upon a time"
"""
import asyncio
import sys

from aqueduct_client import (
    BusyError, Client, ClientError, DeadlineError, GenerateOptions, InvalidArgumentError,
    UnavailableError,
)

ENDLESS = GenerateOptions(max_tokens=4096, ignore_eos=True, deadline_s=0.5)


async def main(url: str = 'http://127.0.0.1:7070', prompt: str = 'Once upon a time') -> None:
    for options in (GenerateOptions(top_p=2), ENDLESS):
        try:
            async with Client(url) as client:
                await client.complete(prompt, options)
        except InvalidArgumentError as error:
            print(f'mend it: {error}')
        except BusyError as error:
            print(f'come again in {error.retry_after_s} s')
        except DeadlineError:
            print('allow more time')
        except UnavailableError:
            print('ask later')
        except ClientError as error:
            print(f'tell somebody: {error}')


asyncio.run(main(*sys.argv[1:]))
