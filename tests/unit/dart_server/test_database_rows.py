"""Rows of one statement in few steps: what is in the tables afterwards is what one row after the other would have left."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from database_fixtures import SHAPE, lease, slot
from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import IntegrityError

from dart_server.database import bulk_statements
from dart_server.database.bulk_statements import BoundStatement, execute_all
from dart_server.database.engine import make_engine, upgrade
from dart_server.database.models import DesktopRow, EventRow, LeaseRow
from dart_server.database.repository import NewEvent, Repository
from dart_server.database.repository.desktops import desktop_row
from dart_server.database.repository.leases import _END, _EXTEND, _insert
from dart_server.records import Slot
from dart_server.wire import DesktopState


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = make_engine(f"sqlite:///{tmp_path / 'farm.db'}", exclusive=True)
    upgrade(engine)
    return engine


class Written:
    """Stands for the queue of the database: keeps what it is given."""

    def __init__(self) -> None:
        self.statements: list[Any] = []

    def write(self, *statements: Any, **_: Any) -> None:
        self.statements += statements


def some_life(number: int) -> list[Any]:
    """The statements of `number` desktops that are leased, kept, given back and gone."""
    found: list[Any] = []
    written = Written()

    class Clock:
        def time(self) -> float:
            return 1_795_296_000.1234567

    repository = Repository(written, Clock())  # type: ignore[arg-type]
    for name in map(str, range(number)):
        desktop = slot(name)
        found += [desktop_row(desktop, 1.0), _insert(lease(name, desktop))]
        repository.add_event(
            NewEvent("lease_granted", desktop.desktop_id, f"lease_{name}", 3, {"owner": "ä", "n": [1]})
        )
        found += [_EXTEND(row_key=f"lease_{name}", expires_at=until, ttl_s=60.0) for until in (70.25, 80.1)]
        desktop.fencing_token += 1
        found.append(desktop_row(desktop, 2.0))
        if int(name) % 3 == 0:
            desktop.state = DesktopState.GONE
            found.append(desktop_row(desktop, 3.5))
            found.append(_END(row_key=f"lease_{name}", state="released", ended_at=3.5, fencing_token=4, setup_key=None))
    return found + written.statements


def tables(connection: Connection) -> list[Any]:
    return [
        connection.execute(select(row.__table__).order_by(*row.__table__.primary_key)).all()
        for row in (DesktopRow, LeaseRow, EventRow)
    ]


@pytest.mark.parametrize("number", [1, 2, 7, 150])
def test_together_is_as_one_after_the_other(engine: Engine, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    found = []
    for oldest in (bulk_statements.UPDATES_FROM, (99, 0)):
        monkeypatch.setattr(bulk_statements, "UPDATES_FROM", oldest)
        with engine.connect() as connection, connection.begin() as all_of_it:
            execute_all(connection, some_life(number))
            found.append(tables(connection))
            all_of_it.rollback()
    assert found[0] == found[1]
    desktops, leases, events = found[0]
    assert (len(desktops), len(leases), len(events)) == (number, number, number)
    assert leases[0].labels == {"team": "ä"}
    assert leases[0].expires_at == 80.1
    assert events[-1].data == {"owner": "ä", "n": [1]}
    assert events[-1].at == 1_795_296_000.1234567


def test_few_steps_for_many_rows(engine: Engine) -> None:
    steps: list[str] = []
    with engine.connect() as connection, connection.begin():
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.set_trace_callback(steps.append)
        execute_all(connection, some_life(64))
        driver.set_trace_callback(None)
    assert len(steps) == 8, "one for 64 rows, in powers of two else: 22 that are gone are 16 + 4 + 2"


def test_a_row_that_is_refused_is_told(engine: Engine) -> None:
    twice: list[BoundStatement] = [desktop_row(Slot("same", SHAPE, "sha256:00", "sim", 1.0), 1.0) for _ in range(2)]
    with pytest.raises(IntegrityError), engine.begin() as connection:
        execute_all(connection, twice)
