"""The environment on the embedded farm: started on demand, shared by processes, gone with `dart-farm stop`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EPISODES = """
import dart_envs, gymnasium as gym
from note_task import NoteTask
with gym.make("DartOSWorld-v0", task=NoteTask(), resolution=(320, 200)) as env:
    for seed in range(3):
        observation, info = env.reset(seed=seed)
        observation, reward, terminated, truncated, info = env.step({"type": "done"})
        assert terminated and info["end"] == "done", info
print("played")
"""
NOTE_TASK = """
from dart_envs import Action, ActionType, Outcome

class NoteTask:
    id, instruction, max_steps, publish_setup = "toy/note/0000", "Do nothing.", 3, True
    def setup_key(self, image_digest, shape):
        return "5" * 64
    async def prepare(self, desktop):
        await desktop.write_file("/tmp/note", b"x")
    async def evaluate(self, desktop, *, end=None):
        return Outcome(float(await desktop.read_file("/tmp/note") == b"x"))
    async def oracle(self, desktop, *, step=0):
        return [Action(ActionType.DONE)][step:]
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[dict[str, str]]:
    (tmp_path / "note_task.py").write_text(NOTE_TASK)
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DART_")},
        "DART_RUNTIME_DIR": str(runtime),
        "DART_PROVIDER": "sim",
        "PYTHONPATH": str(tmp_path),
    }
    yield environment
    subprocess.run([sys.executable, "-m", "dart_server.cli", "stop"], env=environment, check=False, timeout=60)


def _play(environment: dict[str, str], code: str = EPISODES) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_processes_share_one_farm_and_leave_nothing_leased(place: dict[str, str]) -> None:
    players = [_play(place) for _ in range(2)]
    for player in players:
        out, err = player.communicate(timeout=120)
        assert player.returncode == 0, err
        assert out.strip() == "played"
    log = (Path(place["DART_RUNTIME_DIR"]) / "farm.log").read_text()
    status = subprocess.run(
        [sys.executable, "-m", "dart_server.cli", "status", "--json"],
        env=place,
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"leases_active": 0' in status.stdout, log
    assert '"provider": "sim"' in status.stdout


def test_a_process_that_forgets_to_close_gives_its_desktop_back(place: dict[str, str]) -> None:
    code = """
import gymnasium as gym
from note_task import NoteTask
env = gym.make("dart_envs:DartOSWorld-v0", task=NoteTask(), resolution=(320, 200))
env.reset()
"""
    player = _play(place, code)
    _, err = player.communicate(timeout=120)
    assert player.returncode == 0, err
    status = subprocess.run(
        [sys.executable, "-m", "dart_server.cli", "status", "--json"],
        env=place,
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"leases_active": 0' in status.stdout


def test_a_farm_that_cannot_start_is_one_readable_error(place: dict[str, str]) -> None:
    place["DART_MAX_DESKTOPS"] = "none"
    _, err = _play(place).communicate(timeout=120)
    last = err.strip().splitlines()
    assert any("FarmError: The embedded farm stopped at once" in line for line in last)
    assert "max_desktops" in err.lower()


@pytest.mark.desktop
def test_the_environment_without_arguments_plays_live_desktops(place: dict[str, str]) -> None:
    place = {**place, "DART_PROVIDER": "runc", **{key: os.environ[key] for key in ("DART_HOME",) if key in os.environ}}
    code = """
import gymnasium as gym
env = gym.make("dart_envs:DartOSWorld-v0")
observation, info = env.reset(seed=0)
assert observation["screenshot"].shape == (400, 640, 3)
step, ended = 0, False
while not ended:
    solution = env.unwrapped.oracle(step)
    observation, reward, terminated, truncated, info = env.step(solution[0] if solution else {"type": "done"})
    step, ended = step + 1, terminated or truncated
env.close()
assert reward == 1.0, info
print("solved")
"""
    player = _play({**place, "DART_SNAPSHOT_DIR": place["DART_RUNTIME_DIR"] + "/snapshots"}, code)
    out, err = player.communicate(timeout=180)
    assert player.returncode == 0, err
    assert out.strip() == "solved"
