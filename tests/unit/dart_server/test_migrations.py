"""A database of an earlier version is brought to this one, with what it holds."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from farm_harness import ManualClock
from sqlalchemy import create_engine, inspect, text

from dart_server.database.engine import MIGRATIONS
from dart_server.database.models import FarmTable
from dart_server.database.repository import Repository, shape_json
from dart_server.database.write_queue import Database
from dart_server.wire import DesktopShape, SnapshotState


def migrate(path: Path, revision: str, *, down: bool = False) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        (command.downgrade if down else command.upgrade)(config, revision)
    engine.dispose()


def columns(path: Path, table: str) -> set[str]:
    engine = create_engine(f"sqlite:///{path}")
    found = {column["name"] for column in inspect(engine).get_columns(table)}
    engine.dispose()
    return found


async def test_snapshots_of_the_first_version_are_read_by_this_one(tmp_path: Path) -> None:
    path = tmp_path / "farm.db"
    migrate(path, "0001")
    shape = DesktopShape(resolution=(640, 400))
    row = {
        "snapshot_id": "snap_old", "kind": "setup", "state": "ready", "name": "old", "owner": "key_1", "setup_key": "a" * 64,
        "shape": shape_json(shape), "image_digest": "sha256:00", "parent": "snap_gone", "bytes": 7, "created_at": 1.0,
        "last_used_at": 2.0,
    }  # fmt: skip
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(
            text(f"insert into snapshots ({', '.join(row)}) values ({', '.join(f':{name}' for name in row)})"), row
        )
    engine.dispose()
    database = Database(f"sqlite:///{path}")
    await database.start()
    try:
        repository = Repository(database, ManualClock())
        (record,) = await repository.stored_snapshots()
        assert (record.name, record.bytes, record.files_bytes, record.pause_s) == ("old", 7, 0, None)
        assert (record.shape, record.state) == (shape, SnapshotState.READY)
        assert await repository.snapshot_ancestry({"snap_old"}) == {"snap_old": ("snap_gone", 0)}
    finally:
        await database.aclose()


def test_the_tables_are_those_of_the_models_and_the_way_back_works(tmp_path: Path) -> None:
    path = tmp_path / "farm.db"
    migrate(path, "head")
    for table in FarmTable.metadata.tables.values():
        assert columns(path, table.name) == {column.name for column in table.columns}
    migrate(path, "0001", down=True)
    assert "pause_s" not in columns(path, "snapshots")
