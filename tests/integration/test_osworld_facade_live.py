"""A loop as OSWorld's run scripts write it, with an agent as its agents are written, on a live desktop through the facade; and every
action of `computer_13`, each by what it does to a text."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from guest_insides import holding, spelt
from PIL import Image
from served_farm import served_farm

from dart_envs.errors import ActionError, TaskError
from dart_envs.farm.lease import AsyncLease
from dart_envs.osworld import DesktopEnv

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(300)]

EXAMPLE = {
    "id": "b2f9a3c4-0000-4000-8000-6d6f75736570",
    "snapshot": "os",
    "instruction": "Add the line 'second line' at the end of note.txt in the open editor and save it.",
    "source": "",
    "config": [
        {"type": "execute", "parameters": {"command": "printf 'first line\\n' > ~/note.txt", "shell": True}},
        {"type": "launch", "parameters": {"command": ["mousepad", "/home/user/note.txt"]}},
        {"type": "wait_window", "parameters": {"window_name": "note.txt"}},
        {"type": "activate_window", "parameters": {"window_name": "note.txt"}},
    ],
    "trajectory": "trajectories/",
    "related_apps": ["os"],
    "evaluator": {
        "postconfig": [{"type": "sleep", "parameters": {"seconds": 0.2}}],
        "func": "check_include_exclude",
        "result": {"type": "vm_command_line", "command": "cat /home/user/note.txt", "shell": True},
        "expected": {"type": "rule", "rules": {"include": ["first line\nsecond line"], "exclude": []}},
    },
    "proxy": False,
}


LINES = {
    **EXAMPLE,
    "id": "c13e5d70-0000-4000-8000-6d6f75736570",
    "instruction": "Change the first five lines of note.txt.",
    "config": [
        {"type": "execute", "parameters": {"command": "seq -f 'line %g' 60 > ~/note.txt", "shell": True}},
        *EXAMPLE["config"][1:],  # type: ignore[misc]
    ],
    "evaluator": {
        "func": "check_include_exclude",
        "result": {"type": "vm_command_line", "command": "head -n 6 /home/user/note.txt", "shell": True},
        "expected": {
            "type": "rule",
            "rules": {"include": ["word 1\ndragged\nheld\nkeys\ntwice 5\nline 6\n"], "exclude": []},
        },
    },
}
LINE_HEIGHT = 17
"""Of the editor's font, pixels."""


