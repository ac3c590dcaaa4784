"""An episode's end judged on a copy of a live desktop: the same verdict, and the desktop as the policy left it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from served_farm import served_farm

from dart_envs.actions import Action
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.farm.client import AsyncFarmClient
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
