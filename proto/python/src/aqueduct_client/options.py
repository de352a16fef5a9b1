"""What a caller asks for."""
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import SupportsIndex


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a chat."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str


Prompt = str | Sequence[SupportsIndex] | Sequence[ChatMessage]
"""A text, token ids, or the turns of a chat. Token ids are integers of any kind, numpy's too."""

NEW_SESSION = 'new'
"""`GenerateOptions.session` of a first turn."""


class PolicyKind(StrEnum):
    """What a layer remembers of the past."""

    DENSE = 'dense'
    """Every key."""
    WINDOW = 'window'
    """The first keys and the most recent ones."""
    H2O = 'h2o'
    """These, and those that drew the most attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """What the memory keeps; `None` leaves a field to the server."""

    kind: PolicyKind | None = None
    sinks: int | None = None
    """First positions of the sequence."""
    local: int | None = None
    """Last positions."""
    heavy: int | None = None
    """Keys kept for their score."""
    decay: float | None = None
    """1 sums attention mass for ever; below 1 is a moving average."""
    window: int | None = None
    """Above 0: only the last rows of a chunk vote."""
    age_normalised: bool | None = None
    """Rank by score over the rows that could have voted."""
    max_tokens: int | None = None
    """Instead of `local` and `heavy`: a budget that the server splits."""


class BelowFloor(StrEnum):
    """What is done where the memory kept less than the floor."""

    ESCALATE = 'escalate'
    """Prefill again with a larger budget, at last with every key."""
    REPORT = 'report'
    """Go on and say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What the memory must have kept before anything is generated."""

    exact: bool = False
    """Every key, whatever the server's own policy is."""
    min_retained_mass: float | None = None
    """Share of the attention mass that each layer must have kept: above 0, at most 1."""
    below_floor: BelowFloor | None = None
    """`BelowFloor.ESCALATE` where it is not given."""


class GrammarKind(StrEnum):
    """In what a grammar is written."""

    JSON_SCHEMA = 'json_schema'
    REGEX = 'regex'
    LARK = 'lark'


@dataclass(frozen=True, slots=True)
class Grammar:
    """What each completion must look like."""

    kind: GrammarKind
    text: str


class Exchange(StrEnum):
    """How the past reaches the queries of a chunk."""

    MOVE = 'move'
    STAY = 'stay'
    AUTO = 'auto'


class WireDtype(StrEnum):
    """What queries and outputs are between workers."""

    F32 = 'f32'
    BF16 = 'bf16'
    F16 = 'f16'


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """Options of `Client.generate`. `None` leaves a field to the server's default."""

    max_tokens: int | None = None
    """Most tokens of each completion; 0 prefills only."""
    temperature: float | None = None
    """0 is greedy."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    """Tokens before an end token may be drawn, or a stop string looked for."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids."""
    seed: int | None = None
    """The server draws one and reports it otherwise."""
    logprobs: int | None = None
    """Alternatives to report for each token."""
    policy: MemoryPolicy | None = None
    quality: Quality | None = None
    chunk_tokens: int | None = None
    exchange: Exchange | None = None
    wire: WireDtype | None = None
    grammar: Grammar | None = None
    thinking_token_budget: int | None = None
    """Most tokens that the model thinks before it answers a chat; its thoughts are ended then.
    Otherwise any number, or beside a grammar half of `max_tokens`."""
    stop: str | Sequence[str] = ()
    """Strings that end a completion, or the only one."""
    stop_tokens: Sequence[int] = ()
    """Tokens that end a completion as the model's own end tokens do."""
    choices: int | None = None
    """Completions of the one prompt."""
    prompt_logprobs: bool = False
    """Report the log probabilities of the prompt's own tokens."""
    ignore_eos: bool = False
    """Generate on after an end token."""
    priority: int | None = None
    """Lower begins earlier: -100 to 100, 0 is what most have."""
    request_id: str | None = None
    """What the server's log is to call it; up to 128 visible ASCII characters."""
    cache_prompt: bool = True
    """Go on from a prefix that was seen before, and keep this one's."""
    session: str | None = None
    """`NEW_SESSION`: keep what is remembered at the end. `Summary.session` of an earlier answer:
    go on from there; the prompt is then what follows that answer."""
    resumable: bool = True
    """Whether the request goes on while its connection is lost, so that the stream does, with
    every token once. Not beside `prompt_logprobs`."""
    idempotency_key: str | None = None
    """By what the server knows the request if it is asked for twice: the second time is the first
    one, told from its beginning, also by another coordinator; with another prompt or other options
    it is refused. Up to 255 visible ASCII characters; one is drawn for each call of a resumable
    request where there is none, which with one is resumable in any case. Not beside
    `prompt_logprobs`."""
    deadline_s: float = 3600.0
    """How long the whole answer may take: above 0, `math.inf` is a year."""
