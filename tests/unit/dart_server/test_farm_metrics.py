"""Metrics: what they tell of a farm, and that nothing a client sends makes a series of its own."""

from __future__ import annotations

import random
import string

import pytest
from farm_harness import Api, ManualClock
from prometheus_client.parser import text_string_to_metric_families

from dart_server.http.ingress.limits import PEER_BURST_S
from dart_server.observability import metrics as farm_metrics
from dart_server.observability.metrics import Gauges, Metrics
from dart_server.wire import DesktopState

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
STATUS_CLASSES = {"1xx", "2xx", "3xx", "4xx", "5xx"}
NOTHING = Gauges(desktops={}, waiting=0, leases=0, snapshots=0, snapshot_bytes=0, ready=False)


def parse(text: str) -> Series:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


async def series(api: Api) -> Series:
    reply = await api.call("GET", "/metrics")
    assert reply.status_code == 200
    return parse(reply.text)


def templates(api: Api) -> set[str]:
    """Every route template of the application, from its own description."""
    app = api.client._transport.app  # type: ignore[attr-defined]
    return {path for route in app.routes if (path := getattr(route, "path", None))}


async def random_requests(api: Api, chance: random.Random, number: int) -> None:
    """Random methods, paths, ids, queries and headers, some of them on real routes, with and without a key."""

    def word() -> str:
        return "".join(chance.choices(string.ascii_letters + string.digits, k=chance.randint(1, 20)))

    paths = sorted(templates(api) - {"/v1/leases"})
    for _ in range(number):
        known = chance.random() < 0.7
        path = chance.choice(paths) if known else f"/{word()}/{word()}"
        while "{" in path:
            head, _, rest = path.partition("{")
            path = head + word() + rest.partition("}")[2]
        method = chance.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", word().upper()])
        headers = {
            "x-request-id": word(),
            "user-agent": word(),
            "x-dart-lease-token": word(),
            "x-dart-fencing-token": word(),
        }
        if chance.random() < 0.5:
            headers["authorization"] = f"Bearer {word()}"
        await api.client.request(method, path, params={word(): word()}, headers=headers, json={word(): word()})


async def test_no_request_makes_a_series_of_its_own(api: Api, clock: ManualClock) -> None:
    chance = random.Random(1)
    for _ in range(4):  # with pauses, so that the limit of requests without a valid key refuses none
        await random_requests(api, chance, 250)
        await clock.advance(PEER_BURST_S)
    told = await series(api)
    label_values: dict[str, set[str]] = {}
    for name, labels in told:
        if name.startswith("dart_"):
            for label, value in labels:
                label_values.setdefault(label, set()).add(value)
    assert label_values.pop("route") <= templates(api) | {"unmatched"}
    assert label_values.pop("method") <= farm_metrics.METHODS | {"other"}
    assert label_values.pop("status") <= STATUS_CLASSES
    assert label_values.pop("state") == {state.value for state in DesktopState}
    assert label_values.pop("what") <= {*farm_metrics.POOL_COPIES, *farm_metrics.LEASE_ENDS, "base", "setup"}
    for label in ("le", "version", "provider", "python"):
        label_values.pop(label)
    assert not label_values, "a label that this test does not know: give it a closed set of values, and name it here"
    for method in [*sorted(farm_metrics.METHODS), "OTHER"]:
        for path in [*sorted(templates(api)), "/nowhere"]:
            if path != "/v1/leases" or method != "POST":
                await api.client.request(method, path.replace("{", "").replace("}", ""))
    known = set(await series(api))
    await random_requests(api, random.Random(2), 1000)
    assert set(await series(api)) == known


@pytest.mark.parametrize("text", ["killed by user 4711", "lease_01J9", ""])
def test_free_text_is_counted_as_other(text: str) -> None:
    metrics = Metrics()
    metrics.failure(text, text)
    metrics.lease(text)
    metrics.claim_ended(text, 1.0)
    metrics.request("unmatched", text, 404, 0.1)
    told = parse(metrics.render(NOTHING).decode())
    for key in (
        ("dart_desktop_failures_total", (("cause", "other"), ("owner", "other"))),
        ("dart_leases_total", (("what", "other"),)),
        ("dart_claim_wait_seconds_count", (("end", "other"),)),
        ("dart_http_requests_total", (("method", "other"), ("route", "unmatched"), ("status", "4xx"))),
    ):
        assert told[key] == 1


async def test_the_metrics_tell_of_leases_desktops_and_the_process(api: Api) -> None:
    await api.create_lease()
    told = await series(api)
    assert told["dart_leases_active", ()] == 1
    assert told["dart_leases_total", (("what", "granted"),)] == 1
    assert told["dart_desktops", (("state", "leased"),)] == 1
    assert told["dart_ready", ()] == 1
    assert told["process_resident_memory_bytes", ()] > 0
    [build] = [dict(labels) for name, labels in told if name == "dart_build_info"]
    assert build["provider"] == api.farm.provider.name
    assert build["version"]


async def test_pools_are_told_together_whatever_their_names(api: Api) -> None:
    for name in ("one", "two"):
        reply = await api.call("PUT", f"/v1/pools/{name}", json={"shape": {"image": name}, "standby": 1, "max": 1})
        assert reply.status_code == 200, reply.text
    told = await series(api)
    assert told["dart_pool_desktops", (("what", "standby_desired"),)] == 2
    assert not [labels for _, labels in told if {"one", "two"} & {value for _, value in labels}]


async def test_the_standby_counts_hits_and_misses() -> None:
    metrics = Metrics()
    metrics.prepared("standby", False, 0.01)
    metrics.prepared("restore", True, 0.3)
    metrics.prepared("awaited", False, 1.0)
    told = parse(metrics.render(NOTHING).decode())
    results = {
        dict(labels)["result"]: count for (name, labels), count in told.items() if name == "dart_standby_requests_total"
    }
    assert results == {"hit": 1, "miss": 1, "awaited": 1}


async def test_metrics_need_a_key_and_liveness_does_not(api: Api) -> None:
    assert (await api.client.get("/metrics")).status_code == 401
    assert (await api.client.get("/healthz")).status_code == 200
    assert (await api.client.get("/readyz")).json() == {"status": "ready"}


async def test_readiness_tells_why_not(api: Api) -> None:
    api.farm.ready = False
    reply = await api.client.get("/readyz")
    assert reply.status_code == 503
    assert "starting or stopping" in reply.json()["detail"]
    api.farm.ready = True
