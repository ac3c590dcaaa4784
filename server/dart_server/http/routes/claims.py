"""Routes of claims: stand in the queue, look, be told, leave it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from dart_server import wire
from dart_server.http.dependencies import Reader, Tenant, farm_of
from dart_server.leases.claims import ClaimEvent

router = APIRouter(prefix="/v1/claims", tags=["claims"])
T = TypeVar("T")
MAX_POLL_S = 600.0


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the caller hangs up."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
        return await task
    finally:
        task.cancel()
        gone.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@router.post("", operation_id="submit_claim", status_code=202)
async def submit(body: wire.ClaimRequest, request: Request, principal: Tenant) -> wire.ClaimView:
    """Claim desktops without waiting for them. Hanging up does not cancel it; `deadline_s` and DELETE do."""
    claims = farm_of(request).claims
    return claims.view(await claims.submit(body, principal), secrets=True)


@router.get("", operation_id="list_claims")
async def list_claims(request: Request, principal: Reader) -> list[wire.ClaimView]:
    """The waiting claims that the caller may see, in the order in which they will probably be served."""
    return farm_of(request).claims.queue(principal)


@router.get("/{claim_id}", operation_id="get_claim")
async def get_claim(
    claim_id: str, request: Request, principal: Reader, wait_s: Annotated[float, Query(ge=0, le=MAX_POLL_S)] = 0.0
) -> wire.ClaimView:
    """One claim: at once, or when it has ended, or after `wait_s`."""
    claims = farm_of(request).claims
    claim = claims.find(claim_id, principal)
    if wait_s:
        await cancel_on_disconnect(request, claims.wait(claim, wait_s))
    return claims.view(claim, secrets=True)


@router.get("/{claim_id}/events", operation_id="claim_events", response_class=StreamingResponse)
async def claim_events(
    claim_id: str, request: Request, principal: Reader, last_event_id: Annotated[str, Header()] = ""
) -> StreamingResponse:
    """Server-Sent Events: `position` now and whenever it changes, then `granted`, `cancelled`, `expired` or `refused` as the last one.

    The data is the claim.
    """
    claims = farm_of(request).claims
    claim = claims.find(claim_id, principal)
    claims.require_stream_quota(principal)
    known = last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 10
    events = claims.events(claim, principal, int(last_event_id) if known else 0)
    return StreamingResponse(_lines(events), media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _lines(events: AsyncIterator[ClaimEvent | None]) -> AsyncIterator[str]:
    async for event in events:
        if event is None:
            yield ": waiting\n\n"
        else:
            kind, number, view = event
            yield f"id: {number}\nevent: {kind}\ndata: {view.model_dump_json()}\n\n"


@router.delete("/{claim_id}", operation_id="cancel_claim", status_code=204)
async def cancel(claim_id: str, request: Request, principal: Tenant) -> Response:
    """Cancel a claim; desktops that it was granted are given back. Idempotent."""
    await farm_of(request).claims.cancel(claim_id, principal)
    return Response(status_code=204)
