"""Prometheus metrics of one farm, in a registry of its own.

Rule: every label takes its values from a small closed set, and what is outside of it counts as `other`: no ids, no names, no text of a
client, so that the number of series has a bound whatever is asked of the farm. Legend of units: seconds and bytes. Non-goals: deciding by
them.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)

from dart_server.dashboard.samples import Timings
from dart_server.providers.base import HealthCause
from dart_server.wire import DesktopState, ErrorCode, FaultOwner

FAST_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
SLOW_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
WAIT_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)
METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"})
CLAIM_ENDS = frozenset({"granted", "cancelled", "expired", "refused"})
LEASE_ENDS = frozenset({"granted", "released", "expired", "refused"})
CAUSES = frozenset({*(cause.value for cause in HealthCause), *(code.value for code in ErrorCode)})
OWNERS = frozenset(owner.value for owner in FaultOwner)
POOL_COPIES = ("warm_desired", "standby_desired", "ready", "standby", "creating", "leased")
PrepareMethod = Literal["restore", "boot", "standby", "awaited"]
STANDBY_RESULT: Mapping[PrepareMethod, str] = {
    "standby": "hit",
    "awaited": "awaited",
    "restore": "miss",
    "boot": "miss",
}


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is true of the farm at this moment."""

    desktops: Mapping[str, int]
    waiting: int
    leases: int
    snapshots: int
    snapshot_bytes: int
    ready: bool
    pool_copies: Mapping[str, int] = field(default_factory=dict)
    """Of all pools together, by `POOL_COPIES`."""


def label_or_other(value: str, allowed: Collection[str]) -> str:
    """The value, or `other` when it is none of those that are allowed."""
    return value if value in allowed else "other"


DASHBOARD_TIMINGS = {("POST", "/v1/leases"): "claim", ("POST", "/v1/leases/{lease_id}/reset"): "reset"}
"""Requests whose durations the dashboard shows."""


class Metrics:
    """All counters, gauges and histograms."""

    def __init__(self, *, version: str = "0", provider: str = "none") -> None:
        self.recent = Timings()
        """Some of the durations once more, for the dashboard's charts."""
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        Info("dart_build", "The farm's program", registry=registry).info(
            {"version": version, "provider": provider, "python": platform.python_version()}
        )
        self._requests = Counter(
            "dart_http_requests_total", "HTTP requests", ["route", "method", "status"], registry=registry
        )
        self._seconds = Histogram(
            "dart_http_request_duration_seconds", "HTTP request time", ["route"], buckets=FAST_S, registry=registry
        )
        self._sockets = Gauge("dart_websockets", "WebSockets that are open", registry=registry)
        self._steps = Histogram(
            "dart_step_duration_seconds", "Time of one step in the guest", buckets=FAST_S, registry=registry
        )
        self._prepare = Histogram(
            "dart_prepare_duration_seconds",
            "Time to make a desktop ready",
            ["how", "what"],
            buckets=SLOW_S,
            registry=registry,
        )
        self._standby = Counter(
            "dart_standby_requests_total",
            "Desktops asked for, by whether the standby had one",
            ["result"],
            registry=registry,
        )
        self._claim_wait = Histogram(
            "dart_claim_wait_seconds", "Time of a claim in the queue", ["end"], buckets=WAIT_S, registry=registry
        )
        self._leases = Counter("dart_leases_total", "Leases by what happened", ["what"], registry=registry)
        self._failures = Counter(
            "dart_desktop_failures_total", "Desktops that died under a lease", ["cause", "owner"], registry=registry
        )
        self._desktops = Gauge("dart_desktops", "Desktops by state", ["state"], registry=registry)
        self._pool_copies = Gauge("dart_pool_desktops", "Copies that pools want and have", ["what"], registry=registry)
        self._waiting = Gauge("dart_claims_waiting", "Claims in the queue", registry=registry)
        self._active = Gauge("dart_leases_active", "Leases that hold", registry=registry)
        self._snapshots = Gauge("dart_snapshots", "Snapshots", registry=registry)
        self._snapshot_bytes = Gauge("dart_snapshot_bytes", "Bytes of all snapshots", registry=registry)
        self._ready = Gauge("dart_ready", "1 while claims are served", registry=registry)
        self._certificate: Gauge | None = None

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one HTTP request. `route` is a template of the application's, or `unmatched`: never a path of the client's."""
        self._requests.labels(route, label_or_other(method, METHODS), f"{status // 100}xx").inc()
        self._seconds.labels(route).observe(seconds)
        charted = DASHBOARD_TIMINGS.get((method, route))
        if charted is not None and status < 400:
            self.recent.add(charted, seconds)

    def socket_opened(self) -> None:
        self._sockets.inc()

    def socket_closed(self) -> None:
        self._sockets.dec()

    def step(self, seconds: float) -> None:
        self._steps.observe(seconds)
        self.recent.add("step", seconds)

    def prepared(self, how: PrepareMethod, prepared_state: bool, seconds: float, *, on_demand: bool = True) -> None:
        """Count one desktop that came to its state.

        `awaited` is one of the standby that was not ready when it was asked for, `on_demand` is False for one that is made ahead of need.
        """
        self._prepare.labels(how, "setup" if prepared_state else "base").observe(seconds)
        if on_demand:
            self._standby.labels(STANDBY_RESULT[how]).inc()

    def claim_ended(self, end: str, waited_s: float) -> None:
        """Count one claim that left the queue: granted, cancelled, expired or refused."""
        self._claim_wait.labels(label_or_other(end, CLAIM_ENDS)).observe(waited_s)

    def lease(self, what: str) -> None:
        """`what` is granted, released, expired or refused."""
        self._leases.labels(label_or_other(what, LEASE_ENDS)).inc()

    def failure(self, cause: str, owner: str) -> None:
        self._failures.labels(label_or_other(cause, CAUSES), label_or_other(owner, OWNERS)).inc()

    def set_certificate_expiry(self, at: float) -> None:
        """When the certificate of the farm ends, in seconds since 1970; only a farm that speaks TLS has one."""
        if self._certificate is None:
            words = "When the certificate ends, in seconds since 1970"
            self._certificate = Gauge("dart_certificate_expiry_timestamp_seconds", words, registry=self._registry)
        self._certificate.set(at)

    def render(self, now: Gauges) -> bytes:
        """The Prometheus text, gauges set from the given state."""
        for state in DesktopState:
            self._desktops.labels(state.value).set(now.desktops.get(state.value, 0))
        for what in POOL_COPIES:
            self._pool_copies.labels(what).set(now.pool_copies.get(what, 0))
        self._waiting.set(now.waiting)
        self._active.set(now.leases)
        self._snapshots.set(now.snapshots)
        self._snapshot_bytes.set(now.snapshot_bytes)
        self._ready.set(now.ready)
        return generate_latest(self._registry)
