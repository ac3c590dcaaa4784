"""What a farm keeps and tells of itself: snapshots, setups, desktops, history, numbers. Non-goals: leases."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from dart_server.wire.base import DesktopShape, Number, SetupKey, SnapshotName, WireModel


class SnapshotRequest(WireModel):
    """Take a live snapshot. With `publish_key` it becomes the shared prepared state of that setup (one builder per key).

    A `name` that another snapshot of the tenant has is refused.
    """

    name: SnapshotName | None = None
    description: str | None = Field(default=None, max_length=500, description="what it holds, for people")
    publish_key: SetupKey | None = None
    grant: str | None = Field(
        default=None, description="the builder's grant from /v1/setups/acquire, needed to publish"
    )


class SnapshotState(StrEnum):
    """READY can be restored. QUARANTINED did not restore: it is kept aside for inspection and never offered again."""

    READY = "ready"
    QUARANTINED = "quarantined"


class SnapshotView(WireModel):
    """A stored snapshot: what it holds and where it comes from.

    `parent` is the snapshot that its desktop was restored from, None for one that was booted from the image; `lineage` goes on from there,
    nearest first, snapshots that are gone by now included. `bytes` = `memory_bytes` (processes) + `files_bytes` (what was written to the
    file system since the parent; that layer is shared, read-only, by all copies). `pause_ms`: how long the desktop stood still while it was
    taken. `reason` and `quarantine_path` tell of a quarantined one why, and where a person finds its files.
    """

    snapshot_id: str
    kind: Literal["booted", "setup", "user"]
    name: str | None
    setup_key: SetupKey | None
    owner: str
    shape: DesktopShape
    bytes: int
    parent: str | None
    created_at: datetime
    last_used_at: datetime
    state: SnapshotState = SnapshotState.READY
    description: str | None = None
    image_digest: str = ""
    lineage: list[str] = Field(default_factory=list)
    memory_bytes: int = 0
    files_bytes: int = 0
    processes: int | None = None
    pause_ms: float | None = None
    reason: str | None = None
    quarantine_path: str | None = None


class SetupAcquireRequest(WireModel):
    """Ask whether the prepared state exists; if not, become its builder or wait for the one who is."""

    key: SetupKey
    lease_id: str
    wait_s: Number = Field(default=120.0, ge=0, le=600)


class SetupGrant(WireModel):
    """`ready`: reset to the key. `build`: you are the builder, publish with `grant`. `busy`: still being built by another."""

    state: Literal["ready", "build", "busy"]
    grant: str | None = None


class SetupAbandonRequest(WireModel):
    """The builder gives up, with the reason."""

    key: SetupKey
    grant: str
    reason: str = Field(max_length=500)


class DesktopState(StrEnum):
    """Life of a desktop slot. STANDBY: ready and frozen until it is wanted. QUARANTINED: kept from use, for a person to look at."""

    CREATING = "creating"
    READY = "ready"
    STANDBY = "standby"
    LEASED = "leased"
    RESETTING = "resetting"
    BROKEN = "broken"
    QUARANTINED = "quarantined"
    GONE = "gone"


class DesktopView(WireModel):
    """A desktop as the farm sees it. `frozen`: its processes stand still. `note`: why it is kept from use."""

    desktop_id: str
    state: DesktopState
    provider: str
    shape: DesktopShape
    fencing_token: int
    lease_id: str | None
    setup_key: SetupKey | None
    created_at: datetime
    snapshot_id: str | None = None
    frozen: bool = False
    note: str | None = None


class Event(WireModel):
    """One line of the append-only history."""

    id: int
    at: datetime
    kind: str
    desktop_id: str | None = None
    lease_id: str | None = None
    fencing_token: int | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class QuarantineRequest(WireModel):
    """Keep a desktop from use."""

    reason: str | None = Field(default=None, max_length=500, description="why, for people")


class HostView(WireModel):
    """What the farm's host has left.

    `disk_free_bytes`: room in the snapshot directory, taken from memory where `files_on_tmpfs`. `cpu_pressure`: percent of the last
    ten seconds in which something waited for a processor; null where the kernel does not tell.
    """

    memory_available_bytes: int
    memory_total_bytes: int
    disk_free_bytes: int
    files_on_tmpfs: bool
    load: float
    processors: int
    cpu_pressure: float | None


class FarmView(WireModel):
    """The farm in numbers.

    `draining`: no new leases. `capacity_limit_reason`: why the host bears no desktop more now, null while it does. `in_backoff`: what
    is not made ahead of need because it failed, and why. `host` is null where desktops take nothing of it.
    """

    version: str
    provider: str
    capabilities: dict[str, bool]
    max_desktops: int
    desktops: dict[str, int]
    leases_active: int
    snapshots: int
    snapshot_bytes: int
    snapshot_quota_bytes: int
    quarantined_bytes: int = 0
    draining: bool = False
    capacity_limit_reason: str | None = None
    in_backoff: list[str] = Field(default_factory=list)
    host: HostView | None = None
