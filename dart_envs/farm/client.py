"""The client of a farm: connect, claim and lease desktops.

`AsyncFarmClient` is the async core under env, vector env, runner and `FarmClient`. `aclose` gives back everything that
was claimed through it, and a claim that is cancelled half-way gives its desktop back. A repeated request carries the
client request id of the first one, so it cannot give two desktops. This module does not replace failed desktops
(`dart_envs.envs.core`) and does not start a farm (`embedded`).
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
from dart_envs.farm.claims import AsyncClaim, LeaseFactory, ResubmitClaim
from dart_envs.farm.embedded import ensure_embedded_farm
from dart_envs.farm.lease import AsyncLease
from dart_envs.farm.retry import RetryPolicy, call_with_retries
from dart_envs.farm.routes import FarmAdmin
from dart_envs.farm.transport import (
    REPLY_GRACE_S,
    Transport,
    check_certificate_file,
    parse_address,
    resolve_api_key,
)
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
    """A connection to one farm, for async code.

    Make it with `connect`. As an async context manager it closes itself at the end.

    Args:
        transport: The connection to the farm.
        clock: The clock that waits and measures.
        embedded: Whether this is the embedded farm of this user.
        retries: When a failed request is repeated; None is the default policy.
    """

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
        """Connect to a farm.

        Args:
            url: Address of the farm; None takes `DART_FARM_URL`, and without that the embedded farm of this user,
                which is started on demand.
            api_key: The key; None takes `DART_API_KEY`, and without that the key file beside a Unix socket.
            clock: The clock that waits and measures.
            retries: When a failed request is repeated; None is the default policy.

        Returns:
            The client.

        Raises:
            FarmError: If the farm cannot be reached or the embedded farm does not start.
        """
        check_certificate_file()
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
        """Whether this is the farm of this user on this host, started on demand."""
        return self._embedded

    @property
    def url(self) -> str:
        """Address of the farm, as `connect` takes it."""
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
        """Lease a desktop, waiting for a free one; its heartbeats start at once.

        A farm that restarts meanwhile forgets who waits. The client then asks again under the same client request id.

        Args:
            shape: Image, resolution and font size; None is the default shape.
            setup_key: Key of a prepared state; the desktop is a copy of it where there is one.
            ttl_s: Seconds after the last heartbeat until the lease ends.
            wait_s: Seconds to wait for a free desktop.
            labels: Labels of the lease.
            snapshot_id: Id or name of a snapshot; the desktop is a copy of exactly this one.
            match_labels: Labels that the desktop's pool must have.
            priority: From -100 to 100; higher is served first.

        Returns:
            The lease.

        Raises:
            NoCapacityError: If no desktop became free in time.
            ImageNotFoundError: If the farm does not have the image.
            FarmError: If the farm refuses or cannot be reached.
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

        async def ask() -> bytes:
            await self._give_back_again()
            return await self._transport.call("POST", "/v1/leases", body=request, timeout_s=timeout_s)

        content = await call_with_retries(
            ask,
            self._retries,
            self._clock,
            retry_timeout_s=max(request.wait_s, REPLY_GRACE_S),
            outage_timeout_s=request.wait_s,
            before_retry=self._restart_embedded,
        )
        return self._open_lease(LeaseGrant.model_validate_json(content))

    def _open_lease(self, granted: LeaseGrant, *, attached: bool = False) -> AsyncLease:
        lease = AsyncLease(self._transport, granted, self._clock, self.claim, attached=attached)
        self._leases = {held for held in self._leases if not held.lost or held.unreleased} | {lease}
        return lease

    async def _give_back_again(self) -> None:
        """Give back what could not be given back while the farm was away: a farm that is back holds it for its whole time to live."""
        await asyncio.gather(*(lease.give_back_again() for lease in self._leases))

    async def _restart_embedded(self, error: FarmError) -> None:
        """Start the embedded farm again, which stops when it is idle."""
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
        """Queue a claim for desktops, all or none, and do not wait for it: `AsyncClaim.wait` does.

        Args:
            count: Number of desktops, at most 64.
            shape: Image, resolution and font size; None is the default shape.
            setup_key: Key of a prepared state; the desktops are copies of it where there is one.
            snapshot_id: Id or name of a snapshot; the desktops are copies of exactly this one.
            match_labels: Labels that the desktops' pool must have.
            priority: From -100 to 100; higher is served first.
            ttl_s: Seconds after the last heartbeat until a lease ends.
            deadline_s: Seconds that the claim waits at the farm at most.
            labels: Labels of the leases.
            client_request_id: 8 to 64 characters. The same id is the same claim, also from a program that was started
                again. None makes a new one.

        Returns:
            The claim.

        Raises:
            QuotaExceededError: If the key waits for as many desktops as it may.
            FarmDrainingError: If the farm takes no claims now.
            FarmError: If the farm refuses or cannot be reached.
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

        async def submit() -> bytes:
            await self._give_back_again()
            return await self._transport.call("POST", "/v1/claims", body=request)

        async def ask() -> bytes:
            return await call_with_retries(
                submit,
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
        """Return a claim of another process of the same key, to read it, wait for it or cancel it.

        Leases that its `wait` returns are attached to, not owned: they are not released at the end.

        Args:
            claim_id: Id of the claim.

        Returns:
            The claim.

        Raises:
            NotFoundError: If there is no such claim.
        """
        content = await self._read(f"/v1/claims/{quote(claim_id, safe='')}", {"wait_s": "0"})
        return self._make_claim(content, partial(self._open_lease, attached=True), None)

    def _make_claim(self, content: bytes, hold: LeaseFactory, resubmit: ResubmitClaim | None) -> AsyncClaim:
        view = ClaimView.model_validate_json(content)
        return AsyncClaim(self._transport, view, hold, self._clock, self._retries, resubmit=resubmit)

    async def attach(self, reference: str, *, takeover: bool = False) -> AsyncLease:
        """Use a lease of another process of the same key.

        Both processes keep it alive from now on and share the state of the desktop.

        Args:
            reference: `reference()` of the lease, or its id.
            takeover: Whether the fencing token grows, so that the farm refuses the other process's calls.

        Returns:
            The lease.

        Raises:
            LeaseExpiredError: If the lease has ended.
            NotFoundError: If there is no such lease.
            InvalidRequestError: If `reference` names no lease.
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
        """Give back what was claimed here, detach from other leases, and close the connections. Idempotent."""
        claims = [claim for claim in self._claims if not claim.finished]
        await asyncio.gather(
            *self._unwanted_grants, *(lease.aclose() for lease in self._leases), *(claim.aclose() for claim in claims)
        )
        await self._give_back_again()
        self._leases.clear()
        self._claims.clear()
        await self._transport.aclose()

    async def __aenter__(self) -> AsyncFarmClient:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()
