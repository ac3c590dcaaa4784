"""Claims: standing in the queue for one desktop or for a gang of them. Non-goals: what a lease is, once it was granted (`leases`)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field

from dart_server.wire.base import DesktopShape, Int, Labels, Number, SetupKey, WireModel
from dart_server.wire.errors import ErrorCode
from dart_server.wire.leases import LeaseGrant

MAX_GANG = 64
"""Desktops of one claim, at most."""


class ClaimRequest(WireModel):
    """Claim `count` desktops, all or none, and do not wait for them. A repeated `client_request_id` is the same claim."""

    client_request_id: str = Field(min_length=8, max_length=64)
    shape: DesktopShape = DesktopShape()
    setup_key: SetupKey | None = Field(default=None, description="prefer copies of this snapshot when it exists")
    snapshot_id: str | None = Field(
        default=None,
        max_length=128,
        description="id or name; copies of exactly this snapshot, else the claim is refused",
    )
    match_labels: Labels = Field(
        default_factory=dict,
        description="labels that the desktop's pool must have; the pool says shape and snapshot then",
    )
    count: Int = Field(default=1, ge=1, le=MAX_GANG, description="a gang: so many desktops, all or none")
    priority: Int = Field(
        default=0,
        ge=-100,
        le=100,
        description="higher is served first; what is passed over gains with every grant and with time",
    )
    ttl_s: Number = Field(
        default=60.0, gt=1, le=3600, description="each lease ends this long after its grant or its last heartbeat"
    )
    deadline_s: Number = Field(default=600.0, ge=0, le=86_400, description="how long the claim may wait")
    labels: Labels = Field(default_factory=dict, description="the caller's own, copied to the leases")


class ClaimState(StrEnum):
    """Life of a claim: it waits, then it ends in exactly one of the others."""

    WAITING = "waiting"
    GRANTED = "granted"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REFUSED = "refused"


class ClaimFailure(WireModel):
    """Why a claim was not granted."""

    error: ErrorCode
    detail: str
    hint: str | None = None


class ClaimView(WireModel):
    """A claim. `leases` are those that are active, and only in answers about this one claim to its owner; `lease_ids` are all of them."""

    claim_id: str
    client_request_id: str
    owner: str
    state: ClaimState
    position: int | None = Field(default=None, description="claims that come before it; 0 is next; only while it waits")
    waiting_for: Literal["desktop", "quota"] | None = Field(
        default=None, description="`quota`: the key holds as many leases as it may"
    )
    count: int
    priority: int
    shape: DesktopShape
    setup_key: SetupKey | None
    snapshot_id: str | None
    match_labels: dict[str, str]
    labels: dict[str, str]
    ttl_s: float
    created_at: datetime
    deadline_at: datetime
    ended_at: datetime | None = None
    lease_ids: list[str] = Field(default_factory=list)
    leases: list[LeaseGrant] = Field(default_factory=list)
    error: ClaimFailure | None = None
