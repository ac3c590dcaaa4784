"""One example of every request and answer, by operation, and of every error, by code: what the OpenAPI document shows.

Rule: plain JSON values; each is valid for the model that it is an example of (a test sees to it). Non-goals: which route may answer with
which error (`dart_server.http.openapi`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dart_server.wire.connection import KEY_NEEDED
from dart_server.wire.errors import DesktopHealthView, ErrorBody, ErrorCode, FaultOwner

LEASE_ID = "lease_01M7Z5Q0T4E8V9K2B6N3X1C7DF"
CLAIM_ID = "claim_01M7Z5PXK1N4R7T0V3W6Y9A2BC"
DESKTOP_ID = "desk_01M7Z5PYQ2R6S8T0V4W9X1Y3ZA"
SNAPSHOT_ID = "snap_01M7Z5S8H3J6K9M2N5P8Q1R4TV"
KEY_ID = "key_01M7Z5N2A4B6C8D0E2F4G6H8JK"
REQUEST_ID = "req_01M7Z5TB0C2D4E6F8G0H2J4K6M"
SETUP_KEY = "5e884898da28047151d0e56f8dc6292773603d0d6aabbddc2a11ef721d1542d8"
DIGEST = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
NOW = "2026-03-01T12:00:00Z"
LATER = "2026-03-01T12:01:00Z"
SHAPE = {"image": "basic", "resolution": [1280, 720], "font_size": None}


@dataclass(frozen=True, slots=True)
class OpenApiExample:
    """Of one operation; None where there is no JSON."""

    request: Any = None
    reply: Any = None


PARAMETERS: dict[str, Any] = {
    "lease_id": LEASE_ID,
    "claim_id": CLAIM_ID,
    "desktop_id": DESKTOP_ID,
    "key_id": KEY_ID,
    "name": "invoice-open",
    "path": "/home/user/notes.txt",
    "mode": "644",
    "state": "ready",
    "after": 0,
    "before": 500,
    "limit": 100,
    "kind": "lease_granted",
    "wait_s": 30,
    "X-Dart-Lease-Token": "tok_3q2-7wAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "X-Dart-Fencing-Token": 3,
    "last-event-id": "4",
}
"""By the parameter's name."""

_LEASE = {
    "lease_id": LEASE_ID,
    "token": PARAMETERS["X-Dart-Lease-Token"],
    "fencing_token": 3,
    "desktop_id": DESKTOP_ID,
    "shape": SHAPE,
    "image_digest": DIGEST,
    "setup_key": None,
    "ttl_s": 60.0,
    "expires_at": LATER,
    "snapshot_id": None,
    "claim_id": None,
}
_LEASE_VIEW = {
    "lease_id": LEASE_ID,
    "state": "active",
    "desktop_id": DESKTOP_ID,
    "fencing_token": 3,
    "owner": KEY_ID,
    "shape": SHAPE,
    "setup_key": None,
    "created_at": NOW,
    "expires_at": LATER,
    "labels": {"run": "42"},
    "claim_id": None,
    "priority": 0,
    "gang_size": 1,
}
_CLAIM = {
    "claim_id": CLAIM_ID,
    "client_request_id": "worker-7-group-0003",
    "owner": KEY_ID,
    "state": "waiting",
    "position": 2,
    "waiting_for": "desktop",
    "count": 4,
    "priority": 0,
    "shape": SHAPE,
    "setup_key": SETUP_KEY,
    "snapshot_id": None,
    "match_labels": {},
    "labels": {"run": "42"},
    "ttl_s": 60.0,
    "created_at": NOW,
    "deadline_at": LATER,
    "ended_at": None,
    "lease_ids": [],
    "leases": [],
    "error": None,
}
_SNAPSHOT: dict[str, Any] = {
    "snapshot_id": SNAPSHOT_ID,
    "kind": "user",
    "name": "invoice-open",
    "setup_key": None,
    "owner": KEY_ID,
    "shape": SHAPE,
    "bytes": 123000000,
    "parent": None,
    "created_at": NOW,
    "last_used_at": NOW,
    "state": "ready",
    "description": "the invoice is open, the caret in its first cell",
    "image_digest": DIGEST,
    "lineage": [],
    "memory_bytes": 122000000,
    "files_bytes": 1000000,
    "processes": 14,
    "pause_ms": 412.5,
    "reason": None,
    "quarantine_path": None,
}
_EVENT = {
    "id": 17,
    "at": NOW,
    "kind": "lease_granted",
    "desktop_id": DESKTOP_ID,
    "lease_id": LEASE_ID,
    "fencing_token": 3,
    "data": {"owner": KEY_ID},
}
_KEY = {
    "key_id": KEY_ID,
    "name": "training run 42",
    "scope": "lease",
    "created_at": NOW,
    "expires_at": None,
    "revoked_at": None,
    "last_used_at": None,
    "max_leases": 16,
    "max_waiting": 64,
    "weight": 1.0,
    "max_priority": 0,
}
_KEY_REQUEST = {"name": "training run 42", "scope": "lease", "max_leases": 16, "max_waiting": 64}

