"""A desktop and a farm that live in memory, for tests of code that uses this package.

Role: `FakeDesktop` (a `Desktop` whose behaviour a test writes), `FakeLease` and `FakeFarm` (the same methods as the real client, with
faults on demand). Rule: passes `dart_envs.testing.conformance.check_desktop`; no network, no processes, no real waiting. Non-goals: a
desktop's looks.

    farm = FakeFarm(on_events=lambda desktop, events: ...)
    env = AsyncDesktopEnv(farm, shape=DesktopShape(resolution=(320, 200)))
    farm.leases[-1].kill(FaultOwner.POLICY, "oom")
"""

from __future__ import annotations

import asyncio
import copy
import io
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from itertools import count
from json import dumps as to_json
from types import SimpleNamespace
from typing import Any

from PIL import Image

from dart_envs.errors import DartEnvError, DesktopFailedError, FarmError, LeaseLostError, NotFoundError
from dart_envs.farm.base import GuestResponse
from dart_envs.farm.transport import Address
from dart_envs.testing.fake_desktop import FakeDesktop, FakeDesktopState, OnEvents, Program
from dart_server.wire import (
    ClockView,
    DesktopHealthView,
    DesktopShape,
    ErrorCode,
    FaultOwner,
    LiveViewTicket,
    ResetReply,
    SetupGrant,
    SnapshotView,
)

IMAGE_DIGEST = "sha256:" + "fa" * 32
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class FakeLiveView:
    """What a lease tells of its live view (`dart_envs.farm.live.SupportsLiveView`)."""

    lease_id: str
    farm_address = Address("http://scripted.invalid")

    async def live_view(self) -> LiveViewTicket:
        """A ticket that no farm knows."""
        path = f"/dashboard/#/leases/{self.lease_id}"
        return LiveViewTicket(path=path, ticket="scripted", expires_at=datetime.now(UTC))


class FakeLease(FakeDesktop, FakeLiveView):
    """A lease on a scripted desktop. A `reset` that follows `kill` brings a living desktop again."""

    def __init__(self, farm: FakeFarm, lease_id: str, shape: DesktopShape, setup_key: str | None) -> None:
        super().__init__(shape.resolution, on_events=farm.on_events)
        self.programs.update(farm.programs)
        self._farm = farm
        self.lease_id = lease_id
        self.desktop_id = f"desk_{lease_id}"
        self.fencing_token = 1
        self.shape = shape
        self.image_digest = farm.image_digest
        self.setup_key: str | None = None
        self.lost = False
        self.released = False
        self._restore(setup_key)

    def expire(self) -> None:
        """The lease ends as if it had expired: every later call raises `LeaseLostError`."""
        self.lost = True

    async def terminal(self) -> str:
        self._enter("terminal")
        return self.state.typed

    async def guest(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object | None = None,
        content: bytes | None = None,
        timeout_s: float | None = None,
    ) -> GuestResponse:
        self._enter("guest")
        if path == "/accessibility":
            names = "".join(f"<{one.role} name={one.name!r}/>" for one in self.state.elements)
            tree = to_json({"AT": f"<desktop-frame>{names}</desktop-frame>"})
            return GuestResponse(200, tree.encode(), "application/json")
        if path == "/screenshot":
            Image.fromarray(self.paint(cursor=True)).save(file := io.BytesIO(), "PNG")
            return GuestResponse(200, file.getvalue(), "image/png")
        if path in ("/start_recording", "/end_recording"):
            return GuestResponse(200, b"film", "video/mp4")
        return GuestResponse(404, b"", "text/plain")

    async def reset(self, setup_key: str | None = None, *, snapshot_id: str | None = None) -> ResetReply:
        self._dead = None
        self._enter("reset")
        if snapshot_id is not None and snapshot_id not in self._farm.states:
            raise FarmError(f"There is no snapshot {snapshot_id}.", code=ErrorCode.SNAPSHOT_MISSING)
        self.fencing_token += 1
        self._restore(snapshot_id or setup_key)
        if snapshot_id is not None:
            self.setup_key = None
        return ResetReply(
            fencing_token=self.fencing_token,
            desktop_id=self.desktop_id,
            setup_key=self.setup_key,
            restored=True,
            duration_s=0.0,
        )

    def _restore(self, key: str | None) -> None:
        kept = self._farm.states.get(key or "")
        self.setup_key = key if kept is not None else None
        self.state = copy.deepcopy(kept) if kept is not None else FakeDesktopState()

    async def acquire_setup(self, key: str, wait_s: float = 120.0) -> SetupGrant:
        self._enter("acquire_setup")
        return await self._farm.acquire_setup(key, wait_s)

    async def snapshot(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        publish_key: str | None = None,
        grant: str | None = None,
    ) -> SnapshotView:
        self._enter("snapshot")
        snapshot_id = f"snap_{next(self._farm.snapshot_numbers)}"
        if publish_key is not None:
            await self._farm.publish_setup_state(publish_key, grant, self.state)
        else:
            self._farm.states[snapshot_id] = copy.deepcopy(self.state)
        return SnapshotView(
            snapshot_id=snapshot_id,
            kind="user" if publish_key is None else "setup",
            name=name,
            description=description,
            setup_key=publish_key,
            owner="fake",
            shape=self.shape,
            bytes=0,
            parent=None,
            created_at=_EPOCH,
            last_used_at=_EPOCH,
        )

    async def fork(self, count: int = 1, *, wait_s: float = 60.0) -> SimpleNamespace:
        self._enter("fork")
        leases = tuple([await self._farm.lease(self.shape, wait_s=wait_s) for _ in range(count)])
        for lease in leases:
            lease.state = copy.deepcopy(self.state)
        return SimpleNamespace(leases=leases)

    async def clock(self) -> ClockView:
        self._enter("clock")
        return ClockView(time=self.state.clock or _EPOCH, declared=self.state.clock is not None)

    async def set_clock(self, time: datetime | None) -> ClockView:
        self._enter("set_clock")
        self.state.clock = time
        return await self.clock()

    async def health(self) -> DesktopHealthView:
        try:
            self._enter("health")
        except DesktopFailedError as gone:
            return DesktopHealthView(alive=False, cause=gone.cause, fault_owner=gone.fault_owner)
        return DesktopHealthView(alive=True, cause="ok", fault_owner=FaultOwner.NONE)

    def tunnel(self, port: int) -> AbstractAsyncContextManager[tuple[str, int]]:
        raise FarmError("A fake desktop has no ports.", code=ErrorCode.CAPABILITY_MISSING)

    async def release(self) -> None:
        self.released = self.lost = True

    def reference(self) -> str:
        return f"fake#{self.lease_id}"

    async def detach(self) -> None:
        self.lost = True

    def _enter(self, method: str) -> None:
        if self.lost:
            raise LeaseLostError(f"Lease {self.lease_id} has ended.")
        super()._enter(method)


