"""Saved episodes: what OSWorld's layout asks for, what the page shows, and what a failure leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_evaluation import SHAPE, TASKS, _farm_of, task
from typer.testing import CliRunner

from dart_envs.cli.main import app
from dart_envs.evaluation import EvaluationEpisode, make_policy, run_episodes
from dart_envs.evaluation.policies import PolicyInput, _policy_from_callable
from dart_envs.farm import GuestResponse
from dart_envs.testing.fake_farm import FakeFarm, FakeLease
from dart_server.wire import FaultOwner

TYPED = task("a").model_copy(update={"instruction": "Type hello <b>."})


async def play(farm: FakeFarm, policy: Any, root: Path, **options: Any) -> EvaluationEpisode:
    chosen = make_policy(policy) if isinstance(policy, str) else _policy_from_callable(policy)
    episodes = run_episodes(farm, [TYPED], chosen, desktops=1, shape=SHAPE, trajectories=root, **options)
    return await anext(episodes)


async def test_an_episode_has_osworlds_files_and_a_page(farm: FakeFarm, tmp_path: Path) -> None:
    episode = await play(farm, "oracle", tmp_path)
    assert episode.trajectory == "trajectories/toy/toy-a-0000"
    assert episode.instruction == "Type hello <b>."
    folder = tmp_path / episode.trajectory
    steps = [json.loads(line) for line in (folder / "traj.jsonl").read_text().splitlines()]
    assert [(one["step_num"], one["reward"], one["done"]) for one in steps] == [(1, 0.0, False), (2, 1.0, True)]
    assert steps[0]["action"] == {"type": "type", "text": "hello"}
    pictures = [
        np.asarray(Image.open(folder / name)) for name in ("step_0.png", *(one["screenshot_file"] for one in steps))
    ]
    assert [one.shape for one in pictures] == [(400, 640, 3)] * 3
    assert (pictures[0] != pictures[1]).any()
    assert (folder / "result.txt").read_text() == "1.0\n"
    assert (folder / "recording.mp4").read_bytes() == b"film"
    page = (folder / "index.html").read_text()
    assert page.count("<img ") == 3
    assert "Type hello &lt;b&gt;." in page


async def test_a_second_attempt_replaces_the_first(farm: FakeFarm, tmp_path: Path) -> None:
    calls: list[int] = []

    def act(seen: PolicyInput) -> str:
        calls.append(seen.steps)
        if len(calls) == 2:
            farm.leases[-1].kill(FaultOwner.HOST, "chaos")
        return "pyautogui.write('hello')" if seen.steps == 0 else "DONE"

    episode = await play(farm, act, tmp_path, action_space="pyautogui")
    assert (len(calls), episode.reward) == (4, 1.0)
    folder = tmp_path / str(episode.trajectory)
    assert len((folder / "traj.jsonl").read_text().splitlines()) == 2
    assert len(list(folder.glob("*.png"))) == 3


async def test_an_episode_without_a_verdict_keeps_its_steps_and_cause(farm: FakeFarm, tmp_path: Path) -> None:
    def act(seen: PolicyInput) -> str:
        if seen.steps:
            raise KeyError("no idea")
        return "pyautogui.write('hello')"

    episode = await play(farm, act, tmp_path, action_space="pyautogui")
    folder = tmp_path / str(episode.trajectory)
    assert (episode.reward, episode.end) == (None, "policy_error")
    assert not (folder / "result.txt").exists()
    assert "no idea" in (folder / "index.html").read_text()
    assert (folder / "recording.mp4").exists()


async def test_an_image_without_a_recorder_costs_the_recording_only(
    farm: FakeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_recorder(self: FakeLease, method: str, path: str, **_rest: Any) -> GuestResponse:
        return GuestResponse(404, b"", "text/plain")

    monkeypatch.setattr(FakeLease, "guest", no_recorder)
    episode = await play(farm, "oracle", tmp_path)
    folder = tmp_path / str(episode.trajectory)
    assert episode.reward == 1.0
    assert not (folder / "recording.mp4").exists()
    assert "recording" not in (folder / "index.html").read_text()


def test_the_report_of_the_command_links_what_was_saved(
    farm: FakeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _farm_of(farm, monkeypatch)
    command = [
        "eval",
        "toy",
        "--policy",
        "test_evaluation:types_hello",
        "--action-space",
        "pyautogui",
        "--max-steps",
        "1,4",
        "--out",
        str(tmp_path),
        "--save-trajectories",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "report.html").read_text()
    for budget in (1, 4):
        for one in TASKS:
            link = f"steps-{budget}/trajectories/toy/{one.id.replace('/', '-')}/index.html"
            assert f'href="{link}"' in page
            assert (tmp_path / link).exists()
    assert "Type hello." in page
