"""Calls into a leased desktop, and whose fault it is when one fails.

Rule: a call that gets no answer is followed by one look at the desktop. Dead: the cause and its owner are written down, the client gets 502
`desktop_failed` with both, and the desktop is replaced at the next reset. Alive: the client gets `guest_error` and may go on.
A desktop that sends what the protocol does not know counts as dead: what answers there is not the agent (`malformed`).
What can only be made from inside (memory, pids, disk, session, agent, malformed answers) is the policy's fault, once somebody has called
into the desktop since its reset; everything else is the host's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from dart_server import wire
from dart_server.errors import ApiError, from_provider_error
from dart_server.guest import limits
from dart_server.guest.client import GuestClient, GuestMalformed, GuestReply, GuestTooLarge, GuestUnreachable
from dart_server.guest.fair_permits import FairPermits
from dart_server.guest.tally import StepCounter
from dart_server.leases.service import LeaseAccess, Leases
from dart_server.observability.metrics import Metrics
from dart_server.pool.probes import health_view
from dart_server.pool.service import Pool
from dart_server.providers.base import (
    DesktopGone,
    DesktopHealth,
    HealthCause,
    Provider,
    ProviderError,
    SupportsHostEvidence,
)
from dart_server.records import LeaseRecord
from dart_server.wire import ErrorCode
from dart_server.wire.desktop import EVIDENCE_LIMIT_S, EVIDENCE_PERMIT_S
from dart_server.wire.guest_answers import MALFORMED_CODE, MalformedAnswer, parse_object

T = TypeVar("T")
RECHECK_DELAY_S = 0.3
"""A process that was just killed may still be counted as alive; a connection that broke is looked at twice."""
PARALLEL_LOOKS = 4
"""Desktops that the host looks into at once: each may bring `MAX_EVIDENCE_NBYTES` into the farm's memory."""
SESSION_DOWN = "session_down"
MAX_CODE_LENGTH, MAX_DETAIL_LENGTH = 64, 2_000
"""What is passed on of an error that the agent names."""


class StepObserver(Protocol):
    """Who sees every step of every desktop; implemented by `dart_server.dashboard.replay.Replay`."""

    def record(
        self,
        lease: LeaseRecord,
        desktop_id: str,
        fencing_token: int,
        request: wire.StepRequest,
        frame: bytes | bytearray,
        duration_s: float,
        draft: bytes | bytearray | None = None,
    ) -> None:
        """A step was done; `frame` is the guest's binary answer. A frame without a payload has the picture of `draft`."""
        ...


