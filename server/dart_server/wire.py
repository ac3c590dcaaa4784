"""The farm's wire contract: everything that crosses the farm's HTTP and WebSocket border, as pydantic models.

Role: the single definition shared by the server and by every client (client packages import this module and nothing else of the server).
Rule: pydantic and the standard library only; unknown fields are errors; a field is never renamed, only added with a default.
Non-goals: no behaviour, no defaults that depend on the host.

Routes (all JSON unless said otherwise; `Authorization: Bearer KEY` on all of them except `/healthz`):

    GET    /healthz                              liveness
    POST   /v1/leases                            LeaseRequest -> Lease            claim a desktop (waits up to `wait_s`)
    GET    /v1/leases                            -> list[LeaseView]
    GET    /v1/leases/{lease_id}                 -> LeaseView
    POST   /v1/leases/{lease_id}/heartbeat       -> HeartbeatReply
    DELETE /v1/leases/{lease_id}                 release, idempotent
    POST   /v1/leases/{lease_id}/reset           ResetRequest -> ResetReply       a fresh copy of a snapshot; the fence grows
    POST   /v1/leases/{lease_id}/step            StepRequest -> binary frame      one round trip: events, settle, frame
    WS     /v1/leases/{lease_id}/channel         StepRequest (text) -> binary frame, many times
    GET    /v1/leases/{lease_id}/screenshot      -> image/png
    GET    /v1/leases/{lease_id}/a11y            -> list[A11yElement]
    POST   /v1/leases/{lease_id}/execute         ExecRequest -> ExecReply
    PUT    /v1/leases/{lease_id}/files?path=     body = content;  GET the same path reads it
    POST   /v1/leases/{lease_id}/snapshot        SnapshotRequest -> SnapshotView  live memory snapshot, optionally published under a key
    GET    /v1/leases/{lease_id}/health          -> DesktopHealthView             why a desktop died, and whose fault it is
    ANY    /v1/leases/{lease_id}/guest/{path}    the guest agent's OSWorld routes, passed through
    WS     /v1/leases/{lease_id}/tunnel?port=N   bytes to and from a TCP port inside the desktop
    POST   /v1/setups/claim                      SetupClaim -> SetupGrant         one builder per key, the others wait
    POST   /v1/setups/abandon                    SetupAbandon                     the builder failed; the next one may try
    GET    /v1/snapshots                         -> list[SnapshotView];  DELETE /v1/snapshots/{snapshot_id}
    GET    /v1/desktops                          -> list[DesktopView]
    GET    /v1/events?after=N                    -> list[Event]                   append-only history
    GET    /v1/farm                              -> FarmView
    GET    /metrics                              Prometheus text

    GET    /readyz                               readiness: 200 when claims are served, else 503 (no key needed, like `/healthz`)

Everything under a lease except GET of the lease itself, heartbeat and release is a guest call. Guest calls carry the lease's own
credentials in two headers, `X-Dart-Lease-Token` and `X-Dart-Fence` (`health` needs no fence); the channel and the tunnel take them as
headers of the upgrade request. A wrong or late fence is refused with 409 `fenced`; GET of the lease tells its owner the fence of now.

Every error is an `ErrorBody`, also of a refused upgrade. Status by code: 401 unauthenticated, 403 forbidden, 404 not_found,
image_missing, snapshot_missing, 422 invalid (413 too large, 405 wrong method), 409 fenced, snapshot_broken, 410 lease_expired (released
ones too), 501 capability_missing, 502 desktop_failed, 503 no_capacity, draining, host_fault, 507 quota; guest_error has the guest's own
status or 502. On the channel an error is a binary frame whose header is a `ChannelError`; after `fenced`, `lease_expired` and
`desktop_failed` the farm closes it. A desktop that failed stays with its lease until `reset` makes a new one.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

API_VERSION = "v1"
LEASE_TOKEN_HEADER = "X-Dart-Lease-Token"
FENCE_HEADER = "X-Dart-Fence"
REQUEST_ID_HEADER = "X-Request-Id"

SetupKey = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""sha256 over (image digest, resolution, font size, canonical set-up, asset digests); the evaluator is not part of it."""

ImageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Resolution = Annotated[tuple[int, int], Field(description="width, height in pixels")]


class WireModel(BaseModel):
    """Base of every model on the wire: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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
    CAPABILITY_MISSING = "capability_missing"
    IMAGE_MISSING = "image_missing"
    SNAPSHOT_MISSING = "snapshot_missing"
    SNAPSHOT_BROKEN = "snapshot_broken"
    DESKTOP_FAILED = "desktop_failed"
    GUEST_ERROR = "guest_error"
    HOST_FAULT = "host_fault"
    DRAINING = "draining"


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


class DesktopShape(WireModel):
    """What kind of desktop is wanted; part of the identity of its base snapshot."""

    image: ImageName = "basic"
    resolution: Resolution = (1920, 1080)
    font_size: int | None = Field(
        default=None, ge=6, le=48, description="GUI font size in points; None keeps the image's own"
    )


class LeaseRequest(WireModel):
    """Claim one desktop. Repeating a request with the same `client_request_id` returns the same lease."""

    client_request_id: str = Field(min_length=8, max_length=64)
    shape: DesktopShape = DesktopShape()
    setup_key: SetupKey | None = Field(default=None, description="prefer a copy of this snapshot when it exists")
    snapshot_id: str | None = Field(
        default=None, description="a copy of exactly this snapshot, else `snapshot_missing`"
    )
    ttl_s: float = Field(default=60.0, gt=1, le=3600, description="the lease ends this long after the last heartbeat")
    wait_s: float = Field(
        default=60.0, ge=0, le=600, description="how long to wait for a free desktop before `no_capacity`"
    )
    labels: dict[str, str] = Field(default_factory=dict)


class Lease(WireModel):
    """A claim on a ready desktop. `token` and `fence` go with every guest call."""

    lease_id: str
    token: str
    fence: int
    desktop_id: str
    shape: DesktopShape
    image_digest: str
    setup_key: SetupKey | None = Field(description="the snapshot the desktop was restored from; None = the booted base")
    ttl_s: float
    expires_at: datetime


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
    fence: int
    owner: str
    shape: DesktopShape
    setup_key: SetupKey | None
    created_at: datetime
    expires_at: datetime
    labels: dict[str, str]


class HeartbeatReply(WireModel):
    """The lease's new end."""

    expires_at: datetime


class ResetRequest(WireModel):
    """Replace the leased desktop by a fresh copy of a snapshot (None: of the booted base).

    A `setup_key` nobody has built yet gives the booted base, and the reply says so; a `snapshot_id` that is gone is `snapshot_missing`."""

    setup_key: SetupKey | None = None
    snapshot_id: str | None = None


class ResetReply(WireModel):
    """What the desktop is a copy of now, and the new fence; `restored` is False when it had to be booted."""

    fence: int
    desktop_id: str
    setup_key: SetupKey | None
    restored: bool
    duration_s: float


class SettleSpec(WireModel):
    """Wait until the screen was quiet for `quiet_ms`, at most `cap_ms`."""

    quiet_ms: int = Field(default=100, ge=0, le=5_000)
    cap_ms: int = Field(default=2_000, ge=0, le=30_000)


class FrameSpec(WireModel):
    """How the frame comes back. `raw` is RGB uint8, row-major, height x width x 3 bytes."""

    encoding: Literal["raw", "png", "webp", "jpeg", "none"] = "raw"
    quality: int = Field(default=90, ge=1, le=100)
    cursor: bool = False


class MoveEvent(WireModel):
    type: Literal["move"] = "move"
    x: int
    y: int


class ButtonEvent(WireModel):
    type: Literal["down", "up"]
    button: int = Field(default=1, ge=1, le=3)


class KeyEvent(WireModel):
    type: Literal["key_down", "key_up"]
    key: str


class TextEvent(WireModel):
    type: Literal["text"] = "text"
    text: str


