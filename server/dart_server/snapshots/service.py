"""Live snapshots: making, finding, evicting.

Rule: the bytes of all snapshots stay under the quota. What is evicted first: prepared states and bases that no desktop is made from now,
longest unused first, then snapshots that a user took; never one that a restore reads at this moment, never the base of a living shape.
A snapshot that does not restore is quarantined: forgotten, removed, and told of in the events.
Non-goals: who may build a prepared state (`setups`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dart_server import wire
from dart_server.clock import Clock
from dart_server.errors import FarmError, from_provider
from dart_server.guest.client import GuestBusy
from dart_server.ids import new_id
from dart_server.providers.base import Provider, ProviderError
from dart_server.records import SHARED, Slot, SnapshotKind, SnapshotRecord
from dart_server.repository import Repository

BaseOf = tuple[wire.DesktopShape, str]
"""(shape, image digest): what a booted base is the base of."""


@dataclass(frozen=True, slots=True)
class Want:
    """What a desktop should be a copy of: exactly `snapshot_id`, else the owner's prepared state `setup_key`, else the booted base."""

    shape: wire.DesktopShape
    image_digest: str
    owner: str
    setup_key: str | None = None
    snapshot_id: str | None = None

    @property
    def base_of(self) -> BaseOf:
        return (self.shape, self.image_digest)


