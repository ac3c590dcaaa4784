"""What the page is told, as plain JSON values.

Rule: only what the caller's key may see: admin everything, others their own leases and what hangs on them, and the farm's totals.
Non-goals: pictures, changes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from dart_server import wire
from dart_server.dashboard.replay import ReplayStep
from dart_server.errors import ApiError
from dart_server.farm import Farm
from dart_server.keys import Principal, Scope
from dart_server.records import LeaseRecord, Slot
from dart_server.wire import DesktopState, ErrorCode
from dart_server.wire.extras import package_version

MAX_EVENTS = 60
MAX_EVENT_ID = 2**62


async def key_names(farm: Farm) -> dict[str, str]:
    """Name of each key by its id."""
    return {key.key_id: key.name for key in await farm.repository.keys()}


def may_control(principal: Principal, lease: LeaseRecord) -> bool:
    """Whether the key may take over the desktop of a lease: its owner's, or admin."""
    return principal.scope is not Scope.READ and principal.may_access(lease.owner)


def visible_leases(farm: Farm, principal: Principal) -> dict[str, LeaseRecord]:
    """By id, the active leases that a key may see."""
    return {lease.lease_id: lease for lease in farm.leases.active if principal.may_access(lease.owner)}


async def overview(farm: Farm, principal: Principal) -> dict[str, Any]:
    """The first page: totals, desktops, leases, queue, pools."""
    names = await key_names(farm)
    leases = visible_leases(farm, principal)
    slots = [slot for slot in farm.pool.slots.values() if can_see(slot, leases, principal)]
    return {
        "farm": {
            "version": package_version(),
            "provider": farm.provider.name,
            "ready": farm.ready,
            "draining": farm.pool.drained,
            "max_desktops": farm.settings.max_desktops,
            "snapshots": len(farm.snapshots),
            "snapshot_bytes": farm.snapshots.used_bytes,
            "snapshot_quota_bytes": farm.settings.snapshot_quota_bytes,
        },
        "counts": dict(Counter(slot.state.value for slot in farm.pool.slots.values())),
        "desktops_total": len(farm.pool.slots),
        "leases_active": len(farm.leases.active),
        "waiting": farm.pool.queue.waiting,
        "desktops": [desktop(farm, slot, leases, names) for slot in slots],
        "leases": [lease_row(farm, lease, names) for lease in leases.values()],
        "queue": queue(farm, principal, names),
        "pools": pools(farm),
    }


def queue(farm: Farm, principal: Principal, names: dict[str, str]) -> list[dict[str, Any]]:
    """The waiting claims that a key may see, next first."""
    now_s = farm.clock.time()
    return [
        {
            "claim_id": view.claim_id,
            "position": view.position or 0,
            "owner": names.get(view.owner, view.owner),
            "target": f"{view.count} × {view.setup_key[:12] if view.setup_key else view.snapshot_id or view.shape.image}",
            "age_s": round(now_s - view.created_at.timestamp(), 1),
            "priority": view.priority,
            "waiting_for": view.waiting_for,
        }
        for view in farm.claims.queue(principal)
    ]


def pools(farm: Farm) -> list[dict[str, Any]]:
    """What is kept ready."""
    return [
        {
            "name": view.name,
            "what": (view.spec.setup_key or "")[:12] or view.spec.snapshot_id or view.spec.shape.image,
            "ready": view.ready,
            "warm": view.spec.warm,
            "standby": view.standby,
            "standby_desired": view.spec.standby,
            "creating": view.creating,
            "leased": view.leased,
            "hits": view.hits,
            "misses": view.misses,
            "in_backoff": view.in_backoff,
        }
        for view in farm.pool.views()
    ]


def can_see(slot: Slot, leases: dict[str, LeaseRecord], principal: Principal) -> bool:
    """Whether a key may see a desktop: admin all, others those of their leases."""
    return principal.scope is Scope.ADMIN or slot.lease_id in leases


