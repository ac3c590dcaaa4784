"""Routes of the farm itself: liveness, readiness, numbers, desktops, metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from dart_server import wire
from dart_server.errors import ApiError
from dart_server.http.dependencies import Reader, farm_of
from dart_server.wire import ErrorCode

router = APIRouter(tags=["farm"])
REDACTED_FIELDS = {"lease_id": None, "setup_key": None, "snapshot_id": None, "note": None}


@router.get("/healthz", operation_id="healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", operation_id="readyz")
async def readyz(request: Request) -> dict[str, str]:
    """Claims are served; else 503 with the reasons."""
    reasons = farm_of(request).not_ready_reasons()
    if reasons:
        raise ApiError(ErrorCode.DRAINING, f"claims are not served: {'; '.join(reasons)}")
    return {"status": "ready"}


@router.get("/v1/farm", operation_id="get_farm")
async def get_farm(request: Request, principal: Reader) -> wire.FarmView:
    """The farm in numbers."""
    return farm_of(request).view()


@router.get("/v1/desktops", operation_id="list_desktops")
async def list_desktops(request: Request, principal: Reader) -> list[wire.DesktopView]:
    """Every desktop slot that exists now; whose it is and what it holds is told of the caller's own only."""
    farm = farm_of(request)
    own = {lease.lease_id for lease in farm.leases.active if principal.may_access(lease.owner)}
    everything = principal.scope is wire.KeyScope.ADMIN
    return [
        view if everything or view.lease_id in own else view.model_copy(update=REDACTED_FIELDS)
        for view in (slot.view() for slot in farm.pool.slots.values())
    ]


@router.get("/metrics", operation_id="metrics", response_class=Response)
async def metrics(request: Request, principal: Reader) -> Response:
    """Prometheus text."""
    farm = farm_of(request)
    return Response(farm.metrics.render(farm.gauges()), media_type="text/plain; version=0.0.4")
