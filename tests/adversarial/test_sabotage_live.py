"""Whatever a policy breaks on a healthy host, its episode has a verdict: reward 0, and no mask.

The task is judged by a file, the names in a folder, a dialog's answer, windows, the accessibility tree, processes and a command. Nothing of
the book solves it, so that an honest judgement of every damage is 0. Each case is an episode on a live desktop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from broken_desktops import DONE, MOVE, episodes, limited_farm
from sabotage import SABOTAGES, Sabotage
from sabotage_effects import Effect, Outside, Probe, dead

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import DartEnvError
from dart_envs.tasks import Task, parse_task
from dart_envs.types import EndReason
from dart_server.wire import ProcessesQuery

LINE_TIMEOUT_S = 25.0
EFFECT_POLLS, EFFECT_POLL_S = 100, 0.1
LOOK_S, REMOVAL_S = 20.0, 30.0
"""A look has five seconds, and a host may be busy."""


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
        ("contains_names", {"type": "processes", "matching": "^solved$"}, _rule(include=["solved"])),
        ("exact_match", {"type": "vm_command_line", "command": ["cat", "/home/user/note.txt"]}, _rule(expected="no")),
    ]
    functions, results, expected = zip(*judged, strict=True)
    config: list[dict[str, Any]] = [
        {"type": "write_file", "parameters": {"path": "/home/user/note.txt", "content": "begun"}},
        {"type": "execute", "parameters": {"command": ["mkdir", "/home/user/box"]}},
        {"type": "launch_captured", "parameters": {"name": "answer", "command": dialog}},
        {"type": "wait_window", "parameters": {"window_name": "Query"}},
        {"type": "launch", "parameters": {"command": ["thunar", "/home/user/box"]}},
        {"type": "wait_window", "parameters": {"window_name": "box"}},
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
    with limited_farm(tmp_path_factory.mktemp("dart-sabotage"), memory_mib=768, disk_mib=128, pids=320) as url:
        yield url


async def _outcome(url: str, sabotage: Sabotage | None) -> tuple[float, bool, EndReason, str | None]:
    """Reward, mask, end and cause of an episode in which the policy does this. A sabotage without its effect fails the test."""
    async with episodes(url, observation=["screenshot", *(sabotage.observed if sabotage else ())]) as env:
        return await _episode(env, sabotage)


async def _episode(env: AsyncDesktopEnv, sabotage: Sabotage | None) -> tuple[float, bool, EndReason, str | None]:
    await env.reset(_task())
    assert env.lease is not None
    result = await env.step(MOVE)
    assert result.end is None, result.info
    if sabotage is not None:
        user = "root" if sabotage.sudo else "user"
        outside = Outside(env.lease.desktop_id)
        said = None
        with suppress(DartEnvError):  # the desktop may well not live to answer
            said = await env.lease.exec(["sh", "-c", sabotage.line], timeout_s=LINE_TIMEOUT_S, user=user)
        assert await _took_effect(env, sabotage.effect, outside), f"{sabotage.name} did nothing: {said}"
    for action in (MOVE if sabotage is None or sabotage.then is None else sabotage.then, DONE):
        if result.end is None:
            result = await env.step(action)
    assert result.end is not None
    return result.reward, bool(result.info["masked"]), result.end, result.info.get("cause")


async def _took_effect(env: AsyncDesktopEnv, effect: Effect | Probe, outside: Outside) -> bool:
    """Whether a sabotage has the effect that it names; what runs in the background gets some seconds."""
    for _ in range(EFFECT_POLLS):
        if isinstance(effect, Probe):
            assert env.lease is not None
            argv = ["sh", "-c", effect.line]
            seen = (await env.lease.exec(argv, timeout_s=LINE_TIMEOUT_S)).returncode == 0
        else:
            seen = dead(outside) or effect(outside)
        if seen:
            return True
        await asyncio.sleep(EFFECT_POLL_S)
    return False


def _cases(*, quick: bool) -> list[Any]:
    return [pytest.param(one, id=one.name) for one in SABOTAGES if one.quick is quick]


@pytest.mark.desktop
async def test_an_untouched_desktop_is_judged(url: str) -> None:
    assert await _outcome(url, None) == (0.0, False, EndReason.DONE, None)


@pytest.mark.desktop
@pytest.mark.parametrize("sabotage", _cases(quick=True))
async def test_a_broken_desktop_gives_no_mask(url: str, sabotage: Sabotage) -> None:
    reward, masked, end, cause = await _outcome(url, sabotage)
    assert (reward, masked) == (0.0, False), f"{end}: {cause}"


@pytest.mark.desktop
@pytest.mark.slow
@pytest.mark.parametrize("sabotage", _cases(quick=False))
async def test_no_way_of_the_book_gives_a_mask(url: str, sabotage: Sabotage) -> None:
    reward, masked, end, cause = await _outcome(url, sabotage)
    assert (reward, masked) == (0.0, False), f"{end}: {cause}"


@pytest.mark.desktop
async def test_a_desktop_that_is_slow_to_look_at_harms_no_neighbour_and_can_be_removed(url: str) -> None:
    sabotage = next(one for one in SABOTAGES if one.name == "many_descriptors_of_many_watches")
    async with episodes(url) as hostile, episodes(url) as honest:
        for env in (hostile, honest):
            await env.reset(_task())
        assert hostile.lease is not None
        assert honest.lease is not None
        outside = Outside(hostile.lease.desktop_id)
        await hostile.lease.exec(["sh", "-c", sabotage.line], timeout_s=LINE_TIMEOUT_S)
        assert await _took_effect(hostile, sabotage.effect, outside)
        began_s = time.monotonic()
        looks = [env.lease.evidence([ProcessesQuery(code=True)]) for env in (hostile, honest) if env.lease is not None]
        slow, quick = [seen.answers[0] for seen in await asyncio.gather(*looks)]
        assert time.monotonic() - began_s < LOOK_S
        assert slow.error == "too_slow"
        assert quick.processes
        await honest.step(MOVE)
        await hostile.lease.reset()
        assert (await hostile.lease.evidence([ProcessesQuery()])).answers[0].processes
        assert time.monotonic() - began_s < LOOK_S + REMOVAL_S


def test_the_book_has_fifty_ways() -> None:
    assert len({one.name for one in SABOTAGES}) == len(SABOTAGES) >= 50
    assert sum(not one.sudo for one in SABOTAGES) >= 25
