"""The named pools: what their owners want ready, kept in the database, and how far refilling may go now.

Rule: a specification is checked when it is put; what it leads to (the image's digest, a snapshot that is gone) is looked at again with
every `refresh`, and a pool that leads nowhere says why instead of failing. Non-goals: making copies (`pool.standby`), who may put one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dart_server import wire
from dart_server.database.repository import Repository
from dart_server.errors import ApiError, from_provider_error
from dart_server.providers.base import Provider, ProviderError
from dart_server.records import DesktopTarget, PoolRecord
from dart_server.wire import Clock, ErrorCode


@dataclass(slots=True)
class NamedPool:
    """One pool. `target` is None while its image is missing, for `reason`. `tokens`: copies that may be begun now."""

    record: PoolRecord
    spec: wire.PoolSpec
    owner: str
    target: DesktopTarget | None = None
    reason: str | None = None
    tokens: float = 1.0
    tokens_at_s: float = 0.0
    hits: int = 0
    misses: int = 0


class NamedPools:
    """All named pools of one farm."""

    def __init__(self, provider: Provider, repository: Repository, clock: Clock) -> None:
        self._provider = provider
        self._repository = repository
        self._clock = clock
        self._named: dict[str, NamedPool] = {}

    async def load(self) -> None:
        """Take over what the database has."""
        for record in await self._repository.pools():
            spec = wire.PoolSpec.model_validate(record.spec["spec"])
            self._named[record.name] = self._entry(record, spec, str(record.spec["owner"]))
        await self.refresh()

    def _entry(self, record: PoolRecord, spec: wire.PoolSpec, owner: str) -> NamedPool:
        return NamedPool(record, spec, owner, tokens_at_s=self._clock.monotonic())

    def all(self) -> list[NamedPool]:
        """By name."""
        return [self._named[name] for name in sorted(self._named)]

    def get(self, name: str) -> NamedPool:
        """Raises `not_found`."""
        if name not in self._named:
            raise ApiError(ErrorCode.NOT_FOUND, f"there is no pool {name}", hint="GET /v1/pools lists them.")
        return self._named[name]

    def matching(self, labels: Mapping[str, str]) -> NamedPool | None:
        """The pool with all of these labels, the first by name when there are several; None when there is none."""
        found = (pool for pool in self.all() if labels.items() <= pool.spec.labels.items())
        return next(found, None) if labels else None

    async def put(self, name: str, spec: wire.PoolSpec, owner: str) -> NamedPool:
        """Write a pool; one of the same name is changed, and stays its owner's. Raises `image_missing`, `invalid`."""
        if name == wire.DEFAULT_POOL:
            hint = "DART_WARM_DESKTOPS and DART_STANDBY_DESKTOPS say how large it is; choose another name."
            raise ApiError(ErrorCode.INVALID, "the default pool is managed by the farm", hint=hint)
        known = self._named.get(name)
        owner = known.owner if known else owner
        try:
            await self._provider.image_digest(spec.shape.image)
        except ProviderError as error:
            raise from_provider_error(error) from error
        now = self._clock.time()
        written = {"spec": spec.model_dump(mode="json"), "owner": owner}
        record = PoolRecord(
            name=name, spec=written, created_at=known.record.created_at if known else now, updated_at=now
        )
        await self._repository.wait_committed(self._repository.put_pool(record))
        entry = self._entry(record, spec, owner)
        if known is not None:
            entry.hits, entry.misses = known.hits, known.misses
        self._named[name] = entry
        await self._resolve(entry)
        return entry

    async def delete(self, name: str) -> None:
        """Forget a pool; what it had ready goes, leases go on. Raises `not_found`."""
        self.get(name)
        await self._repository.wait_committed(self._repository.delete_pool(name))
        self._named.pop(name, None)

    async def refresh(self) -> None:
        """Look again at what the pools lead to: an image may have been built anew."""
        for entry in self.all():
            await self._resolve(entry)

    async def _resolve(self, entry: NamedPool) -> None:
        spec = entry.spec
        try:
            digest = await self._provider.image_digest(spec.shape.image)
        except ProviderError as error:
            entry.target, entry.reason = None, str(error)
            return
        entry.target = DesktopTarget(spec.shape, digest, entry.owner, spec.setup_key, spec.snapshot_id)
        entry.reason = None

    def available_tokens(self, entry: NamedPool) -> int | None:
        """How many copies the pool may begin now by its own rate; None: any number."""
        rate = entry.spec.refill_per_minute
        if rate is None:
            return None
        now_s = self._clock.monotonic()
        entry.tokens = min(max(1.0, rate / 60.0), entry.tokens + (now_s - entry.tokens_at_s) * rate / 60.0)
        entry.tokens_at_s = now_s
        return int(entry.tokens)

    def consume_token(self, entry: NamedPool) -> None:
        """One copy more was begun."""
        if entry.spec.refill_per_minute is not None:
            entry.tokens -= 1.0
