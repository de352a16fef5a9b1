from aqueduct_client.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResumeRequest(_message.Message):
    __slots__ = ("request", "next")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    request: int
    next: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request: _Optional[int] = ..., next: _Optional[_Iterable[int]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: int
    def __init__(self, request: _Optional[int] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class ChatPrompt(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("text", "tokens", "chat", "max_tokens", "sampling", "policy", "chunk_tokens", "stop", "choices", "prompt_logprobs", "ignore_eos", "exchange", "wire", "quality", "priority", "steering", "grammar", "cache_prompt", "session", "resumable", "idempotency_key", "stop_tokens", "thinking_token_budget")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    STEERING_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    CACHE_PROMPT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    THINKING_TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _common_pb2.TokenList
    chat: ChatPrompt
    max_tokens: int
    sampling: _common_pb2.Sampling
    policy: _common_pb2.MemoryPolicy
    chunk_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    choices: int
    prompt_logprobs: bool
    ignore_eos: bool
    exchange: _common_pb2.Exchange
    wire: _common_pb2.WireDtype
    quality: Quality
    priority: int
    steering: _common_pb2.Steering
    grammar: _common_pb2.Grammar
    cache_prompt: bool
    session: str
    resumable: bool
    idempotency_key: str
    stop_tokens: _containers.RepeatedScalarFieldContainer[int]
    thinking_token_budget: int
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Union[_common_pb2.TokenList, _Mapping]] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., max_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., policy: _Optional[_Union[_common_pb2.MemoryPolicy, _Mapping]] = ..., chunk_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., choices: _Optional[int] = ..., prompt_logprobs: bool = ..., ignore_eos: bool = ..., exchange: _Optional[_Union[_common_pb2.Exchange, str]] = ..., wire: _Optional[_Union[_common_pb2.WireDtype, str]] = ..., quality: _Optional[_Union[Quality, _Mapping]] = ..., priority: _Optional[int] = ..., steering: _Optional[_Union[_common_pb2.Steering, _Mapping]] = ..., grammar: _Optional[_Union[_common_pb2.Grammar, _Mapping]] = ..., cache_prompt: bool = ..., session: _Optional[str] = ..., resumable: bool = ..., idempotency_key: _Optional[str] = ..., stop_tokens: _Optional[_Iterable[int]] = ..., thinking_token_budget: _Optional[int] = ...) -> None: ...

class Quality(_message.Message):
    __slots__ = ("kind", "min_retained_mass", "below_floor")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Quality.Kind]
        KIND_EXACT: _ClassVar[Quality.Kind]
        KIND_MEMORY: _ClassVar[Quality.Kind]
    KIND_UNSPECIFIED: Quality.Kind
    KIND_EXACT: Quality.Kind
    KIND_MEMORY: Quality.Kind
    class BelowFloor(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        BELOW_FLOOR_UNSPECIFIED: _ClassVar[Quality.BelowFloor]
        BELOW_FLOOR_ESCALATE: _ClassVar[Quality.BelowFloor]
        BELOW_FLOOR_REPORT: _ClassVar[Quality.BelowFloor]
    BELOW_FLOOR_UNSPECIFIED: Quality.BelowFloor
    BELOW_FLOOR_ESCALATE: Quality.BelowFloor
    BELOW_FLOOR_REPORT: Quality.BelowFloor
    KIND_FIELD_NUMBER: _ClassVar[int]
    MIN_RETAINED_MASS_FIELD_NUMBER: _ClassVar[int]
    BELOW_FLOOR_FIELD_NUMBER: _ClassVar[int]
    kind: Quality.Kind
    min_retained_mass: float
    below_floor: Quality.BelowFloor
    def __init__(self, kind: _Optional[_Union[Quality.Kind, str]] = ..., min_retained_mass: _Optional[float] = ..., below_floor: _Optional[_Union[Quality.BelowFloor, str]] = ...) -> None: ...

class GenerateEvent(_message.Message):
    __slots__ = ("accepted", "progress", "token", "choice_done", "summary", "prompt_logprobs", "escalated")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHOICE_DONE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ESCALATED_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    progress: Progress
    token: Token
    choice_done: ChoiceDone
    summary: Summary
    prompt_logprobs: PromptLogprobs
    escalated: Escalated
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., token: _Optional[_Union[Token, _Mapping]] = ..., choice_done: _Optional[_Union[ChoiceDone, _Mapping]] = ..., summary: _Optional[_Union[Summary, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ..., escalated: _Optional[_Union[Escalated, _Mapping]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("request", "prompt_tokens", "chunk_count", "seed", "warnings")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    request: int
    prompt_tokens: int
    chunk_count: int
    seed: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., chunk_count: _Optional[int] = ..., seed: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkerProgress(_message.Message):
    __slots__ = ("worker", "chunk_idx", "layers_done", "layers", "chunks_done")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDX_FIELD_NUMBER: _ClassVar[int]
    LAYERS_DONE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_DONE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    chunk_idx: int
    layers_done: int
    layers: int
    chunks_done: int
    def __init__(self, worker: _Optional[str] = ..., chunk_idx: _Optional[int] = ..., layers_done: _Optional[int] = ..., layers: _Optional[int] = ..., chunks_done: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("chunks_done", "chunk_count", "tokens_per_second", "seconds_left", "workers")
    CHUNKS_DONE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    chunks_done: int
    chunk_count: int
    tokens_per_second: float
    seconds_left: float
    workers: _containers.RepeatedCompositeFieldContainer[WorkerProgress]
    def __init__(self, chunks_done: _Optional[int] = ..., chunk_count: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., seconds_left: _Optional[float] = ..., workers: _Optional[_Iterable[_Union[WorkerProgress, _Mapping]]] = ...) -> None: ...

class Escalated(_message.Message):
    __slots__ = ("lowest_retained_mass", "min_retained_mass", "policy", "next")
    LOWEST_RETAINED_MASS_FIELD_NUMBER: _ClassVar[int]
    MIN_RETAINED_MASS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    lowest_retained_mass: float
    min_retained_mass: float
    policy: _common_pb2.MemoryPolicy
    next: _common_pb2.MemoryPolicy
    def __init__(self, lowest_retained_mass: _Optional[float] = ..., min_retained_mass: _Optional[float] = ..., policy: _Optional[_Union[_common_pb2.MemoryPolicy, _Mapping]] = ..., next: _Optional[_Union[_common_pb2.MemoryPolicy, _Mapping]] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("choice", "token_idx", "id", "text", "logprob", "top", "reasoning")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    choice: int
    token_idx: int
    id: int
    text: str
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprob]
    reasoning: str
    def __init__(self, choice: _Optional[int] = ..., token_idx: _Optional[int] = ..., id: _Optional[int] = ..., text: _Optional[str] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[_common_pb2.TokenLogprob, _Mapping]]] = ..., reasoning: _Optional[str] = ...) -> None: ...

class ChoiceDone(_message.Message):
    __slots__ = ("choice", "reason", "tokens", "text", "reasoning")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[ChoiceDone.Reason]
        REASON_STOP: _ClassVar[ChoiceDone.Reason]
        REASON_LENGTH: _ClassVar[ChoiceDone.Reason]
    REASON_UNSPECIFIED: ChoiceDone.Reason
    REASON_STOP: ChoiceDone.Reason
    REASON_LENGTH: ChoiceDone.Reason
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    choice: int
    reason: ChoiceDone.Reason
    tokens: int
    text: str
    reasoning: str
    def __init__(self, choice: _Optional[int] = ..., reason: _Optional[_Union[ChoiceDone.Reason, str]] = ..., tokens: _Optional[int] = ..., text: _Optional[str] = ..., reasoning: _Optional[str] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("start", "entries")
    START_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    start: int
    entries: _containers.RepeatedCompositeFieldContainer[PromptLogprob]
    def __init__(self, start: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[PromptLogprob, _Mapping]]] = ...) -> None: ...

class PromptLogprob(_message.Message):
    __slots__ = ("token", "top")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    token: _common_pb2.TokenLogprob
    top: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprob]
    def __init__(self, token: _Optional[_Union[_common_pb2.TokenLogprob, _Mapping]] = ..., top: _Optional[_Iterable[_Union[_common_pb2.TokenLogprob, _Mapping]]] = ...) -> None: ...

class Summary(_message.Message):
    __slots__ = ("prompt_tokens", "output_tokens", "prefill_seconds", "decode_seconds", "memory_bytes", "dense_bytes", "retained", "policy", "chunk_tokens", "warnings", "exchange", "traffic", "lowest_retained_mass", "min_retained_mass", "escalations", "queue_seconds", "cached_tokens", "session")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DENSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    LOWEST_RETAINED_MASS_FIELD_NUMBER: _ClassVar[int]
    MIN_RETAINED_MASS_FIELD_NUMBER: _ClassVar[int]
    ESCALATIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    output_tokens: int
    prefill_seconds: float
    decode_seconds: float
    memory_bytes: int
    dense_bytes: int
    retained: _containers.RepeatedCompositeFieldContainer[_common_pb2.RetainedMass]
    policy: _common_pb2.MemoryPolicy
    chunk_tokens: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    exchange: _common_pb2.Exchange
    traffic: _common_pb2.Traffic
    lowest_retained_mass: float
    min_retained_mass: float
    escalations: int
    queue_seconds: float
    cached_tokens: int
    session: str
    def __init__(self, prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., prefill_seconds: _Optional[float] = ..., decode_seconds: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., dense_bytes: _Optional[int] = ..., retained: _Optional[_Iterable[_Union[_common_pb2.RetainedMass, _Mapping]]] = ..., policy: _Optional[_Union[_common_pb2.MemoryPolicy, _Mapping]] = ..., chunk_tokens: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ..., exchange: _Optional[_Union[_common_pb2.Exchange, str]] = ..., traffic: _Optional[_Union[_common_pb2.Traffic, _Mapping]] = ..., lowest_retained_mass: _Optional[float] = ..., min_retained_mass: _Optional[float] = ..., escalations: _Optional[int] = ..., queue_seconds: _Optional[float] = ..., cached_tokens: _Optional[int] = ..., session: _Optional[str] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("text", "tokens", "chat")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _common_pb2.TokenList
    chat: ChatPrompt
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Union[_common_pb2.TokenList, _Mapping]] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ...) -> None: ...

