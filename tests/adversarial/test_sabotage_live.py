"""Whatever a policy breaks on a healthy host, its episode has a verdict: reward 0, and no mask.

The task is judged by a file, the names in a folder, a dialog's answer, windows, the accessibility tree and a command. Nothing of the book
solves it, so that an honest judgement of every damage is 0. Each case is an episode on a live desktop.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sabotage import SABOTAGES, Sabotage
from served_farm import served_farm

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import DartEnvError
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.tasks import Task, parse_task
from dart_envs.types import Action, ActionType, EndReason
from dart_server.wire import DesktopShape

SHAPE = DesktopShape(resolution=(640, 400))
MOVE = Action(ActionType.MOVE, x=9, y=9)
DONE = Action(ActionType.DONE)
LINE_TIMEOUT_S = 25.0


def _rule(**rules: Any) -> dict[str, Any]:
    return {"type": "rule", "rules": rules}


def _task() -> Task:
    dialog = ["zenity", "--question", "--text", "Shall it?", "--title", "Query"]
    judged: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("compare_text_file", {"type": "vm_file", "path": "/home/user/note.txt"}, _rule(expected="solved")),
        ("contains_names", {"type": "file_names", "path": "/home/user/box"}, _rule(include=["solved"])),
        ("exact_match", {"type": "captured", "name": "answer", "window_name": "Query"}, _rule(expected="solved")),
        ("contains_names", {"type": "window_titles"}, _rule(include=["solved"])),
        ("contains_element", {"type": "a11y_elements", "role": "text"}, _rule(text="solved")),
        ("exact_match", {"type": "vm_command_line", "command": ["cat", "/home/user/note.txt"]}, _rule(expected="no")),
    ]
    functions, results, expected = zip(*judged, strict=True)
    config = [
        {"type": "write_file", "parameters": {"path": "/home/user/note.txt", "content": "begun"}},
        {"type": "execute", "parameters": {"command": ["mkdir", "/home/user/box"]}},
        {"type": "launch_captured", "parameters": {"name": "answer", "command": dialog}},
        {"type": "wait_window", "parameters": {"window_name": "Query"}},
    ]
    data = {
        "id": "sabotage/one",
        "instruction": "Do what cannot be done.",
        "config": config,
        "evaluator": {"func": list(functions), "result": list(results), "expected": list(expected), "conj": "or"},
    }
    return parse_task(data, name="sabotage")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    limits = {
        "DART_SNAPSHOT_DIR": f"/dev/shm/dart-sabotage-{os.getpid()}",  # in memory: only there the disk has a limit
        "DART_DESKTOP_MEMORY_MIB": "768",
        "DART_DESKTOP_DISK_MIB": "128",
        "DART_DESKTOP_PIDS": "320",
    }
    with served_farm(tmp_path_factory.mktemp("sabotage"), max_desktops=2, environment=limits) as url:
        yield url


@pytest.fixture
async def env(url: str) -> AsyncIterator[AsyncDesktopEnv]:
    async with await AsyncFarmClient.connect(url) as farm, AsyncDesktopEnv(farm, shape=SHAPE) as env:
        yield env


async def _outcome(env: AsyncDesktopEnv, sabotage: Sabotage | None) -> tuple[float, bool, EndReason, str | None]:
    """Reward, mask, end and cause of an episode in which the policy does this."""
    await env.reset(_task())
    assert env.lease is not None
    result = await env.step(MOVE)
    assert result.end is None, result.info
    if sabotage is not None:
        user = "root" if sabotage.sudo else "user"
        with suppress(DartEnvError):  # the desktop may well not live to answer
            await env.lease.exec(["sh", "-c", sabotage.line], timeout_s=LINE_TIMEOUT_S, user=user)
    for action in (MOVE, DONE):
        if result.end is None:
            result = await env.step(action)
    assert result.end is not None
    return result.reward, bool(result.info["masked"]), result.end, result.info.get("cause")


def _cases(*, quick: bool) -> list[Any]:
    return [pytest.param(one, id=one.name) for one in SABOTAGES if one.quick is quick]


@pytest.mark.desktop
async def test_an_untouched_desktop_is_judged(env: AsyncDesktopEnv) -> None:
    assert await _outcome(env, None) == (0.0, False, EndReason.DONE, None)


@pytest.mark.desktop
@pytest.mark.parametrize("sabotage", _cases(quick=True))
async def test_a_broken_desktop_gives_no_mask(env: AsyncDesktopEnv, sabotage: Sabotage) -> None:
    reward, masked, end, cause = await _outcome(env, sabotage)
    assert (reward, masked) == (0.0, False), f"{end}: {cause}"


@pytest.mark.desktop
@pytest.mark.slow
@pytest.mark.parametrize("sabotage", _cases(quick=False))
async def test_no_way_of_the_book_gives_a_mask(env: AsyncDesktopEnv, sabotage: Sabotage) -> None:
    reward, masked, end, cause = await _outcome(env, sabotage)
    assert (reward, masked) == (0.0, False), f"{end}: {cause}"


def test_the_book_has_fifty_ways() -> None:
    assert len({one.name for one in SABOTAGES}) == len(SABOTAGES) >= 50
    assert sum(not one.sudo for one in SABOTAGES) >= 25
