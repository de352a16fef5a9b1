"""From messages to types and back; what cannot be read is an error, never a guess."""
import uuid
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from google.protobuf.message import Message

from .errors import unreadable
from .events import (
    Accepted, ChoiceDone, Description, Escalated, GenerateEvent, KvDtype, ModelShape, Progress,
    PromptLogprob, PromptLogprobs, RetainedMass, StopReason, Summary, Token, TokenLogprob,
    Traffic, WorkerProgress, WorkerStatus,
)
from .options import (
    BelowFloor, ChatMessage, Exchange, GenerateOptions, MemoryPolicy, PolicyKind, Prompt, Quality,
    WireDtype,
)
from .v1 import api_pb2 as api
from .v1 import common_pb2 as common

E = TypeVar('E', bound=StrEnum)
M = TypeVar('M', bound=Message)
N = TypeVar('N', bound=Message)

KINDS = {
    PolicyKind.DENSE: common.MemoryPolicy.KIND_DENSE,
    PolicyKind.WINDOW: common.MemoryPolicy.KIND_WINDOW,
    PolicyKind.H2O: common.MemoryPolicy.KIND_H2O,
}
EXCHANGES = {
    Exchange.MOVE: common.EXCHANGE_MOVE,
    Exchange.STAY: common.EXCHANGE_STAY,
    Exchange.AUTO: common.EXCHANGE_AUTO,
}
WIRES = {
    WireDtype.F32: common.WIRE_DTYPE_F32,
    WireDtype.BF16: common.WIRE_DTYPE_BF16,
    WireDtype.F16: common.WIRE_DTYPE_F16,
}
FLOORS = {
    BelowFloor.ESCALATE: api.Quality.BELOW_FLOOR_ESCALATE,
    BelowFloor.REPORT: api.Quality.BELOW_FLOOR_REPORT,
}
REASONS = {
    StopReason.STOP: api.ChoiceDone.REASON_STOP,
    StopReason.LENGTH: api.ChoiceDone.REASON_LENGTH,
}
KV = {KvDtype.F32: common.KV_DTYPE_F32, KvDtype.BF16: common.KV_DTYPE_BF16}
POLICY_NUMBERS = (
    'sinks', 'local', 'heavy', 'decay', 'window', 'age_normalised', 'max_tokens',
)
SAMPLING = (
    'temperature', 'top_p', 'top_k', 'seed', 'logprobs', 'min_p', 'presence_penalty',
    'frequency_penalty', 'repetition_penalty', 'min_tokens',
)
NO_BOUND = 0


def _set(message: M, source: object, *fields: str) -> M:
    """The fields that have a value."""
    for field in fields:
        value = getattr(source, field)
        if value is not None:
            setattr(message, field, value)
    return message


def _prompt(message: M, prompt: Prompt) -> M:
    if isinstance(prompt, str):
        setattr(message, 'text', prompt)
        return message
    turns = [turn for turn in prompt if isinstance(turn, ChatMessage)]
    if turns:
        messages = [api.ChatMessage(role=turn.role, content=turn.content) for turn in turns]
        getattr(message, 'chat').CopyFrom(api.ChatPrompt(messages=messages))
    else:
        ids = [token for token in prompt if isinstance(token, int)]
        getattr(message, 'tokens').CopyFrom(common.TokenList(ids=ids))
    if len(turns) not in (0, len(prompt)):
        raise TypeError('a prompt has turns of a chat or token ids, not both')
    return message


def request(prompt: Prompt, options: GenerateOptions) -> api.GenerateRequest:
    """What is sent for a call."""
    message = _prompt(api.GenerateRequest(), prompt)
    _set(message, options, 'max_tokens', 'chunk_tokens', 'choices', 'priority', 'session',
         'prompt_logprobs', 'ignore_eos', 'cache_prompt')
    # Log probabilities of the prompt are not kept for who comes back.
    message.resumable = options.resumable and not options.prompt_logprobs
    if options.idempotency_key is not None:
        message.idempotency_key = options.idempotency_key
    elif message.resumable:
        message.idempotency_key = uuid.uuid4().hex
    message.stop.extend(options.stop)
    message.stop_tokens.extend(options.stop_tokens)
    _set(message.sampling, options, *SAMPLING)
    bias = options.logit_bias.items()
    message.steering.bias.extend(common.TokenBias(token=id, bias=by) for id, by in bias)
    if options.policy:
        message.policy.CopyFrom(_policy_message(options.policy))
    if options.quality:
        message.quality.CopyFrom(_quality(options.quality))
    if options.exchange:
        message.exchange = EXCHANGES[options.exchange]
    if options.wire:
        message.wire = WIRES[options.wire]
    if options.grammar:
        setattr(message.grammar, options.grammar.kind, options.grammar.text)
    return message


def _policy_message(policy: MemoryPolicy) -> common.MemoryPolicy:
    kind = KINDS[policy.kind] if policy.kind else common.MemoryPolicy.KIND_UNSPECIFIED
    return _set(common.MemoryPolicy(kind=kind), policy, *POLICY_NUMBERS)


