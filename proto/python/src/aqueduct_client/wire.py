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
    Traffic, WideHeads, WindowedLayers, WorkerProgress, WorkerStatus,
)
from .fields import (
    bounded, elements, is_visible, number_of, of_kind, put, put_all, refused, token_id,
    token_ids,
)
from .options import (
    BelowFloor, ChatMessage, Exchange, GenerateOptions, Grammar, GrammarKind, MemoryPolicy,
    PolicyKind, Prompt, Quality, WireDtype,
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
PROMPTS = 'text, token ids or the turns of a chat'
REQUEST_ID_BYTES_MAX = 128
IDEMPOTENCY_KEY_BYTES_MAX = 255


def _set(message: M, source: object, *fields: str, of: str = '') -> M:
    """The fields that have a value."""
    for field in fields:
        value = getattr(source, field)
        if value is not None:
            put(message, field, value, of + field)
    return message


def _prompt(message: M, prompt: Prompt) -> M:
    if isinstance(prompt, str):
        put(message, 'text', prompt, 'prompt')
        return message
    if isinstance(prompt, bytes | bytearray | memoryview):
        raise refused('prompt', prompt, PROMPTS)
    parts: list[object] = elements('prompt', prompt, PROMPTS)
    if parts and isinstance(parts[0], ChatMessage):
        getattr(message, 'chat').CopyFrom(_chat(parts))
    else:
        ids = token_ids('prompt', parts)
        getattr(message, 'tokens').CopyFrom(common.TokenList(ids=ids))
    return message


def _chat(turns: list[object]) -> api.ChatPrompt:
    chat = api.ChatPrompt()
    for idx, turn in enumerate(turns):
        said = of_kind(f'prompt[{idx}]', turn, ChatMessage)
        _set(chat.messages.add(), said, 'role', 'content', of=f'prompt[{idx}].')
    return chat


def request(prompt: Prompt, options: GenerateOptions) -> api.GenerateRequest:
    """What is sent for a call."""
    of_kind('options', options, GenerateOptions)
    message = _prompt(api.GenerateRequest(), prompt)
    _set(message, options, 'max_tokens', 'chunk_tokens', 'choices', 'priority', 'session',
         'prompt_logprobs', 'ignore_eos', 'cache_prompt', 'thinking_token_budget')
    _set_key(message, options)
    stop = options.stop
    put_all(message, 'stop', [stop] if isinstance(stop, str) else stop)
    message.stop_tokens.extend(
        token_ids('stop_tokens', elements('stop_tokens', options.stop_tokens)))
    _set(message.sampling, options, *SAMPLING)
    if options.logit_bias:
        message.steering.CopyFrom(_steering(options.logit_bias))
    if options.policy is not None:
        message.policy.CopyFrom(_policy_message(of_kind('policy', options.policy, MemoryPolicy)))
    if options.quality is not None:
        message.quality.CopyFrom(_quality(of_kind('quality', options.quality, Quality)))
    if options.exchange is not None:
        message.exchange = number_of('exchange', EXCHANGES, options.exchange)
    if options.wire is not None:
        message.wire = number_of('wire', WIRES, options.wire)
    if options.grammar is not None:
        _set_grammar(message.grammar, of_kind('grammar', options.grammar, Grammar))
    return bounded(message)


def _steering(biases: Mapping[int, float]) -> common.Steering:
    if not isinstance(biases, Mapping):
        raise refused('logit_bias', biases, 'numbers by token id')
    steering = common.Steering()
    for token, by in biases.items():
        id = token_id('logit_bias', token)
        put(steering.bias.add(token=id), 'bias', by, f'logit_bias[{id}]')
    return steering


def _set_key(message: api.GenerateRequest, options: GenerateOptions) -> None:
    key = options.idempotency_key
    # Log probabilities of the prompt are not kept for who comes back.
    message.resumable = options.resumable and not options.prompt_logprobs
    if key is None:
        if message.resumable:
            message.idempotency_key = uuid.uuid4().hex
    elif options.prompt_logprobs:
        raise refused('idempotency_key', key, 'None beside prompt_logprobs, which are told once')
    elif not is_visible(key, IDEMPOTENCY_KEY_BYTES_MAX):
        bound = f'1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters'
        raise refused('idempotency_key', key, bound)
    else:
        message.idempotency_key = key


def _set_grammar(message: common.Grammar, grammar: Grammar) -> None:
    if grammar.kind not in list(GrammarKind):
        raise refused('grammar.kind', grammar.kind, f'one of {", ".join(GrammarKind)}')
    put(message, grammar.kind, grammar.text, 'grammar.text')


def _policy_message(policy: MemoryPolicy) -> common.MemoryPolicy:
    message = common.MemoryPolicy()
    if policy.kind is not None:
        message.kind = number_of('policy.kind', KINDS, policy.kind)
    return _set(message, policy, *POLICY_NUMBERS, of='policy.')


def _quality(quality: Quality) -> api.Quality:
    kind = api.Quality.KIND_EXACT if quality.exact else api.Quality.KIND_MEMORY
    message = api.Quality(kind=kind)
    if quality.below_floor is not None:
        message.below_floor = number_of('quality.below_floor', FLOORS, quality.below_floor)
    return _set(message, quality, 'min_retained_mass', of='quality.')


def tokenize_request(prompt: Prompt) -> api.TokenizeRequest:
    """What is sent to have a prompt tokenised."""
    return bounded(_prompt(api.TokenizeRequest(), prompt))


def caller_id(request_id: str) -> str:
    """What the server's log is to call a request."""
    if not is_visible(request_id, REQUEST_ID_BYTES_MAX):
        bound = f'1 to {REQUEST_ID_BYTES_MAX} visible ASCII characters'
        raise refused('request_id', request_id, bound)
    return request_id


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
                 _logprobs(part.top), part.reasoning)


def _choice_done(part: api.ChoiceDone) -> ChoiceDone:
    known = (reason for reason, number in REASONS.items() if number == part.reason)
    reason = next(known, StopReason.OTHER)
    return ChoiceDone(part.choice, reason, part.tokens, part.text, part.reasoning)


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


def event(message: api.GenerateEvent) -> GenerateEvent | None:
    """An event of a stream; `None` for a kind that this version does not know."""
    kind = message.WhichOneof('kind')
    if kind is None:
        return None
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
                        part.requests, part.pool_bytes, part.pool_used_bytes,
                        part.state or ('up' if part.up else 'down'))


def _shape(part: common.ModelShape) -> ModelShape:
    wide = part.wide
    heads = WideHeads(wide.layers, wide.kv_heads, wide.head_dim) if part.HasField('wide') else None
    near = part.windowed
    windowed = WindowedLayers(near.layers, near.tokens) if part.HasField('windowed') else None
    return ModelShape(part.vocab, part.layers, part.width, part.heads, part.kv_heads,
                      part.head_dim, part.ffn, part.max_positions,
                      part.recurrent_layers, part.state_bytes, heads, part.kv_shared_layers,
                      windowed)


def description(reply: api.DescribeReply) -> Description:
    """What a server serves. Its workers bring the model: without one there is nothing to say."""
    return Description(
        model=reply.model,
        fingerprint=reply.fingerprint,
        shape=_shape(reply.shape) if reply.HasField('shape') else None,
        kv=_named('describe.kv', KV, reply.kv) if reply.kv else None,
        prompt_tokens_max=reply.prompt_tokens_max,
        workers=tuple(worker_status(worker) for worker in reply.workers),
    )