class Snapshots:
    """Every snapshot of this farm. `living` tells which bases have desktops now."""

    def __init__(
        self,
        provider: Provider,
        repository: Repository,
        clock: Clock,
        quota_bytes: int,
        living: Callable[[], set[BaseOf]],
    ) -> None:
        self._provider = provider
        self._repository = repository
        self._clock = clock
        self._living = living
        self.quota_bytes = quota_bytes
        self._records: dict[str, SnapshotRecord] = {}
        self._reserved_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def used_bytes(self) -> int:
        return sum(record.bytes for record in self._records.values())

    def all(self) -> list[SnapshotRecord]:
        return sorted(self._records.values(), key=lambda record: record.snapshot_id)

    def get(self, snapshot_id: str) -> SnapshotRecord | None:
        return self._records.get(snapshot_id)

    def adopt(self, records: list[SnapshotRecord]) -> None:
        """Take over what an earlier life of this farm left and the provider still has."""
        self._records.update({record.snapshot_id: record for record in records})

    def find_setup(self, owner: str, key: str) -> SnapshotRecord | None:
        """The prepared state of `key`: the owner's own, else a shared one."""
        found = [
            r for r in self._records.values() if r.kind == "setup" and r.setup_key == key and r.owner in (owner, SHARED)
        ]
        return max(found, key=lambda record: (record.owner == owner, record.created_at), default=None)

    def deepest(self, want: Want) -> SnapshotRecord | None:
        """The deepest snapshot that exists on the way to what is wanted; None when not even the base does."""
        if want.snapshot_id is not None:
            return self.require(want)
        if want.setup_key is not None:
            setup = self.find_setup(want.owner, want.setup_key)
            if setup is not None:
                return _fitting(setup, want)
        for record in self._records.values():
            if record.kind == "booted" and (record.shape, record.image_digest) == want.base_of:
                return record
        return None

    def require(self, want: Want) -> SnapshotRecord:
        """The snapshot that was asked for by id, if it is there, is the owner's, and fits. Raises `FarmError`."""
        record = self._records.get(want.snapshot_id or "")
        if record is None or record.owner not in (want.owner, SHARED):
            hint = "It was deleted or evicted; take it again, or raise DART_SNAPSHOT_QUOTA_BYTES."
            raise FarmError(wire.ErrorCode.SNAPSHOT_MISSING, f"there is no snapshot {want.snapshot_id}", hint=hint)
        return _fitting(record, want)

    @contextmanager
    def reading(self, record: SnapshotRecord) -> Iterator[None]:
        """Protects a snapshot from eviction while it is restored from."""
        record.pins += 1
        record.last_used_at = self._clock.time()
        try:
            yield
        finally:
            record.pins -= 1

    async def take(
        self, slot: Slot, kind: SnapshotKind, owner: str, *, setup_key: str | None = None, name: str | None = None
    ) -> SnapshotRecord:
        """Snapshot a desktop that runs on. Every connection into it is closed first. Raises `FarmError`."""
        now = self._clock.time()
        record = SnapshotRecord(
            snapshot_id=new_id("snap"),
            kind=kind,
            name=name,
            owner=owner,
            setup_key=setup_key,
            shape=slot.shape,
            image_digest=slot.image_digest,
            parent=slot.snapshot_id,
            bytes=0,
            created_at=now,
            last_used_at=now,
        )
        expected = self._expected_bytes(slot)
        self._reserved_bytes += expected
        try:
            await self._make_room(required=kind != "booted")
            await self._repository.add_snapshot(record)
            record.bytes = await self._write(slot, record.snapshot_id)
        finally:
            self._reserved_bytes -= expected
        self._records[record.snapshot_id] = record
        record.pins += 1
        try:
            await self._repository.finish_snapshot(record, slot.desktop_id)
            await self._make_room(required=False)
        finally:
            record.pins -= 1
        return record

    async def _write(self, slot: Slot, snapshot_id: str) -> int:
        try:
            if slot.guest is None:
                return (await self._provider.snapshot(slot.desktop_id, snapshot_id)).bytes
            async with slot.guest.quiet():
                return (await self._provider.snapshot(slot.desktop_id, snapshot_id)).bytes
        except GuestBusy as error:
            self._repository.end_snapshot(snapshot_id, "deleted", str(error))
            hint = "Take the snapshot when no call runs."
            raise FarmError(wire.ErrorCode.GUEST_ERROR, str(error), status=409, hint=hint) from error
        except ProviderError as error:
            await self._provider.delete_snapshot(snapshot_id)
            self._repository.end_snapshot(snapshot_id, "deleted", str(error))
            raise from_provider(error) from error

    def _expected_bytes(self, slot: Slot) -> int:
        parent = self._records.get(slot.snapshot_id or "")
        return parent.bytes if parent else 0

    async def _make_room(self, *, required: bool) -> None:
        while self.used_bytes + self._reserved_bytes > self.quota_bytes:
            victim = self._victim()
            if victim is None:
                if required:
                    hint = "Delete snapshots, or raise DART_SNAPSHOT_QUOTA_BYTES."
                    detail = f"the snapshot quota of {self.quota_bytes} bytes is used up by snapshots that are in use"
                    raise FarmError(wire.ErrorCode.QUOTA, detail, hint=hint)
                return
            await self._drop(victim, "deleted", "evicted: quota")

    def _victim(self) -> SnapshotRecord | None:
        living = self._living()
        candidates = [
            record
            for record in self._records.values()
            if record.pins == 0 and not (record.kind == "booted" and (record.shape, record.image_digest) in living)
        ]
        return min(candidates, key=lambda record: (record.kind == "user", record.last_used_at), default=None)

    async def delete(self, record: SnapshotRecord) -> None:
        await self._drop(record, "deleted", "asked for")

    async def quarantine(self, record: SnapshotRecord, reason: str) -> None:
        """Forget a snapshot that does not restore."""
        if record.snapshot_id in self._records:
            await self._drop(record, "quarantined", reason)

    async def _drop(self, record: SnapshotRecord, state: str, reason: str) -> None:
        self._records.pop(record.snapshot_id, None)
        self._repository.end_snapshot(record.snapshot_id, state, reason)
        try:
            await self._provider.delete_snapshot(record.snapshot_id)
        except ProviderError as error:
            raise from_provider(error) from error

    async def delete_all(self) -> None:
        for record in self.all():
            await self._drop(record, "deleted", "the farm stops")


def _fitting(record: SnapshotRecord, want: Want) -> SnapshotRecord:
    if (record.shape, record.image_digest) != want.base_of:
        detail = f"snapshot {record.snapshot_id} is of another shape or image than the desktop"
        raise FarmError(wire.ErrorCode.INVALID, detail, hint=f"Lease the shape {record.shape.model_dump_json()}.")
    return record
