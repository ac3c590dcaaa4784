"""Live snapshots: making, naming, finding, evicting, setting aside.

Rule: the bytes of all snapshots, and of the layers that outlive one because something stands on them, stay under the quota. Of whom is
evicted first: who holds most, and nobody for another who holds more. Of that one's: prepared states and bases that no desktop is made
from now, longest unused first, then snapshots that a user took; never one that a restore reads now, never the base of a living shape.
One that does not restore is quarantined: never offered again, its files kept aside in a room of their own, the latest ones, and told of
in the events.
Non-goals: who may build a prepared state (`setups`), what a desktop is rebuilt from (`pool.prepare` asks `fallback_target`).
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace

from dart_server import wire
from dart_server.database.repository import Repository
from dart_server.errors import ApiError, DatabaseUnavailableError, from_provider_error
from dart_server.guest.client import GuestBusy
from dart_server.ids import new_id
from dart_server.providers.base import Provider, ProviderError, SnapshotInfo, SupportsQuarantine
from dart_server.records import SHARED_OWNER, DesktopTarget, LiveDesktops, Slot, SnapshotKind, SnapshotRecord
from dart_server.snapshots.ancestry import Ancestry
from dart_server.wire import Clock

MAX_RESOLVED = 4096
"""Targets whose snapshot is remembered."""
SHARED_BASE_IDLE_S = 86_400.0
"""Bases that nobody used for this long make way for anybody's snapshots."""


