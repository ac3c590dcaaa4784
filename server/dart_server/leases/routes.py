"""Routes of leases: claim, list, heartbeat, reset, release."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from dart_server import wire
from dart_server.deps import Leased, Reader, Tenant, farm_of

router = APIRouter(prefix="/v1/leases", tags=["leases"])


@router.post("", operation_id="claim_lease")
async def claim(body: wire.LeaseRequest, request: Request, principal: Tenant) -> wire.Lease:
    """Claim a desktop; waits up to `wait_s`. A caller that hangs up while it waits leaves the queue."""
    claimed = asyncio.ensure_future(farm_of(request).leases.claim(body, principal.key_id))
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({claimed, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not claimed.done():
            claimed.cancel()
        return await claimed
    finally:
        claimed.cancel()
        gone.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@router.get("", operation_id="list_leases")
async def list_leases(request: Request, principal: Reader) -> list[wire.LeaseView]:
    """The active leases that the caller may see."""
    return [lease.view() for lease in farm_of(request).leases.active if principal.may_touch(lease.owner)]


@router.get("/{lease_id}", operation_id="get_lease")
async def get_lease(lease_id: str, request: Request, principal: Reader) -> wire.LeaseView:
    """One lease, ended ones too."""
    return (await farm_of(request).leases.find(lease_id, principal)).view()


@router.post("/{lease_id}/heartbeat", operation_id="heartbeat_lease")
async def heartbeat(lease_id: str, request: Request, principal: Tenant) -> wire.HeartbeatReply:
    """Keep a lease for another `ttl_s`."""
    return await farm_of(request).leases.heartbeat(lease_id, principal)


@router.delete("/{lease_id}", operation_id="release_lease", status_code=204)
async def release(lease_id: str, request: Request, principal: Tenant) -> Response:
    """End a lease. Idempotent."""
    await farm_of(request).leases.release(lease_id, principal)
    return Response(status_code=204)


@router.post("/{lease_id}/reset", operation_id="reset_lease")
async def reset(lease_id: str, body: wire.ResetRequest, request: Request, access: Leased) -> wire.ResetReply:
    """Replace the leased desktop by a fresh copy of a snapshot."""
    return await farm_of(request).leases.reset(access, body)
