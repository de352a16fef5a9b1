"""What a server answers, in types."""
from dataclasses import dataclass
from enum import StrEnum

from .options import Exchange, MemoryPolicy


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request was understood and has begun. Always first."""

    request: int
    prompt_tokens: int
    chunk_count: int
    seed: int
    """The seed in use."""
    warnings: tuple[str, ...]
    """Budgets that were lowered, for a person to read."""


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """What one worker is at."""

    worker: str
    chunk_idx: int
    layers_done: int
    """Layers of that chunk."""
    layers: int
    chunks_done: int
    """Chunks of the request that it has finished."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the prefill stands."""

    chunks_done: int
    chunk_count: int
    tokens_per_second: float
    seconds_left: float
    """At that speed."""
    workers: tuple[WorkerProgress, ...]


@dataclass(frozen=True, slots=True)
class Escalated:
    """The memory kept too little; the prompt is prefilled again."""

    lowest_retained_mass: float
    min_retained_mass: float
    policy: MemoryPolicy
    """That kept so little."""
    next: MemoryPolicy


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class PromptLogprob:
    """A token of the prompt: what it was worth, and what else could have stood there."""

    token: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of the prompt's tokens from `start` on, if asked for; in any order."""

    start: int
    entries: tuple[PromptLogprob, ...]


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token."""

    choice: int
    token_idx: int
    """Index in the completion, from 0."""
    id: int
    text: str
    """Text that became complete with it; may be empty."""
    logprob: float
    top: tuple[TokenLogprob, ...]
    reasoning: str = ''
    """What the model thought, beside the text; may be empty. Of answers to chats alone."""


class StopReason(StrEnum):
    """Why a completion ended."""

    STOP = 'stop'
    """An end token or a stop string."""
    LENGTH = 'length'
    """`max_tokens`."""
    OTHER = 'other'
    """A reason that this version of the SDK does not know."""


@dataclass(frozen=True, slots=True)
class ChoiceDone:
    """The end of a completion."""

    choice: int
    reason: StopReason
    tokens: int
    text: str
    """Text that was held back for a stop string that did not come."""
    reasoning: str = ''
    """The same of what the model thought."""


@dataclass(frozen=True, slots=True)
class RetainedMass:
    """Attention mass of one layer."""

    kept: float
    total: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes between workers for keys that stayed where they were computed."""

    sent_bytes: int
    received_bytes: int
    asked: int
    fetched: int
    spared_bytes: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a finished request. The last event of a stream that went well."""

    prompt_tokens: int
    output_tokens: int
    """Over all completions."""
    cached_tokens: int
    """Of the prompt, whose memory was kept from another request."""
    prefill_seconds: float
    queue_seconds: float
    """Of those, before the first chunk began."""
    decode_seconds: float
    memory_bytes: int
    dense_bytes: int
    """What a full KV cache would hold."""
    retained: tuple[RetainedMass, ...]
    """Per layer."""
    lowest_retained_mass: float
    min_retained_mass: float | None
    """The floor, as asked for."""
    escalations: int
    policy: MemoryPolicy
    """As used."""
    chunk_tokens: int
    exchange: Exchange
    traffic: Traffic
    warnings: tuple[str, ...]
    session: str | None
    """To go on from."""


GenerateEvent = (
    Accepted | Progress | Escalated | PromptLogprobs | Token | ChoiceDone | Summary
)
"""What happens to a request, in order."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One continuation of the prompt."""

    text: str
    """Without a stop string."""
    reason: StopReason
    reasoning: str = ''
    """What the model thought before, in an answer to a chat."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, of `Client.complete`."""

    completions: tuple[Completion, ...]
    """As many as were asked for, one otherwise; where `max_tokens` is 0, each without text."""
    summary: Summary


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Token ids and the text that they stand for."""

    ids: tuple[int, ...]
    text: str


class KvDtype(StrEnum):
    """How keys and values are stored."""

    F32 = 'f32'
    BF16 = 'bf16'


@dataclass(frozen=True, slots=True)
class WideHeads:
    """Layers of a model with as many query heads as the rest, but other KV heads."""

    layers: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class WindowedLayers:
    """Layers of a model whose rows do not see far."""

    layers: int
    # Rows behind a chunk see so many of its keys at most: its last ones.
    tokens: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Shape of a decoder; counts of elements."""

    vocab: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    max_positions: int
    # So many layers remember in a state of fixed size, and have no keys; bytes of all their states.
    recurrent_layers: int = 0
    state_bytes: int = 0
    wide: WideHeads | None = None
    # So many layers, behind all others, attend to keys of earlier ones and remember nothing.
    kv_shared_layers: int = 0
    # Of those whose heads are not wide.
    windowed: WindowedLayers | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker of a server."""

    worker: str
    address: str
    up: bool
    threads: int
    pool_tokens: int | None
    """Most tokens whose keys it keeps in shards; `None` where memory alone bounds them."""
    draining: bool
    """It is given nothing new."""
    requests: int
    """Of a draining worker: requests that still need it."""
    pool_bytes: int
    """Of the pages in which it remembers keys and values; 0 if it has not said."""
    pool_used_bytes: int
    state: str
    """`connecting`, `up`, `draining`, `drained`, `down` or `refused`; of an older server `up` or
    `down`."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a server serves."""

    model: str
    fingerprint: str
    shape: ModelShape | None
    """`None`, as what is below, until the first worker is there."""
    kv: KvDtype | None
    prompt_tokens_max: int
    workers: tuple[WorkerStatus, ...]