def desktop(farm: Farm, slot: Slot, leases: dict[str, LeaseRecord], names: dict[str, str]) -> dict[str, Any]:
    """One desktop of the grid."""
    lease = leases.get(slot.lease_id or "")
    control = farm.dashboard.controls.find(slot.lease_id or "")
    return {
        "desktop_id": slot.desktop_id,
        "state": slot.state.value,
        "provider": slot.provider,
        "image": slot.shape.image,
        "resolution": list(slot.shape.resolution),
        "fencing_token": slot.fencing_token,
        "lease_id": slot.lease_id,
        "owner": names.get(lease.owner, lease.owner) if lease else None,
        "labels": lease.labels if lease else {},
        "setup_key": slot.setup_key,
        "age_s": round(farm.clock.time() - slot.created_at, 1),
        "failure": f"{slot.failure.cause}, fault of the {slot.failure.fault_owner.value}"
        if slot.failure
        else slot.note,
        "live": slot.state is DesktopState.LEASED and lease is not None,
        "controlled": control is not None,
    }


def lease_row(farm: Farm, lease: LeaseRecord, names: dict[str, str]) -> dict[str, Any]:
    """One line of the table of leases."""
    return {
        "lease_id": lease.lease_id,
        "desktop_id": lease.desktop_id,
        "owner": names.get(lease.owner, lease.owner),
        "image": lease.shape.image,
        "age_s": round(farm.clock.time() - lease.created_at, 1),
        "left_s": round(max(0.0, lease.expires_at - farm.clock.time()), 1),
        "labels": lease.labels,
    }


def find_slot(farm: Farm, desktop_id: str, principal: Principal) -> Slot:
    """A desktop that the key may see. Raises `not_found`."""
    slot = farm.pool.slots.get(desktop_id)
    if slot is None or not can_see(slot, visible_leases(farm, principal), principal):
        raise ApiError(ErrorCode.NOT_FOUND, f"there is no desktop {desktop_id}")
    return slot


def find_lease(farm: Farm, lease_id: str, principal: Principal) -> LeaseRecord:
    """An active lease that the key may see. Raises `not_found`."""
    lease = visible_leases(farm, principal).get(lease_id)
    if lease is None:
        raise ApiError(ErrorCode.NOT_FOUND, f"there is no active lease {lease_id}")
    return lease


async def details(farm: Farm, slot: Slot, principal: Principal) -> dict[str, Any]:
    """One desktop with its latest events."""
    leases, names = visible_leases(farm, principal), await key_names(farm)
    owner = None if principal.scope is Scope.ADMIN else principal.key_id
    events = await farm.repository.events(0, MAX_EVENTS, before=MAX_EVENT_ID, desktop_id=slot.desktop_id, owner=owner)
    lease = leases.get(slot.lease_id or "")
    control = farm.dashboard.controls.find(slot.lease_id or "")
    return {
        "desktop": desktop(farm, slot, leases, names),
        "lease": lease_row(farm, lease, names) if lease else None,
        "may_control": lease is not None and may_control(principal, lease),
        "may_release": lease is not None and may_control(principal, lease),
        "may_quarantine": principal.scope is Scope.ADMIN,
        "control": None
        if control is None
        else {"view": control.view_id, "by": names.get(control.key_id, control.key_id), "since": control.since_s},
        "events": [event_row(event, names) for event in reversed(events)],
    }


def event_row(event: wire.Event, names: dict[str, str]) -> dict[str, Any]:
    """One line of a history; keys by their names."""
    data = {
        "key" if name in ("key_id", "owner") else name: names.get(str(value), value)
        for name, value in event.data.items()
    }
    return {
        "id": event.id,
        "at": event.at.timestamp(),
        "kind": event.kind,
        "lease_id": event.lease_id,
        "fencing_token": event.fencing_token,
        "data": data,
    }


def steps(farm: Farm, desktop_id: str, principal: Principal) -> list[ReplayStep]:
    """The last steps of a desktop that the key may see."""
    return [step for step in farm.dashboard.replay.steps(desktop_id) if principal.may_access(step.owner)]


def step_row(step: ReplayStep) -> dict[str, Any]:
    """One step of the replay."""
    return {
        "number": step.number,
        "at": step.at_s,
        "lease_id": step.lease_id,
        "fencing_token": step.fencing_token,
        "events": [event.model_dump(mode="json") for event in step.events],
        "duration_ms": round(step.duration_s * 1000, 1),
        "picture": step.picture is not None,
    }
