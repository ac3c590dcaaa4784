"""Who is logged in to the page: random session tokens in memory, each bound to the key that logged in.

Rule: a session ends by time, by log-out, and with its key; every request asks whether the key still holds. State changes carry the
session's second secret (`csrf`), which other sites cannot read. A browser sends a host's cookies to every port of it, so that each farm has
a name of its own for its cookie, and over TLS one that nothing without TLS can set (`__Host-`). Non-goals: keys themselves (`keys`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from dart_server.errors import ApiError
from dart_server.ids import hash_secret, new_secret, secrets_equal
from dart_server.keys import KeyStore, Principal
from dart_server.wire import Clock, ErrorCode

COOKIE = "dart_session"
SECURE_PREFIX = "__Host-"
"""Browsers take a cookie of this name only over TLS, for one host and for all its paths."""
CSRF_HEADER = "x-dart-csrf"
SESSION_TTL_S = 12 * 3600.0
"""How long a log-in holds."""
IDLE_TIMEOUT_S = 3600.0
"""A session that nobody uses ends after this."""
MAX_SESSIONS = 256
"""The ones used longest ago end when there are more."""
MAX_SESSIONS_PER_KEY = 16
"""Of one key; its own make way first, so that nobody who logs in again and again ends another's."""


@dataclass(slots=True)
class Session:
    """One log-in. `until_s` and `used_s` are on the clock's monotonic axis."""

    key_id: str
    authorization: str = field(repr=False)
    """What the key is asked with again; in memory only."""
    csrf: str = field(repr=False)
    until_s: float
    used_s: float
    ended: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set when it ends before its time."""


class Sessions:
    """All log-ins of one farm. instance: what tells it from other farms of its host."""

    def __init__(self, keys: KeyStore, clock: Clock, instance: str = "") -> None:
        self._keys = keys
        self._clock = clock
        self._cookie_name = f"{COOKIE}_{hashlib.sha256(instance.encode()).hexdigest()[:12]}"
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def cookie_name(self, *, secure: bool) -> str:
        """The name of this farm's cookie; `secure`: the browser came over TLS."""
        return f"{SECURE_PREFIX if secure else ''}{self._cookie_name}"

    def cookie_in(self, cookies: Mapping[str, str], *, secure: bool) -> str | None:
        """This farm's cookie among those of a request; `secure`: only one that was set over TLS counts."""
        found = cookies.get(self.cookie_name(secure=True))
        return found if found is not None or secure else cookies.get(self.cookie_name(secure=False))

    async def log_in(self, key: str) -> tuple[str, Session, Principal]:
        """(cookie, session, who it is). Raises `unauthenticated`."""
        authorization = f"Bearer {key.strip()}"
        principal = await self._keys.principal(authorization)
        cookie, now = new_secret("sess"), self._clock.monotonic()
        session = Session(principal.key_id, authorization, new_secret("csrf"), now + SESSION_TTL_S, now)
        self._sessions[hash_secret(cookie)] = session
        own = [digest for digest, other in self._sessions.items() if other.key_id == principal.key_id]
        for digest in own[:-MAX_SESSIONS_PER_KEY]:
            self._sessions.pop(digest).ended.set()
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)[1].ended.set()
        return cookie, session, principal

    async def require(self, cookie: str | None) -> tuple[Session, Principal]:
        """The session of a cookie, and whose it is. Raises `unauthenticated` when it has ended or its key has."""
        digest, now = hash_secret(cookie or ""), self._clock.monotonic()
        session = self._sessions.get(digest)
        if session is None or now >= min(session.until_s, session.used_s + IDLE_TIMEOUT_S):
            self._sessions.pop(digest, None)
            raise ApiError(ErrorCode.UNAUTHENTICATED, "the session has ended", hint="Log in again.")
        try:
            principal = await self._keys.principal(session.authorization)
        except ApiError:
            self._sessions.pop(digest, None)
            raise
        session.used_s = now
        if digest in self._sessions:
            self._sessions.move_to_end(digest)
        return session, principal

    def knows(self, cookies: Mapping[str, str]) -> bool:
        """Whether a request with these cookies carries a session that was not ended; who it is is asked by `require`."""
        given = self.cookie_in(cookies, secure=False)
        return given is not None and hash_secret(given) in self._sessions

    def log_out(self, cookie: str | None) -> None:
        """End a session. One that has ended already is no error."""
        session = self._sessions.pop(hash_secret(cookie or ""), None)
        if session is not None:
            session.ended.set()

    def cancel_key(self, key_id: str) -> None:
        """A key has ended: so have its sessions, and the live views opened in them."""
        for digest, session in list(self._sessions.items()):
            if session.key_id == key_id:
                del self._sessions[digest]
                session.ended.set()

    def __len__(self) -> int:
        return len(self._sessions)


def check_origin(headers: Mapping[str, str]) -> str:
    """A browser tells from which page a request comes: only this farm's own may change something.

    Returns that page's scheme, which behind a proxy is not the request's own. Raises `forbidden`.
    """
    host = headers.get("host", "").lower()
    try:
        origin = urlsplit(headers.get("origin", "").lower())
    except ValueError:
        origin = urlsplit("")
    if origin.scheme not in ("http", "https") or not host or origin.netloc != host:
        raise ApiError(ErrorCode.FORBIDDEN, "this request did not come from the farm's own page")
    return origin.scheme


def check_csrf(session: Session, given: str | None) -> None:
    """Raises `forbidden` when a change does not carry the session's own token."""
    if not given or not secrets_equal(given, session.csrf):
        raise ApiError(ErrorCode.FORBIDDEN, "the request lacks the session's token", hint="Reload the page.")
