"""A desktop and a farm that live in memory, for tests of code that uses this package.

Role: `ScriptedDesktop` (a `Desktop` whose behaviour a test writes), `FakeLease` and `FakeFarm` (the same methods as the real client, with
faults on demand). Rule: passes `dart_envs.testing.conformance.check_desktop`; no network, no processes, no real waiting. Non-goals: a desktop's looks.

    farm = FakeFarm(on_events=lambda desktop, events: ...)
    env = AsyncDesktopEnv(farm, shape=DesktopShape(resolution=(320, 200)))
    farm.leases[-1].kill(FaultOwner.POLICY, "oom")
"""

from __future__ import annotations

import asyncio
import copy
import io
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from json import dumps as to_json
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from dart_envs.errors import DartEnvError, DesktopGone, FarmError, LeaseLost
from dart_envs.farm.base import GuestReply
from dart_envs.testing.fake_live import ScriptedPage
from dart_envs.types import Frame, RgbImage
from dart_server.wire import (
    A11yElement,
    ClockView,
    DesktopHealthView,
    DesktopShape,
    ErrorCode,
    ExecReply,
    FaultOwner,
    FrameHeader,
    FrameSpec,
    InputEvent,
    MoveEvent,
    ResetReply,
    SettleSpec,
    SetupGrant,
    SnapshotView,
    TextEvent,
)

IMAGE_DIGEST = "sha256:" + "fa" * 32
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass
class DesktopState:
    """Everything a snapshot keeps."""

    files: dict[str, bytes] = field(default_factory=dict)
    windows: list[str] = field(default_factory=lambda: ["Desktop"])
    elements: list[A11yElement] = field(default_factory=list)
    typed: str = ""
    pointer: tuple[int, int] = (0, 0)
    events: list[InputEvent] = field(default_factory=list)
    clock: datetime | None = None
    """A declared time of day; it stands still."""


Program = Callable[["ScriptedDesktop", list[str], str], ExecReply]
"""What a fake program does: the desktop, its arguments without the program's name, its standard input."""
OnEvents = Callable[["ScriptedDesktop", list[InputEvent]], None]


def _reply(stdout: str = "", *, returncode: int | None = 0, stderr: str = "", timed_out: bool = False) -> ExecReply:
    return ExecReply(returncode=returncode, stdout=stdout, stderr=stderr, timed_out=timed_out)


PROGRAMS: dict[str, Program] = {
    "true": lambda _desktop, _args, _stdin: _reply(),
    "false": lambda _desktop, _args, _stdin: _reply(returncode=1),
    "cat": lambda _desktop, _args, stdin: _reply(stdin),
    "printf": lambda _desktop, args, _stdin: _reply("".join(args)),
}


class ScriptedDesktop:
    """A desktop in memory. Tests set `state`, `programs` and `on_events`, and read what was done to it.

    on_events: called after each step with the events, to play the application. programs: by name; others are "not found".
    """

    def __init__(self, resolution: tuple[int, int] = (320, 200), *, on_events: OnEvents | None = None) -> None:
        self._resolution = resolution
        self.state = DesktopState()
        self.programs: dict[str, Program] = dict(PROGRAMS)
        self.on_events = on_events
        self.calls: list[str] = []
        self._faults: dict[str, list[Exception]] = {}
        self._dead: DesktopHealthView | None = None

    # What a test does to it.

    def fail_next(self, method: str, error: Exception) -> None:
        """The next call of `method` raises `error`; may be given several times."""
        self._faults.setdefault(method, []).append(error)

    def kill(self, owner: FaultOwner, cause: str) -> None:
        """The desktop dies; every later call raises `DesktopGone` with this owner."""
        self._dead = DesktopHealthView(alive=False, cause=cause, fault_owner=owner)

    # What a desktop is asked to do.

    @property
    def resolution(self) -> tuple[int, int]:
        return self._resolution

    async def step(
        self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
    ) -> Frame:
        self._enter("step")
        for event in events:
            self.state.events.append(event)
            if isinstance(event, MoveEvent):
                self.state.pointer = (event.x, event.y)
            elif isinstance(event, TextEvent):
                self.state.typed += event.text
        if events and self.on_events is not None:
            self.on_events(self, events)
        (width, height), spec = self._resolution, frame or FrameSpec()
        image = np.zeros((0, 0, 3), np.uint8) if spec.encoding == "none" else self.paint(cursor=spec.cursor)
        header = FrameHeader(
            seq=len(self.calls),
            width=width,
            height=height,
            encoding=spec.encoding,
            settled=settle is not None,
            settle_ms=0.0,
            grab_ms=0.0,
            cursor=self.state.pointer,
            nbytes=image.nbytes,
        )
        return Frame(image, header)

    def paint(self, *, cursor: bool = False) -> RgbImage:
        """The screen: a colour that depends on what was typed and on the windows; the pointer as a dark square where it is asked for."""
        state = self.state
        checksum = zlib.crc32(f"{state.typed}\n{state.windows}\n{sorted(state.files)}".encode("utf-8", "replace"))
        colour = [128 + (checksum >> shift) % 128 for shift in (0, 8, 16)]
        image = np.full((*self._resolution[::-1], 3), colour, dtype=np.uint8)
        if cursor:
            x, y = state.pointer
            image[y : y + 4, x : x + 4] = 16
        return image

    async def exec(
        self,
        argv: list[str],
        *,
        timeout_s: float = 30.0,
        user: str = "user",
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        detach: bool = False,
    ) -> ExecReply:
        self._enter("exec")
        if argv[0] == "sleep":
            too_long = float(argv[1]) > timeout_s
            return _reply(returncode=None, timed_out=True) if too_long and not detach else _detached(_reply(), detach)
        program = self.programs.get(argv[0])
        if program is None:
            return _reply(returncode=127, stderr=f"{argv[0]}: not found")
        return _detached(program(self, argv[1:], stdin or ""), detach)

    async def read_file(self, path: str) -> bytes | None:
        self._enter("read_file")
        return self.state.files.get(path)

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        self._enter("write_file")
        self.state.files[path] = bytes(content)

    async def a11y(self) -> list[A11yElement]:
        self._enter("a11y")
        return list(self.state.elements)

    async def activate_window(self, title: str, *, strict: bool = False) -> bool:
        self._enter("activate_window")
        for window in self.state.windows:
            if window == title or (not strict and title in window):
                self.state.windows.remove(window)
                self.state.windows.append(window)
                return True
        return False

    def _enter(self, method: str) -> None:
        self.calls.append(method)
        if waiting := self._faults.get(method):
            raise waiting.pop(0)
        if self._dead is not None:
            raise DesktopGone(
                f"The desktop died: {self._dead.cause}.", fault_owner=self._dead.fault_owner, cause=self._dead.cause
            )


