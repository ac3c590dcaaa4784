"""`dart-agent explore`: from start to samples, the page, and what is refused before anything starts."""

from __future__ import annotations

import re
import shutil
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_agent.cli import app
from dart_agent.errors import ConfigError
from dart_agent.explore.candidates import ALWAYS_AVOIDED
from dart_agent.explore.graph import ExplorationGraph
from dart_agent.explore.page import coverage
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.storage.locks import hold_folder
from dart_agent.explore.storage.records import StoredScreen
from dart_agent.explore.store import DATABASE_FILE, ExploreStore

START = ["explore", "start", "--app", "simulated/2"]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_an_exploration_is_started_resumed_shown_and_asked_about(tmp_path: Path) -> None:
    out = tmp_path / "explored"
    code, said = run(*START, "--out", str(out), "--steps", "15", "--chooser", "breadth-first")
    assert code == 0, said
    assert "15 steps, " in said
    code, said = run("explore", "resume", str(out), "--steps", "25", "--chooser", "greatest-q", "--desktops", "2")
    assert code == 0, said
    assert "25 steps, " in said
    with ExploreStore.open(out) as store:
        screens, points = store.screens(), coverage(store.screens(), store.steps())
    assert (points[0].step, points[-1].step, points[-1].screens) == (0, 25, len(screens))
    assert [point.screens for point in points] == sorted(point.screens for point in points)
    code, said = run("explore", "page", str(out), "--to", str(tmp_path / "page.html"))
    assert code == 0, said
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page
    assert not re.findall(r"(?:src|href)=\"(?!data:image/webp;base64,|#screen-\d)", page)
    assert page.count('class="screen"') == len(screens)
    code, said = run("explore", "queries", str(out), "--to", str(tmp_path / "data"))
    assert code == 0, said
    assert (tmp_path / "data" / "train.jsonl").is_file()


def test_a_command_builds_the_graph_from_the_store_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built, load_graph = [], ExploreStore.load_graph

    def load(store: ExploreStore) -> ExplorationGraph:
        built.append(store)
        return load_graph(store)

    monkeypatch.setattr(ExploreStore, "load_graph", load)
    out = tmp_path / "explored"
    commands = (*START, "--out", str(out), "--steps", "6"), ("explore", "resume", str(out), "--steps", "9")
    for number, command in enumerate((*commands, ("explore", "page", str(out))), 1):
        code, said = run(*command)
        assert code == 0, said
        assert len(built) == number
    graph = load_graph(built[0])
    assert f"{len(graph.screens)} screens, " in run("explore", "resume", str(out), "--steps", "9")[1]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--chooser", "qicrl"], "needs --base-url and --model-name"),
        (["--base-url", "http://127.0.0.1:9/v1"], "are for --chooser qicrl"),
        (["--chooser", "model", "--base-url", "http://127.0.0.1:9/v1"], "needs --model-name, too"),
        (["--vision", "sometimes"], "candidates.vision"),
        (["--resolution", "wide"], "WIDTHxHEIGHT"),
        (["--app", "simulated/x"], "simulated/SEED"),
        (["--app", "mousepad 'notes"], "is no command: No closing quotation"),
        (["--app", "  "], "--app: the command is blank"),
        (["--avoid", "delete ("], "'delete (' is no regular expression"),
        (["--database-url", "foo"], "--database-url is no URL of a database"),
        (["--database-url", "postgresql://me:secret@host:port/x"], "--database-url is no URL of a database"),
        (["--database-url", "nosuch://me:secret@host/y"], "there is no kind of database that is called nosuch"),
    ],
)
def test_mistakes_are_told_before_anything_starts(tmp_path: Path, more: list[str], said: str) -> None:
    out = tmp_path / "explored"
    code, output = run(*START, "--out", str(out), *more)
    assert code == 2
    assert said in " ".join(output.split())
    assert "secret" not in output
    assert not out.exists()


@pytest.mark.parametrize("command", [("resume",), ("page",), ("queries", "--to", "data")])
def test_a_database_that_cannot_be_is_told_in_one_sentence(tmp_path: Path, command: tuple[str, ...]) -> None:
    code, output = run("explore", *command, str(tmp_path), "--database-url", "nosuch://x/y")
    assert (code, "there is no kind of database that is called nosuch" in " ".join(output.split())) == (2, True)


def test_one_process_explores_in_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "explored"
    start = [*START, "--out", str(out), "--steps", "2", "--chooser", "breadth-first"]
    with hold_folder(out):
        code, output = run(*start)
        assert code == 2
        assert f"another process explores in {out}" in " ".join(output.split())
    assert run(*start)[0] == 0
    with hold_folder(out):
        code, output = run("explore", "resume", str(out), "--steps", "3")
        assert code == 2
        assert "another process explores in" in " ".join(output.split())
        assert run("explore", "page", str(out))[0] == 0, "it can be looked at"
    assert run("explore", "resume", str(out), "--steps", "3")[0] == 0


