"""Routes of keys: make, list, revoke. Scope `admin`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from dart_server import wire
from dart_server.http.dependencies import Admin, farm_of

router = APIRouter(prefix="/v1/keys", tags=["keys"])


@router.post("", operation_id="create_key", status_code=201)
async def make(body: wire.KeyRequest, request: Request, principal: Admin) -> wire.NewKey:
    """Make a key. The answer is the only one that has its secret."""
    return await farm_of(request).keys.make(body)


@router.get("", operation_id="list_keys")
async def list_keys(request: Request, principal: Admin) -> list[wire.KeyView]:
    """Every key, revoked ones too, oldest first, without their secrets."""
    return await farm_of(request).keys.all()


@router.delete("/{key_id}", operation_id="revoke_key", status_code=204)
async def revoke(key_id: str, request: Request, principal: Admin) -> Response:
    """Revoke a key, at once: its requests, WebSockets, sessions of the dashboard, claims and leases end, too. Idempotent.

    The last key of scope `admin` is not revoked.
    """
    await farm_of(request).keys.revoke(key_id)
    return Response(status_code=204)
