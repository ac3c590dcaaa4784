"""What a task expects, its solution and its id are nowhere in the desktop: not in a file, not in an environment, not in a process's memory.
Searched from the host: after a reset, on a copy that the builtin metrics judged, and after the episode's verdict, which is OSWorld's
where its scorer is installed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

import pytest
from guest_insides import hold_in_memory, holding, spelt
from served_farm import served_farm

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.envs.evaluation_target import forked_copy
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.scorer import paths
from dart_envs.tasks.model import Task, parse_task
from dart_envs.types import Action, ActionType, EndReason
from dart_server.wire import DesktopShape

pytestmark = pytest.mark.desktop
SHAPE = DesktopShape(resolution=(640, 400))
SECRET = "lynx-feldspar-48120"
"""How everything begins that the desktop may not know, so that one search finds any of it."""
TASK_ID, SOLUTION = f"{SECRET}-task", f"{SECRET}-solution"
EXPECTED = {name: f"{SECRET}-{name}" for name in ("output", "content", "pattern", "setting")}
PLANTED = {
    "file": "heron-basalt-20931-file",
    "memory": "otter-gneiss-55102-memory",
    "environment": "egret-schist-77240-environment",
}
BEGAN_S = time.time()
NOTE = "/home/user/settings.json"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.skip("only root can look into the memory of a desktop's processes")
    with served_farm(tmp_path_factory.mktemp("secrets"), max_desktops=2) as url:
        yield url


def knowing_task() -> Task:
    """It is judged by everything that kinds of evaluators look at, and each knows something of its own."""
    said = {"type": "vm_command_line", "command": ["cat", NOTE]}
    kept = {"type": "vm_file", "path": NOTE, "dest": "settings.json"}
    rules = (
        {"expected": EXPECTED["output"]},
        {"include": [EXPECTED["content"]], "exclude": []},
        {"expect": [EXPECTED["pattern"]], "unexpect": []},
        {"expected": {"key": EXPECTED["setting"]}},
    )
    data = {
        "id": TASK_ID,
        "instruction": "Write what is wanted.",
        "config": [
            {"type": "write_file", "parameters": {"path": NOTE, "content": f'{{"key": "{PLANTED["file"]}"}}\n'}},
            {"type": "execute", "parameters": {"command": ["sync"]}},
        ],
        "evaluator": {
            "postconfig": [{"type": "execute", "parameters": {"command": "sync; true", "shell": True}}],
            "conj": "or",
            "func": ["exact_match", "check_include_exclude", "check_list", "check_json_settings"],
            "result": [said, said, kept, kept],
            "expected": [{"type": "rule", "rules": one} for one in rules],
        },
        "oracle": [{"do": "type", "text": SOLUTION}],
    }
    return parse_task(data, name="secrets")


async def seen_in(lease: AsyncLease) -> set[str]:
    """Names of what is found in the desktop."""
    controls = {name: text.encode() for name, text in PLANTED.items()}
    found = await asyncio.to_thread(holding, lease.desktop_id, spelt("secret", SECRET) | controls, BEGAN_S)
    assert set(found) <= set(controls), found
    return set(found)


async def test_what_a_task_knows_is_nowhere_in_its_desktop(url: str) -> None:
    task, scorer = knowing_task(), "builtin" if paths.read_installation() is None else "osworld"
    async with await AsyncFarmClient.connect(url) as farm, AsyncDesktopEnv(farm, shape=SHAPE, scorer=scorer) as env:
        await env.reset(task)
        lease = env.lease
        assert isinstance(lease, AsyncLease)
        assert await seen_in(lease) == {"file"}
        await hold_in_memory(lease, PLANTED["memory"], {"PLANTED": PLANTED["environment"]})
        async with forked_copy(lease, 60.0) as copy:
            assert isinstance(copy, AsyncLease)
            assert (await task.evaluate(copy, end=EndReason.DONE, scorer="builtin")).reward == 0.0
            assert await seen_in(copy) == set(PLANTED), "the search finds what is there"
        result = await env.step(Action(ActionType.DONE))
        assert (result.reward, result.end) == (0.0, EndReason.DONE), result.info
        assert await seen_in(lease) == set(PLANTED), "looked for at once: what an agent forgot is soon written over"
        assert env.lease is lease
        await lease.write_file(NOTE, EXPECTED["content"].encode())
        for judge in {"builtin", scorer}:
            outcome = await task.evaluate(lease, end=EndReason.DONE, scorer=judge)
            assert outcome.reward == 1.0, "the rules are in force"
