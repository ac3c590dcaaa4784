"""A claim in the farm's queue: for one desktop, or for a gang of them, all or none.

Role: `AsyncClaim`. Rule: how it goes is told by the farm's Server-Sent Events, and by long polls where those cannot be had or
break off; a farm that is away for a while is waited for, because the claim stands in its database. Non-goals: making claims
(`client`), what a lease does (`lease`).
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
"""A stream of events that tells nothing for so long is taken for dead."""
OUTAGE_TIMEOUT_S = 60.0
"""A farm that cannot be reached for longer than this is given up."""
OUTAGE_BACKOFF_S = 0.5

ProgressCallback = Callable[[ClaimView], object]
LeaseFactory = Callable[[LeaseGrant], AsyncLease]
ResubmitClaim = Callable[[], Awaitable[bytes]]
"""Makes the claim once more, under its client request id: a farm that was started again does not know those that waited."""


class AsyncClaim:
    """A claim. As an async context manager, one that was made here is cancelled at the end, and its desktops are given back."""

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
        return self._view.claim_id

    @property
    def view(self) -> ClaimView:
        """The claim as it was last told of."""
        return self._view

    @property
    def state(self) -> ClaimState:
        return self._view.state

    @property
    def position(self) -> int | None:
        """Claims that come before it; 0 is next; None once it waits no more."""
        return self._view.position

    @property
    def finished(self) -> bool:
        """Nothing of it is left to give back: it ended without desktops, or they were taken over as leases."""
        return self._leases is not None or self._view.state not in (ClaimState.WAITING, ClaimState.GRANTED)

    async def refresh(self) -> ClaimView:
        """Ask for the claim as it is now."""
        return await self._poll(0.0)

    async def progress(self) -> AsyncGenerator[ClaimView, None]:
        """The claim as it is now, then each time that its place or state changes, its end last."""
        told = await self.refresh()
        yield told
        streamed = True
        while self._view.state is ClaimState.WAITING:
            if streamed:
                streamed = False
                async with aclosing(self._stream()) as stream:
                    async for view in stream:
                        if _differs(view, told):
                            told = view
                            yield view
            else:
                view = await self._poll(LONG_POLL_S)
                if _differs(view, told):
                    told = view
                    yield view

    async def wait(
        self, timeout_s: float | None = None, *, on_progress: ProgressCallback | None = None
    ) -> list[AsyncLease]:
        """The leases, once they are granted; their heartbeats start at once.

        `on_progress` is called with each change. Raises `NoCapacityError` when the claim's deadline passed, `ClaimCancelledError`, the
        class of a refusal's code, or after `timeout_s` seconds `FarmTimeoutError`: then the claim goes on waiting, and `wait` may be
        called again.
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
        """Leave the queue; desktops that were granted and not yet taken are given back. Idempotent."""
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
        """What leaving a context does: a claim that was made here is cancelled, one that was only found is left to its owner.
        Never raises for a farm that is gone."""
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
        """One long poll, repeated while the farm is away; a claim that was made here and is forgotten is made again."""
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
        """What the farm's events tell; ends with the claim, or when the stream breaks off."""
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


def _differs(view: ClaimView, told: ClaimView) -> bool:
    return (view.state, view.position, view.waiting_for) != (told.state, told.position, told.waiting_for)
