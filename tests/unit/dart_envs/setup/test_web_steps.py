"""Setup steps about downloads, history and verification, off a live desktop."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from fake_window_desktop import FakeWindowDesktop, ManualClock

from dart_envs import assets
from dart_envs.errors import AssetError, SetupError
from dart_envs.setup import run_steps
from dart_envs.setup.browser import BrowserError, build_history, same_page
from dart_envs.tasks import SetupStep

URL = "https://files.invalid/some/data.bin"


def step(type: str, **parameters: Any) -> SetupStep:
    return SetupStep(type=type, parameters=parameters)


async def run(desktop: FakeWindowDesktop, made: SetupStep, **how: Any) -> None:
    await run_steps(desktop, [made], clock=ManualClock(), **how)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(assets.CACHE_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setenv(assets.OFFLINE_VARIABLE, "1")
    return tmp_path


async def test_a_download_comes_from_the_cache_of_its_task(cache: Path) -> None:
    desktop = FakeWindowDesktop()
    made = step("download", files=[{"url": URL, "path": "/home/user/data.bin"}])
    with pytest.raises(AssetError, match=r"a-task.*files\.invalid"):
        await run(desktop, made, task_id="a-task")
    name = cache / "a-task" / assets.download_name(URL, "/home/user/data.bin")
    name.parent.mkdir()
    name.write_bytes(b"\x00content")
    await run(desktop, made, task_id="a-task")
    assert desktop.state.files["/home/user/data.bin"] == b"\x00content"


@pytest.mark.parametrize("path", ["setup.sh", "./setup.sh", "~/setup.sh"])
async def test_a_relative_path_of_a_download_is_below_the_home_folder(cache: Path, path: str) -> None:
    desktop = FakeWindowDesktop()
    name = cache / "a-task" / assets.download_name(URL, path)
    name.parent.mkdir()
    name.write_bytes(b"content")
    await run(desktop, step("download", files=[{"url": URL, "path": path}]), task_id="a-task")
    assert desktop.state.files == {"/home/user/setup.sh": b"content"}


async def test_a_browser_step_needs_a_desktop_with_ports() -> None:
    with pytest.raises(SetupError, match="ports cannot be reached"):
        await run(FakeWindowDesktop(), step("chrome_open_tabs", urls_to_open=["https://a.example"]))


async def test_an_account_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    made = step("login", settings_file="settings.json", platform="googledrive")
    with pytest.raises(SetupError, match=r"settings\.json must hold .*email"):
        await run(FakeWindowDesktop(), made, assets=tmp_path)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://www.tripadvisor.com", "https://www.tripadvisor.com/", True),
        ("http://tripadvisor.com/", "https://www.TripAdvisor.com", True),
        ("https://arxiv.org/a", "https://arxiv.org/b", False),
        ("https://arxiv.org/?q=1", "https://arxiv.org/?q=2", False),
        ("tripadvisor.com", "https://tripadvisor.com", True),
    ],
)
def test_which_addresses_are_one_page(one: str, other: str, same: bool) -> None:
    assert same_page(one, other) is same


def test_a_history_holds_exactly_the_visits(tmp_path: Path) -> None:
    path = tmp_path / "History"
    database = sqlite3.connect(path)
    database.execute(
        "CREATE TABLE urls (id INTEGER PRIMARY KEY, url, title, visit_count, typed_count, last_visit_time, hidden)"
    )
    database.execute(
        "CREATE TABLE visits (id INTEGER PRIMARY KEY, url, visit_time, from_visit, transition, segment_id, visit_duration)"
    )
    database.execute("INSERT INTO urls (url) VALUES ('https://before.example')")
    database.commit()
    database.close()
    visits = [("https://a.example", "A", 0.0), ("https://b.example", "B", 1_700_000_000.5)]
    path.write_bytes(build_history(path.read_bytes(), visits))
    database = sqlite3.connect(path)
    held = database.execute(
        "SELECT urls.url, title, visit_time FROM urls JOIN visits ON visits.url = urls.id ORDER BY urls.id"
    ).fetchall()
    database.close()
    assert held == [
        ("https://a.example", "A", 11_644_473_600_000_000),
        ("https://b.example", "B", 13_344_473_600_500_000),
    ]
    with pytest.raises(BrowserError, match="no file that visits can be written to"):
        build_history(b"not a database", visits)
