"""A claim on one live desktop, from the client's side: heartbeat, channel, every call, release.

Role: `AsyncLease`, which implements `dart_envs.types.Desktop`. Rule: every failure leaves here as a
`dart_envs.errors` class with the right owner (a dead desktop's health decides whose fault it was); the server
alone decides when a lease has ended. Non-goals: what runs on the desktop (tasks), when to take another one
(`dart_envs.core`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar, cast
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from dart_envs.clock import Clock
from dart_envs.errors import DartEnvError, DesktopError, DesktopGone, FarmError, GuestError, LeaseLost
from dart_envs.farm.base import GuestReply
from dart_envs.farm.channel import Channel, ChannelClosed, open_websocket
from dart_envs.farm.frames import channel_error, decode_image, envelope_code, step_timeout_s
from dart_envs.farm.transport import REPLY_GRACE_S, Transport, desktop_gone, error_from_response
from dart_envs.farm.tunnel import open_tunnel
from dart_envs.types import Frame
from dart_server.wire import (
    FENCE_HEADER,
    LEASE_TOKEN_HEADER,
    A11yElement,
    DesktopHealthView,
    DesktopShape,
    ErrorCode,
    ExecReply,
    ExecRequest,
    FaultOwner,
    FrameHeader,
    FrameSpec,
    HeartbeatReply,
    InputEvent,
    Lease,
    ResetReply,
    ResetRequest,
    SettleSpec,
    SetupClaim,
    SetupGrant,
    SnapshotRequest,
    SnapshotView,
    StepRequest,
    WireModel,
)

log = logging.getLogger(__name__)

RESET_TIMEOUT_S = 120.0
SNAPSHOT_TIMEOUT_S = 120.0
HEALTH_TIMEOUT_S = 15.0
RELEASE_TIMEOUT_S = 30.0
A11Y_TIMEOUT_S = 30.0

_ELEMENTS = TypeAdapter(list[A11yElement])
_Model = TypeVar("_Model", bound=WireModel)


class AsyncLease:
    """A leased desktop. Made by `AsyncFarm.lease`; usable as an async context manager that releases."""

    def __init__(self, transport: Transport, granted: Lease, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._granted = granted
        self._fence = granted.fence
        self._desktop_id = granted.desktop_id
        self._setup_key = granted.setup_key
        self._seq = itertools.count(1)
        self._channel: Channel | None = None
        self._channel_lock = asyncio.Lock()
        self._lost: LeaseLost | None = None
        self._release_task: asyncio.Task[None] | None = None
        self._heartbeat = asyncio.create_task(self._beat(), name=f"dart-heartbeat-{granted.lease_id}")

    # What the lease is.

    @property
    def lease_id(self) -> str:
        return self._granted.lease_id

    @property
    def desktop_id(self) -> str:
        return self._desktop_id

    @property
    def fence(self) -> int:
        return self._fence

    @property
    def shape(self) -> DesktopShape:
        return self._granted.shape

    @property
    def image_digest(self) -> str:
        return self._granted.image_digest

    @property
    def setup_key(self) -> str | None:
        return self._setup_key

    @property
    def resolution(self) -> tuple[int, int]:
        return self._granted.shape.resolution

    @property
    def lost(self) -> bool:
        return self._lost is not None

    # Seeing and acting.

    async def step(
        self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
    ) -> Frame:
        """Perform input events, wait until the screen settled, return the frame.

        Raises `GuestError` (refused, the desktop lives), `DesktopGone`, `LeaseLost`, or `FarmError`
        (`timeout`, `channel_lost`, `unreachable`): in the last three cases the events may or may not have
        been performed.
        """
        request = StepRequest(seq=next(self._seq), events=events, settle=settle, frame=frame or FrameSpec())
        timeout_s = step_timeout_s(events, settle)
        for attempt in (1, 2):
            channel = await self._open_channel()
            try:
                header, payload = await channel.request(request, timeout_s)
            except ChannelClosed as closed:
                error = await self._explain(FarmError(str(closed), code="channel_lost"))
                repeatable = not closed.sent or not events
                if attempt == 1 and repeatable and isinstance(error, FarmError):
                    continue
                raise error from closed
            except FarmError as timeout:
                raise await self._explain(timeout) from timeout
            if "error" in header:
                raise await self._explain(channel_error(header))
            try:
                parsed = FrameHeader.model_validate(header)
            except ValidationError as error:
                raise FarmError(f"The frame's header cannot be read: {error}", code="bad_frame") from error
            return Frame(decode_image(parsed, payload), parsed)
        raise AssertionError("unreachable")

    async def a11y(self) -> list[A11yElement]:
        return _ELEMENTS.validate_json(await self._call("GET", "/a11y", timeout_s=A11Y_TIMEOUT_S))

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
        content = await self._call("POST", "/execute", body=request, timeout_s=timeout_s + REPLY_GRACE_S)
        return ExecReply.model_validate_json(content)

    async def read_file(self, path: str) -> bytes | None:
        response = await self._raw("GET", "/files", params={"path": path})
        if response.status == 404 and envelope_code(response.content) in {None, ErrorCode.GUEST_ERROR}:
            return None
        return await self._checked(response, "GET /files")

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        await self._call("PUT", "/files", content=content, params={"path": path, "mode": f"{mode:04o}"})

    async def activate_window(self, title: str, *, strict: bool = False) -> bool:
        reply = await self.guest(
            "POST", "/setup/activate_window", json={"window_name": title, "strict": strict, "by_class": False}
        )
        if reply.status == 200:
            return True
        if reply.status == 404:
            return False
        raise await self._explain(error_from_response(reply.status, reply.content, what="activate_window"))

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
        """One of the guest agent's OSWorld routes, whatever it answers; failures on the way to it are
        raised."""
        reply = await self._raw(
            method, f"/guest/{path.lstrip('/')}", params=params, json=json, content=content, timeout_s=timeout_s
        )
        if reply.status >= 400 and envelope_code(reply.content) is not None:
            await self._checked(reply, f"{method} {path}")
        return reply

    @asynccontextmanager
    async def tunnel(self, port: int) -> AsyncIterator[tuple[str, int]]:
        """A local (host, port) on the loopback interface that leads to TCP `port` inside the desktop."""
        self._check_held()
        path = f"{self._path}/tunnel?port={port}"
        async with open_tunnel(self._transport, path, self._guest_headers) as address:
            yield address

    # Snapshots and resets.

    async def reset(self, setup_key: str | None = None, *, snapshot_id: str | None = None) -> ResetReply:
        await self._close_channel()
        request = ResetRequest(setup_key=setup_key, snapshot_id=snapshot_id)
        content = await self._call("POST", "/reset", body=request, timeout_s=RESET_TIMEOUT_S, explain=False)
        reply = ResetReply.model_validate_json(content)
        self._fence, self._desktop_id, self._setup_key = reply.fence, reply.desktop_id, reply.setup_key
        return reply

    async def claim_setup(self, key: str, wait_s: float = 120.0) -> SetupGrant:
        self._check_held()
        claim = SetupClaim(key=key, lease_id=self.lease_id, wait_s=wait_s)
        content = await self._transport.call(
            "POST",
            "/v1/setups/claim",
            body=claim,
            headers=self._guest_headers(),
            timeout_s=wait_s + REPLY_GRACE_S,
        )
        return SetupGrant.model_validate_json(content)

    async def snapshot(
        self, *, publish_key: str | None = None, grant: str | None = None, name: str | None = None
    ) -> SnapshotView:
        await self._close_channel()
        request = SnapshotRequest(name=name, publish_key=publish_key, grant=grant)
        content = await self._call("POST", "/snapshot", body=request, timeout_s=SNAPSHOT_TIMEOUT_S)
        return SnapshotView.model_validate_json(content)

    async def health(self) -> DesktopHealthView:
        self._check_held()
        content = await self._transport.call(
            "GET", f"{self._path}/health", headers=self._guest_headers(), timeout_s=HEALTH_TIMEOUT_S
        )
        return DesktopHealthView.model_validate_json(content)

    # The end.

    async def release(self) -> None:
        """Give the desktop back. Idempotent; goes on to its end when the caller is cancelled; never raises
        for a farm that is gone (the lease then ends by itself)."""
        if self._release_task is None:
            self._release_task = asyncio.create_task(self._release(), name=f"dart-release-{self.lease_id}")
        await asyncio.shield(self._release_task)

    async def _release(self) -> None:
        was_lost, self._lost = self._lost, self._lost or LeaseLost(f"Lease {self.lease_id} was released.")
        self._heartbeat.cancel()
        await self._close_channel()
        if was_lost is None:
            try:
                await self._transport.call(
                    "DELETE", self._path, headers=self._guest_headers(), timeout_s=RELEASE_TIMEOUT_S
                )
            except DartEnvError as error:
                log.warning("Lease %s could not be released and will expire by itself: %s", self.lease_id, error)

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.release()

    # Inside.

    @property
    def _path(self) -> str:
        return f"/v1/leases/{quote(self.lease_id)}"

    def _guest_headers(self) -> dict[str, str]:
        return {LEASE_TOKEN_HEADER: self._granted.token, FENCE_HEADER: str(self._fence)}

    def _check_held(self) -> None:
        if self._lost is not None:
            raise LeaseLost(str(self._lost))

    async def _beat(self) -> None:
        interval_s = self._granted.ttl_s / 3
        while True:
            await self._clock.sleep(interval_s)
            try:
                content = await self._transport.call(
                    "POST", f"{self._path}/heartbeat", headers=self._guest_headers(), timeout_s=interval_s
                )
                HeartbeatReply.model_validate_json(content)
            except LeaseLost as lost:
                await self._give_up(lost)
                return
            except FarmError as error:
                if error.code == ErrorCode.NOT_FOUND:
                    await self._give_up(LeaseLost(f"The farm does not know lease {self.lease_id} any more."))
                    return
                log.warning("Heartbeat of lease %s failed, trying again: %s", self.lease_id, error)
            except DesktopError as error:
                log.warning("Heartbeat of lease %s failed, trying again: %s", self.lease_id, error)

    async def _give_up(self, lost: LeaseLost) -> None:
        log.warning("Lease %s is lost: %s", self.lease_id, lost)
        self._lost = self._lost or lost
        await self._close_channel()

    async def _open_channel(self) -> Channel:
        self._check_held()
        async with self._channel_lock:
            if self._channel is None or self._channel.closed:
                try:
                    socket = await open_websocket(self._transport, f"{self._path}/channel", self._guest_headers())
                except DartEnvError as error:
                    raise await self._explain(error) from error
                self._channel = Channel(socket)
            return self._channel

    async def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.aclose()

    async def _raw(
        self,
        method: str,
        path: str,
        *,
        body: WireModel | None = None,
        json: object | None = None,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float = REPLY_GRACE_S,
    ) -> GuestReply:
        self._check_held()
        response = await self._transport.send(
            method,
            self._path + path,
            body=body,
            json=json,
            content=content,
            params=params,
            headers=self._guest_headers(),
            timeout_s=timeout_s,
        )
        return GuestReply(response.status_code, response.content, response.headers.get("content-type", ""))

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: WireModel | None = None,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float = REPLY_GRACE_S,
        explain: bool = True,
    ) -> bytes:
        reply = await self._raw(method, path, body=body, content=content, params=params, timeout_s=timeout_s)
        return await self._checked(reply, f"{method} {path}", explain=explain)

    async def _checked(self, reply: GuestReply, what: str, *, explain: bool = True) -> bytes:
        if reply.status < 400:
            return reply.content
        raise await self._explain(error_from_response(reply.status, reply.content, what=what), ask=explain)

    async def _explain(self, error: DartEnvError, *, ask: bool = True) -> DartEnvError:
        """The same failure with its right owner: with `ask`, what looks like a dead desktop is checked
        against its health."""
        if isinstance(error, LeaseLost):
            await self._give_up(error)
            return error
        if self._lost is not None:
            return LeaseLost(str(self._lost))
        suspicious = isinstance(error, DesktopGone | GuestError) or (
            isinstance(error, FarmError) and error.code in {"channel_lost", "timeout", ErrorCode.NOT_FOUND}
        )
        if not ask or not suspicious or (isinstance(error, DesktopGone) and error.fault_owner is FaultOwner.POLICY):
            return error
        try:
            health = await self.health()
        except DartEnvError as unknown:
            return error if isinstance(error, DesktopGone) else unknown
        return desktop_gone(health) or error
