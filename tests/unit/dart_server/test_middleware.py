"""The border: keys and scopes, the one envelope, limits, request ids, metrics, OpenAPI."""

from __future__ import annotations

import json
import logging
import re

import pytest
from farm_harness import Api

from dart_server.keys import Scope
from dart_server.observability.logs import JsonFormatter
from dart_server.wire import ErrorBody

ROUTES = [
    ("GET", "/v1/farm", Scope.READ),
    ("GET", "/v1/leases", Scope.READ),
    ("GET", "/v1/desktops", Scope.READ),
    ("GET", "/v1/snapshots", Scope.READ),
    ("GET", "/v1/events", Scope.READ),
    ("GET", "/metrics", Scope.READ),
    ("POST", "/v1/leases", Scope.LEASE),
    ("POST", "/v1/setups/acquire", Scope.LEASE),
    ("DELETE", "/v1/snapshots/snap_x", Scope.LEASE),
    ("DELETE", "/v1/leases/lease_x", Scope.LEASE),
    ("POST", "/v1/leases/lease_x/execute", Scope.LEASE),
    ("GET", "/v1/leases/lease_x/guest/screenshot", Scope.LEASE),
]


@pytest.mark.parametrize(("method", "path", "scope"), ROUTES)
async def test_every_route_wants_a_key_of_its_scope(api: Api, method: str, path: str, scope: Scope) -> None:
    for header in ({}, {"authorization": "Bearer nonsense"}, {"authorization": f"Basic {api.key}"}):
        reply = await api.client.request(method, path, headers=header)
        assert (reply.status_code, reply.json()["error"]) == (401, "unauthenticated")
    reader = await api.farm.keys.add("reader", Scope.READ)
    reply = await api.client.request(method, path, headers={"authorization": f"Bearer {reader}"})
    if scope is Scope.READ:
        assert reply.status_code == 200
    else:
        assert (reply.status_code, reply.json()["error"]) == (403, "forbidden")


async def test_liveness_and_readiness_need_no_key(api: Api) -> None:
    assert (await api.client.get("/healthz")).status_code == 200
    assert (await api.client.get("/readyz")).status_code == 200
    api.farm.ready = False
    assert (await api.client.get("/readyz")).status_code == 503


async def test_a_tenant_sees_only_its_own(api: Api) -> None:
    lease = await api.create_lease()
    await api.publish(lease, "a" * 64)
    admin, api.key = api.key, await api.farm.keys.add("tenant", Scope.LEASE)
    own = await api.create_lease()
    assert [view["lease_id"] for view in (await api.call("GET", "/v1/leases")).json()] == [own["lease_id"]]
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/heartbeat"), ("POST", "/reset")):
        reply = await api.call(
            method, f"/v1/leases/{lease['lease_id']}{path}", lease=lease, json={} if method == "POST" else None
        )
        assert (reply.status_code, reply.json()["error"]) == (404, "not_found")
    assert [view["kind"] for view in (await api.call("GET", "/v1/snapshots")).json()] == ["booted"]
    assert (await api.reset(own, setup_key="a" * 64))["setup_key"] is None, "prepared states are the tenant's own"
    base = (await api.call("GET", "/v1/snapshots")).json()[0]["snapshot_id"]
    assert (await api.call("DELETE", f"/v1/snapshots/{base}")).status_code == 403
    api.key = admin
    assert len((await api.call("GET", "/v1/leases")).json()) == 2


BAD = [
    ("GET", "/nowhere", None, 404, "not_found", "no route"),
    ("PATCH", "/v1/leases", None, 405, "invalid", "only GET, POST"),
    ("POST", "/v1/leases", {"client_request_id": "short"}, 422, "invalid", "client_request_id"),
    ("POST", "/v1/leases", {"client_request_id": "long-enough", "colour": 1}, 422, "invalid", "colour"),
    ("POST", "/v1/leases", {"client_request_id": "long-enough", "setup_key": "xyz"}, 422, "invalid", "setup_key"),
    (
        "POST",
        "/v1/leases",
        {"client_request_id": "long-enough", "labels": {"a": "x" * 2_000_000}},
        413,
        "invalid",
        "larger",
    ),
    ("GET", "/v1/leases/lease_unknown", None, 404, "not_found", "lease_unknown"),
    ("POST", "/v1/leases", None, 422, "invalid", "needs a body"),
    ("GET", "/v1/events?after=soon", None, 422, "invalid", "after"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "code", "words"), BAD)
async def test_everything_wrong_is_one_envelope(
    api: Api, method: str, path: str, body: object, status: int, code: str, words: str
) -> None:
    reply = await api.call(method, path, json=body)
    error = ErrorBody.model_validate(reply.json())
    assert (reply.status_code, error.error.value) == (status, code)
    assert words in error.detail
    assert error.request_id == reply.headers["x-request-id"]


