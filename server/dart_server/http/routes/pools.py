"""Routes of pools, of desktops that are kept from use, and of draining. Rule: what changes the farm for everybody needs the scope admin."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from dart_server import wire
from dart_server.http.dependencies import Admin, Reader, farm_of

router = APIRouter(tags=["pools"])


@router.get("/v1/pools", operation_id="list_pools")
async def list_pools(request: Request, principal: Reader) -> list[wire.PoolView]:
    """Every pool as it is now, by name; the farm's own comes first."""
    return farm_of(request).pool.views()


@router.get("/v1/pools/{name}", operation_id="get_pool")
async def get_pool(name: str, request: Request, principal: Reader) -> wire.PoolView:
    """One pool as it is now."""
    return farm_of(request).pool.view(name)


@router.put("/v1/pools/{name}", operation_id="put_pool")
async def put_pool(name: wire.PoolName, body: wire.PoolSpec, request: Request, principal: Admin) -> wire.PoolView:
    """Say what is to be ready. A pool of this name is changed; what it has ready and is wanted no more goes."""
    return await farm_of(request).pool.put(name, body, principal.key_id)


@router.delete("/v1/pools/{name}", operation_id="delete_pool", status_code=204)
async def delete_pool(name: str, request: Request, principal: Admin) -> Response:
    """Forget a pool: what it had ready goes, leases go on."""
    await farm_of(request).pool.delete(name)
    return Response(status_code=204)


@router.post("/v1/desktops/{desktop_id}/quarantine", operation_id="quarantine_desktop")
async def quarantine_desktop(
    desktop_id: str, request: Request, principal: Admin, body: wire.QuarantineRequest | None = None
) -> wire.DesktopView:
    """Keep a desktop from use and let it stand still, for a person to look at.

    A lease that has it goes on without a desktop until its next reset. One that is quarantined already stays so.
    """
    reason = (body.reason if body else None) or "asked for by an administrator"
    return await farm_of(request).quarantine(desktop_id, reason)


@router.post("/v1/desktops/{desktop_id}/release", operation_id="release_desktop")
async def release_desktop(desktop_id: str, request: Request, principal: Admin) -> wire.DesktopView:
    """Give a desktop back: a quarantined one is removed and something fresh takes its place, the lease of a leased one ends."""
    return await farm_of(request).release(desktop_id, principal)


@router.post("/v1/farm/drain", operation_id="drain_farm")
async def drain_farm(request: Request, principal: Admin) -> wire.FarmView:
    """Grant nothing more: claims, waiting ones too, are refused with `draining`. Leases go on. It holds, over restarts, until undone."""
    farm = farm_of(request)
    farm.drain(on=True)
    return farm.view()


@router.delete("/v1/farm/drain", operation_id="undrain_farm")
async def undrain_farm(request: Request, principal: Admin) -> wire.FarmView:
    """Grant leases again."""
    farm = farm_of(request)
    farm.drain(on=False)
    return farm.view()
