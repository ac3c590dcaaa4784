"""The action `double_click` is one double click to programs of several toolkits, and two actions `click` are none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import live_host
import pytest
from served_farm import served_farm

from dart_envs.actions import Action, decode_action
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.types import ActionType
from dart_server.wire import DesktopShape

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(300)]
SHAPE = DesktopShape(image="desktop", resolution=(1280, 800))
PAGE = """<!doctype html><body style="margin: 0; height: 100vh"><script>
  let doubles = 0;
  document.body.ondblclick = () => { document.title = `doubled ${++doubles}`; };
  requestAnimationFrame(() => requestAnimationFrame(() => { document.title = "painted"; }));
</script>"""
TIMES = 20
SHOWN_S = 25


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    live_host.require_image(SHAPE.image)
    with served_farm(tmp_path_factory.mktemp("clicks"), max_desktops=1) as url:
        yield url


@pytest.fixture
async def lease(url: str) -> AsyncIterator[AsyncLease]:
    async with await AsyncFarmClient.connect(url) as farm, await farm.lease(SHAPE, wait_s=120.0) as lease:
        yield lease


async def act(lease: AsyncLease, kind: ActionType, x: int, y: int) -> None:
    await lease.step(list(decode_action(Action(kind, x=x, y=y), SHAPE.resolution).events))


async def title_is(lease: AsyncLease, *wanted: str) -> None:
    """Wait until the desktop has a window of one of these titles."""
    listed = f"until wmctrl -l | grep -qE '{'|'.join(wanted)}'; do sleep 0.05; done"
    ended = await lease.exec(["timeout", str(SHOWN_S), "sh", "-c", listed])
    assert ended.returncode == 0, await titles(lease)


async def centre(lease: AsyncLease, name: str) -> tuple[int, int]:
    """The middle of the element of this name, in pixels; waits until there is one."""
    async with asyncio.timeout(SHOWN_S):
        while True:
            found = [one for one in await lease.a11y() if name in (one.name, one.text)]
            if found:
                return found[0].x + found[0].w // 2, found[0].y + found[0].h // 2


async def titles(lease: AsyncLease) -> list[str]:
    reply = await lease.guest("GET", "/v1/windows")
    return [one["title"] for one in json.loads(reply.content)["windows"]]


async def test_a_page_in_the_browser_sees_every_double_click(lease: AsyncLease) -> None:
    await lease.write_file("/tmp/page.html", PAGE.encode())
    await lease.exec(["google-chrome", "--app=file:///tmp/page.html", "--window-size=800,600"], detach=True)
    await title_is(lease, "painted$")
    for time in range(TIMES):
        await act(lease, ActionType.DOUBLE_CLICK, 300, 300)
        await title_is(lease, f"doubled {time + 1}$")
    for _ in range(4):
        await act(lease, ActionType.CLICK, 300, 300)
    await act(lease, ActionType.DOUBLE_CLICK, 300, 300)
    await title_is(lease, f"doubled {TIMES + 1}$")


async def test_a_list_of_gtk_takes_every_double_click_for_an_answer(lease: AsyncLease) -> None:
    lists = "for n in $(seq 10); do zenity --list --title=Rows$n --column=Word first second third >> /tmp/answers; done"
    await lease.exec(["sh", "-c", lists], detach=True)
    for number in range(1, 11):
        await title_is(lease, f"Rows{number}$")
        x, y = await centre(lease, "second")
        await act(lease, ActionType.DOUBLE_CLICK, x, y)
    ended = await lease.exec(
        ["timeout", str(SHOWN_S), "sh", "-c", "until [ $(wc -l < /tmp/answers) = 10 ]; do sleep 0.05; done"]
    )
    assert ended.returncode == 0
    assert await lease.read_file("/tmp/answers") == b"second\n" * 10
