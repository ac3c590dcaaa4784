"""The client of a farm: connect, claim and lease desktops.

Role: `AsyncFarmClient`, the one async core under env, vector env and runner, and under `FarmClient`. Rule: whatever was claimed
through it is given back by `aclose`, and a claim that was cancelled half-way gives its desktop back; a request that is call_with_retries
carries the client request id of the first one, so it can never give two desktops. Non-goals: retries of failed desktops
(`dart_envs.envs.core`), starting a farm (`embedded`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Mapping
from functools import partial
from urllib.parse import quote

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.errors import FarmError, FarmUnreachableError, InvalidRequestError
from dart_envs.farm.admin import FarmAdmin
from dart_envs.farm.claims import AsyncClaim, LeaseFactory, ResubmitClaim
from dart_envs.farm.embedded import ensure_embedded_farm
from dart_envs.farm.lease import AsyncLease
from dart_envs.farm.retry import RetryPolicy, call_with_retries
from dart_envs.farm.transport import REPLY_GRACE_S, Transport, parse_address, resolve_api_key
from dart_server.wire import (
    AttachRequest,
    ClaimRequest,
    ClaimView,
    Clock,
    DesktopShape,
    LeaseGrant,
    LeaseRequest,
)

log = logging.getLogger(__name__)

CLAIM_RETRY_TIMEOUT_S = 60.0
"""For so long the making of a claim is repeated when the farm is away or the key's quota is used up."""


