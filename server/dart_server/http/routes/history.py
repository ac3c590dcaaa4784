"""Routes of the history: what happened on the farm, to one desktop, to one lease.

Rule: events are only ever appended, so the number of the last one of a page is where the next page begins (`after`), and that of the
first one is where the page before it ends (`before`). A key that is not an admin's sees the events of its own leases and no others.
Non-goals: writing.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from dart_server import wire
from dart_server.errors import ApiError
from dart_server.http.dependencies import Reader, farm_of
from dart_server.keys import Principal, Scope
from dart_server.wire import ErrorCode

router = APIRouter(prefix="/v1", tags=["history"])
EVENT_NUMBER_MAX = 2**63 - 1

After = Annotated[int, Query(ge=0, le=EVENT_NUMBER_MAX, description="only events with a greater number")]
Before = Annotated[
    int | None,
    Query(ge=1, le=EVENT_NUMBER_MAX, description="the page that ends below this number, instead of the first one"),
]
Limit = Annotated[int, Query(ge=1, le=5000, description="events of a page")]
Kind = Annotated[str | None, Query(max_length=48, description="only this kind")]
Id = Annotated[str | None, Query(max_length=64)]
PAGE = 500


def _whose(principal: Principal) -> str | None:
    """The owner whose leases' events a caller may see; None: all events."""
    return None if principal.scope is Scope.ADMIN else principal.key_id


@router.get("/events", operation_id="list_events")
async def list_events(
    request: Request,
    principal: Reader,
    after: After = 0,
    before: Before = None,
    limit: Limit = PAGE,
    kind: Kind = None,
    desktop_id: Id = None,
    lease_id: Id = None,
) -> list[wire.Event]:
    """The history, oldest first, from event number `after` on."""
    return await farm_of(request).repository.events(
        after,
        limit,
        before=before,
        kind=kind,
        desktop_id=desktop_id,
        lease_id=lease_id,
        owner=_whose(principal),
    )


@router.get("/leases/{lease_id}/events", operation_id="list_lease_events")
async def list_lease_events(
    lease_id: str,
    request: Request,
    principal: Reader,
    after: After = 0,
    before: Before = None,
    limit: Limit = PAGE,
    kind: Kind = None,
) -> list[wire.Event]:
    """What happened under one lease of the caller's, ended ones too; oldest first."""
    farm = farm_of(request)
    await farm.leases.find(lease_id, principal)
    return await farm.repository.events(after, limit, before=before, kind=kind, lease_id=lease_id)


@router.get("/desktops/{desktop_id}/events", operation_id="list_desktop_events")
async def list_desktop_events(
    desktop_id: str,
    request: Request,
    principal: Reader,
    after: After = 0,
    before: Before = None,
    limit: Limit = PAGE,
    kind: Kind = None,
) -> list[wire.Event]:
    """What happened to one desktop, those that are gone too, oldest first; to a key that is not an admin's, while it had the lease."""
    farm = farm_of(request)
    owner = _whose(principal)
    found = await farm.repository.events(after, limit, before=before, kind=kind, desktop_id=desktop_id, owner=owner)
    if not found and not await farm.repository.events(0, 1, desktop_id=desktop_id, owner=owner):
        raise ApiError(ErrorCode.NOT_FOUND, f"there is no desktop {desktop_id}")
    return found
