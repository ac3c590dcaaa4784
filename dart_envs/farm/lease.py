"""A lease of one live desktop, from the client's side: everything that can be done with it.

`AsyncLease` implements `dart_envs.types.Desktop`. This module has input and screenshots, resets, snapshots and forks, with one
method for each route of the wire contract. Calls to programs, files and windows are in `guest_calls`; keeping the lease alive
and finding the owner of a failure is in `lease_base`. This module does not decide what runs on the desktop (tasks) or when to
take another one (`dart_envs.envs.core`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dart_envs.errors import DartEnvError, FarmError, SnapshotBrokenError
from dart_envs.farm.channel import ChannelClosedError, channel_error, decode_frame
from dart_envs.farm.guest_calls import GuestCalls
from dart_envs.farm.routes import EVENTS, event_params
from dart_envs.farm.transport import REPLY_GRACE_S, Transport, malformed_answer_error
from dart_envs.types import Frame
from dart_server.wire import (
    Clock,
    DesktopShape,
    ErrorCode,
    Event,
    FrameSpec,
    InputEvent,
    LeaseGrant,
    LiveViewTicket,
    ResetReply,
    ResetRequest,
    SettleSpec,
    SetupAcquireRequest,
    SetupGrant,
    SnapshotRequest,
    SnapshotView,
    StepRequest,
)
from dart_server.wire.desktop import client_limit_s, step_limit_s
from dart_server.wire.guest_answers import MalformedAnswer

log = logging.getLogger(__name__)

RESET_TIMEOUT_S = 120.0
SNAPSHOT_TIMEOUT_S = 120.0


class PendingLeases(Protocol):
    """Leases that were requested and may still wait; implemented by `dart_envs.farm.claims.AsyncClaim`."""

    async def wait(self) -> list[AsyncLease]:
        """Wait until the leases are granted.

        Returns:
            The leases.
        """
        ...

    async def cancel(self) -> object:
        """Leave the queue, and give back what was granted."""
        ...


class ClaimFactory(Protocol):
    """Claims more desktops at the same farm, all or none; `AsyncFarmClient.claim` is one."""

    def __call__(
        self,
        count: int,
        shape: DesktopShape,
        *,
        snapshot_id: str,
        ttl_s: float,
        deadline_s: float,
        labels: Mapping[str, str],
    ) -> Coroutine[Any, Any, PendingLeases]:
        """Claim desktops, as `AsyncFarmClient.claim`."""
        ...


@dataclass(frozen=True, slots=True)
class AsyncFork:
    """Copies of a desktop.

    Attributes:
        snapshot: The snapshot that they were made from; its `pause_ms` is how long the original desktop stood still.
        leases: One lease for each copy.
    """

    snapshot: SnapshotView
    leases: tuple[AsyncLease, ...]


class AsyncLease(GuestCalls):
    """A leased desktop, for async code.

    It is made by `AsyncFarmClient.lease`, by `AsyncFarmClient.attach` and by a claim's `wait`. As an async context
    manager it releases a lease that was claimed here, and detaches from one that was attached to. All calls raise
    `LeaseLostError` once the lease is gone, `DesktopFailedError` when the desktop died, `GuestError` when the guest
    agent refused, and `FarmError` when the farm cannot be reached.

    Args:
        transport: The connection to the farm.
        granted: The farm's grant.
        clock: The clock of the heartbeats.
        make_claim: Claims more desktops, for `fork`.
        attached: Whether another process claimed the lease.
    """

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
        """Id of the snapshot that the desktop is a copy of; None where a farm without snapshots booted it."""
        return self._snapshot_id

    # Seeing and acting.

    async def step(
        self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
    ) -> Frame:
        """Perform input events, wait until the screen settled, and return the frame.

        Args:
            events: What to perform, in order.
            settle: How long the screen must be quiet before the frame is taken; None takes it at once.
            frame: How the frame is encoded, and whether the cursor is drawn; None is raw RGB without the cursor.

        Returns:
            The screenshot with its header.

        Raises:
            GuestError: If the guest agent refused the events or did not answer; the desktop lives.
            DesktopFailedError: If the desktop died, or sent a frame that is not what was asked for.
            LeaseLostError: If the lease is gone.
            FarmError: With code `channel_lost` or `unreachable`; the events may have been performed or not.
        """
        request = StepRequest(seq=next(self._seq), events=events, settle=settle, frame=frame or FrameSpec())
        timeout_s = client_limit_s(step_limit_s(request))
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
                parsed, image = decode_frame(header, payload, request.frame, self.resolution, request.seq)
            except MalformedAnswer as error:
                raise malformed_answer_error(error) from error
            return Frame(image, parsed)
        raise AssertionError("unreachable")

    # What the farm reports about it.

    async def live_view(self) -> LiveViewTicket:
        """Return a login to the lease's page on the dashboard, for one use (`dart_envs.farm.live` opens it).

        Returns:
            The ticket and the path of the page.

        Raises:
            FarmError: If the farm has no live view.
        """
        return LiveViewTicket.model_validate_json(await self.transport.call("POST", f"{self.path}/live-view"))

    async def events(
        self, after: int = 0, *, before: int | None = None, limit: int = 500, kind: str | None = None
    ) -> list[Event]:
        """Return a page of the history of this lease, oldest first.

        Args:
            after: Id of the event before the page; 0 is the beginning.
            before: Id of the event after the page, for the page that ends there.
            limit: Number of events at most.
            kind: Only events of this kind; None is all.

        Returns:
            The events.
        """
        params = event_params(after=after, before=before, limit=limit, kind=kind)
        return EVENTS.validate_json(await self.transport.call("GET", f"{self.path}/events", params=params))

    # Snapshots and resets.

    async def reset(
        self, setup_key: str | None = None, *, snapshot_id: str | None = None, allow_ancestor: bool = False
    ) -> ResetReply:
        """Replace the desktop by a fresh copy: of a prepared state, of a snapshot, or of the booted base.

        The farm quarantines a snapshot that does not restore, and the desktop becomes a copy of its deepest ancestor
        that restores. A reset that fails, or has no answer in time, leaves the lease as it is: reset it again.

        Args:
            setup_key: Key of a prepared state. If it was never built, the booted base is used and the reply's
                `setup_key` says so.
            snapshot_id: Id or name of a snapshot.
            allow_ancestor: Whether a copy of an ancestor is accepted; the reply's `snapshot_id` says which one.

        Returns:
            The new desktop.

        Raises:
            SnapshotBrokenError: If the snapshot did not restore and `allow_ancestor` is False; the lease goes on with
                the ancestor's copy.
            FarmError: If the farm refuses.
        """
        self.raise_if_lost()
        await self.close_channel()
        unfinished = await self._view_of_unfinished_reset()
        if unfinished is not None:
            self._fencing_token, self._setup_key = unfinished.fencing_token, unfinished.setup_key
            self._desktop_id = unfinished.desktop_id or self._desktop_id
        self._unfinished_reset = self._unfinished_reset or uuid.uuid4().hex
        request = ResetRequest(setup_key=setup_key, snapshot_id=snapshot_id, reset_id=self._unfinished_reset)
        content = await self.call("POST", "/reset", body=request, timeout_s=RESET_TIMEOUT_S, check_health=False)
        reply = ResetReply.model_validate_json(content)
        self._unfinished_reset = None
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
        """Replace the desktop by a fresh copy of a snapshot.

        Args:
            snapshot: The snapshot, its id or its name.
            allow_ancestor: As `reset`.

        Returns:
            The new desktop.

        Raises:
            FarmError: As `reset`.
        """
        wanted = snapshot if isinstance(snapshot, str) else snapshot.snapshot_id
        return await self.reset(snapshot_id=wanted, allow_ancestor=allow_ancestor)

    async def fork(self, count: int = 1, *, name: str | None = None, wait_s: float = 60.0) -> AsyncFork:
        """Copy the desktop as it is now; the desktop itself goes on after a short pause (`AsyncFork.snapshot.pause_ms`).

        The copies are claimed together, all or none; no desktop is held while they wait.

        Args:
            count: Number of copies, at most 64.
            name: Name of the snapshot between them, which stays; without a name it is deleted once the copies live.
            wait_s: Seconds to wait for free desktops.

        Returns:
            The snapshot and the leases of the copies.

        Raises:
            FarmError: As `AsyncClaim.wait`, or if the provider cannot fork.
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
        """Ask for a prepared state.

        Args:
            key: Key of the state.
            wait_s: Seconds to wait while another client builds it.

        Returns:
            The state of the snapshot: ready, yours to build (with a grant), or still busy.
        """
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
        """Take a live snapshot of the desktop, which goes on after `pause_ms`; it belongs to the tenant of this lease.

        Connections into the desktop (channel, tunnels) are closed for it; the channel opens again by itself.

        Args:
            name: Name of the snapshot; None gives it none.
            description: Text for people.
            publish_key: Key of the prepared state that the snapshot becomes; None publishes nothing.
            grant: The grant of `acquire_setup` for that key.

        Returns:
            The snapshot.

        Raises:
            FarmError: With code `invalid` for a name that is taken, `quota` without room, `capability_missing` without
                snapshots.
        """
        await self.close_channel()
        request = SnapshotRequest(name=name, description=description, publish_key=publish_key, grant=grant)
        content = await self.call("POST", "/snapshot", body=request, timeout_s=SNAPSHOT_TIMEOUT_S)
        return SnapshotView.model_validate_json(content)

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()