async def test_what_is_no_json_is_said_with_its_place(api: Api) -> None:
    reply = await api.call(
        "POST", "/v1/leases", content=b'{"client_request_id": ', headers={"content-type": "application/json"}
    )
    assert reply.status_code == 422
    assert reply.json()["detail"].startswith("the body is not JSON: ")


async def test_an_unforeseen_failure_is_an_envelope_without_its_inside(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    def explode() -> None:
        raise RuntimeError("secret inside")

    api.farm.view = explode  # type: ignore[assignment, method-assign]
    reply = await api.call("GET", "/v1/farm", headers={"x-request-id": "my-id"})
    assert (reply.status_code, reply.json()["error"], reply.json()["request_id"]) == (500, "host_fault", "my-id")
    assert "secret inside" not in reply.text
    assert "my-id" in caplog.text


@pytest.mark.parametrize(
    "path",
    ["v1/quiesce", "v1/restored", "v1/exec", "v1/../v1/quiesce", "./v1/quiesce", "%2e/v1/quiesce", "/v1/quiesce"],
)
async def test_the_agents_control_routes_are_not_passed_through(api: Api, path: str) -> None:
    lease = await api.create_lease()
    reply = await api.call("POST", f"/v1/leases/{lease['lease_id']}/guest/{path}", lease=lease)
    assert reply.status_code == 404
    assert reply.json()["error"] in ("not_found", "guest_error")


async def test_osworld_routes_are_passed_through_unchanged(api: Api) -> None:
    lease = await api.create_lease()
    path = f"/v1/leases/{lease['lease_id']}"
    reply = await api.call(
        "POST", f"{path}/guest/setup/launch", lease=lease, content=b"\x00body", headers={"content-type": "a/b"}
    )
    assert (reply.status_code, reply.content) == (200, b"\x00body")
    assert (await api.call("GET", f"{path}/guest/nothing", lease=lease)).status_code == 404
    assert (await api.call("GET", f"{path}/screenshot", lease=lease)).headers["content-type"] == "image/png"
    assert (await api.call("GET", f"{path}/a11y", lease=lease)).json()[0]["name"] == "OK"


@pytest.mark.parametrize(
    "fields",
    [
        {"labels": {"a": "x" * 257}},
        {"labels": {f"name-{number}": "x" for number in range(33)}},
        {"match_labels": {"x" * 257: "a"}},
        {"snapshot_id": "x" * 129},
    ],
)
async def test_what_is_kept_of_a_claim_has_a_length(api: Api, fields: dict[str, object]) -> None:
    for path in ("/v1/leases", "/v1/claims"):
        reply = await api.call("POST", path, json={"client_request_id": "long-texts", **fields})
        assert (reply.status_code, reply.json()["error"]) == (422, "invalid"), path


@pytest.mark.parametrize("resolution", [[-1, -1], [0, 400], [63, 64], [64, 63], [7681, 400], [640, 4321], [1e30, 400]])
async def test_a_screen_that_no_desktop_can_have_is_wrong_input(api: Api, resolution: list[float]) -> None:
    body = {"client_request_id": "odd-screens", "shape": {"resolution": resolution}}
    for path in ("/v1/leases", "/v1/claims"):
        reply = await api.call("POST", path, json=body)
        assert (reply.status_code, reply.json()["error"]) == (422, "invalid"), path


async def test_a_missing_fencing_token_is_said(api: Api) -> None:
    lease = await api.create_lease()
    headers = {"X-Dart-Lease-Token": lease["token"]}
    reply = await api.call("POST", f"/v1/leases/{lease['lease_id']}/step", headers=headers, json={})
    assert (reply.status_code, reply.json()["error"]) == (422, "invalid")
    assert (await api.call("GET", f"/v1/leases/{lease['lease_id']}/health", headers=headers)).status_code == 200


async def test_metrics_have_no_ids(api: Api) -> None:
    lease = await api.create_lease()
    await api.call("GET", f"/v1/leases/{lease['lease_id']}")
    text = (await api.call("GET", "/metrics")).text
    assert 'route="/v1/leases/{lease_id}"' in text
    assert 'dart_leases_total{what="granted"} 1.0' in text
    assert not re.search(r"lease_[0-9A-Z]{20}", text)


def test_json_logs_carry_ids_and_nothing_else() -> None:
    record = logging.LogRecord("dart", logging.INFO, "", 1, "lease %s", ("ended",), None)
    record.lease_id = "lease_1"
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["lease_id"], line["level"]) == ("lease ended", "lease_1", "info")
