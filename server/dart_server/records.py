"""The farm's values in memory: slots, leases, snapshots, keys, pools. Rule: data and its views; behaviour is in pool, leases, snapshots.

The server process holds the truth of what lives; the database (`repository`) is written with every change and read once, at start.
`deadline_s` is on the clock's monotonic axis, every other time is seconds since 1970.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from dart_server import wire
from dart_server.clock import utc

if TYPE_CHECKING:
    from dart_server.guest.client import GuestClient

SnapshotKind = Literal["booted", "setup", "user"]
SHARED_OWNER = "farm"
"""Owner of what belongs to no tenant: the booted bases."""
BaseKey = tuple[wire.DesktopShape, str]
"""(shape, image digest): what a booted base is the base of."""


@lru_cache(maxsize=1024)
def _same(shape: wire.DesktopShape) -> wire.DesktopShape:
    """The first of all equal shapes."""
    return shape


@dataclass(frozen=True, slots=True)
class DesktopTarget:
    """What a desktop should be a copy of: exactly `snapshot_id`, else the owner's prepared state `setup_key`, else the booted base."""

    shape: wire.DesktopShape
    image_digest: str
    owner: str
    setup_key: str | None = None
    snapshot_id: str | None = None

    def __post_init__(self) -> None:
        # Wants, desktops and snapshots of equal shapes share one object: they are compared all the time, and identity is quick.
        object.__setattr__(self, "shape", _same(self.shape))

    @property
    def base_key(self) -> BaseKey:
        return (self.shape, self.image_digest)


@dataclass(frozen=True, slots=True)
class LiveDesktops:
    """What desktops exist or are being made: their bases, and the snapshots they are copies of."""

    bases: frozenset[BaseKey]
    snapshot_ids: frozenset[str]


@dataclass(slots=True)
class Slot:
    """One desktop. `busy` while it is being made, restored or removed; `unused` while nobody has used it since."""

    desktop_id: str
    shape: wire.DesktopShape
    image_digest: str
    provider: str
    created_at: float
    state: wire.DesktopState = wire.DesktopState.CREATING
    fencing_token: int = 0
    reset_id: str | None = None
    """The reset that the fencing token comes from, as its client named it; None where it comes from anything else."""
    lease_id: str | None = None
    snapshot_id: str | None = None
    setup_key: str | None = None
    unused: bool = False
    called: bool = True
    """Somebody called into it since it was last made or restored. What breaks before that is no fault of the policy."""
    busy: bool = True
    warming: bool = False
    """It is being prepared for nobody in particular."""
    target: DesktopTarget | None = None
    """What it is being prepared to be, while `warming`."""
    frozen: bool = False
    """It stands still until somebody wants it."""
    declared_clock_s: float | None = None
    """The time of day that its task has declared, as it was when the copy came up; None when it follows the real time."""
    note: str | None = None
    """Why it is kept from use."""
    exists: bool = False
    """The provider may hold something under this id."""
    has_row: bool = False
    """The database has a row of it."""
    guest: GuestClient | None = None
    failure: wire.DesktopHealthView | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def grow_fencing_token(self, reset_id: str | None = None) -> None:
        """Refuse every call with an earlier fencing token. `reset_id`: the reset that does so, as its client named it."""
        self.fencing_token += 1
        self.reset_id = reset_id

    def view(self) -> wire.DesktopView:
        return wire.DesktopView(
            desktop_id=self.desktop_id,
            state=self.state,
            provider=self.provider,
            shape=self.shape,
            fencing_token=self.fencing_token,
            lease_id=self.lease_id,
            setup_key=self.setup_key,
            created_at=utc(self.created_at),
            snapshot_id=self.snapshot_id,
            frozen=self.frozen,
            note=self.note,
        )


@dataclass(slots=True)
class LeaseRecord:
    """One claim. `slot` is None once it has ended."""

    lease_id: str
    owner: str
    client_request_id: str
    token_sha256: str
    shape: wire.DesktopShape
    image_digest: str
    setup_key: str | None
    ttl_s: float
    created_at: float
    expires_at: float
    deadline_s: float
    labels: dict[str, str]
    slot: Slot | None
    desktop_id: str | None
    fencing_token: int
    state: wire.LeaseState = wire.LeaseState.ACTIVE
    claim_id: str | None = None
    """Shared by the leases that one claim was granted together."""
    priority: int = 0
    gang_size: int = 1

    def view(self) -> wire.LeaseView:
        return wire.LeaseView(
            lease_id=self.lease_id,
            state=self.state,
            desktop_id=self.desktop_id,
            fencing_token=self.slot.fencing_token if self.slot else self.fencing_token,
            owner=self.owner,
            shape=self.shape,
            setup_key=self.slot.setup_key if self.slot else self.setup_key,
            created_at=utc(self.created_at),
            expires_at=utc(self.expires_at),
            labels=self.labels,
            claim_id=self.claim_id,
            priority=self.priority,
            gang_size=self.gang_size,
            reset_id=self.slot.reset_id if self.slot else None,
        )


@dataclass(slots=True)
class SnapshotRecord:
    """One live snapshot, ready or quarantined. `pins` counts the restores that read it now; `delete_pending`: deleted when they end."""

    snapshot_id: str
    kind: SnapshotKind
    name: str | None
    owner: str
    setup_key: str | None
    shape: wire.DesktopShape
    image_digest: str
    parent: str | None
    bytes: int
    created_at: float
    last_used_at: float
    description: str | None = None
    files_bytes: int = 0
    processes: int | None = None
    pause_s: float | None = None
    state: wire.SnapshotState = wire.SnapshotState.READY
    reason: str | None = None
    quarantine_path: str | None = None
    pins: int = 0
    delete_pending: bool = False

    def view(self, lineage: list[str]) -> wire.SnapshotView:
        """As clients see it; `lineage`: ids of what it stands on, nearest first."""
        return wire.SnapshotView(
            snapshot_id=self.snapshot_id,
            kind=self.kind,
            name=self.name,
            setup_key=self.setup_key,
            owner=self.owner,
            shape=self.shape,
            bytes=self.bytes,
            parent=self.parent,
            created_at=utc(self.created_at),
            last_used_at=utc(self.last_used_at),
            state=self.state,
            description=self.description,
            image_digest=self.image_digest,
            lineage=lineage,
            memory_bytes=self.bytes - self.files_bytes,
            files_bytes=self.files_bytes,
            processes=self.processes,
            pause_ms=None if self.pause_s is None else round(self.pause_s * 1000, 1),
            reason=self.reason,
            quarantine_path=self.quarantine_path,
        )


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One bearer key, without its secret.

    A quota of None is no quota; `weight` is its share when many wait, `max_priority` the highest that its claims may have.
    """

    key_id: str
    name: str
    scope: str
    created_at: float
    revoked_at: float | None = None
    expires_at: float | None = None
    max_leases: int | None = None
    max_waiting: int | None = None
    weight: float = 1.0
    max_priority: int = 0
    last_used_at: float | None = None


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """One pool: `spec` is `wire.PoolSpec` as JSON."""

    name: str
    spec: dict[str, Any]
    created_at: float
    updated_at: float
