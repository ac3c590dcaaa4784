"""The connection to the trajectory database.

Role: `open_engine(path)` returns an engine on a migrated SQLite file in WAL mode. Rule: alembic brings the schema up to date before the
first use; a reader never writes: it reads an older database from a migrated copy in memory; a database whose revision is not known here
is refused. A committed transaction survives the death of
the process (WAL with `synchronous=NORMAL`). Non-goals: queries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import StaticPool

from dart_agent.errors import StoreError

BUSY_TIMEOUT_MS = 10_000


def open_engine(path: Path, *, read_only: bool = False) -> Engine:
    """Open the SQLite file of a trajectory database.

    Args:
        path: The file. It is created and migrated unless `read_only`.
        read_only: Never write; any number of processes may read while one writes.

    Returns:
        The engine.

    Raises:
        StoreError: The file is missing (read only), is not a trajectory database, or was made by another version of DART.
    """
    if read_only:
        if not path.exists():
            raise StoreError(f"there is no trajectory database at {path}")
        engine = create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
        event.listen(engine, "connect", _reader_pragmas)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(f"sqlite:///{path}")
        event.listen(engine, "connect", _writer_pragmas)
    try:
        older = _check_revision(engine, path)
        if not read_only:
            migrate(engine)
        elif older:
            engine = _migrated_copy(engine)
    except DatabaseError as error:
        engine.dispose()
        raise StoreError(f"{path} is not a trajectory database: {error.orig}") from error
    except StoreError:
        engine.dispose()
        raise
    return engine


def migrate(engine: Engine) -> None:
    """Bring the schema to the newest revision.

    Args:
        engine: An engine that may write.
    """
    config = _alembic_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _migrated_copy(engine: Engine) -> Engine:
    """A copy of an older database in memory, with the newest schema; the given engine is disposed of."""
    copy = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    with engine.connect() as source, copy.connect() as target:
        source.connection.driver_connection.backup(target.connection.driver_connection)  # type: ignore[union-attr]
    engine.dispose()
    migrate(copy)
    with copy.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only=ON")
    return copy


def _check_revision(engine: Engine, path: Path) -> bool:
    """Whether the schema is older than ours."""
    scripts = ScriptDirectory.from_config(_alembic_config())
    known = {script.revision for script in scripts.walk_revisions()}
    with engine.connect() as connection:
        revision = MigrationContext.configure(connection).get_current_revision()
    if revision is not None and revision not in known:
        raise StoreError(
            f"{path}: this trajectory database was made by another version of DART; start a new run with --name, "
            "or delete the run folder"
        )
    return revision is not None and revision != scripts.get_current_head()


def _alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def _writer_pragmas(connection: Any, _record: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", f"busy_timeout={BUSY_TIMEOUT_MS}"):
        connection.execute(f"PRAGMA {pragma}")


def _reader_pragmas(connection: Any, _record: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