_FARM: dict[str, Any] = {
    "version": "0.1.0",
    "provider": "runc",
    "capabilities": {"memory_snapshot": True, "fork": True, "restore_in_place": True, "tunnel": True},
    "max_desktops": 8,
    "desktops": {"ready": 1, "leased": 3},
    "leases_active": 3,
    "snapshots": 2,
    "snapshot_bytes": 240000000,
    "snapshot_quota_bytes": 4294967296,
    "quarantined_bytes": 0,
    "draining": False,
    "capacity_limit_reason": None,
    "in_backoff": [],
    "host": {
        "memory_available_bytes": 12000000000,
        "memory_total_bytes": 16000000000,
        "disk_free_bytes": 7000000000,
        "files_on_tmpfs": True,
        "load": 1.5,
        "processors": 4,
        "cpu_pressure": 12.0,
    },
}
_DESKTOP = {
    "desktop_id": DESKTOP_ID,
    "state": "leased",
    "provider": "runc",
    "shape": SHAPE,
    "fencing_token": 3,
    "lease_id": LEASE_ID,
    "setup_key": None,
    "created_at": NOW,
    "snapshot_id": SNAPSHOT_ID,
    "frozen": False,
    "note": None,
}
_POOL_SPEC = {
    "shape": SHAPE,
    "setup_key": SETUP_KEY,
    "snapshot_id": None,
    "labels": {"suite": "basics"},
    "warm": 1,
    "standby": 4,
    "min": 0,
    "max": 16,
    "refill_per_minute": 120.0,
}
_POOL = {
    "name": "basics",
    "spec": _POOL_SPEC,
    "owner": KEY_ID,
    "ready": 1,
    "standby": 4,
    "creating": 0,
    "leased": 8,
    "hits": 410,
    "misses": 3,
    "in_backoff": None,
    "created_at": NOW,
    "updated_at": NOW,
}
EXAMPLES: dict[str, OpenApiExample] = {
    "healthz": OpenApiExample(reply={"status": "ok"}),
    "readyz": OpenApiExample(reply={"status": "ready"}),
    "get_farm": OpenApiExample(reply=_FARM),
    "list_desktops": OpenApiExample(reply=[_DESKTOP]),
    "metrics": OpenApiExample(reply='dart_desktops{state="ready"} 1.0\n'),
    "list_events": OpenApiExample(reply=[_EVENT]),
    "list_lease_events": OpenApiExample(reply=[_EVENT]),
    "list_desktop_events": OpenApiExample(reply=[_EVENT]),
    "create_lease": OpenApiExample(
        {
            "client_request_id": "worker-7-episode-0012",
            "shape": {"image": "basic", "resolution": [1280, 720]},
            "ttl_s": 60,
            "wait_s": 30,
            "labels": {"run": "42"},
        },
        _LEASE,
    ),
    "submit_claim": OpenApiExample(
        {
            "client_request_id": "worker-7-group-0003",
            "shape": {"image": "basic", "resolution": [1280, 720]},
            "setup_key": SETUP_KEY,
            "count": 4,
            "priority": 0,
            "deadline_s": 60,
            "labels": {"run": "42"},
        },
        _CLAIM,
    ),
    "list_claims": OpenApiExample(reply=[_CLAIM]),
    "get_claim": OpenApiExample(reply=_CLAIM),
    "claim_events": OpenApiExample(
        reply='id: 4\nevent: position\ndata: {"claim_id": "' + CLAIM_ID + '", "state": "waiting", "position": 2}\n\n'
    ),
    "cancel_claim": OpenApiExample(),
    "renew_lease": OpenApiExample({"ttl_s": 600}, {"ttl_s": 600.0, "expires_at": LATER}),
    "attach_lease": OpenApiExample({"takeover": False}, _LEASE),
    "open_live_view": OpenApiExample(
        reply={
            "path": f"/dashboard/#/leases/{LEASE_ID}",
            "ticket": "ticket_0m3Jq",
            "expires_at": LATER,
            "viewer_hint": None,
        }
    ),
    "get_human_inputs": OpenApiExample(
        reply={
            "inputs": [{"number": 1, "at": NOW, "events": [{"type": "down", "button": 1}]}],
            "missed": 0,
            "controlled": True,
            "now": NOW,
        }
    ),
    "list_leases": OpenApiExample(reply=[_LEASE_VIEW]),
    "get_lease": OpenApiExample(reply=_LEASE_VIEW),
    "heartbeat_lease": OpenApiExample(reply={"expires_at": LATER}),
    "release_lease": OpenApiExample(),
    "reset_lease": OpenApiExample(
        {"setup_key": SETUP_KEY},
        {
            "fencing_token": 4,
            "desktop_id": DESKTOP_ID,
            "setup_key": SETUP_KEY,
            "restored": True,
            "standby": False,
            "duration_s": 0.31,
            "snapshot_id": SNAPSHOT_ID,
            "quarantined": [],
        },
    ),
    "step": OpenApiExample(
        {
            "seq": 1,
            "events": [
                {"type": "move", "x": 640, "y": 360},
                {"type": "down", "button": 1},
                {"type": "up", "button": 1},
                {"type": "text", "text": "Grüße"},
            ],
            "settle": {"quiet_ms": 100, "cap_ms": 2000},
            "frame": {"encoding": "jpeg", "quality": 90},
        }
    ),
    "screenshot": OpenApiExample(),
    "a11y": OpenApiExample(
        reply=[
            {
                "role": "push button",
                "name": "OK",
                "text": "",
                "states": ["enabled", "focusable"],
                "x": 600,
                "y": 400,
                "w": 80,
                "h": 28,
            }
        ]
    ),
    "execute": OpenApiExample(
        {"argv": ["uname", "-s"], "timeout_s": 10},
        {"returncode": 0, "stdout": "Linux\n", "stderr": "", "timed_out": False},
    ),
    "evidence": OpenApiExample(
        request={
            "queries": [
                {"kind": "file", "path": "/home/user/notes.txt", "limit_nbytes": 1048576},
                {"kind": "stat", "path": "/usr/bin/thunar", "follow": True},
                {"kind": "tree", "path": "/home/user/Documents", "max_entries": 2000, "max_depth": 32, "digests": True},
                {"kind": "processes", "code": False},
            ]
        }
    ),
    "get_clock": OpenApiExample(reply={"time": NOW, "declared": False}),
    "set_clock": OpenApiExample({"time": NOW}, {"time": NOW, "declared": True}),
    "write_file": OpenApiExample(),
    "read_file": OpenApiExample(),
    "desktop_health": OpenApiExample(
        reply={"alive": True, "cause": "ok", "fault_owner": "none", "memory_bytes": 230000000},
    ),
    "guest_get": OpenApiExample(),
    "guest_post": OpenApiExample(),
    "guest_put": OpenApiExample(),
    "guest_delete": OpenApiExample(),
    "snapshot_lease": OpenApiExample({"name": "invoice-open", "description": _SNAPSHOT["description"]}, _SNAPSHOT),
    "list_snapshots": OpenApiExample(reply=[_SNAPSHOT]),
    "get_snapshot": OpenApiExample(reply=_SNAPSHOT),
    "delete_snapshot": OpenApiExample(),
    "acquire_setup": OpenApiExample(
        {"key": SETUP_KEY, "lease_id": LEASE_ID, "wait_s": 30},
        {"state": "build", "grant": "grant_6xJpN0f2v5T8w1Q4y7B0e3H6k9M2p5S8"},
    ),
    "abandon_setup": OpenApiExample(
        {"key": SETUP_KEY, "grant": "grant_6xJpN0f2v5T8w1Q4y7B0e3H6k9M2p5S8", "reason": "the download failed"}
    ),
    "list_pools": OpenApiExample(reply=[_POOL]),
    "get_pool": OpenApiExample(reply=_POOL),
    "put_pool": OpenApiExample(_POOL_SPEC, _POOL),
    "delete_pool": OpenApiExample(),
    "quarantine_desktop": OpenApiExample(
        {"reason": "its clock is wrong"}, {**_DESKTOP, "state": "quarantined", "lease_id": None}
    ),
    "release_desktop": OpenApiExample(reply={**_DESKTOP, "state": "gone", "lease_id": None}),
    "drain_farm": OpenApiExample(reply={**_FARM, "draining": True}),
    "undrain_farm": OpenApiExample(reply=_FARM),
    "create_key": OpenApiExample(
        _KEY_REQUEST,
        {**_KEY, "secret": "dart_4tQm1Zr8Yc2Wk6Pj9Xv3Lb7Hn5Gd0Sf1Aq2Ew3Rt4Yu"},
    ),
    "list_keys": OpenApiExample(reply=[_KEY]),
    "revoke_key": OpenApiExample(),
}