class ScrollEvent(WireModel):
    """Wheel clicks; positive `dy` scrolls up, positive `dx` to the right."""

    type: Literal["scroll"] = "scroll"
    dx: int = 0
    dy: int = 0


class WaitEvent(WireModel):
    type: Literal["wait"] = "wait"
    ms: int = Field(ge=0, le=60_000)


InputEvent = Annotated[
    MoveEvent | ButtonEvent | KeyEvent | TextEvent | ScrollEvent | WaitEvent, Field(discriminator="type")
]


class StepRequest(WireModel):
    """One round trip: input events, wait until the screen settled, the frame. `seq` comes back in the frame's header."""

    seq: int = 0
    events: list[InputEvent] = Field(default_factory=list, max_length=2_000)
    settle: SettleSpec | None = None
    frame: FrameSpec = FrameSpec()


class FrameHeader(BaseModel):
    """JSON header of a binary frame: 4 bytes big-endian header length, this header, then `nbytes` of payload."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    seq: int
    width: int
    height: int
    encoding: str
    settled: bool
    settle_ms: float
    grab_ms: float
    cursor: tuple[int, int]
    nbytes: int


class ExecRequest(WireModel):
    """Run a program inside the desktop (never through a shell of ours)."""

    argv: list[str] = Field(min_length=1, max_length=256)
    timeout_s: float = Field(default=30.0, gt=0, le=600)
    user: Literal["user", "root"] = "user"
    env: dict[str, str] = Field(default_factory=dict)
    stdin: str | None = None
    detach: bool = Field(default=False, description="start it and return at once")


class ExecReply(WireModel):
    """What the program said. `returncode` is None when it timed out or was detached."""

    returncode: int | None
    stdout: str
    stderr: str
    timed_out: bool = False


class A11yElement(WireModel):
    """One showing element of the accessibility tree; `x`, `y`, `w`, `h` in screen pixels."""

    role: str
    name: str
    text: str = ""
    states: list[str] = Field(default_factory=list)
    x: int
    y: int
    w: int
    h: int


class SnapshotRequest(WireModel):
    """Take a live snapshot. With `publish_key` it becomes the shared prepared state of that set-up (one builder per key)."""

    name: str | None = Field(default=None, max_length=128)
    publish_key: SetupKey | None = None
    grant: str | None = Field(default=None, description="the builder's grant from /v1/setups/claim, needed to publish")


class SnapshotView(WireModel):
    """A stored snapshot: `parent` is the snapshot it was restored from."""

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


class SetupClaim(WireModel):
    """Ask whether the prepared state exists; if not, become its builder or wait for the one who is."""

    key: SetupKey
    lease_id: str
    wait_s: float = Field(default=120.0, ge=0, le=600)


class SetupGrant(WireModel):
    """`ready`: reset to the key. `build`: you are the builder, publish with `grant`. `busy`: still being built by another."""

    state: Literal["ready", "build", "busy"]
    grant: str | None = None


class SetupAbandon(WireModel):
    """The builder gives up, with the reason."""

    key: SetupKey
    grant: str
    reason: str = Field(max_length=500)


class DesktopState(StrEnum):
    """Life of a desktop slot."""

    CREATING = "creating"
    READY = "ready"
    LEASED = "leased"
    RESETTING = "resetting"
    BROKEN = "broken"
    GONE = "gone"


class DesktopView(WireModel):
    """A desktop as the farm sees it."""

    desktop_id: str
    state: DesktopState
    provider: str
    shape: DesktopShape
    fence: int
    lease_id: str | None
    setup_key: SetupKey | None
    created_at: datetime


class Event(WireModel):
    """One line of the append-only history."""

    id: int
    at: datetime
    kind: str
    desktop_id: str | None = None
    lease_id: str | None = None
    fence: int | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class FarmView(WireModel):
    """The farm in numbers."""

    version: str
    provider: str
    capabilities: dict[str, bool]
    max_desktops: int
    desktops: dict[str, int]
    leases_active: int
    snapshots: int
    snapshot_bytes: int
    snapshot_quota_bytes: int
