"""The farm's wire contract: everything that crosses the farm's HTTP and WebSocket border, as pydantic models.

Role: the single definition shared by the server and by every client (client packages import this module and nothing else of the server).
Rule: pydantic and the standard library only; unknown fields are errors; a field is never renamed, only added with a default.
Non-goals: no behaviour (but for `messages` and `guest_answers`: how a calling end reads the channel), no defaults that depend on the host.

Routes (all JSON unless said otherwise; `Authorization: Bearer KEY` on all of them except `/healthz`):

    GET    /healthz                              liveness
    POST   /v1/claims                            ClaimRequest -> 202 ClaimView    stand in the queue for one desktop or a gang
    GET    /v1/claims                            -> list[ClaimView]               the queue, in its order
    GET    /v1/claims/{claim_id}?wait_s=         -> ClaimView                     a long poll: answers when it ends, or after `wait_s`
    GET    /v1/claims/{claim_id}/events          -> Server-Sent Events            `position` …, then the claim's end; data: ClaimView
    DELETE /v1/claims/{claim_id}                 cancel, idempotent; desktops granted meanwhile are given back
    POST   /v1/leases                            LeaseRequest -> LeaseGrant            claim a desktop (waits up to `wait_s`)
    GET    /v1/leases                            -> list[LeaseView]
    GET    /v1/leases/{lease_id}                 -> LeaseView
    POST   /v1/leases/{lease_id}/heartbeat       -> HeartbeatReply
    POST   /v1/leases/{lease_id}/renew           RenewRequest -> RenewReply       another time to live
    POST   /v1/leases/{lease_id}/attach          AttachRequest -> LeaseGrant           by reference, from another process of the owner
    POST   /v1/leases/{lease_id}/live-view       -> LiveViewTicket                the dashboard's page of it, with a log-in for one use
    GET    /v1/leases/{lease_id}/inputs?after=N  -> HumanInputs                  a long poll (`wait_s`): what a person does who took over
    DELETE /v1/leases/{lease_id}                 release, idempotent
    POST   /v1/leases/{lease_id}/reset           ResetRequest -> ResetReply       a fresh copy of a snapshot; the fencing token grows
    POST   /v1/leases/{lease_id}/step            StepRequest -> binary frame      one round trip: events, settle, frame
    WS     /v1/leases/{lease_id}/channel         StepRequest (text) -> binary frame, many times
    GET    /v1/leases/{lease_id}/screenshot      -> image/png
    GET    /v1/leases/{lease_id}/a11y            -> list[A11yElement]
    POST   /v1/leases/{lease_id}/execute         ExecRequest -> ExecReply
    PUT    /v1/leases/{lease_id}/files?path=     body = content;  GET the same path reads it
    POST   /v1/leases/{lease_id}/evidence        EvidenceRequest -> binary        files and processes as the host sees them
    POST   /v1/leases/{lease_id}/snapshot        SnapshotRequest -> SnapshotView  live memory snapshot, optionally published under a key
    GET    /v1/leases/{lease_id}/clock           -> ClockView                     the desktop's time of day
    PUT    /v1/leases/{lease_id}/clock           ClockRequest -> ClockView        declare it
    GET    /v1/leases/{lease_id}/health          -> DesktopHealthView             why a desktop died, and whose fault it is
    ANY    /v1/leases/{lease_id}/guest/{path}    the guest agent's OSWorld routes, passed through (with `X-Dart-From-Guest`)
    WS     /v1/leases/{lease_id}/tunnel?port=N   bytes to and from a TCP port inside the desktop
    POST   /v1/setups/acquire                      SetupAcquireRequest -> SetupGrant         one builder per key, the others wait
    POST   /v1/setups/abandon                    SetupAbandonRequest                     the builder failed; the next one may try
    GET    /v1/snapshots?state=ready|quarantined -> list[SnapshotView]            the caller's and the farm's own
    GET    /v1/snapshots/{id or name}            -> SnapshotView;  DELETE         desktops made from it live on
    GET    /v1/desktops                          -> list[DesktopView]
    GET    /v1/pools                             -> list[PoolView]                what is kept ready; the farm's own is `default`
    PUT    /v1/pools/{name}                      PoolSpec -> PoolView             admin; DELETE forgets it; GET -> PoolView
    GET    /v1/events?after=N                    -> list[Event]                   history; before, limit, kind, desktop_id, lease_id
    GET    /v1/leases/{lease_id}/events          -> list[Event]                   that of one lease; after, before, limit, kind
    GET    /v1/desktops/{desktop_id}/events      -> list[Event]                   that of one desktop; the same
    POST   /v1/desktops/{id}/quarantine          QuarantineRequest -> DesktopView admin; keep it from use, for a person to look at
    POST   /v1/desktops/{id}/release             -> DesktopView                   admin; give it back
    GET    /v1/farm                              -> FarmView
    POST   /v1/farm/drain                        -> FarmView                      admin; no new leases; DELETE: again
    GET    /metrics                              Prometheus text
    POST   /v1/keys                              KeyRequest -> NewKey             admin; the secret is in this answer only
    GET    /v1/keys                              -> list[KeyView]                 admin
    DELETE /v1/keys/{key_id}                     revoke, at once                  admin

    GET    /readyz                               readiness: 200 when claims are served, else 503 (no key needed, like `/healthz`)

Everything under a lease except GET of the lease itself, heartbeat and release is a guest call. Guest calls carry the lease's own
credentials in two headers, `X-Dart-Lease-Token` and `X-Dart-Fencing-Token` (`health` needs no fencing_token); the channel and the tunnel
take them as headers of the upgrade request. A wrong or late fencing token is refused with 409 `fenced`; GET of the lease tells its owner
the fencing token of now.

Every error is an `ErrorBody`, also of a refused upgrade. Status by code: 401 unauthenticated, 403 forbidden, 404 not_found,
image_missing, snapshot_missing, 422 invalid (413 too large, 405 wrong method, 431 too many headers), 409 fenced, snapshot_broken,
410 lease_expired (released ones too), 429 quota_exceeded, too_many_requests (with Retry-After), 501 capability_missing,
502 desktop_failed, 503 no_capacity, draining, host_fault, 507 quota; guest_error has the guest's own status or 502. On the channel an
error is a binary frame whose header is a `ChannelError`; after `fenced`, `lease_expired` and `desktop_failed` the farm closes it.
A desktop that failed stays with its lease until `reset` makes a new one.
"""