def _quality(quality: Quality) -> api.Quality:
    kind = api.Quality.KIND_EXACT if quality.exact else api.Quality.KIND_MEMORY
    message = api.Quality(kind=kind)
    if quality.below_floor:
        message.below_floor = FLOORS[quality.below_floor]
    return _set(message, quality, 'min_retained_mass')


def tokenize_request(prompt: Prompt) -> api.TokenizeRequest:
    """What is sent to have a prompt tokenised."""
    return _prompt(api.TokenizeRequest(), prompt)


def _named(field: str, names: Mapping[E, int], value: int) -> E:
    for name, number in names.items():
        if number == value:
            return name
    raise unreadable(f'{field} = {value}')


def _policy(message: common.MemoryPolicy) -> MemoryPolicy:
    given = {name: getattr(message, name) for name in POLICY_NUMBERS if message.HasField(name)}
    return MemoryPolicy(kind=_named('policy.kind', KINDS, message.kind), **given)


def _logprobs(entries: Iterable[common.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(entry.token, entry.logprob) for entry in entries)


def _accepted(part: api.Accepted) -> Accepted:
    return Accepted(part.request, part.prompt_tokens, part.chunk_count, part.seed,
                    tuple(part.warnings))


def _progress(part: api.Progress) -> Progress:
    workers = tuple(
        WorkerProgress(at.worker, at.chunk_idx, at.layers_done, at.layers, at.chunks_done)
        for at in part.workers)
    return Progress(part.chunks_done, part.chunk_count, part.tokens_per_second,
                    part.seconds_left, workers)


def _escalated(part: api.Escalated) -> Escalated:
    return Escalated(part.lowest_retained_mass, part.min_retained_mass, _policy(part.policy),
                     _policy(part.next))


def _prompt_logprobs(part: api.PromptLogprobs) -> PromptLogprobs:
    entries = tuple(
        PromptLogprob(TokenLogprob(entry.token.token, entry.token.logprob), _logprobs(entry.top))
        for entry in part.entries)
    return PromptLogprobs(part.start, entries)


def _token(part: api.Token) -> Token:
    return Token(part.choice, part.token_idx, part.id, part.text, part.logprob,
                 _logprobs(part.top))


def _choice_done(part: api.ChoiceDone) -> ChoiceDone:
    return ChoiceDone(part.choice, _named('choice_done.reason', REASONS, part.reason),
                      part.tokens, part.text)


def _summary(part: api.Summary) -> Summary:
    traffic = part.traffic
    return Summary(
        prompt_tokens=part.prompt_tokens,
        output_tokens=part.output_tokens,
        cached_tokens=part.cached_tokens,
        prefill_seconds=part.prefill_seconds,
        queue_seconds=part.queue_seconds,
        decode_seconds=part.decode_seconds,
        memory_bytes=part.memory_bytes,
        dense_bytes=part.dense_bytes,
        retained=tuple(RetainedMass(mass.kept, mass.total) for mass in part.retained),
        lowest_retained_mass=part.lowest_retained_mass,
        min_retained_mass=part.min_retained_mass if part.HasField('min_retained_mass') else None,
        escalations=part.escalations,
        policy=_policy(part.policy),
        chunk_tokens=part.chunk_tokens,
        exchange=_named('summary.exchange', EXCHANGES, part.exchange),
        traffic=Traffic(traffic.sent_bytes, traffic.received_bytes, traffic.asked,
                        traffic.fetched, traffic.spared_bytes),
        warnings=tuple(part.warnings),
        session=part.session or None,
    )


def event(message: api.GenerateEvent) -> GenerateEvent:
    """An event of a stream."""
    kind = message.WhichOneof('kind')
    if kind is None:
        raise unreadable('event without a kind')
    readers: dict[str, Callable[..., GenerateEvent]] = {
        'accepted': _accepted, 'progress': _progress, 'escalated': _escalated,
        'prompt_logprobs': _prompt_logprobs, 'token': _token, 'choice_done': _choice_done,
        'summary': _summary,
    }
    return readers[kind](getattr(message, kind))


def worker_status(part: api.WorkerStatus) -> WorkerStatus:
    """How a worker stands."""
    bound = None if part.pool_tokens == NO_BOUND else part.pool_tokens
    return WorkerStatus(part.worker, part.address, part.up, part.threads, bound, part.draining,
                        part.requests, part.pool_bytes, part.pool_used_bytes)


def description(reply: api.DescribeReply) -> Description:
    """What a server serves."""
    shape = reply.shape
    return Description(
        model=reply.model,
        fingerprint=reply.fingerprint,
        shape=ModelShape(shape.vocab, shape.layers, shape.width, shape.heads, shape.kv_heads,
                         shape.head_dim, shape.ffn, shape.max_positions),
        kv=_named('describe.kv', KV, reply.kv),
        prompt_tokens_max=reply.prompt_tokens_max,
        workers=tuple(worker_status(worker) for worker in reply.workers),
    )