class PromptAgent:
    """Answers as OSWorld's agents do: words for the log, and a list of actions."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def reset(self, _logger: Any = None) -> None:
        self.seen.clear()

    def predict(self, _instruction: str, obs: dict[str, Any]) -> tuple[str, list[str]]:
        self.seen.append(obs)
        plans = (
            [
                "pyautogui.hotkey('ctrl', 'End')\ntime.sleep(0.2)",
                "for line in ['second line']:\n    pyautogui.write(line)",
            ],
            ["import pyautogui; pyautogui.hotkey('ctrl', 's'); time.sleep(0.5)"],
            ["DONE"],
        )
        return "Thinking.", plans[len(self.seen) - 1]


def run_single_example(
    agent: PromptAgent, env: DesktopEnv, example: dict[str, Any], place: Path, max_steps: int
) -> float:
    """Reset, predict and step until done, write the trajectory, evaluate."""
    agent.reset()
    obs = env.reset(task_config=example)
    done, step = False, 0
    env.controller.start_recording()
    while not done and step < max_steps:
        _, actions = agent.predict(example["instruction"], obs)
        for action in actions:
            obs, reward, done, info = env.step(action, 0.1)
            (place / f"step_{step}.png").write_bytes(obs["screenshot"])
            with (place / "traj.jsonl").open("a") as file:
                file.write(json.dumps({"action": action, "reward": reward, "done": done, "info": info}) + "\n")
            if done:
                break
        step += 1
    score = float(env.evaluate())
    env.controller.end_recording(str(place / "recording.mp4"))
    return score


@pytest.fixture(scope="module")
def farm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("farm")
    with served_farm(place, environment={"DART_STATE_DIR": str(place)}) as url:
        os.environ["DART_API_KEY"] = (place / "farm.key").read_text().strip()
        yield url
        del os.environ["DART_API_KEY"]


@pytest.fixture
def env(farm_url: str) -> Iterator[DesktopEnv]:
    made = DesktopEnv(screen_size=(1024, 768), require_terminal=True, image="basic", farm=farm_url)
    yield made
    made.close()


@pytest.fixture
def events_env(farm_url: str) -> Iterator[DesktopEnv]:
    made = DesktopEnv(action_space="computer_13", screen_size=(1024, 768), image="basic", farm=farm_url)
    yield made
    made.close()


def test_an_agent_written_for_osworld_runs_unchanged(env: DesktopEnv, tmp_path: Path) -> None:
    agent = PromptAgent()
    assert run_single_example(agent, env, EXAMPLE, tmp_path, max_steps=15) == 1.0
    first = agent.seen[0]
    with Image.open(io.BytesIO(first["screenshot"])) as picture:
        assert picture.size == (1024, 768)
    assert "note.txt" in first["accessibility_tree"]
    assert first["instruction"] == EXAMPLE["instruction"]
    lines = (tmp_path / "traj.jsonl").read_text().splitlines()
    assert [json.loads(line)["done"] for line in lines] == [False, False, False, True]

    env.reset(task_config=EXAMPLE)
    env.step("DONE")
    assert env.evaluate() == 0.0, "what was written before was still there"

    assert httpx.get(f"http://{env.vm_ip}:{env.server_port}/platform").text == "Linux"
    answer = env.controller.execute_python_command("print(pyautogui.size().width)")
    assert answer is not None
    assert answer["output"].strip() == "1024"
    assert env.controller.get_file("/home/user/note.txt") == b"first line\n"
    assert env.controller.get_file("/home/user/absent") is None


def test_a_task_for_another_image_is_refused_by_the_application_it_lacks(events_env: DesktopEnv) -> None:
    with pytest.raises(TaskError, match=r"needs chrome, which the image basic has not"):
        events_env.reset(task_config={**LINES, "related_apps": ["chrome", "os"]})
    assert events_env.reset(task_config={**LINES, "related_apps": ["mousepad", "os"]})["screenshot"]


def nested(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"action_type": kind, "parameters": parameters}


def flat(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"action_type": kind, **parameters}


def test_every_action_of_computer_13_does_what_it_says(events_env: DesktopEnv) -> None:
    env, began_s = events_env, time.time()
    first = env.reset(task_config=LINES)
    area = re.search(r'<text [^>]*screencoord="\((\d+), (\d+)\)"', first["accessibility_tree"])
    assert area is not None
    left, top = int(area[1]), int(area[2])

    def at(line: int, x: int) -> dict[str, int]:
        return {"x": left + x, "y": top + LINE_HEIGHT * (line - 1) + LINE_HEIGHT // 2}

    def do(*actions: Any) -> dict[str, Any]:
        for action in actions:
            seen, reward, done, _ = env.step(action)
            assert (reward, done) == (0.0, action == "DONE")
        return seen

    do(nested("DOUBLE_CLICK", **at(1, 10)), nested("TYPING", text="word"))
    do(flat("MOVE_TO", **at(2, 1)), flat("DRAG_TO", **at(2, 300)), flat("TYPING", text="dragged"))
    do(nested("MOVE_TO", **at(3, 1)), nested("MOUSE_DOWN", button="left"), nested("MOVE_TO", **at(3, 300)))
    do(nested("MOUSE_UP", button="left"), flat("TYPING", text="held"))
    do(
        nested("CLICK", **at(4, 300)),
        flat("KEY_DOWN", key="shift"),
        flat("PRESS", key="home"),
        nested("KEY_UP", key="shift"),
    )
    do(
        nested("TYPING", text="keys"),
        flat("CLICK", **at(5, 10), button="left", num_clicks=2),
        nested("TYPING", text="twice"),
    )
    assert env.evaluate() == 0.0, "it is not saved yet"
    menu = do(nested("RIGHT_CLICK", **at(9, 100)))
    assert re.search(r'<menu-item name="Select All *" [^>]*showing="true"', menu["accessibility_tree"])
    before = do(flat("PRESS", key="escape"), flat("MOVE_TO", **at(20, 100)))
    assert do(nested("SCROLL", dx=0, dy=-5))["screenshot"] != before["screenshot"]
    do(nested("HOTKEY", keys=["ctrl", "s"]), "WAIT", "DONE")
    assert env.evaluate() == 1.0
    with pytest.raises(ActionError, match="between 0 and 1023"):
        env.step(nested("CLICK", x=1024, y=3))
    if os.geteuid() == 0:
        lease = env._lease()
        assert isinstance(lease, AsyncLease)
        assert holding(lease.desktop_id, spelt("task id", str(LINES["id"])), began_s) == {}
