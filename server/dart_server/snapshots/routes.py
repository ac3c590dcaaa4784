"""Routes of snapshots: take one of a leased desktop, list, delete."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from dart_server import wire
from dart_server.deps import Leased, Reader, Tenant, farm_of
from dart_server.errors import FarmError
from dart_server.keys import Scope
from dart_server.records import SHARED
from dart_server.wire import ErrorCode

router = APIRouter(prefix="/v1", tags=["snapshots"])


@router.post("/leases/{lease_id}/snapshot", operation_id="snapshot_lease")
async def take(lease_id: str, body: wire.SnapshotRequest, request: Request, access: Leased) -> wire.SnapshotView:
    """A live snapshot of the leased desktop; with `publish_key`, the prepared state of that set-up."""
    return (await farm_of(request).take_snapshot(access, body)).view()


@router.get("/snapshots", operation_id="list_snapshots")
async def list_snapshots(request: Request, principal: Reader) -> list[wire.SnapshotView]:
    """The caller's snapshots and the farm's own."""
    records = farm_of(request).snapshots.all()
    return [record.view() for record in records if record.owner == SHARED or principal.may_touch(record.owner)]


@router.delete("/snapshots/{snapshot_id}", operation_id="delete_snapshot", status_code=204)
async def delete(snapshot_id: str, request: Request, principal: Tenant) -> Response:
    """Delete a snapshot; desktops made from it live on. Idempotent. The farm's own need scope `admin`."""
    farm = farm_of(request)
    record = farm.snapshots.get(snapshot_id)
    if record is None:
        return Response(status_code=204)
    if record.owner == SHARED:
        principal.require(Scope.ADMIN)
    elif not principal.may_touch(record.owner):
        raise FarmError(ErrorCode.NOT_FOUND, f"there is no snapshot {snapshot_id}")
    if record.pins:
        raise FarmError(ErrorCode.INVALID, "the snapshot is being restored", status=409, hint="Try again in a moment.")
    await farm.snapshots.delete(record)
    return Response(status_code=204)
