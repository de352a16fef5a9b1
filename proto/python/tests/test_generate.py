"""Prompts go in, typed events come out."""
import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from conftest import LONG, PROMPT, metric, wait_for
from serving import Server

from aqueduct_client import (
    NEW_SESSION, Accepted, Answer, BelowFloor, ChatMessage, ChoiceDone, Client, DeadlineError,
    Exchange, GenerateEvent, GenerateOptions, Grammar, GrammarKind, MemoryPolicy, PolicyKind,
    Progress, PromptLogprobs, Quality, StopReason, Summary, Token, WireDtype,
)

T = TypeVar('T')
GREEDY = GenerateOptions(max_tokens=12, temperature=0)
ENDLESS = GenerateOptions(max_tokens=60_000, ignore_eos=True)


def run(url: str, work: Callable[[Client], Awaitable[T]]) -> T:
    """What comes of `work` with a client."""
    async def connected() -> T:
        async with Client(url) as client:
            return await work(client)

    return asyncio.run(connected())


def complete(url: str, options: GenerateOptions = GREEDY) -> Answer:
    return run(url, lambda client: client.complete(PROMPT, options))


def events_of(url: str, prompt: str, options: GenerateOptions) -> list[GenerateEvent]:
    async def work(client: Client) -> list[GenerateEvent]:
        return [event async for event in await client.generate(prompt, options)]

    return run(url, work)


def test_events_come_in_order_and_end_with_the_summary(url: str) -> None:
    events = events_of(url, LONG, GREEDY)
    assert isinstance(events[0], Accepted) and events[0].chunk_count > 2
    told = [event for event in events if isinstance(event, Progress)]
    assert told and told[-1].chunk_count == events[0].chunk_count
    assert {at.worker for event in told for at in event.workers} == {'w0', 'w1'}
    tokens = [event for event in events if isinstance(event, Token)]
    assert [token.token_idx for token in tokens] == list(range(12))
    done, summary = events[-2:]
    assert isinstance(done, ChoiceDone) and done.reason is StopReason.LENGTH
    assert isinstance(summary, Summary)
    assert summary.prompt_tokens == events[0].prompt_tokens
    assert summary.policy.kind is PolicyKind.H2O and summary.exchange is Exchange.MOVE
    assert 0 < summary.lowest_retained_mass < 1 and summary.memory_bytes < summary.dense_bytes
    text = ''.join(token.text for token in tokens) + done.text
    completion, = run(url, lambda client: client.complete(LONG, GREEDY)).completions
    assert completion.text == text and completion.reason is StopReason.LENGTH


def test_a_prompt_has_three_forms(url: str) -> None:
    async def work(client: Client) -> None:
        ids = (await client.tokenize(PROMPT)).ids
        assert (await client.tokenize(ids)).text == PROMPT
        from_ids, from_text = [await client.complete(form, GREEDY) for form in (ids, PROMPT)]
        assert from_ids.completions == from_text.completions
        turns = [ChatMessage('system', 'Be brief.'), ChatMessage('user', 'Why?')]
        assert 'Be brief.' in (await client.tokenize(turns)).text
        assert (await client.complete(turns, GREEDY)).completions

    run(url, work)


def test_options_reach_the_server(url: str) -> None:
    answer = complete(url, GenerateOptions(
        max_tokens=6, temperature=1.1, top_p=0.9, top_k=50, min_p=0.01, presence_penalty=0.1,
        frequency_penalty=0.1, repetition_penalty=1.1, logit_bias={300: -5.0}, seed=7,
        min_tokens=6, stop_tokens=[301],
        policy=MemoryPolicy(kind=PolicyKind.H2O, sinks=2, local=8, heavy=8, decay=0.95),
        quality=Quality(min_retained_mass=0.999, below_floor=BelowFloor.REPORT),
        chunk_tokens=32, exchange=Exchange.MOVE, wire=WireDtype.BF16, choices=2, priority=3))
    assert len(answer.completions) == 2
    summary = answer.summary
    assert summary.output_tokens == 12 and summary.chunk_tokens == 32
    kept = summary.policy
    assert (kept.sinks, kept.local, kept.heavy, kept.age_normalised) == (2, 8, 8, False)
    assert kept.decay == pytest.approx(0.95)
    assert summary.min_retained_mass == 0.999
    assert complete(url, GenerateOptions(quality=Quality(exact=True), max_tokens=1)
                    ).summary.policy.kind is PolicyKind.DENSE


