"""What only PostgreSQL does: one writer on any host, readers that cannot write, outages that end, text that it cannot hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from data_manager_harness import DataManagerHarness
from database_urls import end_connections, fresh_database
from sqlalchemy import create_engine, select, text

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.fake_trajectories import fake_trajectory
from dart_agent.data_client.payloads import TrajectoryPayload
from dart_agent.errors import StoreError, StoreUnavailableError
from dart_train.config import DataSection, RecipeError, load_recipe
from dart_train.data_manager.app import create_app
from dart_train.data_manager.store.database import holds_results, open_engine, parse_location, remove_results
from dart_train.data_manager.store.models import EventTable, StepTable
from dart_train.data_manager.store.postgres import SERVER_SETTINGS, WRITER_LOCK, DatabaseInUseError
from dart_train.run.paths import RunPaths
from dart_train.run.run_folder import check_run_folder

postgres = pytest.mark.postgres
DEMO = Path(__file__).parents[4] / "dart_train" / "recipes" / "demo.toml"


@pytest.fixture
def url(tmp_path: Path):  # type: ignore[no-untyped-def]
    with fresh_database("postgres", tmp_path) as made:
        yield made


@postgres
def test_one_data_manager_writes_and_readers_cannot(url: str, tmp_path: Path) -> None:
    first = DataManagerHarness(tmp_path, database=url)
    with pytest.raises(DatabaseInUseError, match="another data manager writes to this database"):
        open_engine(url)
    reader = open_engine(url, read_only=True)
    with reader.connect() as connection, pytest.raises(Exception, match="read-only"):
        connection.execute(EventTable.__table__.insert(), {"at_s": 0, "kind": "x", "data": {}})  # type: ignore[attr-defined]
    reader.dispose()
    first.store.close()
    open_engine(url).dispose()


@postgres
async def test_an_outage_is_waited_for_and_the_lock_is_held_again(url: str, tmp_path: Path) -> None:
    harness = DataManagerHarness(tmp_path, database=url)
    harness.phase()
    assert end_connections(url) == 1
    with pytest.raises(StoreUnavailableError, match="cannot be used now"):
        harness.acquire()
    assert harness.must_acquire().phase == "train"
    with pytest.raises(DatabaseInUseError):
        open_engine(url)
    end_connections(url)
    app = create_app(harness.manager)
    client = DataManagerClient(
        tmp_path / "data.sock", harness.images, transport=httpx.ASGITransport(app), assignment_wait_s=0
    )
    async with app.router.lifespan_context(app), client:
        assert await client.acquire("w1") is not None
    harness.store.close()


@postgres
async def test_a_lock_that_the_lost_session_holds_is_waited_for(url: str, tmp_path: Path) -> None:
    harness = DataManagerHarness(tmp_path, database=url)
    harness.phase()
    end_connections(url)
    lock = f"({WRITER_LOCK}, hashtext('public'))"
    engine = create_engine(parse_location(url), isolation_level="AUTOCOMMIT")
    transport = httpx.ASGITransport(create_app(harness.manager))
    with engine.connect() as lost:
        lost.exec_driver_sql(f"SELECT pg_advisory_lock{lock}")
        with pytest.raises(StoreUnavailableError):  # of the connection that was ended
            harness.acquire()
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="another session holds its lock"):
                harness.acquire()
        async with httpx.AsyncClient(transport=transport, base_url="http://data") as http:
            assert (await http.get("/stats")).status_code == 503
        lost.exec_driver_sql(f"SELECT pg_advisory_unlock{lock}")
        assert harness.must_acquire().phase == "train"
    engine.dispose()
    harness.store.close()


@postgres
def test_the_server_looks_whether_the_writer_is_there(url: str, tmp_path: Path) -> None:
    harness = DataManagerHarness(tmp_path, database=url)
    with harness.store.begin() as session:  # over a Unix socket a setting shows as 0, and who set it is still told
        query = text("SELECT name FROM pg_settings WHERE source = 'session' AND name LIKE 'tcp_%'")
        assert set(session.scalars(query)) == set(SERVER_SETTINGS)
    harness.store.close()


@postgres
@pytest.mark.parametrize("read_only", [False, True])
def test_a_schema_that_does_not_exist_is_told(url: str, tmp_path: Path, read_only: bool) -> None:
    in_schema = parse_location(url).update_query_dict({"options": "-csearch_path=run_1"})
    where = in_schema.render_as_string(hide_password=False)
    with pytest.raises(StoreError, match=r"schema of data\.database_url does not exist.*CREATE SCHEMA NAME"):
        open_engine(where, read_only=read_only)
    recipe = load_recipe(DEMO, ("run.name='r'",)).model_copy(
        update={"data": DataSection.model_construct(database_url=where)}
    )
    with pytest.raises(RecipeError, match=r"data\.database_url: the schema .* does not exist"):
        check_run_folder(recipe, RunPaths(tmp_path / "r"))
    admin = open_engine(url)
    with admin.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA run_1")
    admin.dispose()
    open_engine(where, read_only=read_only).dispose()
    check_run_folder(recipe, RunPaths(tmp_path / "r"))


@postgres
def test_text_with_nul_is_stored(url: str, tmp_path: Path) -> None:
    harness = DataManagerHarness(tmp_path, database=url)
    harness.phase()
    trajectory, _ = fake_trajectory(harness.must_acquire(), steps=1)
    step = replace(trajectory.steps_S[0], text="a\0b", action={"type": "type", "text": "\0"})
    harness.manager.report(TrajectoryPayload.from_value(replace(trajectory, steps_S=(step,))))
    with harness.store.begin() as session:
        found = session.scalars(select(StepTable)).one()
        assert (found.text, found.action) == ("a\ufffdb", {"type": "type", "text": "\0"})
    harness.store.close()


def test_results_are_found_and_removed(database_url: str, tmp_path: Path) -> None:
    assert not holds_results(database_url)
    harness = DataManagerHarness(tmp_path, database=database_url)
    harness.phase()
    harness.store.close()
    assert holds_results(database_url)
    remove_results(database_url)
    assert not holds_results(database_url)
    DataManagerHarness(tmp_path, database=database_url).store.close()


@postgres
def test_a_new_run_folder_needs_an_empty_database(url: str, tmp_path: Path) -> None:
    recipe = load_recipe(DEMO, ("run.name='r'",)).model_copy(
        update={"data": DataSection.model_construct(database_url=url)}
    )
    check_run_folder(recipe, RunPaths(tmp_path / "r"))
    harness = DataManagerHarness(tmp_path, database=url)
    harness.phase()
    with pytest.raises(RecipeError, match="holds another run"):
        check_run_folder(recipe, RunPaths(tmp_path / "r"))
    harness.store.close()


def test_a_recipe_holds_no_password_and_only_postgres() -> None:
    assert load_recipe(DEMO, ("data.database_url='postgresql://u@h/n'",)).data.database_url == "postgresql://u@h/n"
    for wrong in ("postgresql://u:hidden@h/n", "postgresql://h/n?password=hidden", "mysql://h/n", "postgresql://[h/n"):
        with pytest.raises(RecipeError, match=r"data\.database_url") as refused:
            load_recipe(DEMO, (f"data.database_url='{wrong}'",))
        assert "it" in str(refused.value)


def test_a_location_is_a_file_or_a_url_and_a_password_is_never_told() -> None:
    assert parse_location(Path("a/b.db")).database == "a/b.db"
    assert parse_location("postgres://u@h/n").drivername == "postgresql+psycopg"
    for wrong in ("mysql://u:hidden@h/n", "no url://u:hidden@x"):
        with pytest.raises(StoreError) as refused:
            parse_location(wrong)
        assert "hidden" not in str(refused.value)
    with pytest.raises(StoreError, match="cannot be used") as unreachable:
        open_engine("postgresql://u:hidden@/n?host=/nonexistent", read_only=True)
    assert "hidden" not in str(unreachable.value)
