"""Routes of snapshots: take one of a leased desktop, list, show, delete."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from dart_server import wire
from dart_server.errors import ApiError
from dart_server.http.dependencies import Leased, Reader, Tenant, farm_of
from dart_server.keys import Principal, Scope
from dart_server.records import SHARED_OWNER, SnapshotRecord
from dart_server.wire import ErrorCode

router = APIRouter(prefix="/v1", tags=["snapshots"])


@router.post("/leases/{lease_id}/snapshot", operation_id="snapshot_lease")
async def take(lease_id: str, body: wire.SnapshotRequest, request: Request, access: Leased) -> wire.SnapshotView:
    """A live snapshot of the leased desktop; with `publish_key`, the prepared state of that setup."""
    farm = farm_of(request)
    return farm.snapshots.view(await farm.take_snapshot(access, body))


@router.get("/snapshots", operation_id="list_snapshots")
async def list_snapshots(
    request: Request, principal: Reader, state: wire.SnapshotState = wire.SnapshotState.READY
) -> list[wire.SnapshotView]:
    """The caller's snapshots and the farm's own."""
    snapshots = farm_of(request).snapshots
    records = snapshots.all() if state is wire.SnapshotState.READY else snapshots.quarantined()
    return [snapshots.view(record) for record in records if _may_see(principal, record)]


@router.get("/snapshots/{name}", operation_id="get_snapshot")
async def get_snapshot(name: str, request: Request, principal: Reader) -> wire.SnapshotView:
    """One snapshot, by its id or by the name that the caller gave it."""
    snapshots = farm_of(request).snapshots
    record = snapshots.find(name, principal.key_id)
    if record is None or not _may_see(principal, record):
        raise ApiError(ErrorCode.NOT_FOUND, f"there is no snapshot {name}")
    return snapshots.view(record)


@router.delete("/snapshots/{name}", operation_id="delete_snapshot", status_code=204)
async def delete(name: str, request: Request, principal: Tenant) -> Response:
    """Delete a snapshot, a quarantined one too, by id or name; desktops made from it live on.

    Idempotent: one that is not there, or is another tenant's, is no error.

    The farm's own need scope `admin`.
    """
    farm = farm_of(request)
    record = farm.snapshots.find(name, principal.key_id)
    if record is not None and record.owner == SHARED_OWNER:
        principal.require(Scope.ADMIN)
    elif record is None or not principal.may_access(record.owner):
        return Response(status_code=204)
    await farm.snapshots.delete(record)
    return Response(status_code=204)


def _may_see(principal: Principal, record: SnapshotRecord) -> bool:
    return record.owner == SHARED_OWNER or principal.may_access(record.owner)