def _detached(reply: ExecReply, detach: bool) -> ExecReply:
    return _reply(returncode=None) if detach else reply


class FakeLease(ScriptedDesktop, ScriptedPage):
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

    def lose(self) -> None:
        """The lease ends as if it had expired: every later call raises `LeaseLost`."""
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
        timeout_s: float = 60.0,
    ) -> GuestReply:
        self._enter("guest")
        if path == "/accessibility":
            names = "".join(f"<{one.role} name={one.name!r}/>" for one in self.state.elements)
            tree = to_json({"AT": f"<desktop-frame>{names}</desktop-frame>"})
            return GuestReply(200, tree.encode(), "application/json")
        if path == "/screenshot":
            Image.fromarray(self.paint(cursor=True)).save(file := io.BytesIO(), "PNG")
            return GuestReply(200, file.getvalue(), "image/png")
        return GuestReply(404, b"", "text/plain")

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
        self.state = copy.deepcopy(kept) if kept is not None else DesktopState()

    async def acquire_setup(self, key: str, wait_s: float = 120.0) -> SetupGrant:
        self._enter("acquire_setup")
        return await self._farm.claim(key, wait_s)

    async def snapshot(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        publish_key: str | None = None,
        grant: str | None = None,
    ) -> SnapshotView:
        self._enter("snapshot")
        snapshot_id = f"snap_{len(self._farm.states)}"
        if publish_key is not None:
            await self._farm.settle_grant(publish_key, grant, self.state)
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
        except DesktopGone as gone:
            return DesktopHealthView(alive=False, cause=gone.cause, fault_owner=gone.fault_owner)
        return DesktopHealthView(alive=True, cause="ok", fault_owner=FaultOwner.NONE)

    def tunnel(self, port: int) -> AbstractAsyncContextManager[tuple[str, int]]:
        raise FarmError("A fake desktop has no ports.", code=ErrorCode.CAPABILITY_MISSING)

    async def release(self) -> None:
        self.released = self.lost = True

    def _enter(self, method: str) -> None:
        if self.lost:
            raise LeaseLost(f"Lease {self.lease_id} has ended.")
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
        self.states: dict[str, DesktopState] = {}
        self.on_lease: Callable[[FakeLease], None] | None = None
        self.abandoned: list[tuple[str, str]] = []
        self._grants: dict[str, str] = {}
        self._changed = asyncio.Condition()
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

    async def claim(self, key: str, wait_s: float) -> SetupGrant:
        """One builder per key; the others wait up to `wait_s`."""
        async with self._changed:
            if key not in self.states and key in self._grants:
                try:
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait_for(lambda: key in self.states or key not in self._grants)
                except TimeoutError:
                    return SetupGrant(state="busy")
            if key in self.states:
                return SetupGrant(state="ready")
            self._grants[key] = f"grant_{key[:8]}_{len(self.abandoned)}"
            return SetupGrant(state="build", grant=self._grants[key])

    async def settle_grant(self, key: str, grant: str | None, state: DesktopState) -> None:
        """The builder publishes. Raises `FarmError` for a grant that is not the builder's."""
        async with self._changed:
            if self._grants.get(key) != grant:
                raise FarmError("This is not the builder's grant.", code=ErrorCode.FORBIDDEN)
            del self._grants[key]
            self.states[key] = copy.deepcopy(state)
            self._changed.notify_all()

    async def abandon_setup(self, key: str, grant: str, reason: str) -> None:
        async with self._changed:
            if self._grants.get(key) == grant:
                del self._grants[key]
            self.abandoned.append((key, reason))
            self._changed.notify_all()

    async def aclose(self) -> None:
        for lease in self.leases:
            await lease.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeFarm:
        """A farm is a place: copies of what refers to it (Gymnasium copies specs) refer to the same one."""
        return self