def test_one_process_explores_in_a_database(tmp_path: Path, database_url: str) -> None:
    settings, folder, copy = ExploreSettings(app="simulated/2"), tmp_path / "a", tmp_path / "copy"
    in_use = "another process explores in the database .*: wait for it or stop it, or give another database"
    with ExploreStore.create(folder, settings, database_url):
        with pytest.raises(ConfigError, match=in_use):
            ExploreStore.create(tmp_path / "b", settings, database_url)
        shutil.copytree(folder, copy)
        with pytest.raises(ConfigError, match=in_use):
            ExploreStore.open(copy, database_url, hold=True)
        code, said = run("explore", "resume", str(copy), "--database-url", database_url)
        assert (code, "another process explores in" in said) == (2, True)
        with ExploreStore.open(copy, database_url) as store:
            assert store.last_step() == 0, "it can be looked at"
    with ExploreStore.open(copy, database_url, hold=True), pytest.raises(ConfigError, match=in_use):
        ExploreStore.open(folder, database_url, hold=True)
    with ExploreStore.create(tmp_path / "b", settings, database_url):
        pass
    with pytest.raises(ConfigError, match="is not the folder of the exploration"):
        ExploreStore.open(folder, database_url, hold=True)
    with ExploreStore.create(tmp_path / "b", settings, database_url):
        pass


def test_the_database_of_a_folder_is_held_by_the_lock_of_the_folder(tmp_path: Path) -> None:
    folder, settings = tmp_path / "a", ExploreSettings(app="simulated/2")
    own = f"sqlite:///{folder / DATABASE_FILE}"
    with hold_folder(folder):
        ExploreStore.create(folder, settings, own).close()
        with pytest.raises(ConfigError, match="another process explores in the database"):
            ExploreStore.create(tmp_path / "b", settings, own)
    with pytest.raises(ConfigError, match="cannot be locked: No such file or directory"):
        ExploreStore.create(folder, settings, f"sqlite:///{tmp_path / 'nowhere' / 'x.sqlite'}")


def test_a_start_without_a_farm_leaves_its_folder_to_the_next_one(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "explored"), "--steps", "3"]
    for program in ("mousepad", "xterm"):
        code, output = run("explore", "start", "--app", program, *out, "--farm-url", "http://127.0.0.1:9")
        assert code == 1
        assert "0 steps" in output
    code, output = run(*START, *out)
    assert code == 0, output
    assert "3 steps, " in output
    code, output = run(*START, *out)
    assert code == 2
    assert "holds an exploration already" in output


def test_a_folder_without_an_exploration_is_refused(tmp_path: Path) -> None:
    code, output = run("explore", "resume", str(tmp_path))
    assert code == 2
    assert "there is no exploration" in output


def test_what_is_avoided_and_what_belongs_to_the_application_are_said_at_the_start(tmp_path: Path) -> None:
    out = tmp_path / "explored"
    more = ("--avoid", "^Delete", "--avoid", "quit", "--also-application", "Helper", "--steps", "3")
    code, said = run(*START, "--out", str(out), *more)
    assert code == 0, said
    with ExploreStore.open(out) as store:
        assert store.settings.candidates.avoid == (*ALWAYS_AVOIDED, "^Delete", "quit")
        assert store.settings.applications == ("Helper",)
    code, said = run("explore", "resume", str(out), "--steps", "4")
    assert code == 0, said


def test_a_database_belongs_to_the_folder_that_its_exploration_began_with(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'explored.sqlite'}"
    first, other, steps = tmp_path / "a", tmp_path / "b", ("--database-url", url, "--steps", "3")
    assert run(*START, "--out", str(first), *steps)[0] == 0
    code, said = run(*START, "--out", str(other), *steps)
    assert code == 2
    assert f"the database {url} holds an exploration already" in said.replace("\n", " ")
    (other / "id").write_text("another one")
    for command in (
        ("resume", str(other)),
        ("page", str(other)),
        ("queries", str(other), "--to", str(tmp_path / "data")),
    ):
        code, said = run("explore", *command, "--database-url", url)
        assert code == 2
        assert f"is not the folder of the exploration in the database {url}" in said.replace("\n", " ")
    assert list((other / "images").iterdir()) == []
    first.rename(tmp_path / "moved")
    code, said = run("explore", "resume", str(tmp_path / "moved"), "--database-url", url, "--steps", "5")
    assert code == 0, said


def test_an_exploration_of_an_earlier_layout_notes_the_folder_that_has_its_screenshots(tmp_path: Path) -> None:
    database = tmp_path / "explored.sqlite"
    options = ("--database-url", f"sqlite:///{database}")
    assert run(*START, "--out", str(tmp_path / "a"), *options, "--steps", "3")[0] == 0
    (tmp_path / "a" / "id").unlink()
    with sqlite3.connect(database) as connection:
        connection.execute("ALTER TABLE exploration DROP COLUMN folder")
        connection.execute("UPDATE exploration SET layout = 2")
    connection.close()
    assert run("explore", "page", str(tmp_path / "b"), *options)[0] == 2
    code, said = run("explore", "page", str(tmp_path / "a"), *options)
    assert code == 0, said
    (tmp_path / "a" / "id").unlink()
    assert run("explore", "page", str(tmp_path / "a"), *options)[0] == 2


@pytest.mark.parametrize("command", [("page",), ("queries", "--to", "data")])
def test_what_an_exploration_stores_meanwhile_does_not_disturb_its_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    out, screens, counts = tmp_path / "explored", ExploreStore.screens, list[int]()
    monkeypatch.chdir(tmp_path)
    assert run(*START, "--out", str(out), "--steps", "5", "--chooser", "breadth-first")[0] == 0

    def screens_and_more(store: ExploreStore) -> list[StoredScreen]:
        found = screens(store)
        counts.append(len(found))
        if len(counts) == 1:
            assert run("explore", "resume", str(out), "--steps", "30", "--chooser", "greatest-q")[0] == 0
            counts.append(len(screens(store)))
        return found

    monkeypatch.setattr(ExploreStore, "screens", screens_and_more)
    code, said = run("explore", *command, str(out))
    assert code == 0, said
    assert counts[0] == counts[-1] < counts[1], "the other process has found nothing: the test shows nothing"
