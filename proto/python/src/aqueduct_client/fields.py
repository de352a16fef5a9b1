"""Checks of what a caller gives, before anything is sent: each error names field, value and
bound."""
import math
import operator
import reprlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import EncodeError, Message

from .errors import InvalidArgumentError

E = TypeVar('E', bound=StrEnum)
M = TypeVar('M', bound=Message)
T = TypeVar('T')
V = TypeVar('V')

MESSAGE_BYTES_MAX = 256 << 20
# For ever, to a caller; gRPC takes numbers that are much longer for times that are over.
SECONDS_MAX = 365 * 86_400.0
TOKEN_MAX = 2**32 - 1
TOKEN_ID = f'a token id, an integer between 0 and {TOKEN_MAX}'
BOUNDS = {
    FieldDescriptor.TYPE_BOOL: 'True or False',
    FieldDescriptor.TYPE_DOUBLE: 'a number',
    FieldDescriptor.TYPE_FLOAT: 'a number',
    FieldDescriptor.TYPE_SINT32: f'an integer between {-2**31} and {2**31 - 1}',
    FieldDescriptor.TYPE_STRING: 'text in valid Unicode',
    FieldDescriptor.TYPE_UINT32: f'an integer between 0 and {2**32 - 1}',
    FieldDescriptor.TYPE_UINT64: f'an integer between 0 and {2**64 - 1}',
}


def refused(field: str, value: object, bound: str) -> InvalidArgumentError:
    """The error for a value that is out of its bound."""
    return InvalidArgumentError(f'{field} = {reprlib.repr(value)}: must be {bound}')


def put(message: Message, name: str, value: object, field: str = '') -> None:
    """Sets a field of a message, which callers know as `field`."""
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise refused(field or name, value, _bound(message, name)) from error


def put_all(message: Message, name: str, values: Iterable[object], field: str = '') -> None:
    """Adds to a repeated field of a message."""
    at = getattr(message, name)
    for idx, value in enumerate(elements(field or name, values)):
        try:
            at.append(value)
        except (TypeError, ValueError) as error:
            raise refused(f'{field or name}[{idx}]', value, _bound(message, name)) from error


def _bound(message: Message, name: str) -> str:
    return BOUNDS[message.DESCRIPTOR.fields_by_name[name].type]


def elements(field: str, values: Iterable[T], bound: str = 'a sequence') -> list[T]:
    """What is in a sequence."""
    try:
        return list(values)
    except TypeError as error:
        raise refused(field, values, bound) from error


def token_ids(field: str, values: list[Any]) -> list[int]:
    """Integers of any kind, numpy's too, as token ids."""
    try:
        ids = [operator.index(value) for value in values]
        if not ids or min(ids) >= 0 and max(ids) <= TOKEN_MAX:
            return ids
    except TypeError:
        pass  # which one it is, the loop below finds
    idx, wrong = next((idx, value) for idx, value in enumerate(values) if not _is_id(value))
    raise refused(f'{field}[{idx}]', wrong, TOKEN_ID)


def token_id(field: str, value: Any) -> int:
    """One integer, as a token id."""
    if not _is_id(value):
        raise refused(field, value, TOKEN_ID)
    return operator.index(value)


def _is_id(value: Any) -> bool:
    try:
        return 0 <= operator.index(value) <= TOKEN_MAX
    except TypeError:
        return False


def number_of(field: str, names: Mapping[E, V], value: object) -> V:
    """How a name is written in a message."""
    for name, number in names.items():
        if name == value:
            return number
    raise refused(field, value, f'one of {", ".join(names)}')


def of_kind(field: str, value: object, kind: type[T]) -> T:
    """A value that is of a class."""
    if not isinstance(value, kind):
        raise refused(field, value, f'of class {kind.__name__}')
    return value


def seconds(field: str, value: float, may_be_none: bool = False) -> float:
    """A length of time, at most a year, above 0 unless it `may_be_none`."""
    is_number = isinstance(value, int | float) and not math.isnan(value)
    if not is_number or value < 0 or value == 0 and not may_be_none:
        bound = 'from 0 on' if may_be_none else 'above 0'
        raise refused(field, value, f'a number of seconds {bound}')
    return float(min(value, SECONDS_MAX))


def is_visible(text: object, most: int) -> bool:
    """Whether it is 1 to `most` characters of ASCII that can be seen."""
    return (isinstance(text, str) and 1 <= len(text) <= most
            and text.isascii() and text.isprintable() and ' ' not in text)


def bounded(message: M) -> M:
    """A message that is not longer than a server takes."""
    try:
        count = message.ByteSize()
    except EncodeError:  # from 2 GiB on
        count = 2**31
    if count > MESSAGE_BYTES_MAX:
        bound = f'at most {MESSAGE_BYTES_MAX} bytes with all options'
        raise InvalidArgumentError(f'prompt = {count} bytes: must be {bound}')
    return message
