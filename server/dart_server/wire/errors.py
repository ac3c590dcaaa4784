"""What can go wrong at the farm's border, and whose fault the end of a desktop is. Non-goals: exceptions (each side has its own)."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from dart_server.wire.base import WireModel


class ErrorCode(StrEnum):
    """Stable names of everything that can go wrong at the farm's border."""

    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    INVALID = "invalid"
    FENCED = "fenced"
    LEASE_EXPIRED = "lease_expired"
    NO_CAPACITY = "no_capacity"
    QUOTA = "quota"
    QUOTA_EXCEEDED = "quota_exceeded"
    TOO_MANY_REQUESTS = "too_many_requests"
    CAPABILITY_MISSING = "capability_missing"
    IMAGE_MISSING = "image_missing"
    SNAPSHOT_MISSING = "snapshot_missing"
    SNAPSHOT_BROKEN = "snapshot_broken"
    DESKTOP_FAILED = "desktop_failed"
    GUEST_ERROR = "guest_error"
    HOST_FAULT = "host_fault"
    DRAINING = "draining"
    DATABASE_UNAVAILABLE = "database_unavailable"
    TIMED_OUT = "timed_out"


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
