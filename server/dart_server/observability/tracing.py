"""OpenTelemetry traces of the farm: request → claim → prepare → each call of the provider.

Off by default, and then nothing of it is imported.

Rule: spans carry ids, route templates and numbers, never texts of clients; an error is told by its class. A request that comes
with a `traceparent` (W3C Trace Context) goes on with that trace. What a task starts inherits its span; what waits in a queue
takes its place along (`current_context`, `attached_context`). Non-goals: metrics, logs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, cast

from dart_server.errors import FarmConfigError
from dart_server.wire.extras import install_command

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

    from dart_server.providers.base import Provider

Value = str | int | float | bool | None

_tracer: Tracer | None = None
"""Set by `configure`, once per process."""


def configure(
    mode: Literal["off", "otlp"], *, version: str, exporter: SpanExporter | None = None
) -> Callable[[], None]:
    """Begin to trace; the returned function sends what is left and ends it.

    Where to: the variables `OTEL_EXPORTER_OTLP_…` of OpenTelemetry; `exporter` for tests. Raises `FarmConfigError` when the packages
    are missing.
    """
    global _tracer
    if mode == "off" and exporter is None:
        return lambda: None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            processor: Any = BatchSpanProcessor(OTLPSpanExporter())
        else:
            processor = SimpleSpanProcessor(exporter)
    except ImportError as error:
        raise FarmConfigError(f"DART_TRACES needs OpenTelemetry ({error}): {install_command('otel')}.") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "dart-farm", "service.version": version}))
    provider.add_span_processor(processor)
    _tracer = provider.get_tracer("dart_server", version)

    def end() -> None:
        global _tracer
        _tracer = None
        provider.shutdown()

    return end


@contextmanager
def span(name: str, *, within: Context | None = None, **attributes: Value) -> Iterator[None]:
    """A span for the block, inside the current one, or inside `within`."""
    if _tracer is None:
        yield
        return
    from opentelemetry.trace import StatusCode

    known = {key: value for key, value in attributes.items() if value is not None}
    with _tracer.start_as_current_span(
        name, context=within, attributes=known, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield
        except BaseException as error:  # told in the span, raised again
            current.set_status(StatusCode.ERROR, type(error).__name__)
            raise


@contextmanager
def request_span(method: str, headers: Mapping[str, str]) -> Iterator[None]:
    """The span of one request; `record_response` tells the rest of it."""
    if _tracer is None:
        yield
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    with span(method, within=TraceContextTextMapPropagator().extract(dict(headers)), **{"http.request.method": method}):
        yield


def record_response(method: str, route: str, status: int) -> None:
    """What became of the request of the current span."""
    if _tracer is None:
        return
    from opentelemetry.trace import StatusCode, get_current_span

    current: Span = get_current_span()
    current.update_name(f"{method} {route}")
    current.set_attributes({"http.route": route, "http.response.status_code": status})
    if status >= 500:
        current.set_status(StatusCode.ERROR, str(status))


def current_context() -> Context | None:
    """The current place in the trace, for work that goes on elsewhere; None while nothing is traced."""
    if _tracer is None:
        return None
    from opentelemetry.context import get_current

    return get_current()


@contextmanager
def attached_context(place: Context | None) -> Iterator[None]:
    """Go on at a place that was `current_context`."""
    if place is None:
        yield
        return
    from opentelemetry.context import attach, detach

    token = attach(place)
    try:
        yield
    finally:
        detach(token)


def trace_provider(provider: Provider) -> Provider:
    """The provider, each of its calls in a span; itself while nothing is traced."""
    return provider if _tracer is None else cast("Provider", _Traced(provider))


class _Traced:
    """Everything of a provider, its coroutine methods with spans."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(value):
            return value

        @wraps(value)
        async def call(*given: Any, **named: Any) -> Any:
            with span(f"provider.{name}", provider=self._inner.name):
                return await value(*given, **named)

        setattr(self, name, call)
        return call