class Snapshots:
    """Every snapshot of this farm. `live_desktops` tells what desktops there are now."""

    def __init__(
        self,
        provider: Provider,
        repository: Repository,
        clock: Clock,
        *,
        quota_bytes: int,
        quarantine_bytes: int,
        live_desktops: Callable[[], LiveDesktops],
    ) -> None:
        self._provider = provider
        self._repository = repository
        self._clock = clock
        self._live_desktops = live_desktops
        self.quota_bytes = quota_bytes
        self._quarantine_bytes = quarantine_bytes
        self._records: dict[str, SnapshotRecord] = {}
        self._resolved: dict[DesktopTarget, SnapshotRecord | None] = {}
        """The deepest snapshot of each target that was asked for since the last change of what there is."""
        self._quarantined: dict[str, SnapshotRecord] = {}
        self._ancestry = Ancestry()
        self._names_taken: set[tuple[str, str]] = set()
        """(owner, name) of snapshots that are being made."""
        self._reserved_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def used_bytes(self) -> int:
        own = sum(record.bytes for record in self._records.values())
        return own + self._ancestry.held_bytes(self._standing(), {*self._records, *self._quarantined})

    @property
    def quarantined_bytes(self) -> int:
        return sum(record.bytes for record in self._quarantined.values())

    def _standing(self) -> set[str]:
        """Whatever layers of files are kept for."""
        return {*self._records, *self._quarantined, *self._live_desktops().snapshot_ids}

    def all(self) -> list[SnapshotRecord]:
        return sorted(self._records.values(), key=lambda record: record.snapshot_id)

    def quarantined(self) -> list[SnapshotRecord]:
        return list(self._quarantined.values())

    def find(self, name: str, owner: str) -> SnapshotRecord | None:
        """A ready or quarantined snapshot by its id, or one of the owner's ready ones by its name."""
        record = self._records.get(name) or self._quarantined.get(name)
        if record is not None:
            return record
        return next((r for r in self._records.values() if r.name == name and r.owner == owner), None)

    def get(self, snapshot_id: str) -> SnapshotRecord | None:
        """A snapshot that can be restored, by its id."""
        return self._records.get(snapshot_id)

    def view(self, record: SnapshotRecord) -> wire.SnapshotView:
        return record.view(self._ancestry.lineage(record.parent))

    async def adopt(self, records: list[SnapshotRecord], used_by_desktops: set[str]) -> None:
        """Take over what an earlier life of this farm left and the provider still has."""
        for record in records:
            kept = self._records if record.state is wire.SnapshotState.READY else self._quarantined
            kept[record.snapshot_id] = record
            self._resolved.clear()
        self._ancestry.load(
            await self._repository.snapshot_ancestry({record.snapshot_id for record in records} | used_by_desktops)
        )

    def find_setup(self, owner: str, key: str, without: Collection[str] = ()) -> SnapshotRecord | None:
        """The prepared state of `key`: the owner's own, else a shared one."""
        found = [
            record
            for record in self._records.values()
            if record.kind == "setup"
            and record.setup_key == key
            and record.owner in (owner, SHARED_OWNER)
            and record.snapshot_id not in without
        ]
        return max(found, key=lambda record: (record.owner == owner, record.created_at), default=None)

    def deepest_snapshot(self, target: DesktopTarget, without: Collection[str] = ()) -> SnapshotRecord | None:
        """Return the deepest snapshot that exists on the way to a target; None when not even the base does.

        A target is resolved once; the answer is kept until a snapshot is added, removed or quarantined.

        Args:
            target: What a desktop should be a copy of.
            without: Ids of snapshots that were tried and failed.

        Raises:
            ApiError: The snapshot that the target names is missing, quarantined, or of another shape.
        """
        if without:
            return self._resolve(target, without)
        if target not in self._resolved:
            if len(self._resolved) >= MAX_RESOLVED:
                self._resolved.clear()
            self._resolved[target] = self._resolve(target, ())
        return self._resolved[target]

    def _resolve(self, target: DesktopTarget, without: Collection[str]) -> SnapshotRecord | None:
        if target.snapshot_id is not None:
            return self.require(target)
        if target.setup_key is not None:
            setup = self.find_setup(target.owner, target.setup_key, without)
            if setup is not None:
                return _fitting(setup, target)
        for record in self._records.values():
            is_base = record.kind == "booted" and (record.shape, record.image_digest) == target.base_key
            if is_base and record.snapshot_id not in without:
                return record
        return None

    def require(self, target: DesktopTarget) -> SnapshotRecord:
        """The snapshot that was asked for by id or name, if it is there, is the owner's, and fits. Raises `ApiError`."""
        wanted = target.snapshot_id or ""
        record = self.find(wanted, target.owner)
        if record is None or record.owner not in (target.owner, SHARED_OWNER):
            hint = "It was deleted or evicted; take it again, or raise DART_SNAPSHOT_QUOTA_BYTES."
            raise ApiError(wire.ErrorCode.SNAPSHOT_MISSING, f"there is no snapshot {wanted}", hint=hint)
        if record.state is wire.SnapshotState.QUARANTINED:
            hint = "It is kept for inspection only; take it again."
            detail = f"snapshot {record.snapshot_id} did not restore: {record.reason}"
            raise ApiError(wire.ErrorCode.SNAPSHOT_BROKEN, detail, hint=hint)
        return _fitting(record, target)

    def fallback_target(self, record: SnapshotRecord, target: DesktopTarget, without: Collection[str]) -> DesktopTarget:
        """What to make instead of a snapshot that did not restore: a copy of its deepest ancestor that is left, else of the base."""
        for parent in self._ancestry.lineage(record.parent):
            if parent in self._records and parent not in without:
                return replace(target, setup_key=None, snapshot_id=parent)
        return replace(target, setup_key=None, snapshot_id=None)

    @asynccontextmanager
    async def pinned(self, record: SnapshotRecord) -> AsyncIterator[None]:
        """Protects a snapshot from removal while it is restored from."""
        record.pins += 1
        record.last_used_at = self._clock.time()
        try:
            yield
        finally:
            record.pins -= 1
            if record.delete_pending and record.pins == 0:
                await self._drop(record, "asked for")

    async def take(
        self,
        slot: Slot,
        kind: SnapshotKind,
        owner: str,
        *,
        setup_key: str | None = None,
        name: str | None = None,
        description: str | None = None,
    ) -> SnapshotRecord:
        """Snapshot a desktop that runs on. Every connection into it is closed first. Raises `ApiError`."""
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
            description=description,
        )
        with self._named(owner, name):
            await self._save(slot, record)
        async with self.pinned(record):
            receipt = self._repository.finish_snapshot(record, slot)
            with suppress(DatabaseUnavailableError):  # it is there, and is written down later
                await self._repository.wait_committed(receipt)
            await self._make_room(owner, required=False)
        return record

    @contextmanager
    def _named(self, owner: str, name: str | None) -> Iterator[None]:
        """Keeps a name for the snapshot that is being made. Raises `ApiError` when another one has it."""
        if name is None:
            yield
            return
        other = self.find(name, owner)
        if other is not None or (owner, name) in self._names_taken:
            taken = other.snapshot_id if other else "one that is being made"
            hint = "Delete that one, or choose another name."
            raise ApiError(wire.ErrorCode.INVALID, f"the name {name!r} belongs to {taken}", status=409, hint=hint)
        self._names_taken.add((owner, name))
        try:
            yield
        finally:
            self._names_taken.discard((owner, name))

    async def _save(self, slot: Slot, record: SnapshotRecord) -> None:
        expected = self._expected_bytes(slot)
        self._reserved_bytes += expected
        try:
            await self._make_room(record.owner, expected, required=record.kind != "booted")
            await self._repository.wait_committed(self._repository.add_snapshot(record))
            saved = await self._write(slot, record.snapshot_id)
        finally:
            self._reserved_bytes -= expected
        record.bytes, record.files_bytes = saved.bytes, saved.files_bytes
        record.pause_s, record.processes = saved.pause_s, saved.processes
        self._records[record.snapshot_id] = record
        self._resolved.clear()
        self._ancestry.add(record.snapshot_id, record.parent, record.files_bytes)

    async def _write(self, slot: Slot, snapshot_id: str) -> SnapshotInfo:
        try:
            if slot.guest is None:
                return await self._provider.snapshot(slot.desktop_id, snapshot_id)
            async with slot.guest.quiesce():
                return await self._provider.snapshot(slot.desktop_id, snapshot_id)
        except GuestBusy as error:
            self._repository.end_snapshot(snapshot_id, "deleted", str(error))
            hint = "Take the snapshot when no call runs."
            raise ApiError(wire.ErrorCode.GUEST_ERROR, str(error), status=409, hint=hint) from error
        except ProviderError as error:
            await self._provider.delete_snapshot(snapshot_id)
            self._repository.end_snapshot(snapshot_id, "deleted", str(error))
            raise from_provider_error(error) from error
        except BaseException as error:  # interrupted, too, half a snapshot is neither kept nor counted; raised again
            await asyncio.shield(self._provider.delete_snapshot(snapshot_id))
            self._repository.end_snapshot(snapshot_id, "deleted", type(error).__name__)
            raise

    def _expected_bytes(self, slot: Slot) -> int:
        parent = self._records.get(slot.snapshot_id or "")
        return parent.bytes if parent else 0

    async def _make_room(self, owner: str, coming_bytes: int = 0, *, required: bool) -> None:
        while self.used_bytes + self._reserved_bytes > self.quota_bytes:
            victim = self._victim(owner, coming_bytes)
            if victim is None:
                if required:
                    hint = "Delete snapshots of yours, or raise DART_SNAPSHOT_QUOTA_BYTES."
                    detail = (
                        f"the snapshot quota of {self.quota_bytes} bytes is used up by snapshots that are in use or whose "
                        "owners hold less than you"
                    )
                    raise ApiError(wire.ErrorCode.QUOTA, detail, hint=hint)
                return
            await self._drop(victim, "evicted: quota")

    def _victim(self, owner: str, coming_bytes: int) -> SnapshotRecord | None:
        """What makes way for a snapshot of this owner: of who holds most, the longest unused one, prepared states first.

        Nobody loses one to another who holds more, the farm no base that was used lately; its own bases find room everywhere.
        """
        living, lately = self._live_desktops().bases, self._clock.time() - SHARED_BASE_IDLE_S
        held = Counter({owner: coming_bytes})
        for record in self._records.values():
            held[record.owner] += record.bytes

        def weight(record: SnapshotRecord) -> float:
            return math.inf if record.owner == SHARED_OWNER and record.last_used_at < lately else held[record.owner]

        candidates = [
            record
            for record in self._records.values()
            if record.pins == 0
            and not (record.kind == "booted" and (record.shape, record.image_digest) in living)
            and (owner in (record.owner, SHARED_OWNER) or weight(record) > held[owner])
        ]
        return min(candidates, key=lambda one: (-weight(one), one.kind == "user", one.last_used_at), default=None)

    async def delete(self, record: SnapshotRecord) -> None:
        """Remove a ready or a quarantined snapshot: nobody finds it any more, and its files go when the last restore from it has ended."""
        if record.pins == 0:
            await self._drop(record, "asked for")
            return
        record.delete_pending = True
        self._records.pop(record.snapshot_id, None)
        self._resolved.clear()

    async def quarantine(self, record: SnapshotRecord, reason: str) -> None:
        """Set a snapshot that does not restore aside, as far as there is room."""
        self._resolved.clear()
        if self._records.pop(record.snapshot_id, None) is None:
            return
        record.state, record.reason = wire.SnapshotState.QUARANTINED, reason
        try:
            if isinstance(self._provider, SupportsQuarantine) and await self._room_in_quarantine(record):
                record.quarantine_path = await self._provider.quarantine(record.snapshot_id)
            if record.quarantine_path is None:
                await self._provider.delete_snapshot(record.snapshot_id)
        except ProviderError as error:
            raise from_provider_error(error) from error
        finally:
            if record.quarantine_path is not None:
                self._quarantined[record.snapshot_id] = record
                self._resolved.clear()
            self._repository.end_snapshot(record.snapshot_id, "quarantined", reason, record.quarantine_path)

    async def _room_in_quarantine(self, record: SnapshotRecord) -> bool:
        """Whether it may be kept, after older ones made way."""
        if record.bytes > self._quarantine_bytes:
            return False
        while self.quarantined_bytes + record.bytes > self._quarantine_bytes:
            await self._drop(next(iter(self._quarantined.values())), "the quarantine is full")
        return True

    async def _drop(self, record: SnapshotRecord, reason: str) -> None:
        self._records.pop(record.snapshot_id, None)
        self._resolved.clear()
        self._quarantined.pop(record.snapshot_id, None)
        self._repository.end_snapshot(record.snapshot_id, "deleted", reason)
        self._ancestry.prune(self._standing())
        try:
            await self._provider.delete_snapshot(record.snapshot_id)
        except ProviderError as error:
            raise from_provider_error(error) from error

    async def delete_all(self) -> None:
        for record in (*self.all(), *self.quarantined()):
            await self._drop(record, "the farm stops")


def _fitting(record: SnapshotRecord, target: DesktopTarget) -> SnapshotRecord:
    if (record.shape, record.image_digest) != target.base_key:
        detail = f"snapshot {record.snapshot_id} is of another shape or image than the desktop"
        raise ApiError(wire.ErrorCode.INVALID, detail, hint=f"Lease the shape {record.shape.model_dump_json()}.")
    return record


def restore_failed_error(snapshot_id: str | None, instead: str | None) -> ApiError:
    """What a claim of exactly that snapshot is told; `instead`: what came up."""
    hint = f"Claim {instead}, which it stands on, or take it again." if instead else "Take it again."
    detail = f"the snapshot {snapshot_id} did not restore and is quarantined"
    return ApiError(wire.ErrorCode.SNAPSHOT_BROKEN, detail, hint=hint)