from __future__ import annotations

from dart_server.wire.base import (
    FENCING_TOKEN_HEADER,
    FROM_GUEST_HEADER,
    LEASE_TOKEN_HEADER,
    REQUEST_ID_HEADER,
    DesktopShape,
    ImageName,
    Resolution,
    SetupKey,
    SnapshotName,
    WireModel,
)
from dart_server.wire.claims import (
    MAX_GANG,
    ClaimFailure,
    ClaimRequest,
    ClaimState,
    ClaimView,
)
from dart_server.wire.clock import Clock
from dart_server.wire.desktop import (
    EARLIEST_CLOCK,
    LATEST_CLOCK,
    A11yElement,
    ButtonEvent,
    ClockRequest,
    ClockView,
    ExecReply,
    ExecRequest,
    FrameHeader,
    FrameSpec,
    InputEvent,
    KeyEvent,
    MoveEvent,
    ScrollEvent,
    SettleSpec,
    StepRequest,
    TextEvent,
    WaitEvent,
)
from dart_server.wire.errors import (
    ChannelError,
    DesktopHealthView,
    ErrorBody,
    ErrorCode,
    FaultOwner,
)
from dart_server.wire.evidence import (
    MAX_EVIDENCE_QUERIES,
    EvidenceAnswer,
    EvidenceHeader,
    EvidenceQuery,
    EvidenceRequest,
    FileFacts,
    FileQuery,
    ListeningPort,
    ProcessesQuery,
    ProcessFacts,
    StatQuery,
    TreeQuery,
)
from dart_server.wire.farm import (
    DesktopState,
    DesktopView,
    Event,
    FarmView,
    HostView,
    QuarantineRequest,
    SetupAbandonRequest,
    SetupAcquireRequest,
    SetupGrant,
    SnapshotRequest,
    SnapshotState,
    SnapshotView,
)
from dart_server.wire.keys import KeyRequest, KeyScope, KeyView, NewKey
from dart_server.wire.leases import (
    AttachRequest,
    HeartbeatReply,
    HumanInput,
    HumanInputs,
    LeaseGrant,
    LeaseRequest,
    LeaseState,
    LeaseView,
    LiveViewTicket,
    RenewReply,
    RenewRequest,
    ResetReply,
    ResetRequest,
)
from dart_server.wire.pools import DEFAULT_POOL, PoolName, PoolSpec, PoolView

__all__ = [
    "DEFAULT_POOL",
    "EARLIEST_CLOCK",
    "FENCING_TOKEN_HEADER",
    "FROM_GUEST_HEADER",
    "LATEST_CLOCK",
    "LEASE_TOKEN_HEADER",
    "MAX_EVIDENCE_QUERIES",
    "MAX_GANG",
    "REQUEST_ID_HEADER",
    "A11yElement",
    "AttachRequest",
    "ButtonEvent",
    "ChannelError",
    "ClaimFailure",
    "ClaimRequest",
    "ClaimState",
    "ClaimView",
    "Clock",
    "ClockRequest",
    "ClockView",
    "DesktopHealthView",
    "DesktopShape",
    "DesktopState",
    "DesktopView",
    "ErrorBody",
    "ErrorCode",
    "Event",
    "EvidenceAnswer",
    "EvidenceHeader",
    "EvidenceQuery",
    "EvidenceRequest",
    "ExecReply",
    "ExecRequest",
    "FarmView",
    "FaultOwner",
    "FileFacts",
    "FileQuery",
    "FrameHeader",
    "FrameSpec",
    "HeartbeatReply",
    "HostView",
    "HumanInput",
    "HumanInputs",
    "ImageName",
    "InputEvent",
    "KeyEvent",
    "KeyRequest",
    "KeyScope",
    "KeyView",
    "LeaseGrant",
    "LeaseRequest",
    "LeaseState",
    "LeaseView",
    "ListeningPort",
    "LiveViewTicket",
    "MoveEvent",
    "NewKey",
    "PoolName",
    "PoolSpec",
    "PoolView",
    "ProcessFacts",
    "ProcessesQuery",
    "QuarantineRequest",
    "RenewReply",
    "RenewRequest",
    "ResetReply",
    "ResetRequest",
    "Resolution",
    "ScrollEvent",
    "SettleSpec",
    "SetupAbandonRequest",
    "SetupAcquireRequest",
    "SetupGrant",
    "SetupKey",
    "SnapshotName",
    "SnapshotRequest",
    "SnapshotState",
    "SnapshotView",
    "StatQuery",
    "StepRequest",
    "TextEvent",
    "TreeQuery",
    "WaitEvent",
    "WireModel",
]
