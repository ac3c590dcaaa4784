"""Our own performers of OSWorld's browser steps, on a live desktop with a web of its own inside."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import live_host
import pytest
from served_farm import served_farm

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.errors import SetupError
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.setup import run_steps
from dart_envs.setup.browser import HISTORY, connect_browser
from dart_envs.tasks import SetupStep
from dart_server.wire import ButtonEvent, DesktopShape, KeyEvent, MoveEvent, SettleSpec

pytestmark = pytest.mark.desktop
SHAPE = DesktopShape(image="desktop", resolution=(1280, 800))
WEB = Path(__file__).resolve().parents[1] / "support" / "stand_in_web.py"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    live_host.require_image(SHAPE.image)
    with served_farm(tmp_path_factory.mktemp("steps"), max_desktops=1) as url:
        yield url


@pytest.fixture
async def lease(url: str) -> AsyncIterator[AsyncLease]:
    async with await AsyncFarmClient.connect(url) as farm, await farm.lease(SHAPE, wait_s=120.0) as lease:
        yield lease


async def perform(lease: AsyncLease, *steps: tuple[str, dict[str, Any]], assets: Path | None = None) -> None:
    await run_steps(lease, [SetupStep(type=kind, parameters=said) for kind, said in steps], assets=assets)


async def browse(lease: AsyncLease) -> None:
    """The browser as the tasks start it; every address but those of no.example leads to a server inside the desktop."""
    await lease.write_file("/tmp/web.py", WEB.read_bytes())
    key = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=web -keyout /tmp/k -out /tmp/c"
    made = await lease.exec(["sh", "-c", f"{key} && cat /tmp/k >> /tmp/c"])
    assert made.returncode == 0, made
    await lease.exec(["python3", "/tmp/web.py", "8443", "/tmp/c", "/tmp/typed"], detach=True)
    rules = "--host-resolver-rules=MAP no.example ~NOTFOUND, MAP * 127.0.0.1:8443"
    chrome = ["google-chrome", "--remote-debugging-port=1337", rules, "--ignore-certificate-errors"]
    await perform(
        lease,
        ("launch", {"command": chrome}),
        ("launch", {"command": ["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]}),
    )


async def addresses(lease: AsyncLease) -> list[str]:
    async with connect_browser(lease, SYSTEM_CLOCK, 20.0) as browser:
        return sorted(tab.url for tab in await browser.tabs())


LIST_PAGE = """<!doctype html><title>waiting</title><style>select, option { font-size: 40px }</style>
<select onchange="
  for (let n = 0; n < 2000; n++) {
    const made = new Function('x', 'let s = ' + n + '; for (let i = 0; i < x; i++) s += i * ' + n + '; return s');
    for (let k = 0; k < 40; k++) made(500);
  }
  document.title = 'chosen ' + this.value
"><option>one<option>two<option>three</select>"""
"""What is chosen is told by the title, after as much compiled code as makes a browser ask for more room for it."""


async def titles(lease: AsyncLease) -> list[str]:
    windows = json.loads((await lease.guest("GET", "/v1/windows")).content)["windows"]
    return [str(window["title"]) for window in windows]


async def titled(lease: AsyncLease, word: str) -> None:
    """Wait until a window's title begins with this word."""
    async with asyncio.timeout(60):
        while not any(title.startswith(word) for title in await titles(lease)):  # noqa: ASYNC110 - the desktop is outside
            await asyncio.sleep(0.2)


async def test_a_native_list_and_new_code_work_in_a_restored_browser(lease: AsyncLease) -> None:
    await lease.write_file("/home/user/list.html", LIST_PAGE.encode())
    await perform(lease, ("launch", {"command": ["google-chrome", "/home/user/list.html"]}))
    await titled(lease, "waiting")
    still = SettleSpec(quiet_ms=1000, cap_ms=20_000)
    await lease.step([], still)
    (box,) = [one for one in await lease.a11y() if one.role == "combo box" and "has-popup" in one.states]
    saved = await lease.snapshot()
    await lease.restore(saved.snapshot_id)
    there = MoveEvent(x=box.x + box.w // 2, y=box.y + box.h // 2)
    await lease.step([there, ButtonEvent(type="down"), ButtonEvent(type="up")], still)
    for key in ("down", "enter"):
        await lease.step([KeyEvent(type="key_down", key=key), KeyEvent(type="key_up", key=key)], still)
    await titled(lease, "chosen two")


async def test_tabs_forms_and_pages_that_are_not_there(lease: AsyncLease, tmp_path: Path) -> None:
    await browse(lease)
    await perform(lease, ("chrome_open_tabs", {"urls_to_open": ["https://www.tripadvisor.com", "https://arxiv.org/a"]}))
    assert await addresses(lease) == ["https://arxiv.org/a", "https://www.tripadvisor.com/"]
    await perform(lease, ("chrome_close_tabs", {"urls_to_close": ["tripadvisor.com"]}))
    assert await addresses(lease) == ["https://arxiv.org/a"]
    with pytest.raises(SetupError, match=r"no\.example could not be opened: net::ERR_NAME_NOT_RESOLVED"):
        await perform(lease, ("chrome_open_tabs", {"urls_to_open": ["https://no.example"]}))
    (tmp_path / "account.json").write_text(json.dumps({"email": "a@example.org", "password": "s3cret"}))
    log_in = {"settings_file": "account.json", "platform": "googledrive"}
    await perform(lease, ("login", log_in), assets=tmp_path)
    typed = await lease.exec(
        ["sh", "-c", "for i in $(seq 50); do test -s /tmp/typed && break; sleep 0.1; done; cat /tmp/typed"]
    )
    assert json.loads(typed.stdout) == ["a@example.org", "s3cret"]


async def test_history_wallpaper_and_verification(lease: AsyncLease, tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / "base")
    base.execute(
        "CREATE TABLE urls (id INTEGER PRIMARY KEY, url, title, visit_count, typed_count, last_visit_time, hidden)"
    )
    base.execute(
        "CREATE TABLE visits (id INTEGER PRIMARY KEY, url, visit_time, from_visit, transition, segment_id, visit_duration)"
    )
    base.commit()
    base.close()
    if await lease.read_file(HISTORY) is None:
        await lease.write_file(HISTORY, (tmp_path / "base").read_bytes())
    visit = {"url": "https://a.example/", "title": "A", "visit_time_from_now_in_seconds": 60}
    await perform(lease, ("update_browse_history", {"history": [visit]}))
    held = await lease.read_file(HISTORY)
    assert held is not None
    assert b"https://a.example/" in held
    picture = "from PIL import Image; Image.new('RGB', (1280, 800), (200, 30, 40)).save('/home/user/w.png')"
    assert (await lease.exec(["python3", "-c", picture])).returncode == 0
    await perform(lease, ("change_wallpaper", {"path": "/home/user/w.png"}))
    answer = await lease.guest("POST", "/wallpaper")
    assert answer.status == 200
    assert answer.content == await lease.read_file("/home/user/w.png")
    later = {"command": "(sleep 1; touch /tmp/there) >/dev/null 2>&1 &", "shell": True}
    proof = {"verification": {"command_success": "test -e /tmp/there"}}
    await perform(lease, ("execute_with_verification", {**later, **proof}))
    never = {"command": ["true"], "verification": {"window_exists": "no such window"}, "max_wait_time": 1}
    with pytest.raises(SetupError, match="should bring about was not there within 1 s"):
        await perform(lease, ("execute_with_verification", never))
