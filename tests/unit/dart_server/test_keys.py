"""Keys: made and shown once, quotas and expiry kept, revocation at once, also of what runs; changes of another process hold."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from farm_harness import Api, ManualClock, advance_until_done, wait_until

from dart_server.keys import Scope, create_key


async def make(api: Api, name: str = "tenant", **fields: Any) -> dict[str, Any]:
    reply = await api.call("POST", "/v1/keys", json={"name": name, **fields})
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    return made


def written(place: Path, secret: str) -> list[Path]:
    """Files of the database that have the secret in them."""
    files = list(place.rglob("farm.db*"))
    assert files
    return [file for file in files if secret.encode() in file.read_bytes()]


async def status(api: Api, secret: str, path: str = "/v1/farm") -> int:
    return (await api.client.get(path, headers={"authorization": f"Bearer {secret}"})).status_code


async def test_a_key_is_shown_once_and_kept_hashed(api: Api, tmp_path: Path) -> None:
    made = await make(api, "someone", max_leases=3, max_waiting=2, weight=2.5, max_priority=7)
    assert await status(api, made["secret"]) == 200
    listed = (await api.call("GET", "/v1/keys")).json()
    mine = next(key for key in listed if key["key_id"] == made["key_id"])
    assert (mine["name"], mine["scope"], mine["max_leases"], mine["max_waiting"], mine["weight"]) == (
        "someone",
        "lease",
        3,
        2,
        2.5,
    )
    assert "secret" not in mine
    principal = await api.farm.keys.principal(f"Bearer {made['secret']}")
    assert (principal.max_leases, principal.max_waiting, principal.weight) == (3, 2, 2.5)
    assert (mine["max_priority"], principal.max_priority) == (7, 7)
    await api.farm.repository.events(0, 1)
    assert not written(tmp_path, made["secret"])


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 65},
        {"scope": "root"},
        {"max_leases": -1},
        {"weight": 0},
        {"weight": 1e9},
        {"max_priority": 101},
        {"expires_at": "2001-01-01T00:00:00Z"},
        {"expires_at": "2101-01-01T00:00:00"},
        {"secret": "mine"},
    ],
)
async def test_wrong_keys_are_not_made(api: Api, fields: dict[str, Any]) -> None:
    reply = await api.call("POST", "/v1/keys", json={"name": "tenant", **fields})
    assert (reply.status_code, reply.json()["error"]) == (422, "invalid")
    assert len((await api.call("GET", "/v1/keys")).json()) == 1


async def test_a_revoked_key_is_refused_at_once(api: Api) -> None:
    made = await make(api)
    assert await status(api, made["secret"]) == 200
    for _ in range(2):
        assert (await api.call("DELETE", f"/v1/keys/{made['key_id']}")).status_code == 204
        assert await status(api, made["secret"]) == 401
    listed = {key["key_id"]: key for key in (await api.call("GET", "/v1/keys")).json()}
    assert listed[made["key_id"]]["revoked_at"] is not None
    assert (await api.call("DELETE", "/v1/keys/key_unknown")).status_code == 404


async def told(api: Api, secret: str) -> tuple[str, str]:
    body = (await api.client.get("/v1/farm", headers={"authorization": f"Bearer {secret}"})).json()
    assert body["error"] == "unauthenticated"
    return body["detail"], body["hint"]


async def test_who_holds_a_key_that_has_ended_is_told_so(api: Api, clock: ManualClock) -> None:
    ends = datetime.fromtimestamp(clock.time() + 30, UTC)
    for forgotten in (False, True):
        revoked = await make(api)
        expired = await make(api, expires_at=(ends := ends + timedelta(seconds=60)).isoformat())
        assert await status(api, revoked["secret"]) == await status(api, expired["secret"]) == 200
        await api.call("DELETE", f"/v1/keys/{revoked['key_id']}")
        revoked_at = datetime.fromtimestamp(clock.time(), UTC)
        clock.now += 100
        if forgotten:  # as after a restart
            api.farm.keys._known.clear()
        for secret, how, at in ((revoked["secret"], "was revoked", revoked_at), (expired["secret"], "expired", ends)):
            detail, hint = await told(api, secret)
            assert detail == f"this key {how} on {at:%Y-%m-%d at %H:%M:%S} UTC"
            assert "dart-farm keys add" in hint
    assert (await told(api, "dart_guessed"))[0] == "a valid key is needed"


async def test_what_runs_under_a_revoked_key_ends(api: Api) -> None:
    await api.create_lease()
    await api.create_lease()
    made = await make(api)
    waiting = asyncio.ensure_future(
        api.client.post(
            "/v1/leases",
            json={"client_request_id": "waits-for-one", "wait_s": 600},
            headers={"authorization": f"Bearer {made['secret']}"},
        )
    )
    await wait_until(lambda: api.farm.pool.queue.waiting == 1)
    await api.call("DELETE", f"/v1/keys/{made['key_id']}")
    reply = await waiting
    assert (reply.status_code, reply.json()["error"]) == (401, "unauthenticated")
    await wait_until(lambda: api.farm.pool.queue.waiting == 0)
    assert api.farm.limits.active_count(made["key_id"]) == 0


async def test_an_expired_key_is_refused_and_what_runs_under_it_ends(api: Api, clock: ManualClock) -> None:
    await api.create_lease(ttl_s=3600)
    await api.create_lease(ttl_s=3600)
    ends = datetime.fromtimestamp(clock.time() + 30, UTC)
    made = await make(api, expires_at=ends.isoformat())
    headers = {"authorization": f"Bearer {made['secret']}"}
    waiting = asyncio.ensure_future(
        api.client.post("/v1/leases", json={"client_request_id": "waits-for-one", "wait_s": 600}, headers=headers)
    )
    await wait_until(lambda: api.farm.pool.queue.waiting == 1)
    await clock.advance(29)
    assert not waiting.done()
    assert await status(api, made["secret"]) == 200
    clock.now += 1.5
    assert await status(api, made["secret"]) == 401, "without waiting for a look at the database"
    assert (await advance_until_done(clock, waiting, 2)).status_code == 401


async def test_the_last_admin_key_is_not_revoked(api: Api) -> None:
    own = (await api.call("GET", "/v1/keys")).json()[0]["key_id"]
    reply = await api.call("DELETE", f"/v1/keys/{own}")
    assert (reply.status_code, reply.json()["error"]) == (422, "invalid")
    assert await status(api, api.key) == 200
    other = await make(api, scope="admin")
    assert (await api.call("DELETE", f"/v1/keys/{own}")).status_code in (204, 401)
    assert await status(api, api.key) == 401
    assert await status(api, other["secret"]) == 200


async def test_keys_are_for_admins(api: Api) -> None:
    for scope in (Scope.READ, Scope.LEASE):
        secret = await api.farm.keys.add(scope.value, scope)
        headers = {"authorization": f"Bearer {secret}"}
        for method, path in (("GET", "/v1/keys"), ("POST", "/v1/keys"), ("DELETE", "/v1/keys/key_x")):
            reply = await api.client.request(method, path, headers=headers)
            assert reply.status_code == 403


async def test_changes_of_another_process_hold(api: Api, clock: ManualClock) -> None:
    url = api.farm.settings.database_url
    secret = await create_key(url, "offline", Scope.LEASE)
    assert await status(api, secret) == 200, "made while the farm runs"
    key_id = (await api.farm.keys.principal(f"Bearer {secret}")).key_id
    api.farm.repository.revoke_key(key_id)  # as another process would: the farm's own memory does not hear of it
    await clock.advance(api.farm.settings.tick_interval_s)
    async with asyncio.timeout(10):
        while await status(api, secret) != 401:  # noqa: ASYNC110 - the database's thread answers when it does
            await asyncio.sleep(0.01)


async def test_last_use_is_noted(api: Api, clock: ManualClock) -> None:
    made = await make(api)
    listed = {key["key_id"]: key for key in (await api.call("GET", "/v1/keys")).json()}
    assert listed[made["key_id"]]["last_used_at"] is None
    await clock.advance(5)
    assert await status(api, made["secret"]) == 200
    listed = {key["key_id"]: key for key in (await api.call("GET", "/v1/keys")).json()}
    assert datetime.fromisoformat(listed[made["key_id"]]["last_used_at"]).timestamp() == clock.time()
