"""What can go wrong, sorted by what the caller can do about it."""
import re
from collections.abc import Iterable
from typing import Any

import grpc

RETRY_AFTER_METADATA = 'grpc-retry-pushback-ms'
# How gRPC begins the text of a status that it has made itself: of a stream that somebody on the
# way has reset, and of a message that one end does not take.
RESET = 'Received RST_STREAM'
TOO_LARGE = re.compile('(Sent|Received) message larger than max')
# What servers say of services that they do not have: ours nothing, gRPC's own that.
NO_SERVICE = ('', 'Method not found!')
REQUEST_ID = 'x-request-id'


class ClientError(Exception):
    """Why a call failed; each kind is a class of its own."""


class InvalidArgumentError(ClientError, ValueError):
    """The request is wrong; the message names the field and its bound."""


class BusyError(ClientError):
    """The server, or the limit of this API key, has no room now."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        # Both are arguments of the exception: it is made again from them when it is unpickled.
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s
        """When another try makes sense."""

    def __str__(self) -> str:
        return f'busy: {self.args[0]}; retry after {self.retry_after_s} s'


class DeniedError(ClientError):
    """The server wants an API key, or another one."""


class UnavailableError(ClientError, ConnectionError):
    """The server cannot be reached, or no worker can serve."""


class ClosedError(ClientError):
    """This client, or this stream, was closed by this program, or is another process's."""


class SessionLostError(ClientError):
    """What the call was to go on from is kept no longer: send the whole conversation."""


class GoneError(ClientError):
    """The stream was lost, and the server does not know the request any more: it was away for too
    long, or keeps no journal."""


class TakenOverError(ClientError):
    """Somebody else has come back to the stream, and goes on with it."""


class DeadlineError(ClientError, TimeoutError):
    """Not done in time."""


class CancelledByServerError(ClientError):
    """Cancelled by the server."""


class ServerFailureError(ClientError):
    """The server failed, or sent what this client cannot read."""


_KINDS: dict[grpc.StatusCode, type[ClientError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: InvalidArgumentError,
    grpc.StatusCode.UNIMPLEMENTED: InvalidArgumentError,
    grpc.StatusCode.UNAUTHENTICATED: DeniedError,
    grpc.StatusCode.PERMISSION_DENIED: DeniedError,
    grpc.StatusCode.FAILED_PRECONDITION: SessionLostError,
    grpc.StatusCode.ABORTED: TakenOverError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.CANCELLED: CancelledByServerError,
}


def unreadable(what: str) -> ServerFailureError:
    """An answer that breaks the protocol."""
    return ServerFailureError(f'unreadable answer: {what}')


def error_of(status: grpc.aio.AioRpcError) -> ClientError:
    """A status as the error that it is to a caller."""
    code, message = status.code(), status.details() or ''
    if code is grpc.StatusCode.UNIMPLEMENTED and message in NO_SERVICE:
        return InvalidArgumentError(
            'the server has no such service: is it a coordinator, and the port its gRPC one '
            '(7070 unless told otherwise)?')
    if is_too_large(status):
        return InvalidArgumentError(f'prompt: {message}')
    if is_away(status):
        return UnavailableError(message)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        after_s = pushback_s(status)
        return BusyError(message, 1.0 if after_s is None else after_s)
    kind = _KINDS.get(code)
    return ServerFailureError(f'{message} ({code.name})') if kind is None else kind(message)


def pushback_s(status: grpc.aio.AioRpcError) -> float | None:
    """When the server wants to be asked again; `None` where it says nothing, or a negative
    number, which is gRPC's way to say never."""
    text = said(status.trailing_metadata(), RETRY_AFTER_METADATA)
    return int(text) / 1000 if text.isascii() and text.isdigit() else None


def is_too_large(status: grpc.aio.AioRpcError) -> bool:
    """Whether gRPC refused a message for its size: it will the next time too."""
    is_full = status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return is_full and bool(TOO_LARGE.search(status.details() or ''))


def ended_early() -> grpc.aio.AioRpcError:
    """The status of a stream that ended well, but before its summary: it was lost."""
    nothing = grpc.aio.Metadata()
    why = 'the stream ended without a summary'
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, why, '')


def is_away(status: grpc.aio.AioRpcError) -> bool:
    """Whether nobody is there, or the way there broke."""
    # What a reset is, gRPC says by codes that servers use as well: INTERNAL, CANCELLED.
    was_reset = (status.details() or '').startswith(RESET)
    return status.code() is grpc.StatusCode.UNAVAILABLE or was_reset


def is_lost(status: grpc.aio.AioRpcError) -> bool:
    """Whether a stream may go on elsewhere, or later, rather than that it ended."""
    never_again = said(status.trailing_metadata(), RETRY_AFTER_METADATA) == '-1'
    return is_away(status) and not never_again


def is_unheard(status: grpc.aio.AioRpcError) -> bool:
    """Whether nobody has answered a start: a server that refuses one says what it answers."""
    return is_lost(status) and not said(status.trailing_metadata(), REQUEST_ID)


def gone(status: grpc.aio.AioRpcError) -> ClientError:
    """Why a stream cannot be gone on with."""
    if status.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED):
        return GoneError(f'the stream was lost: {status.details()}')
    return error_of(status)


def said(metadata: Iterable[Any] | None, name: str) -> str:
    """A value of an answer's metadata; empty where there is none."""
    # Pairs, which grpc-stubs take for something else.
    values = (value for given, value in metadata or () if given == name)
    value = next(values, '')
    return value.decode(errors='replace') if isinstance(value, bytes) else str(value)
