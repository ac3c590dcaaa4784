from __future__ import annotations

import json
from typing import Any

import pytest

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.evaluators.artifacts import InvalidArtifact
from dart_envs.evaluators.getters import GETTERS, GetterContext
from dart_envs.evaluators.getters.web import BOOKMARKS
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_server.wire import ExecReply


def reply(stdout: str = "", returncode: int = 0) -> ExecReply:
    return ExecReply(returncode=returncode, stdout=stdout, stderr="", timed_out=False)


def desktop(**files: str) -> FakeDesktop:
    desktop = FakeDesktop()
    desktop.state.files = {
        BOOKMARKS if name == "bookmarks" else f"/{name}": text.encode() for name, text in files.items()
    }

    def stat(_desktop: FakeDesktop, args: list[str], _stdin: str) -> ExecReply:
        held = desktop.state.files.get(args[-1])
        return reply(returncode=1) if held is None else reply(f"{len(held)} regular file\n")

    def cat(_desktop: FakeDesktop, args: list[str], _stdin: str) -> ExecReply:
        held = desktop.state.files.get(args[-1])
        return reply(returncode=1) if held is None else reply(held.decode())

    desktop.programs |= {"stat": stat, "cat": cat}
    return desktop


async def get(desktop: FakeDesktop, type: str, **config: Any) -> Any:
    return await GETTERS[type](GetterContext(desktop, SYSTEM_CLOCK), {"type": type, **config})


LOG = '{"name": "a", "data": 1}\n{"name": "b", "data": [2]}\n{"name": "a", "data": 3}\n'


async def test_the_log_in_order_by_name_or_its_last() -> None:
    held = desktop(log=LOG)
    events = [{"name": "a", "data": 1}, {"name": "b", "data": [2]}, {"name": "a", "data": 3}]
    assert await get(held, "web_log", path="/log") == events
    assert await get(held, "web_log", path="/log", name="a") == [events[0], events[2]]
    assert await get(held, "web_log", path="/log", name="a", last=True) == events[2]
    assert await get(held, "web_log", path="/log", name="c", last=True) is None
    with pytest.raises(InvalidArtifact, match="does not exist"):
        await get(held, "web_log", path="/none")
    with pytest.raises(InvalidArtifact, match="damaged"):
        await get(desktop(log="{"), "web_log", path="/log")


SAVED = {
    "checksum": "CHECKSUM",
    "roots": {
        "bookmark_bar": {
            "children": [{"id": "5", "name": "Fork é", "type": "url", "url": "http://localhost:8080/fork"}],
            "id": "1",
            "name": "Bookmarks bar",
            "type": "folder",
        },
        "other": {"children": [], "id": "2", "name": "Other bookmarks", "type": "folder"},
        "synced": {"children": [], "id": "3", "name": "Mobile bookmarks", "type": "folder"},
    },
    "version": 1,
}


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"roots": 5}', json.dumps(SAVED), '{"roots": {"bookmark_bar": 3}}']
)
async def test_bookmarks_that_the_browser_did_not_save_are_spoiled(content: str) -> None:
    with pytest.raises(InvalidArtifact):
        await get(desktop(bookmarks=content), "chromium_bookmarks")
    with pytest.raises(InvalidArtifact):
        await get(desktop(), "chromium_bookmarks")
