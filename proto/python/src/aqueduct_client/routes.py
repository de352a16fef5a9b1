"""Which coordinator is asked: of a group the one that leads, or the next one in the list until
one is found that says who that is."""
import grpc

from .config import ClientOptions, target_of
from .errors import ClosedError, InvalidArgumentError, said
from .fields import MESSAGE_BYTES_MAX, of_kind

# Metadata by which a coordinator that does not lead says who does.
LEADER = 'aqueduct-leader'
URLS_MAX = 7
# Before the next one is asked, where the last one did not say who leads.
PAUSE_S = 0.1
# Where there are several, one that hangs is found out so soon: as a rule 2.5 seconds.
PING_INTERVAL_MS = 800
PING_TIMEOUT_MS = 1_700
LONE_PING_INTERVAL_MS = 10_000
LONE_PING_TIMEOUT_MS = 10_000


class Routes:
    """The coordinators of a server, and connections to those that were asked."""

    def __init__(self, urls: str, options: ClientOptions) -> None:
        """URLs as `Client` takes them, separated by commas."""
        self._options = options
        self._urls = [url.strip() for url in of_kind('url', urls, str).split(',')]
        if len(self._urls) > URLS_MAX:
            count = len(self._urls)
            raise InvalidArgumentError(f'url = {count}: must be between 1 and {URLS_MAX}')
        for url in self._urls:
            target_of(url, options)
        self._credentials = options.tls.credentials() if options.tls else None
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._is_closed = False
        self.current = self._urls[0]
        """Who is asked."""

    def channel(self) -> grpc.aio.Channel:
        """The connection to whoever is asked."""
        if self._is_closed:
            raise ClosedError('the client is closed')
        known = self._channels.get(self.current)
        if known is None:
            known = self._channels[self.current] = self._open(self.current)
        return known

    def move(self, asked: str, status: grpc.aio.AioRpcError) -> float | None:
        """After `status` of the coordinator at `asked`: how soon another one, which is `current`
        from now on, is to be asked; `None` where there is no other one."""
        if self.current != asked:
            return 0.0
        leader = said(status.trailing_metadata(), LEADER)
        if leader and leader != asked and self._is_fit(leader):
            self.current = leader
            return 0.0
        if len(self._urls) == 1 and asked in self._urls:
            return PAUSE_S if leader else None
        after = self._urls.index(asked) + 1 if asked in self._urls else 0
        self.current = self._urls[after % len(self._urls)]
        return PAUSE_S

    async def close(self) -> None:
        """Hangs up, for good."""
        self._is_closed = True
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)

    def _is_fit(self, leader: str) -> bool:
        try:
            target_of(leader, self._options)
        except InvalidArgumentError:
            return False
        return True

    def _open(self, url: str) -> grpc.aio.Channel:
        bounds = [(f'grpc.max_{way}_message_length', MESSAGE_BYTES_MAX)
                  for way in ('send', 'receive')]
        # As soon as the tries that are made here; gRPC's own pauses are minutes.
        bounds += [(f'grpc.{which}_reconnect_backoff_ms', ms)
                   for which, ms in (('initial', 50), ('max', 1000))]
        # One that has no other beside it, and hangs for a moment, is waited for.
        alone = len(self._urls) == 1
        interval_ms = LONE_PING_INTERVAL_MS if alone else PING_INTERVAL_MS
        timeout_ms = LONE_PING_TIMEOUT_MS if alone else PING_TIMEOUT_MS
        bounds += [('grpc.keepalive_time_ms', interval_ms),
                   ('grpc.keepalive_timeout_ms', timeout_ms),
                   # A minute otherwise, whatever the one above says.
                   ('grpc.http2.ping_timeout_ms', timeout_ms),
                   ('grpc.http2.max_pings_without_data', 0)]
        if not alone:
            bounds += [('grpc.min_reconnect_backoff_ms', interval_ms + timeout_ms)]
        target = target_of(url, self._options)
        if self._credentials is None:
            return grpc.aio.insecure_channel(target, options=bounds)
        return grpc.aio.secure_channel(target, self._credentials, options=bounds)
