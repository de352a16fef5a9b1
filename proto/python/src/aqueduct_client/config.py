"""How a client connects."""
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from random import uniform
from urllib.parse import urlsplit

import grpc

from .errors import InvalidArgumentError
from .fields import is_visible, refused, seconds

API_KEY_BYTES_MAX = 128


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Whom to believe, and what to show; PEM files, which are read when a client is
    made."""

    ca: str | PathLike[str]
    """Authorities that may have signed the server's certificate."""
    cert: str | PathLike[str] | None = None
    """The caller's own certificate, where the server asks for one; with the one below."""
    key: str | PathLike[str] | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """What gRPC makes of them."""
        if (self.cert is None) != (self.key is None):
            raise InvalidArgumentError('tls: cert and key are given together')
        try:
            ca, key, cert = (None if path is None else Path(path).read_bytes()
                             for path in (self.ca, self.key, self.cert))
        except OSError as error:
            raise InvalidArgumentError(f'tls: {error}') from error
        return grpc.ssl_channel_credentials(ca, key, cert)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and when, what is safe to repeat is tried again."""

    tries: int = 3
    """All of them; 1 is never again."""
    first_delay_s: float = 0.1
    longest_delay_s: float = 5.0

    def delays_s(self) -> Iterator[float]:
        """Before each try but the first: twice as long each time, less up to a half by chance,
        so that callers of a server that comes back do not come together."""
        for again in range(self.tries - 1):
            yield min(self.first_delay_s * 2 ** min(again, 30), self.longest_delay_s) * uniform(0.5, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of `Client`."""

    call_deadline_s: float = 60.0
    """How long it may take to connect, with all tries, and so `tokenize` and `describe`."""
    retry: Retry = Retry()
    resume_within_s: float = 60.0
    """How long a stream that was lost is asked for again. A server keeps what nobody reads for a
    minute unless it was told otherwise."""
    tls: TlsFiles | None = None
    """Plaintext if `None`."""
    api_key: str | None = field(default=None, repr=False)
    """Sent with every call, where the server asks for one."""

    def __post_init__(self) -> None:
        seconds('call_deadline_s', self.call_deadline_s)
        seconds('resume_within_s', self.resume_within_s, may_be_none=True)
        if self.api_key is not None and not is_visible(self.api_key, API_KEY_BYTES_MAX):
            bound = f'1 to {API_KEY_BYTES_MAX} visible characters'
            raise InvalidArgumentError(f'api_key: must be {bound}')


def target_of(url: str, options: ClientOptions) -> str:
    """The address behind a URL that goes with the options."""
    scheme = 'https' if options.tls else 'http'
    why = 'for certificates are given' if options.tls else 'or certificates must be given'
    try:
        parts = urlsplit(url)
        # Where no port is named, gRPC takes 443 with certificates and without.
        has_port = bool(parts.port) or options.tls is not None
    except (ValueError, AttributeError) as error:
        raise refused('url', url, f'{scheme}://host:port: {error}') from error
    extras = parts.path.rstrip('/') or parts.query or parts.fragment or '@' in parts.netloc
    if parts.scheme != scheme or not parts.hostname or not has_port or extras:
        raise InvalidArgumentError(f'url = {url}: must be {scheme}://host:port, {why}')
    return parts.netloc