def test_log_probabilities_stops_seeds_and_grammars(url: str) -> None:
    asked = GenerateOptions(max_tokens=3, logprobs=2, prompt_logprobs=True)
    events = events_of(url, PROMPT, asked)
    tokens = [event for event in events if isinstance(event, Token)]
    assert all(len(token.top) == 2 and token.logprob < 0 for token in tokens)
    told = [entry for event in events if isinstance(event, PromptLogprobs)
            for entry in event.entries]
    assert told and all(entry.token.logprob < 0 and len(entry.top) == 2 for entry in told)

    text = complete(url).completions[0].text
    stopped = complete(url, GenerateOptions(max_tokens=12, temperature=0, stop=[text[3:6]]))
    assert stopped.completions[0].text == text[:text.index(text[3:6])]
    assert stopped.completions[0].reason is StopReason.STOP

    ended = complete(url, GenerateOptions(max_tokens=6, logit_bias={300: 99.0}, min_tokens=2,
                                          stop_tokens=[300]))
    assert ended.summary.output_tokens == 3
    assert ended.completions[0].reason is StopReason.STOP

    drawn = [complete(url, GenerateOptions(max_tokens=8, seed=seed)).completions
             for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]

    digits = Grammar(GrammarKind.REGEX, '[0-9]{4}')
    answer = complete(url, GenerateOptions(grammar=digits, max_tokens=20))
    assert len(answer.completions[0].text) == 4 and answer.completions[0].text.isdigit()


def test_a_session_goes_on(url: str) -> None:
    async def work(client: Client) -> None:
        first = await client.complete(PROMPT, GenerateOptions(max_tokens=4, session=NEW_SESSION))
        assert first.summary.session
        again = GenerateOptions(max_tokens=4, session=first.summary.session)
        second = await client.complete('And then? ', again)
        assert second.summary.cached_tokens >= first.summary.prompt_tokens
        assert second.summary.session not in (None, first.summary.session)

    run(url, work)


async def by_closing(client: Client) -> None:
    async with await client.generate(PROMPT, ENDLESS) as events:
        async for event in events:
            if isinstance(event, Token):
                break
    assert [event async for event in events] == []


async def by_closing_while_another_task_waits(client: Client) -> None:
    events = await client.generate(PROMPT, ENDLESS)
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in events:
            begun.set()

    reading = asyncio.create_task(read())
    await begun.wait()
    await events.aclose()
    await reading


async def by_cancelling_the_task(client: Client) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        async for event in await client.generate(PROMPT, ENDLESS):
            if isinstance(event, Token):
                begun.set()

    reading = asyncio.create_task(read())
    await begun.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def by_the_deadline(client: Client) -> None:
    options = replace(ENDLESS, deadline_s=1.0)
    with pytest.raises(DeadlineError):
        await client.complete(PROMPT, options)


@pytest.mark.parametrize('leave', [
    by_closing, by_closing_while_another_task_waits, by_cancelling_the_task, by_the_deadline])
def test_leaving_cancels(
    server: Server, url: str, leave: Callable[[Client], Awaitable[None]]
) -> None:
    async def work(client: Client) -> None:
        await leave(client)
        # The connection goes on: it is the request that ended. Not for being left unread, which
        # takes a minute: the loop has to run meanwhile, to say so.
        begun = time.monotonic()
        await asyncio.to_thread(wait_for, lambda: metric(server, 'num_requests_running') == 0)
        assert time.monotonic() - begun < 20
        assert (await client.complete(PROMPT, GREEDY)).completions

    run(url, work)


def test_many_at_once(url: str) -> None:
    async def work(client: Client) -> None:
        options = [GenerateOptions(max_tokens=6, seed=seed) for seed in range(4)]
        together = await asyncio.gather(*(client.complete(PROMPT, each) for each in options))
        alone = [await client.complete(PROMPT, each) for each in options]
        assert [each.completions for each in together] == [each.completions for each in alone]

    run(url, work)


def test_what_is_served(url: str) -> None:
    described = run(url, Client.describe)
    assert described.model == 'model'
    assert described.shape and described.shape.layers > 1
    assert [worker.up for worker in described.workers] == [True, True]
