"""The span of a call, for callers who have OpenTelemetry: a child of the one that they are in, and
the parent of what the server does for it."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_tracer: 'Tracer | None' = None
try:
    from opentelemetry import propagate, trace
    _tracer = trace.get_tracer('aqueduct_client')
except ImportError:
    pass  # the package asks for nothing of it

# Of what a propagator may say, what a server reads.
TOLD = ('traceparent', 'tracestate')


class CallSpan:
    """Of a call, from its start to the end of its answer; nothing without OpenTelemetry."""

    def __init__(self) -> None:
        self._span: 'Span | None' = None
        if _tracer:
            self._span = _tracer.start_span('generate', kind=trace.SpanKind.CLIENT)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What tells the server whose child its own span is."""
        if self._span is None:
            return ()
        told: dict[str, str] = {}
        propagate.inject(told, trace.set_span_in_context(self._span))
        return tuple((name, value) for name, value in told.items() if name in TOLD)

    def begun(self, request_id: str) -> None:
        """The server's log knows the call by this."""
        if self._span:
            self._span.set_attribute('request_id', request_id)

    def end(self, error: Exception | None = None) -> None:
        """It is over; only the first time counts."""
        span, self._span = self._span, None
        if span is None:
            return
        if error:
            span.set_status(trace.StatusCode.ERROR, str(error))
        span.end()
