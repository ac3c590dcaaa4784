"""Prometheus metrics of one farm, in a registry of its own. Rule: every label has a small closed set of values; no ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dart_server.wire import DesktopState

FAST_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
SLOW_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"})


class Metrics:
    """All counters, gauges and histograms."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "dart_http_requests_total", "HTTP requests", ["route", "method", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "dart_http_request_seconds", "HTTP request time", ["route"], buckets=FAST_S, registry=self._registry
        )
        self._steps = Histogram(
            "dart_step_seconds", "Time of one step in the guest", buckets=FAST_S, registry=self._registry
        )
        self._prepare = Histogram(
            "dart_prepare_seconds",
            "Time to make a desktop ready",
            ["how", "what"],
            buckets=SLOW_S,
            registry=self._registry,
        )
        self._leases = Counter("dart_leases_total", "Leases by what happened", ["what"], registry=self._registry)
        self._failures = Counter(
            "dart_desktop_failures_total",
            "Desktops that died under a lease",
            ["cause", "owner"],
            registry=self._registry,
        )
        self._desktops = Gauge("dart_desktops", "Desktops by state", ["state"], registry=self._registry)
        self._waiting = Gauge("dart_claims_waiting", "Claims in the queue", registry=self._registry)
        self._snapshots = Gauge("dart_snapshots", "Snapshots", registry=self._registry)
        self._snapshot_bytes = Gauge("dart_snapshot_bytes", "Bytes of all snapshots", registry=self._registry)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one HTTP request by its route template."""
        self._requests.labels(route, method if method in METHODS else "other", f"{status // 100}xx").inc()
        self._seconds.labels(route).observe(seconds)

    def step(self, seconds: float) -> None:
        self._steps.observe(seconds)

    def prepared(
        self, how: Literal["restore", "boot", "standby", "awaited"], prepared_state: bool, seconds: float
    ) -> None:
        """Count one desktop that came to its state; `awaited` is one of the standby that was not ready when it was asked for."""
        self._prepare.labels(how, "setup" if prepared_state else "base").observe(seconds)

    def lease(self, what: str) -> None:
        """`what` is granted, released, expired or refused."""
        self._leases.labels(what).inc()

    def failure(self, cause: str, owner: str) -> None:
        self._failures.labels(cause, owner).inc()

    def render(self, desktops: Mapping[str, int], waiting: int, snapshots: int, snapshot_bytes: int) -> bytes:
        """The Prometheus text, gauges set from the given state."""
        for state in DesktopState:
            self._desktops.labels(state.value).set(desktops.get(state.value, 0))
        self._waiting.set(waiting)
        self._snapshots.set(snapshots)
        self._snapshot_bytes.set(snapshot_bytes)
        return generate_latest(self._registry)
