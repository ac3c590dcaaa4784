"""Bearer keys: who may call, and what. Keys are stored hashed; the embedded farm's own admin key lies in a 0600 file.

Scopes: `admin` includes `lease` includes `read`. A key sees and touches its own leases and snapshots; admin all of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dart_server.clock import SystemClock
from dart_server.db import Database
from dart_server.errors import ConfigError, FarmError
from dart_server.ids import hash_secret, new_id, new_secret
from dart_server.repository import Repository
from dart_server.wire import ErrorCode


class Scope(StrEnum):
    """What a key may do."""

    READ = "read"
    LEASE = "lease"
    ADMIN = "admin"


_INCLUDES = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.LEASE: frozenset({Scope.READ, Scope.LEASE}),
    Scope.ADMIN: frozenset(Scope),
}


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of a key; `key_id` is the owner of what it makes."""

    key_id: str
    scope: Scope

    def require(self, scope: Scope) -> None:
        """Raises `forbidden` when the key may not do this."""
        if scope not in _INCLUDES[self.scope]:
            raise FarmError(ErrorCode.FORBIDDEN, f"this key may not do that: it needs the scope `{scope.value}`")

    def may_touch(self, owner: str) -> bool:
        return self.scope is Scope.ADMIN or owner == self.key_id


class Keys:
    """Checks bearer keys against the ledger, remembering those it has seen."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._known: dict[str, Principal] = {}

    async def add(self, name: str, scope: Scope, secret: str | None = None) -> str:
        """Make a key (or store the hash of a given one); returns the secret, which is not kept."""
        secret = secret or new_secret("dart")
        await self._repository.add_key(new_id("key"), name, hash_secret(secret), scope.value)
        return secret

    async def principal(self, authorization: str | None) -> Principal:
        """Who sent this `Authorization` header. Raises `unauthenticated`."""
        kind, _, secret = (authorization or "").partition(" ")
        if kind.lower() == "bearer" and secret:
            digest = hash_secret(secret.strip())
            if digest in self._known:
                return self._known[digest]
            found = await self._repository.key_by_hash(digest)
            if found is not None:
                return self._known.setdefault(digest, Principal(found.key_id, Scope(found.scope)))
        hint = (
            "Send `Authorization: Bearer KEY`; the key of this user's own farm is in farm.key in its state directory."
        )
        raise FarmError(ErrorCode.UNAUTHENTICATED, "a valid key is needed", hint=hint)


async def make_key(database_url: str, name: str, scope: Scope) -> str:
    """Make a key in a farm's ledger, whether it runs or not; returns the secret."""
    database = Database(database_url)
    await database.start()
    try:
        return await Keys(Repository(database, SystemClock())).add(name, scope)
    finally:
        await database.aclose()


def secret_file(path: Path, prefix: str) -> str:
    """The secret in a private file, made at the first call. Raises `ConfigError` when others can read it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        status = path.stat()
        if status.st_mode & 0o077 or status.st_uid != os.getuid():
            raise ConfigError(
                f"{path} can be read by others; delete it, and a new one is made at the next start."
            ) from None
        text = path.read_text().strip()
        if not text:
            raise ConfigError(f"{path} is empty; delete it, and a new one is made at the next start.") from None
        return text
    secret = new_secret(prefix)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
    return secret
