"""The examples of docs/examples train on live desktops, as they are written, in the environment of `make ecosystem`."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from served_farm import served_farm

from dart_envs.farm.sync import FarmClient

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PYTHON = ROOT / ".ecosystem" / "bin" / "python"
DESKTOPS = 4
LEASE_END_S = 90.0
"""A library that kills its processes leaves leases behind, which end 60 s after their last heartbeat."""

pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON.exists(), reason="the RL libraries are not installed: make ecosystem"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_farm(tmp_path_factory.mktemp("farm"), max_desktops=DESKTOPS) as url:
        yield url


def run(url: str, folder: Path, *command: str) -> str:
    """What a program of the RL environment prints; it has to end well, and its desktops have to come back."""
    environment = {**os.environ, "DART_FARM_URL": url, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(PYTHON), *command], capture_output=True, text=True, cwd=folder, env=environment, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    with FarmClient.connect(url) as farm:
        deadline_s = time.monotonic() + LEASE_END_S
        while (held := farm.leases()) and time.monotonic() < deadline_s:
            time.sleep(1.0)
        assert not held
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("example", "size", "said"),
    [
        ("sb3_ppo.py", 64, r"steps 64, episodes [1-9]"),
        ("cleanrl_ppo.py", 64, r"steps 64, episodes [1-9]"),
        ("tianshou_dqn.py", 80, r"steps 80, episodes [1-9]"),
        ("pufferlib_vector.py", 20, r"(?s)Serial: steps 20, .*Multiprocessing: steps 20, .*\(2, 4, 84, 84\)"),
        ("rllib_ppo.py", 1, r"(?s)lr 0.0001, steps [1-9]\d+.*lr 0.0003, steps [1-9]\d+"),
    ],
)
def test_a_library_trains_on_live_desktops(url: str, tmp_path: Path, example: str, size: int, said: str) -> None:
    assert re.search(said, run(url, tmp_path, str(EXAMPLES / example), str(size)))


def test_trl_makes_three_updates_with_a_random_model(url: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    run(url, tmp_path, "-m", "dart_train.cli", "init-model", str(model))
    said = run(url, tmp_path, str(EXAMPLES / "trl_grpo.py"), str(model), "3")
    assert len(re.findall(r"'rewards/Desktop/mean'", said)) == 3


def test_trls_tool_calls_reach_the_desktop(url: str, tmp_path: Path) -> None:
    """A random model writes no call, so that this one was taught to click."""
    model = tmp_path / "model"
    run(url, tmp_path, "-m", "dart_train.cli", "init-model", str(model))
    run(url, tmp_path, str(ROOT / "tests" / "ecosystem" / "teach_tool_call.py"), str(model))
    said = run(url, tmp_path, str(EXAMPLES / "trl_grpo.py"), str(model), "3")
    frequencies = [float(value) for value in re.findall(r"'tools/call_frequency': '([\d.]+)'", said)]
    failures = [float(value) for value in re.findall(r"'tools/failure_frequency': '([\d.]+)'", said)]
    assert len(frequencies) == 3
    assert max(frequencies) > 0
    assert failures == [0.0] * 3
