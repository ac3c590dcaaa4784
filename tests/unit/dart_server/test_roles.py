"""Every route × every role: who is let in, who is refused, and that another tenant's things are like things that do not exist.

The routes come from the OpenAPI document, so a new one without a row here fails.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from farm_harness import Api, MakeApi, ManualClock
from fastapi import FastAPI

from dart_server.http.app import create_app
from dart_server.keys import Scope
from dart_server.wire import KeyRequest
from dart_server.wire.examples import EXAMPLES

OPEN, READ, LEASE, ADMIN = None, Scope.READ, Scope.LEASE, Scope.ADMIN


@dataclass(frozen=True)
class Row:
    """What a route asks for. `own`: it is about one thing of a tenant; `listing`: it lists things of tenants."""

    scope: Scope | None
    own: bool = False
    listing: bool = False
    body: dict[str, Any] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)


ROWS = {
    "healthz": Row(OPEN),
    "readyz": Row(OPEN),
    "get_farm": Row(READ),
    "list_desktops": Row(READ, listing=True),
    "metrics": Row(READ, listing=True),
    "list_events": Row(READ, listing=True),
    "list_lease_events": Row(READ, own=True),
    "list_desktop_events": Row(READ, own=True),
    "create_lease": Row(LEASE, body={"wait_s": 0}),
    "submit_claim": Row(LEASE, body={"count": 1, "match_labels": {}}),
    "list_claims": Row(READ, listing=True),
    "get_claim": Row(READ, own=True),
    "claim_events": Row(READ, own=True),
    "cancel_claim": Row(LEASE, own=True),
    "list_leases": Row(READ, listing=True),
    "renew_lease": Row(LEASE, own=True),
    "attach_lease": Row(LEASE, own=True),
    "get_lease": Row(READ, own=True),
    "open_live_view": Row(LEASE, own=True),
    "get_human_inputs": Row(LEASE, own=True),
    "heartbeat_lease": Row(LEASE, own=True),
    "release_lease": Row(LEASE, own=True),
    "reset_lease": Row(LEASE, own=True),
    "step": Row(LEASE, own=True),
    "screenshot": Row(LEASE, own=True),
    "a11y": Row(LEASE, own=True),
    "execute": Row(LEASE, own=True),
    "get_clock": Row(LEASE, own=True),
    "set_clock": Row(LEASE, own=True),
    "write_file": Row(LEASE, own=True, query={"path": "/home/user/a"}),
    "read_file": Row(LEASE, own=True, query={"path": "/home/user/a"}),
    "evidence": Row(LEASE, own=True),
    "desktop_health": Row(LEASE, own=True),
    "guest_get": Row(LEASE, own=True),
    "guest_post": Row(LEASE, own=True),
    "guest_put": Row(LEASE, own=True),
    "guest_delete": Row(LEASE, own=True),
    "snapshot_lease": Row(LEASE, own=True),
    "list_snapshots": Row(READ, listing=True),
    "get_snapshot": Row(READ, own=True),
    "delete_snapshot": Row(LEASE, own=True),
    "acquire_setup": Row(LEASE, own=True, body={"wait_s": 0}),
    "abandon_setup": Row(LEASE),
    "list_pools": Row(READ, listing=True),
    "get_pool": Row(READ),
    "put_pool": Row(ADMIN),
    "delete_pool": Row(ADMIN),
    "quarantine_desktop": Row(ADMIN),
    "release_desktop": Row(ADMIN),
    "drain_farm": Row(ADMIN),
    "undrain_farm": Row(ADMIN),
    "create_key": Row(ADMIN),
    "list_keys": Row(ADMIN),
    "revoke_key": Row(ADMIN),
}
HAS = {
    Scope.READ: {None, Scope.READ},
    Scope.LEASE: {None, Scope.READ, Scope.LEASE},
    Scope.ADMIN: {None, *Scope},
}
REFUSED = ("nobody", "wrong", "revoked", "expired")


class World:
    """A farm with two tenants, of whom the first has things."""

    def __init__(self, api: Api, document: dict[str, Any]) -> None:
        self.api = api
        self.document = document
        self.keys: dict[str, str | None] = {"nobody": None, "wrong": "dart_wrong", "admin": api.key}
        self.ids: dict[str, str] = {}
        self.lease: dict[str, Any] = {}
        self.owner_key_id = ""

    async def furnish(self, clock: ManualClock) -> None:
        keys = self.api.farm.keys
        self.keys["read"] = await keys.add("read", Scope.READ)
        self.keys["owner"] = await keys.add("owner", Scope.LEASE)
        self.keys["other"] = await keys.add("other", Scope.LEASE)
        revoked = await keys.make(KeyRequest(name="revoked", scope=Scope.ADMIN))
        await keys.principal(f"Bearer {revoked.secret}")
        await keys.revoke(revoked.key_id)
        ends = datetime.fromtimestamp(clock.time() + 1, UTC)
        expired = await keys.make(KeyRequest(name="expired", scope=Scope.ADMIN, expires_at=ends))
        await keys.principal(f"Bearer {expired.secret}")
        clock.now += 2
        self.keys |= {"revoked": revoked.secret, "expired": expired.secret}
        self.owner_key_id = (await keys.principal(f"Bearer {self.keys['owner']}")).key_id
        admin, self.api.key = self.api.key, str(self.keys["owner"])
        self.lease = await self.api.create_lease(ttl_s=3600, labels={"whose": "the-owners"})
        taken = await self.api.call(
            "POST", f"/v1/leases/{self.lease['lease_id']}/snapshot", lease=self.lease, json={"name": "the-owners"}
        )
        assert taken.status_code == 200, taken.text
        pool = await self.api.client.put("/v1/pools/pool-a", json={}, headers={"authorization": f"Bearer {admin}"})
        assert pool.status_code == 200, pool.text
        body = {"client_request_id": "the-owners-claim", "labels": {"whose": "the-owners"}}
        claim = await self.api.call("POST", "/v1/claims", json=body)
        assert claim.status_code == 202, claim.text
        told = await self.api.call("GET", f"/v1/claims/{claim.json()['claim_id']}?wait_s=60")
        assert told.json()["state"] == "granted"
        self.api.key = admin
        self.ids = {
            "claim_id": claim.json()["claim_id"],
            "lease_id": self.lease["lease_id"],
            "desktop_id": self.lease["desktop_id"],
            "key_id": self.owner_key_id,
            "name": taken.json()["snapshot_id"],
            "path": "screenshot",
        }

    async def ask(self, operation_id: str, role: str, ids: dict[str, str] | None = None) -> tuple[int, Any, str]:
        """(status, JSON, text) of a request that is right in everything but who sends it."""
        ids = ids or self.ids
        row = ROWS[operation_id]
        path, method = next(
            (path, method)
            for path, item in self.document["paths"].items()
            for method, operation in item.items()
            if operation["operationId"] == operation_id
        )
        headers = {"X-Dart-Lease-Token": self.lease["token"], "X-Dart-Fencing-Token": str(self.lease["fencing_token"])}
        if self.keys[role] is not None:
            headers["authorization"] = f"Bearer {self.keys[role]}"
        body = EXAMPLES[operation_id].request
        if body is not None:
            body = {**body, **row.body}
            body |= {name: value for name, value in ids.items() if name in body and name != "name"}
            body.pop("setup_key", None)
        where = re.sub(r"\{(\w+)\}", lambda match: ids[match.group(1)], path)
        if operation_id.endswith("_pool"):
            where = "/v1/pools/pool-a"
        reply = await self.api.client.request(method, where, headers=headers, json=body, params=row.query)
        try:
            return reply.status_code, reply.json(), reply.text
        except ValueError:
            return reply.status_code, None, reply.text


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The description of the API, the same for every farm; the first one fills it in."""
    return {}


