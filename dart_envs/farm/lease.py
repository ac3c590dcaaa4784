"""A claim on one live desktop, from the client's side: everything that can be done to it.

Role: `AsyncLease`, which implements `dart_envs.types.Desktop`. Rule: one method per route of the wire
contract, typed answers. Non-goals: keeping the lease alive and naming the owners of failures (`held`), what
runs on the desktop (tasks), when to take another one (`dart_envs.envs.core`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, cast

from pydantic import TypeAdapter, ValidationError

from dart_envs.errors import DartEnvError, FarmError, GuestError, SnapshotBrokenError
from dart_envs.farm.base import GuestResponse
from dart_envs.farm.channel import ChannelClosedError, channel_error, decode_image, envelope_code, step_timeout_s
from dart_envs.farm.lease_base import LeaseBase
from dart_envs.farm.transport import REPLY_GRACE_S, Transport
from dart_envs.farm.tunnel import open_tunnel
from dart_envs.types import Frame
from dart_server.wire import (
    A11yElement,
    Clock,
    ClockRequest,
    ClockView,
    DesktopShape,
    ErrorCode,
    ExecReply,
    ExecRequest,
    FrameHeader,
    FrameSpec,
    InputEvent,
    LeaseGrant,
    ResetReply,
    ResetRequest,
    SettleSpec,
    SetupAcquireRequest,
    SetupGrant,
    SnapshotRequest,
    SnapshotView,
    StepRequest,
)

log = logging.getLogger(__name__)

RESET_TIMEOUT_S = 120.0
SNAPSHOT_TIMEOUT_S = 120.0
A11Y_TIMEOUT_S = 30.0

_ELEMENTS = TypeAdapter(list[A11yElement])
_WINDOWS = TypeAdapter(dict[str, list[dict[str, Any]]])


class PendingLeases(Protocol):
    """Leases that were asked for and may still wait; implemented by `dart_envs.farm.claims.AsyncClaim`."""

    async def wait(self) -> list[AsyncLease]:
        """The leases, once they are granted."""
        ...

    async def cancel(self) -> object:
        """Leave the queue, and give back what was granted."""
        ...


class ClaimFactory(Protocol):
    """Claims more desktops at the same farm, all or none."""

    def __call__(
        self,
        count: int,
        shape: DesktopShape,
        *,
        snapshot_id: str,
        ttl_s: float,
        deadline_s: float,
        labels: Mapping[str, str],
    ) -> Coroutine[Any, Any, PendingLeases]: ...


@dataclass(frozen=True, slots=True)
class AsyncFork:
    """Copies of a desktop, and the snapshot they were made from (its `pause_ms` is what the original felt)."""

    snapshot: SnapshotView
    leases: tuple[AsyncLease, ...]


class AsyncLease(LeaseBase):
    """A leased desktop. Made by `AsyncFarmClient.lease`, a claim's `wait` or `attach`; as an async context manager it releases
    what was claimed here and detaches from what was attached to."""

    def __init__(
        self,
        transport: Transport,
        granted: LeaseGrant,
        clock: Clock,
        make_claim: ClaimFactory,
        *,
        attached: bool = False,
    ) -> None:
        super().__init__(transport, granted, clock, attached=attached)
        self._make_claim = make_claim
        self._snapshot_id = granted.snapshot_id

    @property
    def snapshot_id(self) -> str | None:
        """The snapshot that the desktop is a copy of; None where it was booted by a farm without snapshots."""
        return self._snapshot_id

    # Seeing and acting.

    async def step(
        self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
    ) -> Frame:
        """Perform input events, wait until the screen settled, return the frame.

        Raises `GuestError` (refused, the desktop lives), `DesktopFailedError`, `LeaseLostError`, or `FarmError`
        (`timeout`, `channel_lost`, `unreachable`): in the last three cases the events may or may not have
        been performed.
        """
        request = StepRequest(seq=next(self._seq), events=events, settle=settle, frame=frame or FrameSpec())
        timeout_s = step_timeout_s(events, settle)
        for attempt in (1, 2):
            channel = await self.open_channel()
            try:
                header, payload = await channel.request(request, timeout_s)
            except ChannelClosedError as closed:
                error = await self.attribute_fault(FarmError(str(closed), code="channel_lost"))
                repeatable = not closed.sent or not events
                if attempt == 1 and repeatable and isinstance(error, FarmError):
                    continue
                raise error from closed
            except FarmError as timeout:
                raise await self.attribute_fault(timeout) from timeout
            if "error" in header:
                raise await self.attribute_fault(channel_error(header))
            try:
                parsed = FrameHeader.model_validate(header)
            except ValidationError as error:
                raise FarmError(f"The frame's header cannot be read: {error}", code="bad_frame") from error
            return Frame(decode_image(parsed, payload), parsed)
        raise AssertionError("unreachable")

    async def a11y(self) -> list[A11yElement]:
        return _ELEMENTS.validate_json(await self.call("GET", "/a11y", timeout_s=A11Y_TIMEOUT_S))

    async def terminal(self) -> str:
        reply = await self.guest("GET", "/terminal")
        if reply.status != 200:
            return ""
        try:
            output = TypeAdapter(dict[str, Any]).validate_json(reply.content).get("output")
        except ValidationError:
            return ""
        return output if isinstance(output, str) else ""

    # Programs and files.

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
        request = ExecRequest(
            argv=argv,
            timeout_s=timeout_s,
            user=cast(Literal["user", "root"], user),
            env=dict(env or {}),
            stdin=stdin,
            detach=detach,
        )
        content = await self.call("POST", "/execute", body=request, timeout_s=timeout_s + REPLY_GRACE_S)
        return ExecReply.model_validate_json(content)

    async def read_file(self, path: str) -> bytes | None:
        response = await self.request("GET", "/files", params={"path": path})
        if response.status == 404 and envelope_code(response.content) in {None, ErrorCode.GUEST_ERROR}:
            return None
        return await self.content_or_raise(response, "GET /files")

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        await self.call("PUT", "/files", content=content, params={"path": path, "mode": f"{mode:04o}"})

    async def activate_window(self, title: str, *, strict: bool = False) -> bool:
        exact = await self._window_title(title, strict)
        if exact is None:
            return False
        reply = await self.guest(
            "POST", "/setup/activate_window", json={"window_name": exact, "strict": True, "by_class": False}
        )
        if reply.status == 200:
            return True
        if reply.status == 404:
            return False
        said = reply.content[:200].decode("utf-8", "replace")
        raise await self.attribute_fault(
            GuestError(f"Window {title!r} could not be activated ({reply.status}): {said}")
        )

    async def _window_title(self, title: str, strict: bool) -> str | None:
        """The whole title of the window that is meant, None when there is none: OSWorld's own route does not
        tell."""
        reply = await self.guest("GET", "/v1/windows")
        try:
            windows = _WINDOWS.validate_json(reply.content)["windows"]
        except (ValidationError, KeyError) as error:
            raise await self.attribute_fault(GuestError(f"The list of windows cannot be read: {error}")) from error
        titles = [str(window.get("title", "")) for window in windows]
        return next((name for name in titles if name == title or (not strict and title in name)), None)

    async def guest(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object | None = None,
        content: bytes | None = None,
        timeout_s: float = 60.0,
    ) -> GuestResponse:
        """One of the guest agent's OSWorld routes, whatever it answers; failures on the way to it are
        raised."""
        reply = await self.request(
            method, f"/guest/{path.lstrip('/')}", params=params, json=json, content=content, timeout_s=timeout_s
        )
        if reply.status >= 400 and envelope_code(reply.content) is not None:
            await self.content_or_raise(reply, f"{method} {path}")
        return reply

    @asynccontextmanager
    async def tunnel(self, port: int) -> AsyncIterator[tuple[str, int]]:
        """A local (host, port) on the loopback interface that leads to TCP `port` inside the desktop."""
        self.raise_if_lost()
        path = f"{self.path}/tunnel?port={port}"
        async with open_tunnel(self.transport, path, self.guest_headers) as address:
            yield address

    # The clock.

    async def clock(self) -> ClockView:
        """What time of day it is in the desktop."""
        return ClockView.model_validate_json(await self.call("GET", "/clock"))

    async def set_clock(self, time: datetime | None) -> ClockView:
        """Declare the desktop's time of day (with its time zone), or None: the farm's; see `ClockRequest`."""
        return ClockView.model_validate_json(await self.call("PUT", "/clock", body=ClockRequest(time=time)))

    # Snapshots and resets.

    async def reset(
        self, setup_key: str | None = None, *, snapshot_id: str | None = None, allow_ancestor: bool = False
    ) -> ResetReply:
        """Replace the desktop by a fresh copy of a prepared state, of a snapshot (id or name), or of the booted base.

        A snapshot that does not restore is quarantined by the farm and the desktop becomes a copy of its deepest
        ancestor that does: that is the `FarmError` `snapshot_broken`, after which the lease goes on with that
        desktop, or with `allow_ancestor` a reply whose `snapshot_id` says so.
        """
        await self.close_channel()
        request = ResetRequest(setup_key=setup_key, snapshot_id=snapshot_id)
        content = await self.call("POST", "/reset", body=request, timeout_s=RESET_TIMEOUT_S, check_health=False)
        reply = ResetReply.model_validate_json(content)
        self._fencing_token, self._desktop_id, self._setup_key = reply.fencing_token, reply.desktop_id, reply.setup_key
        self._snapshot_id = reply.snapshot_id
        if snapshot_id is not None and reply.quarantined and not allow_ancestor:
            now = f"a copy of {reply.snapshot_id}" if reply.restored else "a fresh boot of its image"
            raise SnapshotBrokenError(
                f"The snapshot {snapshot_id} did not restore and is quarantined; the desktop is {now} now.",
                code=ErrorCode.SNAPSHOT_BROKEN,
            )
        return reply

    async def restore(self, snapshot: str | SnapshotView, *, allow_ancestor: bool = False) -> ResetReply:
        """Replace the desktop by a fresh copy of a snapshot, given by its view, id or name; errors as of `reset`."""
        wanted = snapshot if isinstance(snapshot, str) else snapshot.snapshot_id
        return await self.reset(snapshot_id=wanted, allow_ancestor=allow_ancestor)

    async def fork(self, count: int = 1, *, name: str | None = None, wait_s: float = 60.0) -> AsyncFork:
        """`count` leases on copies of this desktop as it is now; the desktop itself goes on after a short pause
        (`AsyncFork.snapshot.pause_ms`).

        The snapshot between them stays with `name`; without, it is deleted once the copies live. The copies (at most 64) are
        claimed as a gang: all or none, and nobody's desktop is held while they wait up to `wait_s`. Raises what a claim raises.
        """
        view = await self.snapshot(name)
        asked = asyncio.create_task(
            self._make_claim(
                count,
                self.shape,
                snapshot_id=view.snapshot_id,
                ttl_s=self._granted.ttl_s,
                deadline_s=wait_s,
                labels={"fork_of": self.lease_id},
            ),
            name="dart-fork",
        )
        try:
            leases = await (await asyncio.shield(asked)).wait()
        except BaseException:  # cancelled, too, no copy may stay leased; raised again
            await self._cancel_claim(asked)
            raise
        finally:
            if name is None:
                await self._delete_fork_snapshot(view.snapshot_id)
        return AsyncFork(view, tuple(leases))

    async def _cancel_claim(self, asked: asyncio.Task[PendingLeases]) -> None:
        try:
            await (await asked).cancel()
        except DartEnvError as error:
            log.debug("A fork came to nothing: %s", error)

    async def _delete_fork_snapshot(self, snapshot_id: str) -> None:
        try:
            await self.transport.call("DELETE", f"/v1/snapshots/{snapshot_id}")
        except FarmError as error:
            log.warning("The snapshot %s of a fork stays until it is evicted: %s", snapshot_id, error)

    async def acquire_setup(self, key: str, wait_s: float = 120.0) -> SetupGrant:
        self.raise_if_lost()
        claim = SetupAcquireRequest(key=key, lease_id=self.lease_id, wait_s=wait_s)
        content = await self.transport.call(
            "POST",
            "/v1/setups/acquire",
            body=claim,
            headers=self.guest_headers(),
            timeout_s=wait_s + REPLY_GRACE_S,
        )
        return SetupGrant.model_validate_json(content)

    async def snapshot(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        publish_key: str | None = None,
        grant: str | None = None,
    ) -> SnapshotView:
        """Take a live snapshot of the desktop, which goes on after `pause_ms`; it belongs to this lease's tenant.

        Connections into the desktop (channel, tunnels) are closed for it; the channel opens again by itself.
        Raises `FarmError` (`invalid` for a name that is taken, `quota`, `capability_missing`).
        """
        await self.close_channel()
        request = SnapshotRequest(name=name, description=description, publish_key=publish_key, grant=grant)
        content = await self.call("POST", "/snapshot", body=request, timeout_s=SNAPSHOT_TIMEOUT_S)
        return SnapshotView.model_validate_json(content)

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()
