"""Who may talk to the farm from where: host names, origins, and the headers that browsers obey.

Rule: a request that came over TCP must name a host of this farm (else a web page could reach it through a name of its own that resolves
to it: DNS rebinding); a browser may open WebSockets and change state only from the farm's own pages or from an origin that was named. IP
literals are always hosts of this farm: no page can have one as its own name. Non-goals: keys (`deps`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from starlette.types import Scope

from dart_server import wire
from dart_server.errors import ApiError
from dart_server.wire import ErrorCode

Headers = Sequence[tuple[bytes, bytes]]
LOOPBACK_NAMES = frozenset({"localhost"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
CORS_METHODS = "GET, POST, PUT, DELETE"
CORS_HEADERS = ", ".join(
    ("Authorization", "Content-Type", wire.LEASE_TOKEN_HEADER, wire.FENCING_TOKEN_HEADER, wire.REQUEST_ID_HEADER)
)
CORS_SHOWN = f"{wire.REQUEST_ID_HEADER}, Retry-After"
PREFLIGHT_S = 600
SECURITY_HEADERS: Headers = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
    (b"cache-control", b"no-store"),
)
"""What every answer carries, unless its route says otherwise: nothing of it is a page, a script, or worth keeping."""
HSTS: Headers = ((b"strict-transport-security", b"max-age=31536000"),)


def host_name(netloc: str) -> str:
    """The host of `HOST`, `HOST:PORT` or `[V6]:PORT`, in lower case, empty when it is none."""
    try:
        return (urlsplit(f"//{netloc}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _given(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1").strip()
    return None


class HostPolicy:
    """The rules of one farm. `hosts`: names beside loopback; `origins`: `https://dashboard.example`, other sites' pages that may call."""

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = (), *, tls: bool = False) -> None:
        self._hosts = LOOPBACK_NAMES | {host_name(host) for host in hosts}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._always = (*SECURITY_HEADERS, *HSTS) if tls else SECURITY_HEADERS

    def check(self, scope: Scope) -> None:
        """Raises `forbidden` for a request that may not come in from where it comes from."""
        host = _given(scope, b"host") or ""
        server = scope.get("server")
        over_tcp = server is not None and server[1] is not None
        if over_tcp:
            name = host_name(host)
            if name not in self._hosts and not _is_address(name):
                hint = "Use an address, or name it: `dart-farm serve --allow-host NAME` (DART_ALLOWED_HOSTS)."
                raise ApiError(ErrorCode.FORBIDDEN, f"this farm is not called {name[:100] or 'nothing'}", hint=hint)
        origin = _given(scope, b"origin")
        if origin is None or (scope["type"] == "http" and scope["method"] in SAFE_METHODS):
            return
        if not self._named(origin) and urlsplit_host(origin) != host.lower():
            hint = "Name the origin: `dart-farm serve --cors-origin ORIGIN` (DART_CORS_ORIGINS)."
            raise ApiError(ErrorCode.FORBIDDEN, "pages of this origin may not do that", hint=hint)

    def _named(self, origin: str) -> bool:
        return origin.lower() in self._origins

    def is_cors_preflight(self, scope: Scope) -> bool:
        """Whether this is a browser's question before a request from a named origin."""
        origin = _given(scope, b"origin")
        asked = _given(scope, b"access-control-request-method")
        return scope["method"] == "OPTIONS" and asked is not None and origin is not None and self._named(origin)

    def add_security_headers(self, scope: Scope, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The headers of an answer with those added that browsers obey."""
        names = {name.lower() for name, _ in headers}
        headers += [pair for pair in self._always if pair[0] not in names]
        if self._origins:
            headers.append((b"vary", b"Origin"))
            origin = _given(scope, b"origin")
            if origin is not None and self._named(origin):
                headers.append((b"access-control-allow-origin", origin.encode("latin-1")))
                headers.append((b"access-control-expose-headers", CORS_SHOWN.encode()))
                if scope["type"] == "http" and scope["method"] == "OPTIONS":
                    headers.append((b"access-control-allow-methods", CORS_METHODS.encode()))
                    headers.append((b"access-control-allow-headers", CORS_HEADERS.encode()))
                    headers.append((b"access-control-max-age", str(PREFLIGHT_S).encode()))
        return headers


def urlsplit_host(origin: str) -> str:
    """`host[:port]` of an origin in lower case; empty for `null` and for what is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