class TokenizeReply(_message.Message):
    __slots__ = ("ids", "text")
    IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker", "address", "up", "threads", "pool_tokens", "draining", "requests", "pool_bytes", "pool_used_bytes", "state")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    POOL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    POOL_BYTES_FIELD_NUMBER: _ClassVar[int]
    POOL_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    address: str
    up: bool
    threads: int
    pool_tokens: int
    draining: bool
    requests: int
    pool_bytes: int
    pool_used_bytes: int
    state: str
    def __init__(self, worker: _Optional[str] = ..., address: _Optional[str] = ..., up: bool = ..., threads: _Optional[int] = ..., pool_tokens: _Optional[int] = ..., draining: bool = ..., requests: _Optional[int] = ..., pool_bytes: _Optional[int] = ..., pool_used_bytes: _Optional[int] = ..., state: _Optional[str] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("model", "fingerprint", "shape", "kv", "prompt_tokens_max", "workers")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_MAX_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    model: str
    fingerprint: str
    shape: _common_pb2.ModelShape
    kv: _common_pb2.KvDtype
    prompt_tokens_max: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    def __init__(self, model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., shape: _Optional[_Union[_common_pb2.ModelShape, _Mapping]] = ..., kv: _Optional[_Union[_common_pb2.KvDtype, str]] = ..., prompt_tokens_max: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ...) -> None: ...
