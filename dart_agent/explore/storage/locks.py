"""Locks of those who write an exploration.

Role: `hold_folder`, `hold_sqlite` and `hold_session`, so that one process explores in a folder, in a SQLite database and in a PostgreSQL
database. Rule: a lock ends with the process that holds it, however that ends; reading needs none. PostgreSQL's is an advisory lock of the
one session that writes: who has lost the session writes again only with the lock. Non-goals: what is stored (`dart_agent.explore.store`).
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from dart_agent.errors import ConfigError

LOCK_FILE = "lock"
SESSION_LOCK = 0x64617278
"""First part of the advisory lock, another one than that of training; the second is a hash of the schema."""


@contextmanager
def hold_folder(out: Path) -> Iterator[None]:
    """Hold the folder of an exploration, so that one process explores in it; reading it needs no hold.

    Args:
        out: The folder, which is made where it is not there.

    Yields:
        Nothing.

    Raises:
        ConfigError: Another process explores in it, or its file system has no locks.
    """
    out.mkdir(parents=True, exist_ok=True)
    with _hold_file(out / LOCK_FILE, str(out), "folder"):
        yield


@contextmanager
def hold_sqlite(url: URL, own: Path) -> Iterator[None]:
    """Hold a SQLite database outside the folder of its exploration, by a file beside it.

    Args:
        url: URL of the database; one in memory needs no hold.
        own: The database that the folder would have itself, which `hold_folder` holds.

    Yields:
        Nothing.

    Raises:
        ConfigError: Another process explores in it, or it cannot be locked.
    """
    path = _lock_file(url, own.resolve())
    if path is None:
        yield
        return
    with _hold_file(path, f"the database {_name(url)}", "database"):
        yield


def hold_session(connection: Any, url: URL) -> None:
    """Hold a PostgreSQL database by a new session, which keeps it until it ends.

    Args:
        connection: The session, as the driver has it.
        url: URL of the database.

    Raises:
        ConfigError: Another process explores in it; the session is ended.
    """
    cursor = connection.cursor()
    cursor.execute(f"SELECT pg_try_advisory_lock({SESSION_LOCK}, hashtext(coalesce(current_schema(), '')))")
    held = cursor.fetchone()[0]
    cursor.close()
    connection.commit()
    if not held:
        connection.close()
        raise ConfigError(_in_use(f"the database {_name(url)}", "database"))


def _name(url: URL) -> str:
    return url.render_as_string(hide_password=True)


def _in_use(place: str, kind: str) -> str:
    return f"another process explores in {place}: wait for it or stop it, or give another {kind}"


def _lock_file(url: URL, own: Path) -> Path | None:
    """The file that is locked for a SQLite database; None where nothing has to be."""
    name = (url.database or "").removeprefix("file:")
    if name in ("", ":memory:") or url.query.get("mode") == "memory":
        return None
    path = Path(name).resolve()
    if path.name == own.name:  # the database of a folder, whose lock holds both
        return None if path == own else path.parent / LOCK_FILE
    return path.with_name(f"{path.name}.lock")


@contextmanager
def _hold_file(path: Path, place: str, kind: str) -> Iterator[None]:
    """Lock a file, which is made, for a place of a kind."""
    with ExitStack() as held:
        try:
            handle = held.enter_context(path.open("w", encoding="utf-8"))
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with this process, however that ends
        except BlockingIOError:
            raise ConfigError(_in_use(place, kind)) from None
        except OSError as error:
            raise ConfigError(f"{place} cannot be locked: {error.strerror}; give a {kind} on another disk") from error
        yield
