from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KvDtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KV_DTYPE_UNSPECIFIED: _ClassVar[KvDtype]
    KV_DTYPE_F32: _ClassVar[KvDtype]
    KV_DTYPE_BF16: _ClassVar[KvDtype]

class Exchange(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXCHANGE_UNSPECIFIED: _ClassVar[Exchange]
    EXCHANGE_MOVE: _ClassVar[Exchange]
    EXCHANGE_STAY: _ClassVar[Exchange]
    EXCHANGE_AUTO: _ClassVar[Exchange]

class WireDtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WIRE_DTYPE_UNSPECIFIED: _ClassVar[WireDtype]
    WIRE_DTYPE_F32: _ClassVar[WireDtype]
    WIRE_DTYPE_BF16: _ClassVar[WireDtype]
    WIRE_DTYPE_F16: _ClassVar[WireDtype]
KV_DTYPE_UNSPECIFIED: KvDtype
KV_DTYPE_F32: KvDtype
KV_DTYPE_BF16: KvDtype
EXCHANGE_UNSPECIFIED: Exchange
EXCHANGE_MOVE: Exchange
EXCHANGE_STAY: Exchange
EXCHANGE_AUTO: Exchange
WIRE_DTYPE_UNSPECIFIED: WireDtype
WIRE_DTYPE_F32: WireDtype
WIRE_DTYPE_BF16: WireDtype
WIRE_DTYPE_F16: WireDtype

class MemoryPolicy(_message.Message):
    __slots__ = ("kind", "sinks", "local", "heavy", "decay", "window", "age_normalised", "max_tokens")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[MemoryPolicy.Kind]
        KIND_DENSE: _ClassVar[MemoryPolicy.Kind]
        KIND_WINDOW: _ClassVar[MemoryPolicy.Kind]
        KIND_H2O: _ClassVar[MemoryPolicy.Kind]
    KIND_UNSPECIFIED: MemoryPolicy.Kind
    KIND_DENSE: MemoryPolicy.Kind
    KIND_WINDOW: MemoryPolicy.Kind
    KIND_H2O: MemoryPolicy.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    SINKS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    HEAVY_FIELD_NUMBER: _ClassVar[int]
    DECAY_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    AGE_NORMALISED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    kind: MemoryPolicy.Kind
    sinks: int
    local: int
    heavy: int
    decay: float
    window: int
    age_normalised: bool
    max_tokens: int
    def __init__(self, kind: _Optional[_Union[MemoryPolicy.Kind, str]] = ..., sinks: _Optional[int] = ..., local: _Optional[int] = ..., heavy: _Optional[int] = ..., decay: _Optional[float] = ..., window: _Optional[int] = ..., age_normalised: bool = ..., max_tokens: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "seed", "logprobs", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    seed: int
    logprobs: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    min_tokens: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ..., logprobs: _Optional[int] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., min_tokens: _Optional[int] = ...) -> None: ...

class Steering(_message.Message):
    __slots__ = ("bias",)
    BIAS_FIELD_NUMBER: _ClassVar[int]
    bias: _containers.RepeatedCompositeFieldContainer[TokenBias]
    def __init__(self, bias: _Optional[_Iterable[_Union[TokenBias, _Mapping]]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("json_schema", "regex", "lark")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    LARK_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    regex: str
    lark: str
    def __init__(self, json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., lark: _Optional[str] = ...) -> None: ...

class TokenBias(_message.Message):
    __slots__ = ("token", "bias")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token: int
    bias: float
    def __init__(self, token: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token", "logprob")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: float
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class TokenList(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RetainedMass(_message.Message):
    __slots__ = ("kept", "total")
    KEPT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    kept: float
    total: float
    def __init__(self, kept: _Optional[float] = ..., total: _Optional[float] = ...) -> None: ...

class ModelShape(_message.Message):
    __slots__ = ("vocab", "layers", "width", "heads", "kv_heads", "head_dim", "ffn", "max_positions", "recurrent_layers", "state_bytes", "wide", "kv_shared_layers", "windowed")
    VOCAB_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    FFN_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    RECURRENT_LAYERS_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WIDE_FIELD_NUMBER: _ClassVar[int]
    KV_SHARED_LAYERS_FIELD_NUMBER: _ClassVar[int]
    WINDOWED_FIELD_NUMBER: _ClassVar[int]
    vocab: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    max_positions: int
    recurrent_layers: int
    state_bytes: int
    wide: WideHeads
    kv_shared_layers: int
    windowed: WindowedLayers
    def __init__(self, vocab: _Optional[int] = ..., layers: _Optional[int] = ..., width: _Optional[int] = ..., heads: _Optional[int] = ..., kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., ffn: _Optional[int] = ..., max_positions: _Optional[int] = ..., recurrent_layers: _Optional[int] = ..., state_bytes: _Optional[int] = ..., wide: _Optional[_Union[WideHeads, _Mapping]] = ..., kv_shared_layers: _Optional[int] = ..., windowed: _Optional[_Union[WindowedLayers, _Mapping]] = ...) -> None: ...

class WindowedLayers(_message.Message):
    __slots__ = ("layers", "tokens")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    layers: int
    tokens: int
    def __init__(self, layers: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class WideHeads(_message.Message):
    __slots__ = ("layers", "kv_heads", "head_dim")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    layers: int
    kv_heads: int
    head_dim: int
    def __init__(self, layers: _Optional[int] = ..., kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ("sent_bytes", "received_bytes", "asked", "fetched", "spared_bytes")
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    SPARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    sent_bytes: int
    received_bytes: int
    asked: int
    fetched: int
    spared_bytes: int
    def __init__(self, sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ..., asked: _Optional[int] = ..., fetched: _Optional[int] = ..., spared_bytes: _Optional[int] = ...) -> None: ...
