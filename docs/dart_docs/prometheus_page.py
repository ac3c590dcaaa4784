"""The page of the farm's Prometheus metrics.

Role: names, labels and meanings of what `/metrics` serves. Rule: they are read from a page that the farm's own code rendered, after one
event of each kind. Non-goals: metrics of a training run (`docs/metrics.md`).
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from dart_docs.markdown import code, table
from dart_server.observability.metrics import Gauges, Metrics

PREFIX = "dart_"


def farm_metrics() -> Iterator[Metric]:
    """The metrics of a farm that begin with `dart_`, each with at least one sample.

    Yields:
        Name, type, documentation and samples.
    """
    metrics = Metrics(version="0", provider="sim")
    metrics.request("/v1/leases", "POST", 200, 0.1)
    metrics.step(0.1)
    metrics.prepared("restore", True, 0.1)
    metrics.claim_ended("granted", 0.1)
    metrics.lease("granted")
    metrics.failure("oom", "policy")
    metrics.set_certificate_expiry(0.0)
    page = metrics.render(Gauges({}, waiting=0, leases=0, snapshots=0, snapshot_bytes=0, ready=True)).decode()
    for found in text_string_to_metric_families(page):
        if found.name.startswith(PREFIX) and not found.name.endswith("_created"):
            yield found


def prometheus_page() -> str:
    """Render the page."""
    return (
        "# Prometheus metrics\n\n"
        "This page is for people who watch a farm. After it you know every metric, and what it counts. A farm serves these at "
        "`GET /metrics` to keys of any scope. "
        "Times are in seconds, sizes in bytes. "
        "[Inference workers](../inference.md#metrics) has the metrics of the engines, [Metrics of a "
        "run](../metrics.md) those of a training run.\n\n"
    ) + table(
        ("name", "type", "labels", "meaning"),
        (
            (
                code(found.name + ("_total" if found.type == "counter" else "")),
                found.type,
                ", ".join(
                    code(label)
                    for label in sorted({each for sample in found.samples for each in sample.labels} - {"le"})
                ),
                found.documentation,
            )
            for found in farm_metrics()
        ),
    )