class FakeFarm:
    """A farm of scripted desktops. `leases` lists every lease ever given, `states` the prepared states by key."""

    def __init__(
        self,
        *,
        max_desktops: int = 8,
        image_digest: str = IMAGE_DIGEST,
        on_events: OnEvents | None = None,
        programs: Mapping[str, Program] | None = None,
    ) -> None:
        self.max_desktops = max_desktops
        self.image_digest = image_digest
        self.on_events = on_events
        self.programs = dict(programs or {})
        self.leases: list[FakeLease] = []
        self.snapshot_numbers = count()
        self.states: dict[str, FakeDesktopState] = {}
        self.on_lease: Callable[[FakeLease], None] | None = None
        self.abandoned: list[tuple[str, str]] = []
        self._grants: dict[str, str] = {}
        self._grants_changed = asyncio.Condition()
        self._faults: list[DartEnvError] = []

    def fail_next_lease(self, error: DartEnvError) -> None:
        """The next `lease` raises `error`."""
        self._faults.append(error)

    async def lease(
        self,
        shape: DesktopShape | None = None,
        setup_key: str | None = None,
        ttl_s: float = 60.0,
        wait_s: float = 60.0,
        labels: Mapping[str, str] | None = None,
    ) -> FakeLease:
        if self._faults:
            raise self._faults.pop(0)
        if sum(not held.lost for held in self.leases) >= self.max_desktops:
            raise FarmError("All desktops are leased.", code=ErrorCode.NO_CAPACITY)
        lease = FakeLease(self, f"lease_{len(self.leases)}", shape or DesktopShape(), setup_key)
        self.leases.append(lease)
        if self.on_lease is not None:
            self.on_lease(lease)
        return lease

    async def attach(self, reference: str, *, takeover: bool = False) -> FakeLease:
        """The desktop of a lease that was not released, under the same id; its former holder cannot use it any more."""
        held = next((one for one in reversed(self.leases) if one.reference() == reference and not one.released), None)
        if held is None:
            raise FarmError(f"There is no lease {reference}.", code=ErrorCode.NOT_FOUND)
        held.lost = True
        lease = FakeLease(self, held.lease_id, held.shape, held.setup_key)
        lease.state = held.state
        self.leases.append(lease)
        return lease

    async def delete_snapshot(self, name: str) -> None:
        if self.states.pop(name, None) is None:
            raise NotFoundError(f"There is no snapshot {name}.", code=ErrorCode.NOT_FOUND)

    async def acquire_setup(self, key: str, wait_s: float) -> SetupGrant:
        """One builder per key; the others wait up to `wait_s`."""
        async with self._grants_changed:
            if key not in self.states and key in self._grants:
                try:
                    async with asyncio.timeout(wait_s):
                        await self._grants_changed.wait_for(lambda: key in self.states or key not in self._grants)
                except TimeoutError:
                    return SetupGrant(state="busy")
            if key in self.states:
                return SetupGrant(state="ready")
            self._grants[key] = f"grant_{key[:8]}_{len(self.abandoned)}"
            return SetupGrant(state="build", grant=self._grants[key])

    async def publish_setup_state(self, key: str, grant: str | None, state: FakeDesktopState) -> None:
        """The builder publishes. Raises `FarmError` for a grant that is not the builder's."""
        async with self._grants_changed:
            if self._grants.get(key) != grant:
                raise FarmError("This is not the builder's grant.", code=ErrorCode.FORBIDDEN)
            del self._grants[key]
            self.states[key] = copy.deepcopy(state)
            self._grants_changed.notify_all()

    async def abandon_setup(self, key: str, grant: str, reason: str) -> None:
        async with self._grants_changed:
            if self._grants.get(key) == grant:
                del self._grants[key]
            self.abandoned.append((key, reason))
            self._grants_changed.notify_all()

    async def aclose(self) -> None:
        for lease in self.leases:
            await lease.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeFarm:
        """A farm is a place: copies of what refers to it (Gymnasium copies specs) refer to the same one."""
        return self