@pytest.fixture
async def world(make_api: MakeApi, clock: ManualClock, document: dict[str, Any]) -> World:
    api = await make_api(max_desktops=8)
    document.update(document or create_app(api.farm).openapi())
    made = World(api, document)
    await made.furnish(clock)
    return made


def test_every_route_has_a_row(world: World) -> None:
    found = {operation["operationId"] for item in world.document["paths"].values() for operation in item.values()}
    assert not found - set(ROWS), "say in ROWS who may call it"
    assert not set(ROWS) - found, "there is no such route any more"


def test_the_description_says_the_same(world: World) -> None:
    for item in world.document["paths"].values():
        for operation in item.values():
            assert operation.get("x-scope") == ROWS[operation["operationId"]].scope, operation["operationId"]


@pytest.mark.parametrize("operation_id", sorted(ROWS))
async def test_who_may_call(world: World, operation_id: str) -> None:
    row = ROWS[operation_id]
    for role in REFUSED:
        status, body, _ = await world.ask(operation_id, role)
        if row.scope is OPEN:
            assert status == 200, role
        else:
            assert (status, body["error"]) == (401, "unauthenticated"), role
    for role, scope in (("read", Scope.READ), ("other", Scope.LEASE)):
        status, body, text = await world.ask(operation_id, role)
        if row.scope not in HAS[scope]:
            assert (status, body["error"]) == (403, "forbidden"), role
        elif row.own:
            unknown = {name: value[:-4] + "0000" if name != "path" else value for name, value in world.ids.items()}
            told = await world.ask(operation_id, role, unknown)
            assert (status, _plain(text, world.ids)) == (told[0], _plain(told[2], unknown)), (
                f"{role}: another's thing is not like one that does not exist"
            )
            assert status in (204, 404), role
        else:
            assert status not in (401, 403), (role, text)
            if row.listing:
                for secret in (world.ids["lease_id"], world.ids["name"], world.lease["token"], "the-owners"):
                    assert secret not in text, role
    allowed = "admin" if row.scope is ADMIN else "owner"
    status, body, text = await world.ask(operation_id, allowed)
    let_in = status not in (401, 403, 404, 405, 409, 410, 422)
    assert let_in or (body or {}).get("error", "guest's own") in ("guest_error", "guest's own"), text
    assert world.lease["token"] not in text or operation_id == "attach_lease"


