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
from dart_server.errors import ApiError
from dart_server.guest.access import answer_too_large
from dart_server.http.ingress.limits import AUTHENTICATED
from dart_server.keys import Principal, Scope
from dart_server.leases.service import LeaseAccess
from dart_server.observability import logs
from dart_server.wire import ErrorCode

if TYPE_CHECKING:
    from dart_server.farm import Farm

FENCING_TOKEN_DIGITS = 18


@dataclass(frozen=True, slots=True)
class RouteRequirements:
    """What the caller of a route must bring: a key of a scope, a lease's token, its fencing token."""

    scope: Scope | None = None
    token: bool = False
    fencing_token: bool = False


ROUTE_REQUIREMENTS: dict[Callable[..., Any], RouteRequirements] = {}
"""By dependency; the API's description is made from it."""


def farm_of(connection: HTTPConnection) -> Farm:
    """The one farm of this application."""
    farm: Farm = connection.app.state.farm
    return farm


def is_known(farm: Farm, connection: HTTPConnection) -> bool:
    """Whether a request carries a key or a session that was found valid before; looks into memory only."""
    return farm.keys.knows(connection.headers.get("authorization")) or farm.dashboard.sessions.knows(connection.cookies)


async def principal_of(connection: HTTPConnection, scope: Scope) -> Principal:
    """The caller, if its key has the scope and is within its limits; from here on the log names the lease and the desktop of the route.

    Raises `ApiError`.
    """
    path = connection.path_params
    logs.bind(lease_id=path.get("lease_id"), desktop_id=path.get("desktop_id"))
    farm = farm_of(connection)
    principal = await farm.keys.principal(connection.headers.get("authorization"))
    connection.scope["state"][AUTHENTICATED] = True
    principal.require(scope)
    if "active_request" not in connection.scope["state"]:
        stream, unlimited = connection.scope["type"] == "websocket", principal.scope is Scope.ADMIN
        connection.scope["state"]["active_request"] = farm.limits.acquire(
            principal.key_id, stream=stream, unlimited=unlimited
        )
    return principal


def _with_scope(scope: Scope) -> Callable[[HTTPConnection], Awaitable[Principal]]:
    async def dependency(connection: HTTPConnection) -> Principal:
        return await principal_of(connection, scope)

    ROUTE_REQUIREMENTS[dependency] = RouteRequirements(scope)
    return dependency


async def access_of(connection: HTTPConnection, lease_id: str, *, fenced: bool = True) -> LeaseAccess:
    """The right to call into the desktop of a lease, from key, lease token and fencing_token. Raises `ApiError`."""
    principal = await principal_of(connection, Scope.LEASE)
    token = connection.headers.get(wire.LEASE_TOKEN_HEADER)
    if not token:
        raise ApiError(ErrorCode.FORBIDDEN, f"the lease token is missing; send {wire.LEASE_TOKEN_HEADER}")
    fencing_token: int | None = None
    if fenced:
        text = connection.headers.get(wire.FENCING_TOKEN_HEADER, "")
        if not (text.isascii() and text.isdecimal() and len(text) <= FENCING_TOKEN_DIGITS):
            raise ApiError(ErrorCode.INVALID, f"the header {wire.FENCING_TOKEN_HEADER} is missing or not a number")
        fencing_token = int(text)
    access = await farm_of(connection).leases.access(lease_id, principal, token, fencing_token)
    logs.bind(desktop_id=access.slot.desktop_id)
    return access


def answer_reserver_of(connection: HTTPConnection) -> Callable[[int], None]:
    """Counts the bytes of a desktop's answer that this request keeps in the farm's memory.

    What it returns raises `too_many_requests` while others hold the room, and `guest_error` for an answer that there is never room for:
    its size is the desktop's doing, not the request's.
    """
    limits, active_request = farm_of(connection).limits, connection.scope["state"]["active_request"]

    def reserve(nbytes: int) -> None:
        try:
            limits.reserve_bytes(active_request, nbytes)
        except ApiError as error:
            if error.code is not ErrorCode.INVALID:
                raise
            raise answer_too_large(error.detail) from error

    return reserve


async def _fenced(connection: HTTPConnection, lease_id: str) -> LeaseAccess:
    return await access_of(connection, lease_id)


async def _unfenced(connection: HTTPConnection, lease_id: str) -> LeaseAccess:
    return await access_of(connection, lease_id, fenced=False)


ROUTE_REQUIREMENTS[_fenced] = RouteRequirements(Scope.LEASE, token=True, fencing_token=True)
ROUTE_REQUIREMENTS[_unfenced] = RouteRequirements(Scope.LEASE, token=True)

Reader = Annotated[Principal, Depends(_with_scope(Scope.READ))]
Tenant = Annotated[Principal, Depends(_with_scope(Scope.LEASE))]
Admin = Annotated[Principal, Depends(_with_scope(Scope.ADMIN))]
Leased = Annotated[LeaseAccess, Depends(_fenced)]
LeasedUnfenced = Annotated[LeaseAccess, Depends(_unfenced)]
