"""Copies whose agent answers to hurt: no slot and no permit is lost, and their snapshot is set aside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from farm_fake import FakeDesktop, FakeProvider
from farm_harness import Api, MakeApi, wait_until
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dart_server.pool import prepare
from dart_server.providers import base

KEY = "a" * 64
MARK = "/home/user/hostile"
NESTED = b"[" * 400_000


async def dripping() -> AsyncIterator[bytes]:
    while True:
        yield b" "
        await asyncio.sleep(0.01)


async def flood() -> AsyncIterator[bytes]:
    for _ in range(2000):
        yield b" " * 65536


HOSTILE_CLOCKS = {
    "nested": lambda: Response(NESTED),
    "drips": lambda: StreamingResponse(dripping()),
    "floods": lambda: StreamingResponse(flood()),
    "huge number": lambda: Response(b'{"declared": true, "time_s": 1' + b"0" * 400 + b"}"),
    "no number": lambda: Response(b'{"declared": true, "time_s": NaN}'),
    "a list": lambda: Response(b"[1]"),
}


class FakeHostileProvider(FakeProvider):
    """Copies of a desktop with the file `MARK` have an agent that answers `clock` or `health` in a hostile way."""

    clock = ""
    health_body: bytes | None = None
    restore_error: Exception | None = None

    async def restore(self, desktop_id: str, snapshot_id: str) -> None:
        if self.restore_error is not None and MARK in self.snapshots.get(snapshot_id, {}):
            await self.destroy(desktop_id)
            raise self.restore_error
        await super().restore(desktop_id, snapshot_id)
        desktop = self.desktops[desktop_id]
        if MARK in desktop.files:
            self._poison(desktop)

    def _poison(self, desktop: FakeDesktop) -> None:
        assert desktop.server is not None
        routes = desktop.server.config.loaded_app
        while not hasattr(routes, "router"):
            routes = routes.app

        async def clock(request: Request) -> Response:
            return HOSTILE_CLOCKS[self.clock]()

        async def health(request: Request) -> Response:
            return Response(self.health_body)

        if self.clock:
            routes.router.routes.insert(0, Route("/v1/clock", clock, methods=["GET", "POST"]))
        if self.health_body is not None:
            routes.router.routes.insert(0, Route("/v1/health", health))


@pytest.fixture
def provider() -> FakeHostileProvider:
    return FakeHostileProvider(freezes=True)


async def publish_hostile(api: Api, provider: FakeHostileProvider) -> dict[str, Any]:
    """A lease whose published state is hostile."""
    lease = await api.create_lease()
    provider.desktops[lease["desktop_id"]].files[MARK] = b""
    await api.publish(lease, KEY)
    return lease


def no_slot_hangs(api: Api) -> bool:
    slots = api.farm.pool.slots.values()
    return all(not slot.warming and (not slot.busy or slot.lease_id is not None) for slot in slots)


async def require_recovered(api: Api, provider: FakeHostileProvider) -> None:
    """The snapshot is in quarantine, every slot and permit is free, and the farm goes on."""
    await wait_until(lambda: bool(provider.aside))
    await wait_until(lambda: no_slot_hangs(api))
    preparer = api.farm.pool.lifecycle._preparer
    assert preparer._parallel._value == api.farm.settings.parallel_provider_calls
    assert not any(record.kind == "setup" for record in api.farm.snapshots.all())
    await api.create_lease()


@pytest.mark.parametrize("answer", HOSTILE_CLOCKS)
async def test_a_hostile_clock_costs_the_snapshot(
    make_api: MakeApi, provider: FakeHostileProvider, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "PROBE_TIMEOUT_S", 0.2)
    provider.clock = answer
    api = await make_api(standby_desktops=2, max_desktops=8)
    lease = await publish_hostile(api, provider)
    for _ in range(2):
        await api.reset(lease, setup_key=KEY)
    await require_recovered(api, provider)


@pytest.mark.parametrize("body", [NESTED, b'{"ready"', b"[]", b'{"ready": ' + b"9" * 5000 + b"}"])
async def test_a_hostile_health_costs_the_snapshot(
    make_api: MakeApi, provider: FakeHostileProvider, body: bytes
) -> None:
    provider.health_body = body
    api = await make_api(standby_desktops=2, max_desktops=8)
    lease = await publish_hostile(api, provider)
    answer = await api.reset(lease, setup_key=KEY)
    assert answer["setup_key"] is None
    await require_recovered(api, provider)


@pytest.mark.parametrize("error", [RecursionError("maximum recursion depth exceeded"), MemoryError(), KeyError("x")])
async def test_whatever_a_restore_raises_costs_the_snapshot(
    make_api: MakeApi, provider: FakeHostileProvider, error: Exception
) -> None:
    provider.restore_error = error
    api = await make_api(standby_desktops=2, max_desktops=8)
    lease = await publish_hostile(api, provider)
    answer = await api.reset(lease, setup_key=KEY)
    assert answer["setup_key"] is None
    await require_recovered(api, provider)


async def test_what_fails_inside_the_farm_frees_its_slot(
    make_api: MakeApi, provider: FakeHostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await make_api(standby_desktops=1, max_desktops=4, warm_desktops=0)
    lease = await api.create_lease()
    await api.publish(lease, KEY)

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(api.farm.pool.lifecycle, "prepare", broken)
        await api.reset(lease, setup_key=KEY)
        await api.reset(lease, setup_key=KEY)
        await wait_until(lambda: bool(api.farm.pool.standby.backoff.reasons()))
        await wait_until(lambda: no_slot_hangs(api))
    assert len(api.farm.pool.slots) == 1


async def test_a_snapshot_that_fails_inside_is_not_left(
    make_api: MakeApi, provider: FakeHostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await make_api(standby_desktops=0, warm_desktops=0)
    lease = await api.create_lease()
    made = set(provider.snapshots)

    async def half(desktop_id: str, snapshot_id: str) -> base.SnapshotInfo:
        provider.snapshots[snapshot_id] = {}
        raise RecursionError

    monkeypatch.setattr(provider, "snapshot", half)
    path = f"/v1/leases/{lease['lease_id']}/snapshot"
    assert (await api.call("POST", path, lease=lease, json={"name": "one"})).status_code == 500
    assert set(provider.snapshots) == made