def _plain(text: str, ids: dict[str, str]) -> str:
    """An answer without the ids in it, and without the request's own id."""
    for value in ids.values():
        text = text.replace(value, "ID")
    try:
        body = json.loads(text)
    except ValueError:
        return text
    if isinstance(body, dict):
        body.pop("request_id", None)
    return json.dumps(body)


async def upgrade(app: FastAPI, path: str, headers: dict[str, str], query: str = "") -> tuple[int, str]:
    """(status, error code) of an upgrade request; 101 when it was accepted."""
    told: list[dict[str, Any]] = []
    asked = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]
    scope = {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "extensions": {"websocket.http.response": {}},
        "server": ("farm", None),
        "subprotocols": [],
    }

    async def receive() -> dict[str, Any]:
        return asked.pop(0) if len(asked) > 1 else asked[0]

    async def send(message: Any) -> None:
        told.append(message)

    await app(scope, receive, send)
    if told[0]["type"] == "websocket.accept":
        return 101, ""
    body = b"".join(message.get("body", b"") for message in told)
    return told[0]["status"], json.loads(body)["error"]


@pytest.mark.parametrize(("stream", "query"), [("channel", ""), ("tunnel", "port=7")])
async def test_who_may_open_websockets(world: World, stream: str, query: str) -> None:
    app = create_app(world.api.farm)
    path = f"/v1/leases/{world.lease['lease_id']}/{stream}"
    credentials = {
        "X-Dart-Lease-Token": world.lease["token"],
        "X-Dart-Fencing-Token": str(world.lease["fencing_token"]),
    }
    expected = {role: (401, "unauthenticated") for role in REFUSED}
    expected |= {"read": (403, "forbidden"), "other": (404, "not_found")}
    for role, answer in expected.items():
        headers = credentials if world.keys[role] is None else credentials | bearer(world, role)
        assert await upgrade(app, path, headers, query) == answer, role
    headers = credentials | bearer(world, "owner")
    assert (await upgrade(app, path, headers | {"Origin": "https://evil.example"}, query))[0] == 403
    assert (await upgrade(app, path, headers | {"X-Dart-Lease-Token": "tok_wrong"}, query))[0] == 403
    assert await upgrade(app, path, headers | {"X-Dart-Fencing-Token": "0"}, query) == (409, "fenced")
    if stream == "channel":
        assert (await upgrade(app, path, headers, query))[0] == 101


