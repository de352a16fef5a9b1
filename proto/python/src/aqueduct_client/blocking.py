"""The same for programs without an event loop: it runs in a thread of the client's own."""
import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent import futures
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from . import client as aio
from . import generation
from .config import ClientOptions
from .errors import ClosedError
from .events import Accepted, Answer, Description, GenerateEvent, Tokenized
from .options import GenerateOptions, Prompt

T = TypeVar('T')


class _Loop:
    """A thread that runs what other threads wait for."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        done = self._begin(work)
        try:
            return done.result()
        except futures.CancelledError:
            raise ClosedError('the client is closed') from None
        except BaseException:  # an interrupt of this thread ends what it waits for
            done.cancel()
            raise

    def _begin(self, work: Coroutine[Any, Any, T]) -> futures.Future[T]:
        try:
            self._check_process()
            with self._lock:  # what begins before `close` is ended by it
                if self._is_closed:
                    raise ClosedError('the client is closed')
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except ClosedError:
            work.close()
            raise

    def _check_process(self) -> None:
        pid = os.getpid()
        if pid != self._pid:  # a fork has none of its parent's threads, this one's among them
            raise ClosedError(f'the client is of process {self._pid}, and this is {pid}: '
                              'make one in each process, after the fork')

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Does the `last` thing, and ends all others, whose callers are told so."""
        self.begin_to_close(last)
        if os.getpid() == self._pid:
            self._thread.join()

    def begin_to_close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """As `close`, but waits for nothing."""
        if os.getpid() != self._pid:
            return  # the client is its parent's
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if is_first:
            asyncio.run_coroutine_threadsafe(self._end(last()), self._loop)

    async def _end(self, last: Coroutine[Any, Any, None]) -> None:
        try:
            await last
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        finally:
            self._loop.call_soon(self._loop.stop)


class Client:
    """A connection to a coordinator, for any number of threads of the process that made it; see
    `aqueduct_client.Client`."""

    def __init__(self, url: str, options: ClientOptions = ClientOptions()) -> None:
        self._client = aio.Client(url, options)
        self._loop = _Loop()
        self._at_exit = partial(self._loop.close, self._client.close)
        atexit.register(self._at_exit)

    def __del__(self) -> None:
        # Any thread may collect this, the loop's own too.
        if hasattr(self, '_at_exit'):
            atexit.unregister(self._at_exit)
            self._loop.begin_to_close(self._client.close)

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
        """Hangs up: what is under way is cancelled, here with `ClosedError` and on the server."""
        self._loop.close(self._client.close)
        atexit.unregister(self._at_exit)

    def generate(
        self, prompt: Prompt, options: GenerateOptions = GenerateOptions()
    ) -> 'Generation':
        """Prefills a prompt and generates from it."""
        return Generation(self, self._loop, self._loop.run(self._client.generate(prompt, options)))

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
    """The events of one request. Leaving its `with`, `close`, or the loss of the last reference
    to it, cancels it. Threads that read it together share its events."""

    def __init__(self, client: Client, loop: _Loop, events: generation.Generation) -> None:
        self._client = client  # or it would be collected, and closed, while this goes on
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
        with contextlib.suppress(ClosedError):  # which has cancelled it
            self._loop.run(self._events.aclose())
