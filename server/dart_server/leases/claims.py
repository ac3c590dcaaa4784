"""Claims as clients know them: they wait, are granted their leases, or end without.

Rule: a claim is known by its owner and the client's request id, so that a repeated one is the same claim; it ends exactly once, and one
that ends without its leases holds nothing. Nobody's hanging up ends a claim that was put in the queue (`submit`); one that somebody waits
for in the same request (`claim_and_wait`) is cancelled when nobody does any more.
A waiting claim does not outlive the farm: the client repeats it.
Non-goals: whose turn it is (`pool`), what a lease is (`leases.service`), HTTP (`http.routes.claims`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from dart_server import wire
from dart_server.clock import utc, wait_for
from dart_server.database.repository import NewEvent, Repository
from dart_server.errors import ApiError, from_provider_error
from dart_server.ids import new_id
from dart_server.keys import Principal, Scope
from dart_server.leases.admission_limiter import AdmissionLimiter, Permit
from dart_server.leases.service import Leases, request_id_reused_error
from dart_server.observability import tracing
from dart_server.observability.metrics import Metrics
from dart_server.pool.claim_queue import ClaimTicket
from dart_server.pool.fair_queue import KeyQuota
from dart_server.pool.service import Pool
from dart_server.providers.base import Provider, ProviderError
from dart_server.records import DesktopTarget, LeaseRecord
from dart_server.settings import FarmSettings
from dart_server.wire import ClaimState, Clock, ErrorCode, LeaseState

log = logging.getLogger(__name__)
CLAIMS_REMEMBERED = 5_000
"""Claims kept in memory after their end."""
REQUESTS_REMEMBERED = 100_000
"""Client request ids kept in memory; the database refuses older ones that come again."""
HEARTBEAT_S = 15.0
"""A stream of events says at least that it lives, this often."""
EVENT_STREAM_TIMEOUT_S = 3600.0
"""A stream of events ends after this, whether the claim has ended or not; `Last-Event-ID` goes on in another."""


@dataclass(slots=True, eq=False)
class QueuedClaim:
    """One claim. `enqueued`: it stands in the queue or has ended; `cancel_requested`: it was cancelled while its leases were being
    written."""

    claim_id: str
    owner: str
    request: wire.ClaimRequest
    created_at: float
    deadline_s: float
    permit: Permit | None = None
    enqueued: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    state: ClaimState = ClaimState.WAITING
    ended_at: float | None = None
    task: asyncio.Task[list[LeaseRecord]] | None = None
    ticket: ClaimTicket | None = None
    granting: bool = False
    cancel_requested: bool = False
    detached: bool = False
    callers: int = 0
    leases: list[LeaseRecord] = field(default_factory=list)
    error: ApiError | None = None

    @property
    def alive(self) -> bool:
        return self.state is ClaimState.WAITING or any(lease.state is LeaseState.ACTIVE for lease in self.leases)

    def release_permit(self) -> None:
        """It is not being worked on any more: the next claim may begin."""
        if self.permit is not None:
            self.permit.release()


ClaimEvent = tuple[str, int, wire.ClaimView]
"""Kind (`position`, or the state in which it ended), number and content of an event about a claim."""


class Claims:
    """All claims of one farm."""

    def __init__(
        self,
        provider: Provider,
        pool: Pool,
        leases: Leases,
        repository: Repository,
        metrics: Metrics,
        settings: FarmSettings,
        clock: Clock,
    ) -> None:
        self._provider = provider
        self._pool = pool
        self._leases = leases
        self._repository = repository
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._claims: OrderedDict[str, QueuedClaim] = OrderedDict()
        self._by_request: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._streams: Counter[str] = Counter()
        self._limiter = AdmissionLimiter()

    async def submit(self, request: wire.ClaimRequest, principal: Principal) -> QueuedClaim:
        """Put a claim in the queue, or the same one again. Raises `ApiError` when it is refused at once."""
        claim = await self._begin(request, principal)
        claim.detached = True
        await claim.enqueued.wait()
        if claim.ticket is None and claim.error is not None:
            self._forget(claim)
            raise claim.error
        return claim

    async def claim_and_wait(self, request: wire.LeaseRequest, principal: Principal) -> wire.LeaseGrant:
        """A ready desktop under a new lease, or the same lease again for a repeated request. Raises `ApiError`."""
        fields = {name: getattr(request, name) for name in wire.LeaseRequest.model_fields if name != "wait_s"}
        one = wire.ClaimRequest.model_construct(**fields, count=1, deadline_s=request.wait_s)
        claim = await self._begin(one, principal)
        claim.callers += 1
        try:
            await claim.ended.wait()
        finally:
            claim.callers -= 1
            if not (claim.callers or claim.detached or claim.granting or claim.ended.is_set()):
                self._cancel(claim)
                self._forget(claim)
        if claim.state is not ClaimState.GRANTED:
            if not claim.detached:
                self._forget(claim)
            raise claim.error or ApiError(ErrorCode.LEASE_EXPIRED, f"the claim {claim.claim_id} was cancelled")
        if len(claim.leases) > 1:
            detail = f"the request {request.client_request_id} is a claim of {len(claim.leases)} desktops"
            raise ApiError(ErrorCode.INVALID, detail, hint="GET /v1/claims/{claim_id} gives them all.")
        if claim.leases[0].state is not LeaseState.ACTIVE:
            raise request_id_reused_error(request.client_request_id)
        return self._leases.reply(claim.leases[0])

    async def _begin(self, request: wire.ClaimRequest, principal: Principal) -> QueuedClaim:
        """The claim of this request, begun at its first coming when its turn has come; its time counts from now.

        Raises `lease_expired` when it was so long ago that it is forgotten, `forbidden` when the key may not claim with such a priority.
        """
        asked_s = self._clock.monotonic()
        permit = await self._limiter.acquire()
        try:
            claim = self._known(request, principal) or self._new(request, principal, asked_s, permit)
        except ApiError:
            permit.release()
            raise
        if claim.permit is not permit:
            permit.release()
        return claim

    def _known(self, request: wire.ClaimRequest, principal: Principal) -> QueuedClaim | None:
        self._leases.touch()
        owner, max_leases = principal.key_id, principal.max_leases
        if max_leases is None and principal.scope is not Scope.ADMIN:
            max_leases = self._settings.max_leases_per_key
        self._pool.queue.fair_queue.set_quota(owner, KeyQuota(principal.weight, max_leases, principal.max_waiting))
        claim_id = self._by_request.get((owner, request.client_request_id))
        if claim_id is not None and claim_id not in self._claims:
            raise request_id_reused_error(request.client_request_id)
        return None if claim_id is None else self._claims[claim_id]

    def _new(self, request: wire.ClaimRequest, principal: Principal, asked_s: float, permit: Permit) -> QueuedClaim:
        principal.require_priority(request.priority)
        claim = QueuedClaim(
            claim_id=new_id("claim"),
            owner=principal.key_id,
            request=request,
            created_at=self._clock.time(),
            deadline_s=asked_s + request.deadline_s,
            permit=permit,
        )
        self._remember(claim)
        claim.task = asyncio.get_running_loop().create_task(self._run(claim))
        claim.task.add_done_callback(lambda task: self._end(claim, task))
        return claim

    async def _run(self, claim: QueuedClaim) -> list[LeaseRecord]:
        with tracing.span("claim", claim_id=claim.claim_id, count=claim.request.count):
            return await self._granted(claim)

    async def _granted(self, claim: QueuedClaim) -> list[LeaseRecord]:
        if self._repository.unavailable_reason is not None:
            claim.release_permit()
        await self._repository.wait_available()
        target = await self._target_of(claim)
        request = claim.request
        claim.ticket = self._pool.enqueue(claim.owner, target, units=request.count, priority=request.priority)
        claim.enqueued.set()
        if not claim.ticket.granted.done():
            claim.release_permit()
        slots = await self._pool.queue.wait_granted(claim.ticket, max(0.0, claim.deadline_s - self._clock.monotonic()))
        claim.granting = True
        leases = await self._leases.grant(claim.claim_id, claim.owner, request, target.image_digest, slots)
        if claim.cancel_requested:
            for lease in leases:
                await self._leases.end(lease, LeaseState.RELEASED)
        return leases

    async def _target_of(self, claim: QueuedClaim) -> DesktopTarget:
        request = claim.request
        if request.match_labels:
            return self._target_of_pool(request.match_labels)
        try:
            digest = await self._provider.image_digest(request.shape.image)
        except ProviderError as error:
            raise from_provider_error(error) from error
        return DesktopTarget(request.shape, digest, claim.owner, request.setup_key, request.snapshot_id)

    def _target_of_pool(self, labels: Mapping[str, str]) -> DesktopTarget:
        """Copies of what the pool with these labels has ready. Pools are the administrator's, who lets everybody have what they hold."""
        pool = self._pool.named.matching(labels)
        if pool is None:
            named = ", ".join(f"{name}={value}" for name, value in labels.items())
            raise ApiError(ErrorCode.NOT_FOUND, f"no pool has the labels {named}", hint="GET /v1/pools lists them.")
        if pool.target is None:
            detail = f"the pool {pool.record.name} cannot be served: {pool.reason}"
            raise ApiError(ErrorCode.IMAGE_MISSING, detail)
        return pool.target

    def _end(self, claim: QueuedClaim, task: asyncio.Task[list[LeaseRecord]]) -> None:
        """The one place where a claim ends."""
        claim.release_permit()
        late = self._clock.monotonic() >= claim.deadline_s
        if task.cancelled():
            claim.state = ClaimState.CANCELLED
        elif (error := task.exception()) is not None:
            claim.state = ClaimState.EXPIRED if late and claim.ticket is not None else ClaimState.REFUSED
            claim.error = _claim_error(claim, error)
            self._metrics.lease("refused")
        else:
            claim.leases = task.result()
            # What was cancelled after its last look is granted: whoever cancelled it gives the leases back.
            ended = all(lease.state is not LeaseState.ACTIVE for lease in claim.leases)
            claim.state = ClaimState.CANCELLED if claim.cancel_requested and ended else ClaimState.GRANTED
        claim.task = None
        claim.ended_at = self._clock.time()
        self._metrics.claim_ended(claim.state.value, claim.ended_at - claim.created_at)
        if claim.state is not ClaimState.GRANTED:
            data = {"claim_id": claim.claim_id, "owner": claim.owner, "waited_s": claim.ended_at - claim.created_at}
            if claim.error is not None:
                data["reason"] = claim.error.detail
            self._repository.add_event(NewEvent(f"claim_{claim.state.value}", data=data))
        claim.enqueued.set()
        claim.ended.set()

    def _cancel(self, claim: QueuedClaim) -> None:
        if claim.granting:
            claim.cancel_requested = True
        elif claim.task is not None:
            claim.task.cancel()

    async def cancel(self, claim_id: str, principal: Principal) -> None:
        """End a claim; what it was granted meanwhile is given back. Idempotent. Raises `not_found`."""
        claim = self.find(claim_id, principal)
        if claim.state is ClaimState.WAITING:
            self._cancel(claim)
            await claim.ended.wait()
        if claim.state is ClaimState.GRANTED:
            claim.state = ClaimState.CANCELLED
            for lease in claim.leases:
                await self._leases.end(lease, LeaseState.RELEASED)

    def cancel_key(self, owner: str) -> None:
        """A key has ended: its claims leave the queue."""
        for claim in list(self._claims.values()):
            if claim.owner == owner and claim.state is ClaimState.WAITING:
                self._cancel(claim)

    def find(self, claim_id: str, principal: Principal) -> QueuedClaim:
        """A claim that the caller may touch. Raises `not_found`."""
        claim = self._claims.get(claim_id)
        if claim is None or not principal.may_access(claim.owner):
            hint = "Claims that wait end with the farm, and ended ones are forgotten: repeat the POST with its id."
            raise ApiError(ErrorCode.NOT_FOUND, f"there is no claim {claim_id}", hint=hint)
        return claim

    async def wait(self, claim: QueuedClaim, wait_s: float) -> None:
        """Until it has ended, or for `wait_s`."""
        if wait_s > 0 and not claim.ended.is_set():
            try:
                await wait_for(self._clock, wait_s, claim.ended.wait())
            except TimeoutError:
                return

    def queue(self, principal: Principal) -> list[wire.ClaimView]:
        """The caller's waiting claims, in the order in which they will probably be served."""
        waiting = [claim for claim in self._claims.values() if claim.state is ClaimState.WAITING]
        views = [self.view(claim) for claim in waiting if principal.may_access(claim.owner)]
        return sorted(views, key=lambda view: (view.position is not None, view.position or 0))

    def view(self, claim: QueuedClaim, *, secrets: bool = False) -> wire.ClaimView:
        """A claim as its owner sees it; `secrets`: with the tokens of its active leases."""
        request, ticket, error = claim.request, claim.ticket, claim.error
        waiting = claim.state is ClaimState.WAITING
        position = self._pool.queue.position(ticket) if waiting and ticket is not None else None
        active = [lease for lease in claim.leases if lease.state is LeaseState.ACTIVE]
        blocked_by_quota = (
            position is not None and ticket is not None and self._pool.queue.fair_queue.blocked_by_quota(ticket)
        )
        return wire.ClaimView(
            claim_id=claim.claim_id,
            client_request_id=request.client_request_id,
            owner=claim.owner,
            state=claim.state,
            position=position,
            waiting_for=("quota" if blocked_by_quota else "desktop") if waiting else None,
            count=request.count,
            priority=request.priority,
            shape=request.shape,
            setup_key=request.setup_key,
            snapshot_id=request.snapshot_id,
            match_labels=request.match_labels,
            labels=request.labels,
            ttl_s=request.ttl_s,
            created_at=utc(claim.created_at),
            deadline_at=utc(claim.created_at + request.deadline_s),
            ended_at=None if claim.ended_at is None else utc(claim.ended_at),
            lease_ids=[lease.lease_id for lease in claim.leases],
            leases=[self._leases.reply(lease) for lease in active] if secrets else [],
            error=None if error is None else wire.ClaimFailure(error=error.code, detail=error.detail, hint=error.hint),
        )

    def require_stream_quota(self, principal: Principal) -> None:
        """Raises `quota_exceeded` when the caller has as many event streams open as it may."""
        most = self._settings.claim_streams_per_key
        if self._streams[principal.key_id] >= most:
            detail = f"this key has {most} event streams of claims open, as many as it may"
            hint = "Close one, or ask with GET /v1/claims/{claim_id}?wait_s=…"
            raise ApiError(ErrorCode.QUOTA_EXCEEDED, detail, hint=hint)

    async def events(
        self, claim: QueuedClaim, principal: Principal, after: int = 0
    ) -> AsyncIterator[ClaimEvent | None]:
        """Where a claim stands: now unless that was event `after`, whenever its position changes, and how it ends; None: nothing new for
        a while. Numbers tell a position again, so that a reader who comes back is told only what it does not know."""
        self._streams[principal.key_id] += 1
        quiet_s = 0.0
        try:
            ends_s = self._clock.monotonic() + EVENT_STREAM_TIMEOUT_S
            while claim.state is ClaimState.WAITING:
                if self._clock.monotonic() >= ends_s:
                    return
                view = self.view(claim)
                number = 2 + (view.position if view.position is not None else -1)
                if number != after:
                    after, quiet_s = number, 0.0
                    yield ("position", number, view)
                elif quiet_s >= HEARTBEAT_S:
                    quiet_s = 0.0
                    yield None
                quiet_s += self._settings.claim_event_interval_s
                await self.wait(claim, self._settings.claim_event_interval_s)
            yield (claim.state.value, 0, self.view(claim, secrets=True))
        finally:
            self._streams[principal.key_id] -= 1

    def adopt(self, lease: LeaseRecord) -> None:
        """Take over the claim of an active lease of an earlier life of this farm."""
        lease.claim_id = lease.claim_id or new_id("claim")
        claim = self._claims.get(lease.claim_id)
        first = not lease.client_request_id.startswith(f"{lease.claim_id}/")
        if claim is None:
            request = wire.ClaimRequest.model_construct(
                client_request_id=lease.client_request_id,
                shape=lease.shape,
                setup_key=lease.setup_key,
                count=lease.gang_size,
                priority=lease.priority,
                ttl_s=lease.ttl_s,
                deadline_s=0.0,
                labels=lease.labels,
            )
            claim = QueuedClaim(lease.claim_id, lease.owner, request, lease.created_at, 0.0, state=ClaimState.GRANTED)
            claim.ended_at = lease.created_at
            claim.enqueued.set()
            claim.ended.set()
            self._claims[claim.claim_id] = claim
        if first:
            claim.request = claim.request.model_copy(update={"client_request_id": lease.client_request_id})
            self._by_request[(lease.owner, lease.client_request_id)] = claim.claim_id
        claim.leases.append(lease)

    def _remember(self, claim: QueuedClaim) -> None:
        self._claims[claim.claim_id] = claim
        self._by_request[(claim.owner, claim.request.client_request_id)] = claim.claim_id
        while len(self._by_request) > REQUESTS_REMEMBERED:
            self._by_request.popitem(last=False)
        for _ in range(min(2, len(self._claims) - CLAIMS_REMEMBERED)):
            claim_id, oldest = self._claims.popitem(last=False)
            if oldest.alive:
                self._claims[claim_id] = oldest

    def _forget(self, claim: QueuedClaim) -> None:
        """The same request may try again."""
        identity = (claim.owner, claim.request.client_request_id)
        if self._by_request.get(identity) == claim.claim_id:
            del self._by_request[identity]

    async def stop(self) -> None:
        """The pool has refused who waits: until every claim has ended."""
        for claim in list(self._claims.values()):
            if claim.state is ClaimState.WAITING:
                await claim.ended.wait()


def _claim_error(claim: QueuedClaim, error: BaseException) -> ApiError:
    if isinstance(error, ApiError):
        return error
    log.error("the claim %s failed inside", claim.claim_id, exc_info=error)
    detail = f"the claim failed inside the farm ({type(error).__name__})"
    return ApiError(ErrorCode.HOST_FAULT, detail, hint="The farm's log has the trace.", status=500)
