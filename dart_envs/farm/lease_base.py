"""What every lease does: heartbeats, channel, calls with its credentials, release.

`LeaseBase` is the base class of `AsyncLease`. Every failure is raised as a class of `dart_envs.errors` with the right
owner; the health of a dead desktop decides whose fault it was. Only the server decides when a lease has ended. This
module does not know what the calls mean (`lease`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import quote

from dart_envs.errors import (
    DartEnvError,
    DesktopError,
    DesktopFailedError,
    FarmError,
    FarmTimeoutError,
    GuestError,
    LeaseLostError,
    NotFoundError,
    StaleFencingTokenError,
)
from dart_envs.farm.base import GuestResponse
from dart_envs.farm.channel import LeaseChannel, open_message_socket
from dart_envs.farm.retry import OUTAGE_ERRORS
from dart_envs.farm.transport import REPLY_GRACE_S, Address, Transport, desktop_failed_error, error_from_response
from dart_server.wire import (
    FENCING_TOKEN_HEADER,
    FROM_GUEST_HEADER,
    LEASE_TOKEN_HEADER,
    Clock,
    DesktopHealthView,
    DesktopShape,
    ErrorCode,
    FaultOwner,
    HeartbeatReply,
    LeaseGrant,
    LeaseState,
    LeaseView,
    RenewReply,
    RenewRequest,
    WireModel,
)
from dart_server.wire.desktop import CALL_LIMIT_S, client_limit_s

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = client_limit_s(CALL_LIMIT_S)
HEALTH_TIMEOUT_S = 15.0
RELEASE_TIMEOUT_S = 30.0
HEARTBEAT_TIMEOUT_S = 10.0
HEARTBEATS_PER_TTL = 3
RESET_UNFINISHED = "reset_unfinished"
"""Code of the `FarmError` of calls after a reset that failed, or had no answer, after the fencing token had grown for it."""
HEARTBEAT_RETRY_S = 1.0
"""After a heartbeat that failed the next one comes this soon, so that a farm that is away shortly finds its leases kept."""


class LeaseBase:
    """A lease that is kept alive until it is released or lost.

    Args:
        transport: The connection to the farm.
        granted: The farm's grant.
        clock: The clock of the heartbeats.
        attached: Whether another process claimed the lease.

    Attributes:
        transport: The connection to the farm.
    """

    def __init__(self, transport: Transport, granted: LeaseGrant, clock: Clock, *, attached: bool = False) -> None:
        self.transport = transport
        self._attached = attached
        self._ttl_s = granted.ttl_s
        self._clock = clock
        self._granted = granted
        self._fencing_token = granted.fencing_token
        self._desktop_id = granted.desktop_id
        self._setup_key = granted.setup_key
        self._seq = itertools.count(1)
        self._channel: LeaseChannel | None = None
        self._channel_lock = asyncio.Lock()
        self._lost: LeaseLostError | None = None
        self._unfinished_reset: str | None = None
        """Id of the resets since the last one that succeeded; the farm may have carried them out, or may do so yet."""
        self._release_task: asyncio.Task[None] | None = None
        self._unreleased = False
        self._heartbeat = self._start_heartbeats()

    # What the lease is.

    @property
    def lease_id(self) -> str:
        """Id of the lease."""
        return self._granted.lease_id

    @property
    def desktop_id(self) -> str:
        """Id of the leased desktop; another one after a reset."""
        return self._desktop_id

    @property
    def fencing_token(self) -> int:
        """Number that grows with every desktop that this lease gets; the farm refuses calls with an older one."""
        return self._fencing_token

    @property
    def shape(self) -> DesktopShape:
        """Image, resolution and font size of the desktop."""
        return self._granted.shape

    @property
    def image_digest(self) -> str:
        """Digest of the desktop image."""
        return self._granted.image_digest

    @property
    def setup_key(self) -> str | None:
        """Key of the prepared state that the desktop was restored from; None is the booted base."""
        return self._setup_key

    @property
    def resolution(self) -> tuple[int, int]:
        """(width, height) of the screen in pixels."""
        return self._granted.shape.resolution

    @property
    def lost(self) -> bool:
        """True once the lease is known to be gone: expired, fenced off or released."""
        return self._lost is not None

    @property
    def claim_id(self) -> str | None:
        """Id of the claim that the lease was granted to; the leases of one claim share it."""
        return self._granted.claim_id

    @property
    def ttl_s(self) -> float:
        """Seconds after the last heartbeat until the lease ends."""
        return self._ttl_s

    def reference(self) -> str:
        """Return a text by which another process of the same key attaches to this lease (`attach`). It holds no secret."""
        return f"{self.transport.address}#{self.lease_id}"

    async def renew(self, ttl_s: float) -> datetime:
        """Give the lease another TTL from now on; heartbeats go on with it.

        Args:
            ttl_s: Seconds after the last heartbeat until the lease ends, above 1 and at most 3600.

        Returns:
            The new end of the lease.

        Raises:
            LeaseLostError: If the lease is gone.
        """
        self.raise_if_lost()
        content = await self._owner_call("POST", "/renew", RenewRequest(ttl_s=ttl_s))
        reply = RenewReply.model_validate_json(content)
        self._ttl_s = reply.ttl_s
        self._heartbeat.cancel()
        if self._lost is None:
            self._heartbeat = self._start_heartbeats()
        return reply.expires_at

    @property
    def farm_address(self) -> Address:
        """Where the farm listens."""
        return self.transport.address

    async def view(self) -> LeaseView:
        """Return the lease as the farm sees it, also after its end."""
        return LeaseView.model_validate_json(await self.transport.call("GET", self.path))

    async def _view_of_unfinished_reset(self) -> LeaseView | None:
        """Return the lease where its fencing token comes from a reset of this object that did not succeed, else None."""
        if self._unfinished_reset is None:
            return None
        view = await self.view()
        return view if view.state is LeaseState.ACTIVE and view.reset_id == self._unfinished_reset else None

    async def health(self) -> DesktopHealthView:
        """Return whether the desktop is alive, and who owns its fault."""
        self.raise_if_lost()
        content = await self.transport.call(
            "GET", f"{self.path}/health", headers=self.guest_headers(), timeout_s=HEALTH_TIMEOUT_S
        )
        return DesktopHealthView.model_validate_json(content)

    # The end.

    async def aclose(self) -> None:
        """Release a lease that was claimed here; detach from one that was attached to."""
        await (self.detach() if self._attached else self.release())

    async def detach(self) -> None:
        """Leave the lease to another process: it is not released, but this object keeps it alive no longer. Idempotent."""
        if self._release_task is None and self._lost is None:
            self._lost = LeaseLostError(f"Lease {self.lease_id} was detached from.")
        self._heartbeat.cancel()
        await self.close_channel()

    async def release(self) -> None:
        """Give the desktop back. Idempotent.

        It goes on to its end when the caller is cancelled. It does not raise when the farm is away; its client gives
        the desktop back with its next request for one, or the lease expires by itself.
        """
        if self._release_task is None:
            self._release_task = asyncio.create_task(self._release(), name=f"dart-release-{self.lease_id}")
        await asyncio.shield(self._release_task)

    async def _release(self) -> None:
        was_lost, self._lost = self._lost, self._lost or LeaseLostError(f"Lease {self.lease_id} was released.")
        self._heartbeat.cancel()
        try:
            await self.close_channel()
        finally:
            if was_lost is None:
                await self._give_back()

    @property
    def unreleased(self) -> bool:
        """Whether the farm was away when the desktop was given back, and may hold it still."""
        return self._unreleased

    async def give_back_again(self) -> None:
        """Give back a desktop that the farm was away for; nothing is raised where it is still away."""
        if self._unreleased:
            await self._give_back()

    async def _give_back(self) -> None:
        told, self._unreleased = self._unreleased, False
        try:
            await self.transport.call("DELETE", self.path, headers=self.guest_headers(), timeout_s=RELEASE_TIMEOUT_S)
        except OUTAGE_ERRORS as error:
            self._unreleased = True
            log.log(
                logging.DEBUG if told else logging.WARNING,
                "Lease %s could not be released, because the farm is away: %s",
                self.lease_id,
                error,
            )
        except DartEnvError as error:
            log.warning("Lease %s could not be released and will expire by itself: %s", self.lease_id, error)

    # For the calls.

    @property
    def path(self) -> str:
        """The lease's own route."""
        return f"/v1/leases/{quote(self.lease_id)}"

    def guest_headers(self) -> dict[str, str]:
        """Return the credentials of a guest call, with the current fencing token."""
        return {LEASE_TOKEN_HEADER: self._granted.token, FENCING_TOKEN_HEADER: str(self._fencing_token)}

    def raise_if_lost(self) -> None:
        """Check that the lease is not known to be gone.

        Raises:
            LeaseLostError: If it is.
        """
        if self._lost is not None:
            raise LeaseLostError(str(self._lost))

    def _start_heartbeats(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._heartbeat_loop(), name=f"dart-heartbeat-{self.lease_id}")

    async def _heartbeat_loop(self) -> None:
        interval_s = pause_s = self._ttl_s / HEARTBEATS_PER_TTL
        failing = False
        while True:
            await self._clock.sleep(pause_s)
            try:
                content = await self._owner_call("POST", "/heartbeat", timeout_s=min(interval_s, HEARTBEAT_TIMEOUT_S))
                HeartbeatReply.model_validate_json(content)
            except LeaseLostError as lost:
                await self._mark_lost(lost)
                return
            except NotFoundError:
                await self._mark_lost(LeaseLostError(f"The farm does not know lease {self.lease_id} any more."))
                return
            except (FarmError, DesktopError) as error:
                log.log(
                    logging.DEBUG if failing else logging.WARNING,
                    "Heartbeat of lease %s failed, trying again: %s",
                    self.lease_id,
                    error,
                )
                failing, pause_s = True, min(interval_s, HEARTBEAT_RETRY_S)
            else:
                if failing:
                    log.warning("Heartbeats of lease %s reach the farm again.", self.lease_id)
                failing, pause_s = False, interval_s

    async def _owner_call(
        self, method: str, path: str, body: WireModel | None = None, *, timeout_s: float = REPLY_GRACE_S
    ) -> bytes:
        return await self.transport.call(
            method, self.path + path, body=body, headers=self.guest_headers(), timeout_s=timeout_s
        )

    async def _mark_lost(self, lost: LeaseLostError) -> None:
        log.warning("Lease %s is lost: %s", self.lease_id, lost)
        self._lost = self._lost or lost
        if self._heartbeat is not asyncio.current_task():
            self._heartbeat.cancel()
        await self.close_channel()

    async def open_channel(self) -> LeaseChannel:
        """Return the stepping channel, opened when it is not open.

        Returns:
            The open channel.

        Raises:
            DartEnvError: If it cannot be opened, with the right owner.
        """
        self.raise_if_lost()
        async with self._channel_lock:
            if self._channel is None or self._channel.closed:
                try:
                    socket = await open_message_socket(
                        self.transport, f"{self.path}/channel?early=1", self.guest_headers()
                    )
                except DartEnvError as error:
                    raise await self.attribute_fault(error) from error
                self._channel = LeaseChannel(socket)
            return self._channel

    async def close_channel(self) -> None:
        """Close the stepping channel; waiting requests fail. Idempotent."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: WireModel | None = None,
        json: object | None = None,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        check_health: bool = True,
    ) -> GuestResponse:
        """Make one guest call below the lease's route.

        Args:
            method: HTTP method.
            path: Path below the lease.
            body: Body as a wire model.
            json: Body as JSON.
            content: Body as bytes.
            params: Query parameters.
            timeout_s: Seconds to wait for the answer.
            check_health: Whether a failure is checked against the desktop's health.

        Returns:
            The answer, whatever its status.

        Raises:
            DartEnvError: If there is no answer.
        """
        self.raise_if_lost()
        try:
            response = await self.transport.send(
                method,
                self.path + path,
                body=body,
                json=json,
                content=content,
                params=params,
                headers=self.guest_headers(),
                timeout_s=timeout_s,
            )
        except FarmError as error:
            raise await self.attribute_fault(error, check_health=check_health) from error
        headers = response.headers
        return GuestResponse(
            response.status_code, response.content, headers.get("content-type", ""), FROM_GUEST_HEADER in headers
        )

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: WireModel | None = None,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        check_health: bool = True,
    ) -> bytes:
        """Make one guest call that must succeed.

        Args:
            method: HTTP method.
            path: Path below the lease.
            body: Body as a wire model.
            content: Body as bytes.
            params: Query parameters.
            timeout_s: Seconds to wait for the answer.
            check_health: Whether a failure is checked against the desktop's health.

        Returns:
            The body of the answer.

        Raises:
            DartEnvError: If it fails, with the right owner.
        """
        reply = await self.request(
            method, path, body=body, content=content, params=params, timeout_s=timeout_s, check_health=check_health
        )
        return await self.content_or_raise(reply, f"{method} {path}", check_health=check_health)

    async def content_or_raise(self, reply: GuestResponse, what: str, *, check_health: bool = True) -> bytes:
        """Return the body of a good answer.

        Args:
            reply: The answer.
            what: The call, for the message.
            check_health: Whether a failure is checked against the desktop's health.

        Returns:
            The body.

        Raises:
            DartEnvError: If the status is 400 or more, with the right owner.
        """
        if reply.status < 400:
            return reply.content
        raise await self.attribute_fault(
            error_from_response(reply.status, reply.content, what=what), check_health=check_health
        )

    async def attribute_fault(self, error: DartEnvError, *, check_health: bool = True) -> DartEnvError:
        """Find the owner of a failure: what may be a dead desktop is checked against its health.

        A farm that says at once how the desktop is, and has no answer of it for longer than it waits for one itself, waits for the desktop:
        such a timeout is a `GuestError`. A lease is not lost where its fencing token comes from a reset of this object that
        did not succeed.

        Args:
            error: The failure.
            check_health: Whether to ask for the desktop's health.

        Returns:
            The error to raise.
        """
        if isinstance(error, StaleFencingTokenError) and self._lost is None:
            try:
                unfinished = await self._view_of_unfinished_reset()
            except DartEnvError as unknown:
                return unknown
            if unfinished is not None:
                message = (
                    f"The last reset of lease {self.lease_id} did not succeed, and its desktop may be another one."
                )
                return FarmError(message, code=RESET_UNFINISHED, hint="Reset the lease again.")
        if isinstance(error, LeaseLostError):
            await self._mark_lost(error)
            return error
        if self._lost is not None:
            return LeaseLostError(str(self._lost))
        suspicious = isinstance(error, DesktopFailedError | GuestError) or (
            isinstance(error, FarmError)
            and error.code in {"channel_lost", "timeout", ErrorCode.TIMED_OUT, ErrorCode.NOT_FOUND}
        )
        if (
            not check_health
            or not suspicious
            or (isinstance(error, DesktopFailedError) and error.fault_owner is FaultOwner.POLICY)
        ):
            return error
        try:
            health = await self.health()
        except DartEnvError as unknown:
            return error if isinstance(error, DesktopFailedError) else unknown
        if isinstance(error, FarmTimeoutError) and health.alive:
            return GuestError(f"{error} The desktop is alive.", code="timeout")
        return desktop_failed_error(health) or error
