"""A loop as OSWorld's run scripts write it, with an agent as its agents are written, on a live desktop through the facade."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from served_farm import served_farm

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