def bearer(world: World, role: str) -> dict[str, str]:
    return {"authorization": f"Bearer {world.keys[role]}"}


async def test_a_key_alone_and_a_token_alone_open_no_desktop(world: World) -> None:
    path = f"/v1/leases/{world.lease['lease_id']}/screenshot"
    fencing_token = {"X-Dart-Fencing-Token": str(world.lease["fencing_token"])}
    token = {"X-Dart-Lease-Token": world.lease["token"]}
    client = world.api.client
    assert (await client.get(path, headers=bearer(world, "owner") | fencing_token)).status_code == 403
    assert (await client.get(path, headers=bearer(world, "admin") | fencing_token)).status_code == 403, (
        "the admin's, too"
    )
    assert (await client.get(path, headers=token | fencing_token)).status_code == 401
    assert (await client.get(path, headers=bearer(world, "other") | token | fencing_token)).status_code == 404
    assert (await client.get(path, headers={"authorization": f"Bearer {world.lease['token']}"})).status_code == 401
    assert (await client.get(path, headers=bearer(world, "owner") | token | fencing_token)).status_code == 200


async def test_a_stolen_token_is_no_good_after_the_lease(world: World, clock: ManualClock) -> None:
    stolen = {"X-Dart-Lease-Token": world.lease["token"], "X-Dart-Fencing-Token": str(world.lease["fencing_token"])}
    path = f"/v1/leases/{world.lease['lease_id']}"
    renewed = await world.api.client.post(f"{path}/renew", headers=bearer(world, "owner"), json={"ttl_s": 30})
    assert renewed.status_code == 200, renewed.text
    await clock.advance(32)
    for method, where in (("GET", "screenshot"), ("POST", "reset"), ("GET", "health"), ("PUT", "files?path=/a")):
        body = {} if method == "POST" else None
        reply = await world.api.client.request(
            method, f"{path}/{where}", headers=bearer(world, "owner") | stolen, json=body
        )
        assert (reply.status_code, reply.json()["error"]) == (410, "lease_expired")
    admin, world.api.key = world.api.key, str(world.keys["other"])
    theirs = await world.api.create_lease()
    world.api.key = admin
    for who in ("owner", "other"):
        reply = await world.api.client.get(
            f"/v1/leases/{theirs['lease_id']}/screenshot", headers=bearer(world, who) | stolen
        )
        assert reply.status_code == (404 if who == "owner" else 403), "a token opens its own lease only"


async def test_a_late_client_is_fenced_off(world: World) -> None:
    late = dict(world.lease)
    admin, world.api.key = world.api.key, str(world.keys["owner"])
    await world.api.reset(world.lease)
    for method, path in (("GET", "screenshot"), ("POST", "step"), ("POST", "reset"), ("GET", "clock")):
        body = {} if method == "POST" else None
        reply = await world.api.call(method, f"/v1/leases/{late['lease_id']}/{path}", lease=late, json=body)
        assert (reply.status_code, reply.json()["error"]) == (409, "fenced")
    reply = await world.api.call("GET", f"/v1/leases/{late['lease_id']}/screenshot", lease=world.lease)
    assert reply.status_code == 200
    world.api.key = admin
