"""An episode's end: judged on a copy of a live desktop, and not before the program has acted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from served_farm import served_farm

from dart_envs.actions import Action
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.tasks.loader import load
from dart_envs.tasks.model import Task, parse_task
from dart_envs.types import ActionType
from dart_server.wire import DesktopShape

pytestmark = pytest.mark.desktop
SHAPE = DesktopShape(resolution=(640, 400))
CANARY = "expected-answer-5d1e"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_farm(tmp_path_factory.mktemp("judging"), max_desktops=2) as url:
        yield url


def spoiling_task() -> Task:
    """Its post-configuration changes what it looks at, so that a second look at the same desktop would fail."""
    script = "test -e /home/user/answer && mv /home/user/answer /home/user/judged; true"
    evaluator = {
        "func": "file_contains",
        "postconfig": [{"type": "execute", "parameters": {"command": script, "shell": True}}],
        "result": {"type": "vm_file", "path": "/home/user/judged", "dest": "judged"},
        "expected": {"type": "rule", "rules": {"expected": [CANARY]}},
    }
    data = {
        "id": "judging/live",
        "suite": "judging",
        "instruction": "Write.",
        "evaluator": evaluator,
        "publish_setup": False,
    }
    return parse_task(data, name="judging")


async def test_a_copy_is_judged_as_the_desktop_would_be_and_nothing_of_it_shows(url: str) -> None:
    task = spoiling_task()
    async with (
        await AsyncFarmClient.connect(url) as farm,
        AsyncDesktopEnv(farm, shape=SHAPE, evaluate_on="copy") as env,
    ):
        await env.reset(task)
        assert env.lease is not None
        held = await env.lease.exec(["grep", "-rlF", CANARY, "/home", "/tmp", "/etc", "/var/lib"], user="root")
        assert held.stdout == ""
        assert (await env.evaluate()).reward == 0.0
        await env.lease.write_file("/home/user/answer", f"{CANARY}\n".encode())
        assert (await env.evaluate()).reward == (await env.evaluate()).reward == 1.0
        result = await env.step(Action(ActionType.DONE))
        assert result.reward == 1.0
        assert result.info["outcome"]["evaluated_on"] == "copy"
        assert await env.lease.read_file("/home/user/answer") == f"{CANARY}\n".encode()
        assert await env.lease.read_file("/home/user/judged") is None
        assert (await farm.leases())[0].lease_id == env.lease.lease_id


async def test_an_answer_by_enter_counts_though_done_follows_at_once(url: str) -> None:
    """GTK draws the button that Enter presses, and calls its handler 250 ms later."""
    async with await AsyncFarmClient.connect(url) as farm, AsyncDesktopEnv(farm, shape=SHAPE, max_steps=4) as env:
        rewards = []
        for number in range(4):
            task = load(f"basics/enter_text/{number:04d}")
            word = task.instruction.removeprefix("Change the name to ").partition(",")[0]
            await env.reset(task)
            for action in (
                Action(ActionType.KEY, keys=("ctrl", "a")),
                Action(ActionType.TYPE, text=word),
                Action(ActionType.KEY, keys=("enter",)),
                Action(ActionType.DONE),
            ):
                result = await env.step(action)
            rewards.append(result.reward)
    assert rewards == [1.0] * 4
