"""Routes of the farm itself: liveness, readiness, numbers, desktops, metrics."""

from __future__ import annotations

from collections import Counter

from fastapi import APIRouter, Request, Response

from dart_server import wire
from dart_server.deps import Reader, farm_of
from dart_server.errors import FarmError
from dart_server.wire import ErrorCode

router = APIRouter(tags=["farm"])


@router.get("/healthz", operation_id="healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", operation_id="readyz")
async def readyz(request: Request) -> dict[str, str]:
    """Claims are served."""
    if not farm_of(request).ready:
        raise FarmError(ErrorCode.DRAINING, "the farm is not ready")
    return {"status": "ready"}


@router.get("/v1/farm", operation_id="get_farm")
async def get_farm(request: Request, principal: Reader) -> wire.FarmView:
    """The farm in numbers."""
    return farm_of(request).view()


@router.get("/v1/desktops", operation_id="list_desktops")
async def list_desktops(request: Request, principal: Reader) -> list[wire.DesktopView]:
    """Every desktop slot that exists now."""
    return [slot.view() for slot in farm_of(request).pool.slots.values()]


@router.get("/metrics", operation_id="metrics", response_class=Response)
async def metrics(request: Request, principal: Reader) -> Response:
    """Prometheus text."""
    farm = farm_of(request)
    states = Counter(slot.state.value for slot in farm.pool.slots.values())
    text = farm.metrics.render(states, farm.pool.waiting, len(farm.snapshots), farm.snapshots.used_bytes)
    return Response(text, media_type="text/plain; version=0.0.4")
