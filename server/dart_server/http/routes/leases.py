"""Routes of leases: claim, list, heartbeat, renew, attach, reset, release."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from dart_server import wire
from dart_server.http.dependencies import Leased, Reader, Tenant, farm_of
from dart_server.http.routes.claims import cancel_on_disconnect

router = APIRouter(prefix="/v1/leases", tags=["leases"])


@router.post("", operation_id="create_lease")
async def claim(body: wire.LeaseRequest, request: Request, principal: Tenant) -> wire.LeaseGrant:
    """Claim a desktop; waits up to `wait_s`. A caller that hangs up while it waits leaves the queue."""
    return await cancel_on_disconnect(request, farm_of(request).claims.claim_and_wait(body, principal))


@router.get("", operation_id="list_leases")
async def list_leases(request: Request, principal: Reader) -> list[wire.LeaseView]:
    """The active leases that the caller may see."""
    return [lease.view() for lease in farm_of(request).leases.active if principal.may_access(lease.owner)]


@router.get("/{lease_id}", operation_id="get_lease")
async def get_lease(lease_id: str, request: Request, principal: Reader) -> wire.LeaseView:
    """One lease, ended ones too."""
    return (await farm_of(request).leases.find(lease_id, principal)).view()


@router.post("/{lease_id}/heartbeat", operation_id="heartbeat_lease")
async def heartbeat(lease_id: str, request: Request, principal: Tenant) -> wire.HeartbeatReply:
    """Keep a lease for another `ttl_s`."""
    return await farm_of(request).leases.heartbeat(lease_id, principal)


@router.post("/{lease_id}/renew", operation_id="renew_lease")
async def renew(lease_id: str, body: wire.RenewRequest, request: Request, principal: Tenant) -> wire.RenewReply:
    """Give a lease another time to live, from now on."""
    return await farm_of(request).leases.renew(lease_id, principal, body.ttl_s)


@router.post("/{lease_id}/attach", operation_id="attach_lease")
async def attach(lease_id: str, body: wire.AttachRequest, request: Request, principal: Tenant) -> wire.LeaseGrant:
    """A lease by reference, for another process of its owner; with `takeover` the former user is fenced off."""
    return await farm_of(request).leases.attach(lease_id, principal, takeover=body.takeover)


@router.delete("/{lease_id}", operation_id="release_lease", status_code=204)
async def release(lease_id: str, request: Request, principal: Tenant) -> Response:
    """End a lease. Idempotent."""
    await farm_of(request).leases.release(lease_id, principal)
    return Response(status_code=204)


@router.post("/{lease_id}/reset", operation_id="reset_lease")
async def reset(lease_id: str, body: wire.ResetRequest, request: Request, access: Leased) -> wire.ResetReply:
    """Replace the leased desktop by a fresh copy of a snapshot."""
    return await farm_of(request).leases.reset(access, body)
