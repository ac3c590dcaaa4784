"""Routes of the API that lead to the page: a live view of a lease for its holder's browser, and what a person does there.

Rule: bearer keys as everywhere in the API; what a person does goes to the holder of the lease's own token only. Non-goals: the page's
own routes (`routes`).
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from dart_server import wire
from dart_server.clock import utc
from dart_server.dashboard.novnc import INSTALL_COMMAND
from dart_server.dashboard.tickets import TICKET_TTL_S
from dart_server.errors import ApiError
from dart_server.http.dependencies import LeasedUnfenced, Tenant, farm_of
from dart_server.http.routes.claims import cancel_on_disconnect
from dart_server.wire import ErrorCode, LeaseState

router = APIRouter(prefix="/v1/leases", tags=["leases"])
MOST_WAIT_S = 60.0


@router.post("/{lease_id}/live-view", operation_id="open_live_view")
async def open_live_view(lease_id: str, request: Request, principal: Tenant) -> wire.LiveViewTicket:
    """Where a browser sees the lease's desktop, and a ticket that logs it in once, with this key's rights."""
    farm = farm_of(request)
    lease = await farm.leases.find(lease_id, principal)
    if lease.state is not LeaseState.ACTIVE:
        raise ApiError(ErrorCode.LEASE_EXPIRED, f"the lease {lease_id} has ended")
    board = farm.dashboard
    return wire.LiveViewTicket(
        path=f"/dashboard/#/leases/{lease_id}",
        ticket=board.tickets.issue(request.headers["authorization"].partition(" ")[2].strip()),
        expires_at=utc(farm.clock.time() + TICKET_TTL_S),
        viewer_hint=None if board.viewer is not None else f"Run `{INSTALL_COMMAND}` on the farm's host.",
    )


@router.get("/{lease_id}/inputs", operation_id="get_human_inputs")
async def get_human_inputs(
    request: Request,
    access: LeasedUnfenced,
    after: Annotated[int, Query(ge=0)] = 0,
    wait_s: Annotated[float, Query(ge=0, le=MOST_WAIT_S)] = 0.0,
) -> wire.HumanInputs:
    """What a person who took over does, since somebody listens here; at once, or when there is something, or after `wait_s`."""
    farm, lease_id = farm_of(request), access.lease.lease_id
    inputs, missed = await cancel_on_disconnect(request, farm.dashboard.inputs.wait(lease_id, after, wait_s))
    controlled = farm.dashboard.controls.find(lease_id) is not None
    return wire.HumanInputs(inputs=inputs, missed=missed, controlled=controlled, now=utc(farm.clock.time()))
