"""Bearer keys: who may call, and what. Keys are stored hashed; the embedded farm's own admin key lies in a 0600 file.

Scopes: `admin` includes `lease` includes `read`. A key sees and touches its own leases and snapshots; admin all of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dart_server import wire
from dart_server.clock import SystemClock, utc
from dart_server.database.repository import Repository
from dart_server.database.write_queue import Database
from dart_server.errors import ApiError, FarmConfigError
from dart_server.ids import hash_secret, new_id, new_secret
from dart_server.records import KeyRecord
from dart_server.wire import Clock, ErrorCode
from dart_server.wire.connection import KEY_NEEDED

LAST_USED_INTERVAL_S = 60.0
ID_SHOWN = 64

Scope = wire.KeyScope
_INCLUDES = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.LEASE: frozenset({Scope.READ, Scope.LEASE}),
    Scope.ADMIN: frozenset(Scope),
}


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of a key; `key_id` is the owner of what it makes. A quota of None is no quota; times are seconds since 1970."""

    key_id: str
    scope: Scope
    expires_at: float | None = None
    max_leases: int | None = None
    max_waiting: int | None = None
    weight: float = 1.0
    max_priority: int = 0

    def require(self, scope: Scope) -> None:
        """Raises `forbidden` when the key may not do this."""
        if scope not in _INCLUDES[self.scope]:
            hint = f"Use a key of that scope; who runs the farm makes one: `dart-farm keys add NAME --scope {scope.value}`."
            detail = (
                f"this key has the scope `{self.scope.value}` and may not do that: it needs the scope `{scope.value}`"
            )
            raise ApiError(ErrorCode.FORBIDDEN, detail, hint=hint)

    def require_priority(self, priority: int) -> None:
        """Raises `forbidden` when the key's claims may not go before others' so far."""
        if priority > self.max_priority and self.scope is not Scope.ADMIN:
            detail = f"claims of this key may have a priority of {self.max_priority} at most, not {priority}"
            hint = "Claim with a lower one, or ask who runs the farm for a key that may: `dart-farm keys add NAME --max-priority N`."
            raise ApiError(ErrorCode.FORBIDDEN, detail, hint=hint)

    def may_access(self, owner: str) -> bool:
        return self.scope is Scope.ADMIN or owner == self.key_id


