"""Open the trajectory store's database.

Role: `open_engine(path)` gives an engine on a migrated SQLite file in WAL mode; other databases come by URL.
Rule: the schema is brought up to date by alembic before first use; a reader never migrates. A committed transaction survives the death
of the process (WAL with `synchronous=NORMAL`). Non-goals: queries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DatabaseError

from dart_agent.errors import StoreError

BUSY_TIMEOUT_MS = 10_000


def open_engine(path: Path, *, read_only: bool = False) -> Engine:
    """Engine on the SQLite file at `path`, created and migrated unless `read_only`.

    Raises StoreError when the file is missing (read only) or not a database.
    """
    if read_only:
        if not path.exists():
            raise StoreError(f"there is no trajectory store at {path}")
        engine = create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
        event.listen(engine, "connect", _reader_pragmas)
        return engine
    path.parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", _writer_pragmas)
    try:
        migrate(engine)
    except DatabaseError as error:
        engine.dispose()
        raise StoreError(f"{path} is not a trajectory store: {error.orig}") from error
    return engine


def migrate(engine: Engine) -> None:
    """Bring the schema to the newest revision."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _writer_pragmas(connection: Any, _record: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", f"busy_timeout={BUSY_TIMEOUT_MS}"):
        connection.execute(f"PRAGMA {pragma}")


def _reader_pragmas(connection: Any, _record: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
