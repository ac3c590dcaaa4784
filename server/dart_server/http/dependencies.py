"""What routes depend on: the farm, the caller, the right to call into a leased desktop.

Rule: every route but liveness and readiness asks for a key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends
from starlette.requests import HTTPConnection

from dart_server import wire
from dart_server.errors import FarmError
from dart_server.keys import Principal, Scope
from dart_server.leases.service import Access
from dart_server.observability import logs
from dart_server.wire import ErrorCode

if TYPE_CHECKING:
    from dart_server.farm import Farm

FENCE_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Needs:
    """What the caller of a route must bring: a key of a scope, a lease's token, its fence."""

    scope: Scope | None = None
    token: bool = False
    fence: bool = False


NEEDS: dict[Callable[..., Any], Needs] = {}
"""By dependency; the API's description is made from it."""


def farm_of(connection: HTTPConnection) -> Farm:
    """The one farm of this application."""
    farm: Farm = connection.app.state.farm
    return farm


async def principal_of(connection: HTTPConnection, scope: Scope) -> Principal:
    """The caller, if its key has the scope and is within its limits; from here on the log names the lease and the desktop of the route.
    Raises `FarmError`."""
    path = connection.path_params
    logs.bind(lease_id=path.get("lease_id"), desktop_id=path.get("desktop_id"))
    farm = farm_of(connection)
    principal = await farm.keys.principal(connection.headers.get("authorization"))
    principal.require(scope)
    if "visit" not in connection.scope["state"]:
        stream, unlimited = connection.scope["type"] == "websocket", principal.scope is Scope.ADMIN
        connection.scope["state"]["visit"] = farm.limits.enter(principal.key_id, stream=stream, unlimited=unlimited)
    return principal


def _with_scope(scope: Scope) -> Callable[[HTTPConnection], Awaitable[Principal]]:
    async def dependency(connection: HTTPConnection) -> Principal:
        return await principal_of(connection, scope)

    NEEDS[dependency] = Needs(scope)
    return dependency


async def access_of(connection: HTTPConnection, lease_id: str, *, fenced: bool = True) -> Access:
    """The right to call into the desktop of a lease, from key, lease token and fence. Raises `FarmError`."""
    principal = await principal_of(connection, Scope.LEASE)
    token = connection.headers.get(wire.LEASE_TOKEN_HEADER)
    if not token:
        raise FarmError(ErrorCode.FORBIDDEN, f"the lease token is missing; send {wire.LEASE_TOKEN_HEADER}")
    fence: int | None = None
    if fenced:
        text = connection.headers.get(wire.FENCE_HEADER, "")
        if not (text.isascii() and text.isdecimal() and len(text) <= FENCE_DIGITS):
            raise FarmError(ErrorCode.INVALID, f"the header {wire.FENCE_HEADER} is missing or not a number")
        fence = int(text)
    access = await farm_of(connection).leases.access(lease_id, principal, token, fence)
    logs.bind(desktop_id=access.slot.desktop_id)
    return access


def holder_of(connection: HTTPConnection) -> Callable[[int], None]:
    """Counts the bytes that this request keeps in the farm's memory. What it returns raises `too_many_requests`."""
    limits, visit = farm_of(connection).limits, connection.scope["state"]["visit"]
    return lambda nbytes: limits.hold(visit, nbytes)


async def _fenced(connection: HTTPConnection, lease_id: str) -> Access:
    return await access_of(connection, lease_id)


async def _unfenced(connection: HTTPConnection, lease_id: str) -> Access:
    return await access_of(connection, lease_id, fenced=False)


NEEDS[_fenced] = Needs(Scope.LEASE, token=True, fence=True)
NEEDS[_unfenced] = Needs(Scope.LEASE, token=True)

Reader = Annotated[Principal, Depends(_with_scope(Scope.READ))]
Tenant = Annotated[Principal, Depends(_with_scope(Scope.LEASE))]
Admin = Annotated[Principal, Depends(_with_scope(Scope.ADMIN))]
Leased = Annotated[Access, Depends(_fenced)]
LeasedUnfenced = Annotated[Access, Depends(_unfenced)]
