"""The dashboard over HTTP: the page, its log-in, what it is told, what it may do.

Rule: the page's own routes are for the page (no part of the API, not in its description) and take its session cookie, never a bearer key;
everything that changes something asks for the session's token and for the page's own origin. The page runs nothing but its own modules
(Content-Security-Policy). Non-goals: what may be seen (`views`), pictures (`camera`), live views (`live`).
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response, WebSocket
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import HTTPConnection

from dart_server.dashboard import views
from dart_server.dashboard.camera import ImageUnavailable, ViewClosed
from dart_server.dashboard.live import MAX_VIEWS, LiveView
from dart_server.dashboard.novnc import INSTALL_COMMAND
from dart_server.dashboard.sessions import CSRF_HEADER, SESSION_TTL_S, Session, check_csrf, check_origin
from dart_server.errors import ApiError
from dart_server.http.dependencies import farm_of
from dart_server.http.ingress.limits import AUTHENTICATED
from dart_server.http.middleware import deny_websocket
from dart_server.keys import Principal, Scope
from dart_server.wire import ErrorCode

router = APIRouter(prefix="/dashboard", include_in_schema=False)
STATIC = Path(__file__).resolve().parents[2] / "dashboard" / "static"
THUMBNAIL_MAX_AGE_S = 0.9
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
ViewId = Annotated[str, Query(pattern=r"^[A-Za-z0-9_-]{8,64}$")]


class LogIn(BaseModel):
    """A key."""

    model_config = ConfigDict(extra="forbid")
    key: str = Field(min_length=1, max_length=512)


class TicketBody(BaseModel):
    """A ticket, which stood in the page's address."""

    model_config = ConfigDict(extra="forbid")
    ticket: str = Field(min_length=1, max_length=512)


class ControlBody(BaseModel):
    """Which of the person's views takes or gives back the control."""

    model_config = ConfigDict(extra="forbid")
    view: str = Field(pattern=r"^[A-Za-z0-9_-]{8,64}$")


async def session_of(connection: HTTPConnection) -> tuple[Session, Principal]:
    """Who is logged in. Raises `unauthenticated`."""
    found = await farm_of(connection).dashboard.sessions.require(_cookie_of(connection))
    connection.scope["state"][AUTHENTICATED] = True
    return found


def _cookie_of(connection: HTTPConnection) -> str | None:
    """The session cookie that a request carries; where the farm itself speaks TLS, only one that was set over TLS."""
    sessions = farm_of(connection).dashboard.sessions
    return sessions.cookie_in(connection.cookies, secure=connection.url.scheme in ("https", "wss"))


async def _looking(connection: HTTPConnection) -> Principal:
    return (await session_of(connection))[1]


async def _changing(request: Request) -> Principal:
    check_origin(request.headers)
    session, principal = await session_of(request)
    check_csrf(session, request.headers.get(CSRF_HEADER))
    return principal


Viewer = Annotated[Principal, Depends(_looking)]
CsrfChecked = Annotated[Principal, Depends(_changing)]


def no_store_response(content: Any) -> JSONResponse:
    """An answer that no cache keeps."""
    return JSONResponse(content, headers={**HEADERS, "cache-control": "no-store"})


# The page


@cache
def static_file(name: str) -> tuple[bytes, str, str] | None:
    """(content, type, tag) of one of the page's own files; None when there is none of this name."""
    known = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.is_file()}
    if name not in known:
        return None
    content = known[name].read_bytes()
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    kind = "text/javascript" if name.endswith(".js") else kind
    return content, kind, f'"{hashlib.sha256(content).hexdigest()[:20]}"'


