"""Spans of requests and of the phases of executions, sent to an OpenTelemetry collector.

No code, output, key, tenant or query is in one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from atoll.errors import ConfigError
from atoll.extras import hint
from atoll.service.telemetry.metrics import known_method

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request

    from atoll.service.core.executions import Execution

    Answered = Callable[[str, int, str], None]
    """Is called with the route, the status and the problem of a request that was answered."""

SEND_SECONDS = 3.0
"""How long the collector may take for a batch."""
TOOL = "run_python"
"""The name of an execution as a tool, in the GenAI conventions of OpenTelemetry."""
_PARENT = "traceparent"


class Traces:
    """Sends spans to the collector at a URL; without one it is not `enabled`."""

    def __init__(self, url: str) -> None:
        self._provider = _provider(url) if url else None
        self._tracer: Any = self._provider and self._provider.get_tracer("atoll.service")
        self.enabled = bool(url)

    @contextlib.contextmanager
    def request(self, request: Request) -> Iterator[Answered]:
        """Measure a request, as a part of the trace that its sender names."""
        from opentelemetry.trace import SpanKind  # noqa: PLC0415 - an extra

        method = known_method(request.method)
        with self._tracer.start_as_current_span(
            method, _parent(request.headers.get(_PARENT, "")), SpanKind.SERVER
        ) as span:
            span.set_attribute("http.request.method", method)

            def answered(route: str, status: int, code: str) -> None:
                span.update_name(f"{method} {route}")
                known = {"http.route": route, "http.response.status_code": status}
                span.set_attributes(known | ({"error.type": code} if code else {}))

            yield answered

    def executed(self, execution: Execution) -> None:
        """Send spans of an execution that has ended: one of it, and one of each of its phases."""
        known = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": TOOL,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": execution.id,
            "atoll.execution": execution.id,
            "atoll.status": execution.status,
        }
        if execution.status >= 400:
            known["error.type"] = str(execution.status)
        if execution.session is not None:
            known["atoll.sandbox.session"] = execution.session
        phases, end = execution.phases, _nanoseconds(execution.ended)
        with self._tracer.start_as_current_span(
            f"execute_tool {TOOL}",
            attributes=known,
            start_time=_nanoseconds(phases[0][1]),
            end_on_exit=False,
        ) as span:
            ends = [*(_nanoseconds(begun) for _, begun in phases[1:]), end]
            for (name, begun), ended in zip(phases, ends, strict=True):
                self._tracer.start_span(name, start_time=_nanoseconds(begun)).end(ended)
        span.end(end)

    def parent(self, given: str = "") -> str:
        """Return the `traceparent` of the current span; the client's without a span."""
        if not self.enabled:
            return given
        carrier: dict[str, str] = {}
        _propagator().inject(carrier)
        return carrier.get(_PARENT, given)

    def close(self) -> None:
        """Send the rest; a collector that does not answer is given up after some seconds."""
        if self._provider is not None:
            self._provider.shutdown()


def _provider(url: str) -> Any:
    """Return what makes spans; OTEL_SERVICE_NAME, _TRACES_SAMPLER and others are its options."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"traces are sent to a URL such as http://127.0.0.1:4318, not {url!r}")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        raise ConfigError(f"traces need the extra `otel`. {hint('otel')}") from None
    named = Resource({"service.name": "atoll"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=named, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(f"{url.rstrip('/')}/v1/traces", timeout=SEND_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 - an extra

    return TraceContextTextMapPropagator()


def _parent(given: str) -> Any:
    return _propagator().extract({_PARENT: given})


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
