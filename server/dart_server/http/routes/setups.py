"""Routes of prepared states."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from dart_server import wire
from dart_server.http.dependencies import Tenant, farm_of

router = APIRouter(prefix="/v1/setups", tags=["setups"])


@router.post("/acquire", operation_id="acquire_setup")
async def acquire(body: wire.SetupAcquireRequest, request: Request, principal: Tenant) -> wire.SetupGrant:
    """Is the prepared state there; if not, build it or wait for who does."""
    farm = farm_of(request)
    lease = await farm.leases.require(body.lease_id, principal)
    return await farm.setups.acquire(lease, body.key, body.wait_s)


@router.post("/abandon", operation_id="abandon_setup", status_code=204)
async def abandon(body: wire.SetupAbandonRequest, request: Request, principal: Tenant) -> Response:
    """The builder gives up; the next one may try. Idempotent."""
    await farm_of(request).setups.abandon(principal.key_id, body.key, body.grant, body.reason)
    return Response(status_code=204)
