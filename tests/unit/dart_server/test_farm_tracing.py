"""Traces: requests and calls of the provider, with ids and templates and no texts; nothing while it is off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from farm_fake import FakeProvider
from farm_harness import Api
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from dart_server.errors import FarmConfigError
from dart_server.observability import tracing
from dart_server.providers.base import Provider

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    end = tracing.configure("off", version="0", exporter=exporter)
    yield exporter
    end()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Provider:
    return tracing.trace_provider(FakeProvider())


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def ancestors(exporter: InMemorySpanExporter, span: ReadableSpan) -> list[str]:
    """Names from the span up to its root."""
    known = {other.context.span_id: other for other in exporter.get_finished_spans() if other.context}
    names = [span.name]
    while span.parent is not None and span.parent.span_id in known:
        span = known[span.parent.span_id]
        names.append(span.name)
    return names


async def test_a_claim_is_traced_from_the_request_to_the_provider(api: Api, exporter: InMemorySpanExporter) -> None:
    lease = await api.create_lease(labels={"purpose": "secret words"})
    [create] = named(exporter, "provider.create")
    assert ancestors(exporter, create) == ["provider.create", "prepare", "claim", "POST /v1/leases"]
    [request] = named(exporter, "POST /v1/leases")
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 200
    [prepare] = named(exporter, "prepare")
    assert prepare.attributes is not None
    assert prepare.attributes["desktop_id"] == lease["desktop_id"]
    told = str([(span.name, span.attributes, span.events) for span in exporter.get_finished_spans()])
    for secret in ("secret words", api.key, lease["token"]):
        assert secret not in told


async def test_the_clients_own_trace_goes_on(api: Api, exporter: InMemorySpanExporter) -> None:
    await api.call("GET", "/v1/farm", headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
    [span] = named(exporter, "GET /v1/farm")
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    await api.call("GET", "/v1/farm", headers={"traceparent": "nonsense"})
    assert len(named(exporter, "GET /v1/farm")) == 2


async def test_names_of_spans_are_templates(api: Api, exporter: InMemorySpanExporter) -> None:
    await api.call("GET", "/v1/leases/lease_of_somebody")
    await api.call("BREW", "/coffee/of/mine")
    names = {span.name for span in exporter.get_finished_spans()}
    assert "GET /v1/leases/{lease_id}" in names
    assert "other unmatched" in names


def test_an_error_is_told_by_its_class(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="private"), tracing.span("work"):
        raise ValueError("private words")
    [span] = named(exporter, "work")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError")
    assert span.events == ()


def test_while_it_is_off_nothing_is_traced_or_imported() -> None:
    code = (
        "import sys; from dart_server.observability import tracing; end = tracing.configure('off', version='0');"
        "provider = object(); assert tracing.trace_provider(provider) is provider and tracing.current_context() is None\n"
        "with tracing.span('x'), tracing.request_span('GET', {}), tracing.attached_context(None):\n"
        "    tracing.record_response('GET', '/', 200)\n"
        "end(); print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_missing_packages_are_one_sentence_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(FarmConfigError, match=r"pip install .*\[otel\]'"):
        tracing.configure("otlp", version="0")
