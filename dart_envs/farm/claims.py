"""A claim in the farm's queue, for one desktop or for several, all or none.

`AsyncClaim` follows the claim by the farm's Server-Sent Events, and by long polls where those are not available or
break off. The client waits for a farm that is away for a while, because the farm's database keeps the claim. This
module does not create claims (`client`) and does not use leases (`lease`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from urllib.parse import quote

from pydantic import ValidationError

from dart_envs.errors import (
    ERROR_CLASSES,
    ClaimCancelledError,
    DartEnvError,
    FarmError,
    FarmTimeoutError,
    FarmUnreachableError,
    NoCapacityError,
    NotFoundError,
)
from dart_envs.farm.lease import AsyncLease
from dart_envs.farm.retry import RetryPolicy, call_with_retries
from dart_envs.farm.transport import REPLY_GRACE_S, Transport, error_from_envelope
from dart_server.wire import ClaimState, ClaimView, Clock, ErrorBody, LeaseGrant

log = logging.getLogger(__name__)

LONG_POLL_S = 20.0
"""How long one long poll waits at the farm."""
STREAM_IDLE_TIMEOUT_S = 45.0
"""Seconds without an event after which the stream of events is treated as broken."""
OUTAGE_TIMEOUT_S = 60.0
"""A farm that cannot be reached for longer than this is given up."""
OUTAGE_BACKOFF_S = 0.5

ProgressCallback = Callable[[ClaimView], object]
LeaseFactory = Callable[[LeaseGrant], AsyncLease]
ResubmitClaim = Callable[[], Awaitable[bytes]]
"""Makes the claim once more, under its client request id: a farm that was started again does not know those that waited."""


class AsyncClaim:
    """A queued request for desktops, made by `AsyncFarmClient.claim` or found by `AsyncFarmClient.find_claim`.

    As an async context manager, a claim that was made here is cancelled at the end, and its desktops are given back.

    Args:
        transport: The connection to the farm.
        view: The claim as the farm returned it.
        hold: Turns a grant into a lease.
        clock: The clock that waits and measures.
        retries: When a failed request is repeated.
        resubmit: Makes the claim again when a restarted farm does not know it; None for a claim of another process.
    """

    def __init__(
        self,
        transport: Transport,
        view: ClaimView,
        hold: LeaseFactory,
        clock: Clock,
        retries: RetryPolicy,
        *,
        resubmit: ResubmitClaim | None = None,
    ) -> None:
        self._transport = transport
        self._view = view
        self._open_lease = hold
        self._clock = clock
        self._retries = retries
        self._resubmit = resubmit
        self._leases: list[AsyncLease] | None = None

    @property
    def claim_id(self) -> str:
        """Id of the claim."""
        return self._view.claim_id

    @property
    def view(self) -> ClaimView:
        """The claim as the farm reported it last."""
        return self._view

    @property
    def state(self) -> ClaimState:
        """State of the claim as the farm reported it last."""
        return self._view.state

    @property
    def position(self) -> int | None:
        """Number of claims before this one; 0 is next; None once it does not wait any more."""
        return self._view.position

    @property
    def finished(self) -> bool:
        """True when nothing is left to give back: the claim ended without desktops, or they were taken over as leases."""
        return self._leases is not None or self._view.state not in (ClaimState.WAITING, ClaimState.GRANTED)

    async def refresh(self) -> ClaimView:
        """Read the claim as it is now.

        Returns:
            The claim.

        Raises:
            FarmError: If the farm cannot be reached or does not know the claim.
        """
        return await self._poll(0.0)

    async def progress(self) -> AsyncGenerator[ClaimView, None]:
        """Follow the claim: as it is now, then at each change of its position or state, and its end last.

        Yields:
            The claim at each change.
        """
        last = await self.refresh()
        yield last
        streamed = True
        while self._view.state is ClaimState.WAITING:
            if streamed:
                streamed = False
                async with aclosing(self._stream()) as stream:
                    async for view in stream:
                        if _differs(view, last):
                            last = view
                            yield view
            else:
                view = await self._poll(LONG_POLL_S)
                if _differs(view, last):
                    last = view
                    yield view

    async def wait(
        self, timeout_s: float | None = None, *, on_progress: ProgressCallback | None = None
    ) -> list[AsyncLease]:
        """Wait until the desktops are granted; the heartbeats of the leases start at once.

        Args:
            timeout_s: Seconds to wait; None waits until the claim's own deadline.
            on_progress: Called with the claim at each change.

        Returns:
            One lease for each desktop.

        Raises:
            NoCapacityError: If the claim's deadline passed.
            ClaimCancelledError: If the claim was cancelled.
            FarmTimeoutError: After `timeout_s` seconds. The claim goes on waiting, and `wait` may be called again.
            FarmError: If the farm refused the claim; the class follows the refusal's code.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_until_finished(on_progress)
        except TimeoutError:
            raise FarmTimeoutError(
                f"The claim {self.claim_id} still waits after {timeout_s:g} s, at position {self.position}.",
                code="timeout",
                hint="Wait again, or cancel it.",
            ) from None
        if self._view.state is not ClaimState.GRANTED:
            raise self._failure()
        if self._leases is None:
            self._leases = [self._open_lease(lease) for lease in self._view.leases]
        return list(self._leases)

    async def _wait_until_finished(self, on_progress: ProgressCallback | None) -> None:
        async with aclosing(self.progress()) as progress:
            async for view in progress:
                if on_progress is not None:
                    on_progress(view)

    async def cancel(self) -> None:
        """Leave the queue and give granted desktops back. Idempotent.

        Raises:
            FarmError: If the farm cannot be reached.
        """
        try:
            await call_with_retries(
                lambda: self._transport.call("DELETE", self._path),
                self._retries,
                self._clock,
                retry_timeout_s=OUTAGE_TIMEOUT_S,
            )
        except NotFoundError:
            self._view = self._view.model_copy(update={"state": ClaimState.CANCELLED, "position": None})
        if self._leases is not None:
            for lease in self._leases:
                await lease.release()
        if self._view.state is ClaimState.WAITING:
            await self.refresh()

    async def aclose(self) -> None:
        """Cancel a claim that was made here, and leave one that was only found to its owner.

        Does not raise when the farm is gone.
        """
        if self._resubmit is None:
            return
        try:
            await self.cancel()
        except FarmError as error:
            log.warning("The claim %s could not be cancelled and ends at its deadline: %s", self.claim_id, error)

    def _failure(self) -> DartEnvError:
        failure = self._view.error
        if self._view.state is ClaimState.CANCELLED:
            return ClaimCancelledError(f"The claim {self.claim_id} was cancelled.", code="cancelled")
        if failure is None:
            return NoCapacityError(f"The claim {self.claim_id} was not granted in time.", code="no_capacity")
        if failure.error in ERROR_CLASSES:
            return ERROR_CLASSES[failure.error](failure.detail, code=failure.error.value, hint=failure.hint)
        return error_from_envelope(ErrorBody(**failure.model_dump(), request_id=""))

    @property
    def _path(self) -> str:
        return f"/v1/claims/{quote(self.claim_id)}"

    async def _poll(self, wait_s: float) -> ClaimView:
        """Ask once, repeated while the farm is away; make a claim of this process again if the farm does not know it."""
        deadline_s = self._clock.monotonic() + OUTAGE_TIMEOUT_S + wait_s
        while True:
            try:
                content = await self._transport.call(
                    "GET", self._path, params={"wait_s": f"{wait_s:g}"}, timeout_s=wait_s + REPLY_GRACE_S
                )
            except (FarmUnreachableError, FarmTimeoutError):
                if self._clock.monotonic() >= deadline_s:
                    raise
                await self._clock.sleep(OUTAGE_BACKOFF_S)
                continue
            except NotFoundError:
                if self._resubmit is None or self._view.state is not ClaimState.WAITING:
                    raise
                content = await self._resubmit()
            self._view = ClaimView.model_validate_json(content)
            return self._view

    async def _stream(self) -> AsyncGenerator[ClaimView, None]:
        """Yield what the farm's events report; end with the claim, or when the stream breaks off."""
        try:
            async with self._transport.stream_lines(
                f"{self._path}/events", idle_timeout_s=STREAM_IDLE_TIMEOUT_S
            ) as lines:
                async for line in lines:
                    name, _, value = line.partition(":")
                    if name != "data":
                        continue
                    self._view = ClaimView.model_validate_json(value)
                    yield self._view
                    if self._view.state is not ClaimState.WAITING:
                        break
        except (FarmError, ValidationError) as error:
            log.info("The events of claim %s ended (%s); asking by long polls.", self.claim_id, error)
        if self._view.state is ClaimState.GRANTED and len(self._view.leases) < len(self._view.lease_ids):
            await self.refresh()

    async def __aenter__(self) -> AsyncClaim:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()


def _differs(view: ClaimView, last: ClaimView) -> bool:
    return (view.state, view.position, view.waiting_for) != (last.state, last.position, last.waiting_for)