def file_answer(request: Request, content: bytes, kind: str, tag: str) -> Response:
    """A file that the browser asks for again, and gets again only when it changed."""
    headers = {**HEADERS, "etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    charset = "; charset=utf-8" if kind.startswith("text/") else ""
    return Response(content, headers={**headers, "content-type": kind + charset})


@router.get("")
async def without_slash() -> Response:
    """To the page."""
    return RedirectResponse("/dashboard/", status_code=308, headers=HEADERS)


@router.get("/")
async def page(request: Request) -> Response:
    """The page itself; what it shows it asks for."""
    return await static("index.html", request)


@router.get("/static/{name:path}")
async def static(name: str, request: Request) -> Response:
    """The page's modules, style and icon."""
    found = static_file(name)
    if found is None:
        raise ApiError(ErrorCode.NOT_FOUND, f"the dashboard has no file {name}")
    return file_answer(request, *found)


@router.get("/novnc/{name:path}")
async def novnc_file(name: str, request: Request) -> Response:
    """The viewer's modules, as its package has them."""
    directory = farm_of(request).dashboard.viewer
    if directory is None:
        raise ApiError(
            ErrorCode.NOT_FOUND, "the viewer is not installed", hint=f"Run `{INSTALL_COMMAND}` on the farm's host."
        )
    path = (directory / name).resolve()
    if path.suffix != ".js" or not path.is_relative_to(directory.resolve()) or not path.is_file():
        raise ApiError(ErrorCode.NOT_FOUND, f"the viewer has no module {name}")
    return file_answer(request, path.read_bytes(), "text/javascript", f'"{directory.name}"')


# Log-in


async def _session_view(request: Request, session: Session, principal: Principal) -> dict[str, Any]:
    farm = farm_of(request)
    record = await farm.repository.key(principal.key_id)
    return {
        "key_id": principal.key_id,
        "name": record.name if record else principal.key_id,
        "scope": principal.scope.value,
        "csrf": session.csrf,
        "left_s": round(session.until_s - farm.clock.monotonic()),
        "viewer": farm.dashboard.viewer is not None,
        "viewer_install_command": INSTALL_COMMAND,
    }


@router.post("/api/login")
async def log_in(body: LogIn, request: Request) -> Response:
    """Trade a key for a session cookie, which no script can read and no other site can send."""
    return await _enter(request, lambda: body.key)


@router.post("/api/ticket")
async def use_ticket(body: TicketBody, request: Request) -> Response:
    """Trade a ticket for a session cookie."""
    return await _enter(request, lambda: farm_of(request).dashboard.tickets.redeem(body.ticket))


async def _enter(request: Request, key: Callable[[], str]) -> Response:
    scheme = check_origin(request.headers)
    board = farm_of(request).dashboard
    client = board.login_limiter.acquire(request.client.host if request.client else None)
    cookie, session, principal = await board.sessions.log_in(key())
    board.login_limiter.succeeded(client)
    request.scope["state"][AUTHENTICATED] = True
    answer = no_store_response(await _session_view(request, session, principal))
    secure = scheme == "https"
    answer.set_cookie(
        board.sessions.cookie_name(secure=secure),
        cookie,
        max_age=int(SESSION_TTL_S),
        path=_cookie_path(secure=secure),
        secure=secure,
        httponly=True,
        samesite="strict",
    )
    return answer


def _cookie_path(*, secure: bool) -> str:
    """Where the session cookie is sent: a name with `SECURE_PREFIX` needs all paths."""
    return "/" if secure else "/dashboard"


@router.post("/api/logout")
async def log_out(request: Request) -> Response:
    """End the session."""
    secure = check_origin(request.headers) == "https"
    sessions = farm_of(request).dashboard.sessions
    sessions.log_out(_cookie_of(request))
    answer = no_store_response({})
    name, path = sessions.cookie_name(secure=secure), _cookie_path(secure=secure)
    answer.delete_cookie(name, path=path, secure=secure, httponly=True, samesite="strict")
    return answer


@router.get("/api/session")
async def session(request: Request) -> Response:
    """Who is logged in; null when nobody is."""
    try:
        found = await session_of(request)
    except ApiError as error:
        if error.code is not ErrorCode.UNAUTHENTICATED:
            raise
        return no_store_response(None)
    return no_store_response(await _session_view(request, *found))


# Looking


@router.get("/api/overview")
async def overview(request: Request, principal: Viewer) -> Response:
    """Totals, desktops, leases, queue, pools."""
    return no_store_response(await views.overview(farm_of(request), principal))


@router.get("/api/samples")
async def samples(request: Request, principal: Viewer, since: int = 0) -> Response:
    """The numbers of the charts."""
    return no_store_response(farm_of(request).dashboard.samples.since(since))


@router.get("/api/desktops/{desktop_id}")
async def details(desktop_id: str, request: Request, principal: Viewer) -> Response:
    """One desktop, its lease, who controls it, its latest events."""
    farm = farm_of(request)
    return no_store_response(await views.details(farm, views.find_slot(farm, desktop_id, principal), principal))


@router.get("/api/desktops/{desktop_id}/picture")
async def picture(desktop_id: str, request: Request, principal: Viewer) -> Response:
    """A small picture of a leased desktop, not older than a second; 204 while there is none that the key may see."""
    farm = farm_of(request)
    slot = farm.pool.slots.get(desktop_id)
    lease = views.visible_leases(farm, principal).get(slot.lease_id or "") if slot is not None else None
    if lease is None:
        return Response(status_code=204, headers=HEADERS)
    try:
        taken, small = await farm.dashboard.captures.thumbnail(lease, THUMBNAIL_MAX_AGE_S)
    except (ImageUnavailable, ViewClosed):
        return Response(status_code=204, headers=HEADERS)
    return file_answer(request, small, "image/jpeg", f'"{lease.lease_id}-{taken.number}"')


@router.get("/api/desktops/{desktop_id}/steps")
async def steps(desktop_id: str, request: Request, principal: Viewer) -> Response:
    """The last steps of a desktop."""
    return no_store_response([views.step_row(step) for step in views.steps(farm_of(request), desktop_id, principal)])


@router.get("/api/desktops/{desktop_id}/steps/{number}")
async def step_picture(desktop_id: str, number: int, request: Request, principal: Viewer) -> Response:
    """The small picture of a step."""
    for step in views.steps(farm_of(request), desktop_id, principal):
        if step.number == number and step.picture is not None:
            headers = {**HEADERS, "cache-control": "private, max-age=600"}
            return Response(step.picture, media_type="image/jpeg", headers=headers)
    raise ApiError(ErrorCode.NOT_FOUND, f"there is no picture of step {number}")


@router.get("/api/leases/{lease_id}")
async def lease(lease_id: str, request: Request, principal: Viewer) -> Response:
    """One active lease, with the desktop that is behind it now."""
    farm = farm_of(request)
    found = views.find_lease(farm, lease_id, principal)
    return no_store_response(views.lease_row(farm, found, await views.key_names(farm)))


@router.websocket("/api/leases/{lease_id}/live")
async def live(socket: WebSocket, lease_id: str, view: ViewId) -> None:
    """A live view of the lease's desktop, in the remote framebuffer protocol."""
    farm = farm_of(socket)
    board = farm.dashboard
    try:
        check_origin(socket.headers)
        session, principal = await session_of(socket)
        lease = views.find_lease(farm, lease_id, principal)
        if len(board.views) >= MAX_VIEWS:
            raise ApiError(ErrorCode.NO_CAPACITY, "too many live views are open", hint="Close some.")
        if view in board.views:
            raise ApiError(ErrorCode.INVALID, "a view of this id is open")
    except ApiError as error:
        await deny_websocket(socket, error)
        return

    async def check_access() -> None:
        _, now = await session_of(socket)
        if not now.may_access(lease.owner):
            raise ApiError(ErrorCode.FORBIDDEN, "the key may not see this desktop any more")
        control = board.controls.find(lease_id)
        if control is not None and control.view_id == view and not views.may_control(now, lease):
            raise ApiError(ErrorCode.FORBIDDEN, "the key may not control this desktop any more")

    protocol = "binary" if "binary" in socket.scope.get("subprotocols", []) else None
    await socket.accept(protocol)
    board.views.add(view)
    try:
        await LiveView(
            lease, view, board.captures.for_lease(lease), board.controls, farm.clock, check_access, session.ended
        ).serve(socket)
    finally:
        board.views.discard(view)


# Doing


@router.post("/api/leases/{lease_id}/control")
async def take_control(lease_id: str, body: ControlBody, request: Request, principal: CsrfChecked) -> Response:
    """Give mouse and keyboard to one of the person's open views."""
    farm = farm_of(request)
    lease = views.find_lease(farm, lease_id, principal)
    if not views.may_control(principal, lease):
        raise ApiError(ErrorCode.FORBIDDEN, "taking over needs the lease's own key, or an admin key")
    if body.view not in farm.dashboard.views:
        raise ApiError(ErrorCode.INVALID, "there is no open view of this id")
    try:
        farm.dashboard.controls.take(lease, body.view, principal.key_id)
    except ViewClosed as error:
        raise ApiError(ErrorCode.LEASE_EXPIRED, str(error)) from error
    return no_store_response({})


@router.delete("/api/leases/{lease_id}/control")
async def give_back(lease_id: str, body: ControlBody, request: Request, principal: CsrfChecked) -> Response:
    """Give them back."""
    farm = farm_of(request)
    control = farm.dashboard.controls.find(lease_id)
    if control is not None and control.key_id == principal.key_id:
        await farm.dashboard.controls.release(lease_id, body.view)
    return no_store_response({})


@router.post("/api/leases/{lease_id}/release")
async def release(lease_id: str, request: Request, principal: CsrfChecked) -> Response:
    """End a lease: its desktop goes back to the pool."""
    farm = farm_of(request)
    lease = views.find_lease(farm, lease_id, principal)
    if not views.may_control(principal, lease):
        raise ApiError(ErrorCode.FORBIDDEN, "releasing needs the lease's own key, or an admin key")
    await farm.leases.release(lease_id, principal)
    return no_store_response({})


@router.post("/api/desktops/{desktop_id}/quarantine")
async def quarantine(desktop_id: str, request: Request, principal: CsrfChecked) -> Response:
    """Keep a desktop from use, for a person to look at."""
    principal.require(Scope.ADMIN)
    await farm_of(request).quarantine(desktop_id, "asked for on the dashboard")
    return no_store_response({})


@router.post("/api/desktops/{desktop_id}/unquarantine")
async def unquarantine(desktop_id: str, request: Request, principal: CsrfChecked) -> Response:
    """Let a quarantined desktop go: something fresh takes its place."""
    principal.require(Scope.ADMIN)
    await farm_of(request).release(desktop_id, principal)
    return no_store_response({})