class GuestAccess:
    """Runs calls into desktops for the routes."""

    def __init__(
        self, provider: Provider, pool: Pool, leases: Leases, metrics: Metrics, observer: StepObserver
    ) -> None:
        self._provider = provider
        self._pool = pool
        self._leases = leases
        self._metrics = metrics
        self._observer = observer
        self.step_counter = StepCounter()
        self._looks = FairPermits(PARALLEL_LOOKS)

    def record_step(
        self,
        access: LeaseAccess,
        request: wire.StepRequest,
        frame: bytes | bytearray,
        duration_s: float,
        draft: bytes | bytearray | None = None,
    ) -> None:
        """A step went well; `frame` is the guest's answer, `draft` the message with its picture that came before."""
        self._metrics.step(duration_s)
        self.step_counter.add(access.lease, access.slot.desktop_id, access.fencing_token, duration_s)
        slot = access.slot
        self._observer.record(access.lease, slot.desktop_id, access.fencing_token, request, frame, duration_s, draft)

    async def run(
        self, access: LeaseAccess, call: Callable[[GuestClient], Awaitable[T]], *, is_file: bool = False
    ) -> T:
        """The call's result. Raises `ApiError`: fenced, lease_expired, desktop_failed, guest_error.

        is_file: The answer is a file of the desktop; it may be too large, and that is no failure of the desktop.
        """
        guest = self.client(access)
        try:
            return await call(guest)
        except (GuestMalformed, MalformedAnswer) as error:
            if is_file and isinstance(error, GuestTooLarge):
                raise answer_too_large(str(error)) from error
            raise await self.malformed(access, error) from error
        except GuestUnreachable as error:
            raise await self.diagnose(access, error) from error

    def client(self, access: LeaseAccess) -> GuestClient:
        """The connection to the leased desktop. Raises `ApiError` when there is none to be had."""
        guest = self._present(access)
        access.slot.called = True
        return guest

    def _present(self, access: LeaseAccess) -> GuestClient:
        self._leases.check(access)
        if access.slot.failure is not None:
            raise desktop_failed(access.slot.failure)
        if access.slot.guest is None:
            raise ApiError(ErrorCode.FENCED, "the desktop is being reset", hint="Wait for the reset's answer.")
        return access.slot.guest

    async def evidence(
        self, access: LeaseAccess, request: wire.EvidenceRequest, reserve_bytes: Callable[[int], None]
    ) -> bytes:
        """What the host sees of the leased desktop, as the provider's binary message.

        Few desktops are looked into at once, and the owners of their leases are served in turn. A look that does not end although its
        desktop is well is the desktop's doing, like a call that it does not answer.

        Args:
            access: The right to call into the desktop.
            request: What is asked.
            reserve_bytes: Is told of the message's size while it is one of few.

        Returns:
            The message.

        Raises:
            ApiError: capability_missing where the provider cannot look from outside, host_fault where no permit comes in time, and what
                `run` raises.
        """
        self._present(access)
        if not isinstance(self._provider, SupportsHostEvidence) or self._provider.capabilities.evidence != "host":
            hint = "Ask the guest agent, or use the provider `runc` or `docker`."
            raise ApiError(
                ErrorCode.CAPABILITY_MISSING, "this provider cannot look into a desktop from outside", hint=hint
            )
        queries = [query.model_dump() for query in request.queries]
        async with self._looks.permit(access.lease.owner, timeout_s=EVIDENCE_PERMIT_S):
            self._leases.check(access)
            try:
                async with asyncio.timeout(EVIDENCE_LIMIT_S):
                    message = await self._provider.evidence(access.slot.desktop_id, queries)
            except DesktopGone as error:
                raise await self.diagnose(access, GuestUnreachable(str(error))) from error
            except ProviderError as error:
                raise from_provider_error(error) from error
            except TimeoutError as error:
                late = f"the desktop could not be read from outside within {EVIDENCE_LIMIT_S:g} s"
                raise await self.diagnose(access, GuestUnreachable(late, timed_out=True)) from error
            self._leases.check(access)
            reserve_bytes(len(message))
        return message

    async def diagnose(self, access: LeaseAccess, error: GuestUnreachable) -> ApiError:
        """What to tell the client about a call without an answer."""
        try:
            self._leases.check(access)
        except ApiError as lost:
            return lost
        for look in range(1 if error.timed_out else 2):
            if look:
                await asyncio.sleep(RECHECK_DELAY_S)
            failure = await self.check_health(access)
            if failure is not None:
                return desktop_failed(failure)
        hint = "The desktop itself is alive; repeat the call if that is safe, else reset the lease."
        return ApiError(ErrorCode.GUEST_ERROR, str(error), hint=hint)

    async def malformed(self, access: LeaseAccess, error: Exception) -> ApiError:
        """What to tell the client about an answer that the agent never gives: the desktop is written down as dead, also while it runs."""
        try:
            self._leases.check(access)
        except ApiError as lost:
            return lost
        slot = access.slot
        if slot.failure is None:
            view = health_view(DesktopHealth(False, HealthCause.MALFORMED_ANSWER, str(error)), called=slot.called)
            self._metrics.failure(view.cause, view.fault_owner.value)
            await self._pool.lifecycle.mark_failed(slot, view)
        return desktop_failed(slot.failure or view, str(error))

    async def check_health(self, access: LeaseAccess) -> wire.DesktopHealthView | None:
        """Look at the desktop; a dead one is written down. None when it is well."""
        slot = access.slot
        if slot.failure is None:
            health = health_view(await self._provider.health(slot.desktop_id), called=slot.called)
            self._leases.check(access)
            if health.alive:
                return None
            if slot.failure is None:
                self._metrics.failure(health.cause, health.fault_owner.value)
                await self._pool.lifecycle.mark_failed(slot, health)
        return slot.failure

    async def health(self, access: LeaseAccess) -> wire.DesktopHealthView:
        """How the leased desktop is, or why it died."""
        failure = await self.check_health(access)
        if failure is not None:
            return failure
        return health_view(await self._provider.health(access.slot.desktop_id), called=access.slot.called)

    async def raise_for_error(self, access: LeaseAccess, reply: GuestReply) -> GuestReply:
        """The reply of one of the agent's own `/v1` routes, if it went well. Raises `ApiError`."""
        if reply.status < 400:
            return reply
        code, detail = guest_error(reply.content)
        raise await self.guest_refusal(access, code, detail, reply.status)

    async def guest_refusal(self, access: LeaseAccess, code: str, detail: str, status: int) -> ApiError:
        """What to tell the client when the agent answered with an error of its own; a dead session is a dead desktop."""
        if code == MALFORMED_CODE:
            return await self.malformed(access, MalformedAnswer(detail))
        if code == SESSION_DOWN:
            failure = await self.check_health(access)
            if failure is not None:
                return desktop_failed(failure)
        return ApiError(
            ErrorCode.GUEST_ERROR, f"{code}: {detail}", status=status if status in (400, 404, 409, 503) else 502
        )


def desktop_failed(health: wire.DesktopHealthView, what: str = "") -> ApiError:
    """The desktop is dead; whose fault that is goes with the error."""
    detail = f"the desktop is gone: {health.cause} (fault of the {health.fault_owner.value})" + (what and f": {what}")
    return ApiError(ErrorCode.DESKTOP_FAILED, detail, hint="Reset the lease to get a new one.", desktop=health)


def answer_too_large(detail: str) -> ApiError:
    """An answer of the desktop has more bytes than are read; the desktop is alive."""
    return ApiError(ErrorCode.GUEST_ERROR, detail, status=413, hint="Read it in parts, or through a tunnel.")


def guest_error(content: bytes) -> tuple[str, str]:
    """(code, detail) of the agent's error body; what HTTP libraries answer by themselves is `internal`."""
    try:
        body = parse_object(content, limits.ERROR.json)
        return str(body["error"])[:MAX_CODE_LENGTH], str(body.get("detail", ""))[:MAX_DETAIL_LENGTH]
    except (MalformedAnswer, KeyError):
        return "internal", content[:200].decode("utf-8", "replace")