class KeyStore:
    """Checks bearer keys against the database, remembering those it has seen.

    What is changed here holds at once; what another process changed in the database (a key made or revoked by the command line) holds
    for a new key at its first use, for a known one after the next `refresh`. `on_key_end` ends what stands on a key that is good no more.
    """

    def __init__(self, repository: Repository, clock: Clock, on_key_end: Callable[[str], Awaitable[object]]) -> None:
        self._repository = repository
        self._clock = clock
        self._on_end = on_key_end
        self._known: dict[str, Principal] = {}
        self._used: set[str] = set()
        self._noted_at_s = clock.monotonic()
        self._asking = asyncio.Lock()

    async def add(self, name: str, scope: Scope, secret: str | None = None) -> str:
        """Make a key (or store the hash of a given one); returns the secret, which is not kept."""
        secret = secret or new_secret("dart")
        await self._repository.add_key(new_id("key"), name, hash_secret(secret), scope.value)
        return secret

    async def make(self, request: wire.KeyRequest) -> wire.NewKey:
        """A new key with its secret. Raises `invalid`."""
        expires_at = request.expires_at.timestamp() if request.expires_at else None
        if expires_at is not None and expires_at <= self._clock.time():
            raise ApiError(ErrorCode.INVALID, "expires_at: that time is over")
        secret = new_secret("dart")
        record = await self._repository.add_key(
            new_id("key"),
            request.name,
            hash_secret(secret),
            request.scope.value,
            expires_at=expires_at,
            max_leases=request.max_leases,
            max_waiting=request.max_waiting,
            weight=request.weight,
            max_priority=request.max_priority,
        )
        return wire.NewKey(secret=secret, **_view(record).model_dump())

    async def all(self) -> list[wire.KeyView]:
        """Every key, revoked ones too."""
        self._note_uses()
        return [_view(record) for record in await self._repository.keys()]

    async def revoke(self, key_id: str) -> None:
        """From now on this key is refused, and all that stands on it has ended. Raises `not_found`, `invalid` (the last of scope admin)."""
        records = {record.key_id: record for record in await self._repository.keys()}
        if key_id not in records:
            raise ApiError(
                ErrorCode.NOT_FOUND,
                f"there is no key {key_id[:ID_SHOWN]}",
                hint="`dart-farm keys` lists them by their id.",
            )
        admins = {record.key_id for record in records.values() if record.scope == Scope.ADMIN and self._good(record)}
        if admins == {key_id}:
            hint = "Make another one first: POST /v1/keys, or `dart-farm key NAME --scope admin`."
            raise ApiError(ErrorCode.INVALID, "this is the last key of scope admin", hint=hint)
        self._forget(key_id)
        await self._repository.wait_committed(self._repository.revoke_key(key_id))
        self._forget(key_id)  # it may have been asked for meanwhile
        await self._on_end(key_id)

    def _good(self, record: KeyRecord) -> bool:
        return record.revoked_at is None and (record.expires_at is None or record.expires_at > self._clock.time())

    def _forget(self, key_id: str) -> None:
        self._known = {digest: known for digest, known in self._known.items() if known.key_id != key_id}

    async def refresh(self, holders: Collection[str] = ()) -> None:
        """Look at the database again: keys that were revoked or have expired end, also those of `holders`, who need not
        have called in this life of the farm; changed quotas hold. Once a minute, note what was used."""
        if self._clock.monotonic() - self._noted_at_s >= LAST_USED_INTERVAL_S:
            self._note_uses()
        concerned = list(dict.fromkeys((*(known.key_id for known in self._known.values()), *holders)))
        if not concerned:
            return
        records = {record.key_id: record for record in await self._repository.keys_by_id(concerned)}
        for digest, known in list(self._known.items()):
            record = records.get(known.key_id)
            if record is not None and self._good(record):
                self._known[digest] = _principal(record)
        for key_id in concerned:
            record = records.get(key_id)
            if record is None or not self._good(record):
                self._forget(key_id)
                await self._on_end(key_id)

    def _note_uses(self) -> None:
        self._noted_at_s = self._clock.monotonic()
        used, self._used = self._used, set()
        for key_id in used:
            self._repository.touch_key(key_id)

    async def principal(self, authorization: str | None) -> Principal:
        """Who sent this `Authorization` header. Raises `unauthenticated`; who holds the secret of a key that has ended is told so."""
        kind, _, secret = (authorization or "").partition(" ")
        if kind.lower() == "bearer" and secret:
            digest = hash_secret(secret.strip())
            known = self._known.get(digest) or await self._ask(digest)
            if known is not None:
                if known.expires_at is not None and known.expires_at <= self._clock.time():
                    raise _over("expired", known.expires_at)
                self._used.add(known.key_id)
                return known
        hint = (
            "Send `Authorization: Bearer KEY`. Who runs the farm makes keys with `dart-farm keys add NAME`; "
            "the farm's own is in farm.key in its state directory."
        )
        raise ApiError(ErrorCode.UNAUTHENTICATED, KEY_NEEDED, hint=hint)

    def knows(self, authorization: str | None) -> bool:
        """Whether this `Authorization` header carries a key that was found valid; looks into memory only."""
        kind, _, secret = (authorization or "").partition(" ")
        return kind.lower() == "bearer" and hash_secret(secret.strip()) in self._known

    async def _ask(self, digest: str) -> Principal | None:
        """Look a key up in the database; one at a time, so that guessing keeps nobody else from it.

        Raises `unauthenticated` for one that has ended.
        """
        async with self._asking:
            found = await self._repository.key_by_hash(digest)
        if found is None:
            return None
        if found.revoked_at is not None:
            raise _over("was revoked", found.revoked_at)
        if found.expires_at is not None and not self._good(found):
            raise _over("expired", found.expires_at)
        return self._known.setdefault(digest, _principal(found))


def _over(how: str, at: float) -> ApiError:
    hint = "Ask who runs the farm for a new key: `dart-farm keys add NAME`."
    return ApiError(ErrorCode.UNAUTHENTICATED, f"this key {how} on {utc(at):%Y-%m-%d at %H:%M:%S} UTC", hint=hint)


def _principal(record: KeyRecord) -> Principal:
    return Principal(
        key_id=record.key_id,
        scope=Scope(record.scope),
        expires_at=record.expires_at,
        max_leases=record.max_leases,
        max_waiting=record.max_waiting,
        weight=record.weight,
        max_priority=record.max_priority,
    )


def _view(record: KeyRecord) -> wire.KeyView:
    def when(seconds: float | None) -> datetime | None:
        return None if seconds is None else utc(seconds)

    return wire.KeyView(
        key_id=record.key_id,
        name=record.name,
        scope=Scope(record.scope),
        created_at=utc(record.created_at),
        expires_at=when(record.expires_at),
        revoked_at=when(record.revoked_at),
        last_used_at=when(record.last_used_at),
        max_leases=record.max_leases,
        max_waiting=record.max_waiting,
        weight=record.weight,
        max_priority=record.max_priority,
    )


async def ignore_key_end(key_id: str) -> None:
    """`on_key_end` where no farm runs."""


async def create_key(database_url: str, name: str, scope: Scope) -> str:
    """Make a key in a farm's database, whether it runs or not; returns the secret."""
    database = Database(database_url)
    await database.start()
    try:
        clock = SystemClock()
        return await KeyStore(Repository(database, clock), clock, ignore_key_end).add(name, scope)
    finally:
        await database.aclose()


def read_or_create_secret(path: Path, prefix: str) -> str:
    """The secret in a private file, made at the first call. Raises `FarmConfigError` when others can read it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        status = path.stat()
        if status.st_mode & 0o077 or status.st_uid != os.getuid():
            raise FarmConfigError(
                f"{path} can be read by others; delete it, and a new one is made at the next start."
            ) from None
        text = path.read_text().strip()
        if not text:
            raise FarmConfigError(f"{path} is empty; delete it, and a new one is made at the next start.") from None
        return text
    secret = new_secret(prefix)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
    return secret
