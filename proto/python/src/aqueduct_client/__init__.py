"""The Python SDK of a coordinator: prompts go in, typed events come out.

    async with Client('http://127.0.0.1:7070') as client:
        async with await client.generate('Once upon a time') as events:
            async for event in events:
                if isinstance(event, Token):
                    print(event.text, end='')

A stream whose connection is lost, because of the network or because the server was started again,
goes on where it was lost, and every token comes once. Whoever leaves it cancels the request on
every worker. Every call has a deadline; an error says by its class whether the input was wrong,
the server busy, away or late.
`aqueduct_client.blocking` has the same for programs without an event loop.
"""
from .client import Client
from .config import ClientOptions, Retry, TlsFiles
from .errors import (
    BusyError, CancelledByServerError, ClientError, ClosedError, DeadlineError, DeniedError,
    GoneError, InvalidArgumentError, ServerFailureError, SessionLostError, TakenOverError,
    UnavailableError,
)
from .events import (
    Accepted, Answer, ChoiceDone, Completion, Description, Escalated, GenerateEvent, KvDtype,
    ModelShape, Progress, PromptLogprob, PromptLogprobs, RetainedMass, StopReason, Summary,
    Token, Tokenized, TokenLogprob, Traffic, WideHeads, WindowedLayers, WorkerProgress,
    WorkerStatus,
)
from .generation import Generation
from .options import (
    NEW_SESSION, BelowFloor, ChatMessage, Exchange, GenerateOptions, Grammar, GrammarKind,
    MemoryPolicy, PolicyKind, Prompt, Quality, WireDtype,
)

__all__ = [
    'Accepted', 'Answer', 'BelowFloor', 'BusyError', 'CancelledByServerError', 'ChatMessage',
    'ChoiceDone', 'Client', 'ClientError', 'ClientOptions', 'ClosedError', 'Completion',
    'DeadlineError', 'DeniedError', 'Description', 'Escalated', 'Exchange', 'GenerateEvent',
    'GenerateOptions', 'Generation', 'GoneError', 'Grammar', 'GrammarKind',
    'InvalidArgumentError', 'KvDtype', 'MemoryPolicy', 'ModelShape', 'NEW_SESSION', 'PolicyKind',
    'Progress', 'Prompt', 'PromptLogprob', 'PromptLogprobs', 'Quality', 'RetainedMass', 'Retry',
    'ServerFailureError', 'SessionLostError', 'StopReason', 'Summary', 'TakenOverError',
    'TlsFiles', 'Token', 'TokenLogprob', 'Tokenized', 'Traffic', 'UnavailableError', 'WideHeads',
    'WindowedLayers', 'WireDtype', 'WorkerProgress', 'WorkerStatus',
]