class AsyncFarmClient(FarmAdmin):
    """A connection to one farm. Make it with `connect`; usable as an async context manager."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock = SYSTEM_CLOCK,
        embedded: bool = False,
        retries: RetryPolicy | None = None,
    ) -> None:
        super().__init__(transport, clock, retries or RetryPolicy())
        self._embedded = embedded
        self._leases: set[AsyncLease] = set()
        self._claims: set[AsyncClaim] = set()
        self._unwanted_grants: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(
        cls,
        url: str | None = None,
        api_key: str | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        retries: RetryPolicy | None = None,
    ) -> AsyncFarmClient:
        """Connect to the farm at `url`, at `DART_FARM_URL`, or to this user's embedded farm, which is started
        on demand.

        `api_key` falls back to `DART_API_KEY`, then to the key file beside a Unix socket. Raises `FarmError`.
        """
        url = url or os.environ.get("DART_FARM_URL")
        embedded = not url
        address = parse_address(url or f"unix://{await ensure_embedded_farm(clock=clock)}")
        transport = Transport(address, resolve_api_key(address, api_key))
        farm = cls(transport, clock=clock, embedded=embedded, retries=retries)
        try:
            await farm._transport.call("GET", "/healthz", timeout_s=10.0)
        except BaseException:  # cancelled, too, the connection is closed; raised again
            await farm.aclose()
            raise
        return farm

    @property
    def embedded(self) -> bool:
        """Whether this is the farm of this user on this machine, started on demand."""
        return self._embedded

    @property
    def url(self) -> str:
        """Where the farm is, as `connect` takes it."""
        return str(self._transport.address)

    async def lease(
        self,
        shape: DesktopShape | None = None,
        setup_key: str | None = None,
        ttl_s: float = 60.0,
        wait_s: float = 60.0,
        labels: Mapping[str, str] | None = None,
        snapshot_id: str | None = None,
        *,
        match_labels: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> AsyncLease:
        """Claim a desktop, waiting up to `wait_s` for a free one; with `setup_key`, a copy of that prepared
        state where there is one; with `snapshot_id` (id or name), a copy of exactly that snapshot; with `match_labels`, one
        of the pool that has these labels.

        Heartbeats start at once. A farm that is started again meanwhile, and forgets who waits, is asked again under the same
        client request id for as long. Raises `FarmError` (`NoCapacityError`, `ImageNotFoundError`, …).
        """
        request = LeaseRequest(
            client_request_id=uuid.uuid4().hex,
            shape=shape or DesktopShape(),
            setup_key=setup_key,
            snapshot_id=snapshot_id,
            ttl_s=ttl_s,
            wait_s=wait_s,
            labels=dict(labels or {}),
            match_labels=dict(match_labels or {}),
            priority=priority,
        )
        granting = asyncio.create_task(self._request_lease(request), name="dart-claim")
        try:
            return await asyncio.shield(granting)
        except asyncio.CancelledError:
            task = asyncio.create_task(self._release_unwanted(granting), name="dart-release-unwanted")
            self._unwanted_grants.add(task)
            task.add_done_callback(self._unwanted_grants.discard)
            raise

    async def _request_lease(self, request: LeaseRequest) -> AsyncLease:
        timeout_s = request.wait_s + REPLY_GRACE_S
        content = await call_with_retries(
            lambda: self._transport.call("POST", "/v1/leases", body=request, timeout_s=timeout_s),
            self._retries,
            self._clock,
            retry_timeout_s=max(request.wait_s, REPLY_GRACE_S),
            outage_timeout_s=request.wait_s,
            before_retry=self._restart_embedded,
        )
        return self._open_lease(LeaseGrant.model_validate_json(content))

    def _open_lease(self, granted: LeaseGrant, *, attached: bool = False) -> AsyncLease:
        lease = AsyncLease(self._transport, granted, self._clock, self.claim, attached=attached)
        self._leases = {held for held in self._leases if not held.lost} | {lease}
        return lease

    async def _restart_embedded(self, error: FarmError) -> None:
        """The embedded farm stops when nobody needs it; now somebody does."""
        if self._embedded and isinstance(error, FarmUnreachableError):
            await ensure_embedded_farm(clock=self._clock)
            self._transport.set_api_key(resolve_api_key(self._transport.address, None))

    async def _release_unwanted(self, granting: asyncio.Task[AsyncLease]) -> None:
        try:
            lease = await granting
        except FarmError as error:
            log.debug("A cancelled claim came to nothing: %s", error)
            return
        await lease.release()

    async def claim(
        self,
        count: int = 1,
        shape: DesktopShape | None = None,
        setup_key: str | None = None,
        snapshot_id: str | None = None,
        *,
        match_labels: Mapping[str, str] | None = None,
        priority: int = 0,
        ttl_s: float = 60.0,
        deadline_s: float = 600.0,
        labels: Mapping[str, str] | None = None,
        client_request_id: str | None = None,
    ) -> AsyncClaim:
        """Stand in the queue for `count` desktops (at most 64), all or none, and do not wait: the claim's `wait` does.

        It waits at the farm for `deadline_s` seconds at most; `priority` is between -100 and 100, higher is served first. A
        program that may be started again gives its own `client_request_id` (8 to 64 characters): the same one is the same
        claim. Raises `FarmError` (`QuotaExceededError`, `FarmDrainingError`, …).
        """
        request = ClaimRequest(
            client_request_id=client_request_id or uuid.uuid4().hex,
            shape=shape or DesktopShape(),
            setup_key=setup_key,
            snapshot_id=snapshot_id,
            match_labels=dict(match_labels or {}),
            count=count,
            priority=priority,
            ttl_s=ttl_s,
            deadline_s=deadline_s,
            labels=dict(labels or {}),
        )

        async def ask() -> bytes:
            return await call_with_retries(
                lambda: self._transport.call("POST", "/v1/claims", body=request),
                self._retries,
                self._clock,
                retry_timeout_s=CLAIM_RETRY_TIMEOUT_S,
                outage_timeout_s=CLAIM_RETRY_TIMEOUT_S,
                before_retry=self._restart_embedded,
            )

        claim = self._make_claim(await ask(), self._open_lease, ask)
        self._claims = {known for known in self._claims if not known.finished} | {claim}
        return claim

    async def find_claim(self, claim_id: str) -> AsyncClaim:
        """A claim of another process of the same key: to be looked at, waited for, or cancelled in so many words. Leases that
        its `wait` gives are attached to, not owned. Raises `NotFoundError`."""
        content = await self._read(f"/v1/claims/{quote(claim_id, safe='')}", {"wait_s": "0"})
        return self._make_claim(content, partial(self._open_lease, attached=True), None)

    def _make_claim(self, content: bytes, hold: LeaseFactory, resubmit: ResubmitClaim | None) -> AsyncClaim:
        view = ClaimView.model_validate_json(content)
        return AsyncClaim(self._transport, view, hold, self._clock, self._retries, resubmit=resubmit)

    async def attach(self, reference: str, *, takeover: bool = False) -> AsyncLease:
        """Use a lease of another process of the same key, by its `reference()` or its id.

        Both keep it alive from now on; the desktop's state is shared. With `takeover` its fencing token grows, so that the other's
        calls are refused. Raises `LeaseExpiredError`, `NotFoundError`.
        """
        lease_id = reference.rpartition("#")[2]
        if not lease_id:
            raise InvalidRequestError(f"{reference!r} is not the reference of a lease.", code="invalid")
        content = await call_with_retries(
            lambda: self._transport.call(
                "POST", f"/v1/leases/{quote(lease_id, safe='')}/attach", body=AttachRequest(takeover=takeover)
            ),
            self._retries if not takeover else RetryPolicy(attempts=1),
            self._clock,
        )
        return self._open_lease(LeaseGrant.model_validate_json(content), attached=True)

    async def aclose(self) -> None:
        """Give back what was claimed here, let go of what was attached to, and close the connections. Idempotent."""
        claims = [claim for claim in self._claims if not claim.finished]
        await asyncio.gather(
            *self._unwanted_grants, *(lease.aclose() for lease in self._leases), *(claim.aclose() for claim in claims)
        )
        self._leases.clear()
        self._claims.clear()
        await self._transport.aclose()

    async def __aenter__(self) -> AsyncFarmClient:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()
