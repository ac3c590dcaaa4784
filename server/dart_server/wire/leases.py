"""Claiming a desktop, keeping it, replacing it by a fresh copy, and what a person does on it in the dashboard's live view.

Non-goals: what a client does on it (`desktop`), the dashboard's own routes (no part of the contract).
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from dart_server.wire.base import DesktopShape, Flag, Int, Labels, Number, SetupKey, WireModel
from dart_server.wire.desktop import InputEvent


class LeaseRequest(WireModel):
    """Claim one desktop. Repeating a request with the same `client_request_id` returns the same lease."""

    client_request_id: str = Field(min_length=8, max_length=64)
    shape: DesktopShape = DesktopShape()
    setup_key: SetupKey | None = Field(default=None, description="prefer a copy of this snapshot when it exists")
    snapshot_id: str | None = Field(
        default=None,
        max_length=128,
        description="id or name; a copy of exactly this snapshot, else `snapshot_missing` or `snapshot_broken`",
    )
    ttl_s: Number = Field(default=60.0, gt=1, le=3600, description="the lease ends this long after the last heartbeat")
    wait_s: Number = Field(
        default=60.0, ge=0, le=600, description="how long to wait for a free desktop before `no_capacity`"
    )
    labels: Labels = Field(default_factory=dict)
    match_labels: Labels = Field(
        default_factory=dict,
        description="labels that the desktop's pool must have; the pool says shape and snapshot then",
    )
    priority: Int = Field(
        default=0,
        ge=-100,
        le=100,
        description="higher is served first; what is passed over gains with every grant and with time",
    )


class LeaseGrant(WireModel):
    """A claim on a ready desktop. `token` and `fencing_token` go with every guest call."""

    lease_id: str
    token: str
    fencing_token: int
    desktop_id: str
    shape: DesktopShape
    image_digest: str
    setup_key: SetupKey | None = Field(description="the snapshot the desktop was restored from; None = the booted base")
    ttl_s: float
    expires_at: datetime
    snapshot_id: str | None = Field(default=None, description="the snapshot that the desktop is a copy of")
    claim_id: str | None = Field(default=None, description="the claim that it was granted to; a gang's leases share it")


class LeaseState(StrEnum):
    """Life of a lease; every lease ends as RELEASED or EXPIRED."""

    ACTIVE = "active"
    RELEASED = "released"
    EXPIRED = "expired"


class LeaseView(WireModel):
    """A lease as others may see it: no token."""

    lease_id: str
    state: LeaseState
    desktop_id: str | None
    fencing_token: int
    owner: str
    shape: DesktopShape
    setup_key: SetupKey | None
    created_at: datetime
    expires_at: datetime
    labels: dict[str, str]
    claim_id: str | None = None
    priority: int = 0
    gang_size: int = 1
    reset_id: str | None = Field(
        default=None,
        description="the reset that the fencing token comes from, as its request named it; None = a grant, a takeover, "
        "a quarantine, or a reset without a name",
    )


class HeartbeatReply(WireModel):
    """The lease's new end."""

    expires_at: datetime


class RenewRequest(WireModel):
    """A new time to live, from now on; heartbeats go on with it."""

    ttl_s: Number = Field(gt=1, le=3600)


class RenewReply(WireModel):
    """The lease's new time to live and end."""

    ttl_s: float
    expires_at: datetime


class AttachRequest(WireModel):
    """Use a lease from another process of its owner. `takeover`: the fencing token grows, so that the former user's calls are refused."""

    takeover: Flag = False


class ResetRequest(WireModel):
    """Replace the leased desktop by a fresh copy of a snapshot (None: of the booted base).

    A `setup_key` nobody has built yet gives the booted base, and the reply says so; a `snapshot_id` (id or name) that is gone is
    `snapshot_missing`. Whatever does not restore is quarantined, and the desktop becomes a copy of its deepest ancestor that does, at last
    a boot of the image: the reply says that, too.
    """

    setup_key: SetupKey | None = None
    snapshot_id: str | None = Field(default=None, max_length=128)
    reset_id: str | None = Field(
        default=None,
        min_length=8,
        max_length=64,
        description="chosen by the client; without an answer, the lease's view tells by it whether the fencing token comes "
        "from this reset",
    )


class ResetReply(WireModel):
    """What the desktop is a copy of now, and the new fencing token.

    `restored` is False when it was booted, `standby` True when that was done before the reset was asked for.

    `snapshot_id` is not the one asked for where that is among `quarantined`: those did not restore just now.
    """

    fencing_token: int
    desktop_id: str
    setup_key: SetupKey | None
    restored: bool
    standby: bool = False
    duration_s: float
    snapshot_id: str | None = None
    quarantined: list[str] = Field(default_factory=list)


class LiveViewTicket(WireModel):
    """The page of a lease.

    A browser opens `path` with `?ticket=TICKET` after it, which works once, until `expires_at`; the page takes it out of its address
    at once. `viewer_hint` says what is missing where pictures cannot be shown.
    """

    path: str
    ticket: str
    expires_at: datetime
    viewer_hint: str | None = None


class HumanInput(WireModel):
    """What the guest was given at once, and when; `number` counts from 1 since somebody listens to this lease."""

    number: Int
    at: datetime
    events: list[InputEvent]


class HumanInputs(WireModel):
    """Inputs in order.

    missed: how many before the first of them are gone. controlled: a person has the desktop now. now: the farm's time.
    """

    inputs: list[HumanInput]
    missed: Int = Field(default=0, ge=0)
    controlled: bool
    now: datetime
