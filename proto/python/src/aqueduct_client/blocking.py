"""The same for programs without an event loop: it runs in a thread of the client's own."""
import asyncio
import threading
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from . import client as aio
from . import generation
from .config import ClientOptions
from .events import Accepted, Answer, Description, GenerateEvent, Tokenized
from .options import GenerateOptions, Prompt

T = TypeVar('T')


class _Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result()
        except BaseException:  # an interrupt of this thread ends what it waits for
            done.cancel()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Client:
    """A connection to a coordinator, for any number of threads; see `aqueduct_client.Client`."""

    def __init__(self, url: str, options: ClientOptions = ClientOptions()) -> None:
        self._client = aio.Client(url, options)
        self._loop = _Loop()

    def __enter__(self) -> Self:
        try:
            self._loop.run(self._client.connect())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Hangs up: what is under way is cancelled."""
        self._loop.run(self._client.close())
        self._loop.close()

    def generate(
        self, prompt: Prompt, options: GenerateOptions = GenerateOptions()
    ) -> 'Generation':
        """Prefills a prompt and generates from it."""
        return Generation(self._loop, self._loop.run(self._client.generate(prompt, options)))

    def complete(self, prompt: Prompt, options: GenerateOptions = GenerateOptions()) -> Answer:
        """The whole answer at once."""
        return self._loop.run(self._client.complete(prompt, options))

    def tokenize(self, prompt: Prompt) -> Tokenized:
        """Text or turns to token ids, token ids to text."""
        return self._loop.run(self._client.tokenize(prompt))

    def describe(self) -> Description:
        """What is served, and by which workers."""
        return self._loop.run(self._client.describe())


class Generation(Iterator[GenerateEvent]):
    """The events of one request. Leaving its `with`, or `close`, cancels it."""

    def __init__(self, loop: _Loop, events: generation.Generation) -> None:
        self._loop = loop
        self._events = events

    @property
    def accepted(self) -> Accepted:
        """The first event, which comes with the others too."""
        return self._events.accepted

    @property
    def request_id(self) -> str:
        """By which the server's log knows the request."""
        return self._events.request_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __next__(self) -> GenerateEvent:
        async def following() -> GenerateEvent | None:  # a future cannot hold a StopIteration
            return await anext(self._events, None)

        event = self._loop.run(following())
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """Cancels the request, unless it has ended."""
        self._loop.run(self._events.aclose())
