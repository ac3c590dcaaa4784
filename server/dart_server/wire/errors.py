"""What can go wrong at the farm's border, and whose fault the end of a desktop is. Non-goals: exceptions (each side has its own)."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from dart_server.wire.base import WireModel


class ErrorCode(StrEnum):
    """Stable names of everything that can go wrong at the farm's border."""

    UNAUTHENTICATED = "unauthenticated"
    """The request has no valid API key. Send one, or ask the farm's administrator for a new one."""
    FORBIDDEN = "forbidden"
    """The key's scope or the lease token does not allow the request."""
    NOT_FOUND = "not_found"
    """There is no such thing, or it belongs to another key."""
    INVALID = "invalid"
    """The request is not valid. The detail names the field."""
    FENCED = "fenced"
    """The fencing token is old: the desktop was reset, taken over or given back meanwhile. Read the lease again."""
    LEASE_EXPIRED = "lease_expired"
    """The lease has ended. Claim again with a new client request id."""
    NO_CAPACITY = "no_capacity"
    """No desktop is free, or the host has no room for one. Repeat after `Retry-After` seconds."""
    QUOTA = "quota"
    """The quota of bytes for snapshots is used up. Delete snapshots, or raise the quota."""
    QUOTA_EXCEEDED = "quota_exceeded"
    """The key holds as many leases, claims or streams as it may. Release one first."""
    TOO_MANY_REQUESTS = "too_many_requests"
    """The key or the address sends more requests than it may. Repeat after `Retry-After` seconds."""
    CAPABILITY_MISSING = "capability_missing"
    """This provider or host cannot do it. The detail names what can."""
    IMAGE_MISSING = "image_missing"
    """The farm has no image of that name. Build it with `dart-farm images build NAME`."""
    SNAPSHOT_MISSING = "snapshot_missing"
    """There is no such snapshot: it was deleted or evicted. Prepare the state again."""
    SNAPSHOT_BROKEN = "snapshot_broken"
    """The snapshot does not restore and is quarantined. Prepare the state again."""
    DESKTOP_FAILED = "desktop_failed"
    """The desktop died. `desktop` has the cause and the owner of the fault."""
    GUEST_ERROR = "guest_error"
    """The guest agent answered with an error. The detail is its own."""
    HOST_FAULT = "host_fault"
    """The host or the farm failed. The request may be repeated."""
    DRAINING = "draining"
    """The farm takes no new claims before it stops. Use another farm, or wait."""
    DATABASE_UNAVAILABLE = "database_unavailable"
    """The farm's database is away. Repeat after `Retry-After` seconds; nothing is lost."""
    TIMED_OUT = "timed_out"
    """The request took longer than any may, and was given up."""


class FaultOwner(StrEnum):
    """Whose fault the end of a desktop is: the policy's (scores 0) or ours (the episode is truncated and masked)."""

    NONE = "none"
    POLICY = "policy"
    HOST = "host"


class DesktopHealthView(WireModel):
    """Health of a leased desktop, with the owner of a failure."""

    alive: bool
    cause: str
    fault_owner: FaultOwner
    memory_bytes: int | None = None


class ErrorBody(WireModel):
    """The one error envelope. `desktop` comes with `desktop_failed`."""

    error: ErrorCode
    detail: str
    hint: str | None = None
    request_id: str
    desktop: DesktopHealthView | None = None


class ChannelError(BaseModel):
    """Header of a binary frame that answers a failed step; `error` is an `ErrorCode` or, for `guest_error`, in `detail` the guest's."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    seq: int | None
    error: ErrorCode
    detail: str
    status: int
    desktop: DesktopHealthView | None = None
    nbytes: int = 0