_DETAILS: dict[ErrorCode, tuple[str, str | None]] = {
    ErrorCode.UNAUTHENTICATED: (KEY_NEEDED, "Send `Authorization: Bearer KEY`."),
    ErrorCode.FORBIDDEN: (
        "this key has the scope `read` and may not do that: it needs the scope `lease`",
        "Use a key of that scope; who runs the farm makes one: `dart-farm keys add NAME --scope lease`.",
    ),
    ErrorCode.NOT_FOUND: (f"there is no lease {LEASE_ID}", None),
    ErrorCode.INVALID: ("client_request_id: String should have at least 8 characters", None),
    ErrorCode.FENCED: (
        "fencing_token 2 is not the desktop's fencing_token of now",
        f"GET /v1/leases/{LEASE_ID} tells it.",
    ),
    ErrorCode.LEASE_EXPIRED: (f"the lease {LEASE_ID} expired", "Claim a new one."),
    ErrorCode.NO_CAPACITY: (
        "no desktop became free within 30 s (8 of 8 are in use)",
        "Release leases, wait longer, or raise DART_MAX_DESKTOPS.",
    ),
    ErrorCode.QUOTA: ("snapshots would take more than DART_SNAPSHOT_QUOTA_BYTES", "Delete snapshots."),
    ErrorCode.QUOTA_EXCEEDED: (
        "this key has 16 of its 16 leases",
        "Release one; Retry-After tells when to come again.",
    ),
    ErrorCode.TOO_MANY_REQUESTS: (
        "this key sends more than 1000 requests per second",
        "Wait for some to end, then repeat; Retry-After tells.",
    ),
    ErrorCode.CAPABILITY_MISSING: (
        "this provider takes no live snapshots",
        "Use a provider with memory snapshots (`dart-farm doctor` tells what this host lacks).",
    ),
    ErrorCode.IMAGE_MISSING: ("there is no image desktop", "Build it with `dart-farm images build desktop`."),
    ErrorCode.SNAPSHOT_MISSING: ("there is no snapshot invoice-open", None),
    ErrorCode.SNAPSHOT_BROKEN: (f"the snapshot {SNAPSHOT_ID} does not restore", "Take it again."),
    ErrorCode.DESKTOP_FAILED: (
        "the desktop is gone: memory (fault of the policy)",
        "Reset the lease to get a new one.",
    ),
    ErrorCode.GUEST_ERROR: ("not_found: there is no file /home/user/notes.txt", None),
    ErrorCode.HOST_FAULT: ("the host could not do it", "Look at `dart-farm doctor` and the farm's log."),
    ErrorCode.DRAINING: ("the farm is not ready", None),
    ErrorCode.DATABASE_UNAVAILABLE: (
        "the farm's database is away (connection refused)",
        "Desktops and leases go on; repeat the request in a moment.",
    ),
    ErrorCode.TIMED_OUT: (
        "the request was not done within 900 s and was given up",
        "Look whether it was done all the same before you repeat it.",
    ),
}


def error_example(code: ErrorCode) -> dict[str, Any]:
    """What an answer with this code looks like."""
    detail, hint = _DETAILS.get(code, ("what went wrong, in one sentence", None))
    desktop = None
    if code is ErrorCode.DESKTOP_FAILED:
        desktop = DesktopHealthView(alive=False, cause="memory", fault_owner=FaultOwner.POLICY)
    body = ErrorBody(error=code, detail=detail, hint=hint, request_id=REQUEST_ID, desktop=desktop)
    return body.model_dump(mode="json")
