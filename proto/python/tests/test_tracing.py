"""A call is a span below its caller's, and says so to the server."""
import asyncio

import grpc
import pytest
from conftest import PROMPT
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from test_errors import AWAY
from test_resume import ACCEPTED, SUMMARY, Told, connected, token

from aqueduct_client import Client, GenerateOptions, InvalidArgumentError

EXPORTER = InMemorySpanExporter()
OK = grpc.StatusCode.OK
REFUSED = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope='module', autouse=True)
def provider() -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)
    return provider


def spans() -> list[ReadableSpan]:
    ended = list(EXPORTER.get_finished_spans())
    EXPORTER.clear()
    return ended


def test_a_call_is_a_span_below_its_callers(provider: TracerProvider) -> None:
    told = Told(([ACCEPTED, token(0)], AWAY, ()), ([ACCEPTED, SUMMARY], OK, ()))

    async def work() -> None:
        async with connected(told) as client:
            with provider.get_tracer('caller').start_as_current_span('outer'):
                await client.complete(PROMPT)

    asyncio.run(work())
    own, outer = spans()
    assert (own.name, outer.name) == ('generate', 'outer')
    assert own.context and outer.context and own.parent
    assert own.parent.span_id == outer.context.span_id
    want = f'00-{own.context.trace_id:032x}-{own.context.span_id:016x}-'
    assert len(told.parents) == 2, 'also where the stream was lost'
    assert all(parent.startswith(want) for parent in told.parents)
    assert own.status.status_code is trace.StatusCode.UNSET


def test_a_call_that_fails_says_so() -> None:
    async def work(client: Client) -> None:
        with pytest.raises(InvalidArgumentError):
            await client.complete(PROMPT, GenerateOptions())
        events = await client.generate(PROMPT)
        with pytest.raises(InvalidArgumentError):
            async for _ in events:
                pass
        await (await client.generate(PROMPT)).aclose()

    async def all_of_it() -> None:
        told = Told(([], REFUSED, ()), ([ACCEPTED], REFUSED, ()), ([ACCEPTED], OK, ()))
        async with connected(told) as client:
            await work(client)

    asyncio.run(all_of_it())
    error, unset = trace.StatusCode.ERROR, trace.StatusCode.UNSET
    assert [span.status.status_code for span in spans()] == [error, error, unset]
