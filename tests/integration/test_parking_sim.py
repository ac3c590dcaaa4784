"""Parked desktops over a real farm with simulated desktops: a process dies or parks, another one goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PLAY = """
import asyncio, dataclasses, json, sys
from dart_envs import Action, ActionType, Outcome
from dart_envs.envs.parking import ParkedDesktop, ResumableDesktopEnv
from dart_envs.errors import DartEnvError
from dart_envs.farm.client import AsyncFarmClient
from dart_server.wire import DesktopShape

class MarkTask:
    id, instruction, max_steps, publish_setup = "toy/mark/0000", "Leave a mark.", 5, True
    def setup_key(self, image_digest, shape):
        return "6" * 64
    async def prepare(self, desktop):
        await desktop.write_file("/tmp/note", b"x")
    async def evaluate(self, desktop, *, end=None):
        return Outcome(float(await desktop.read_file("/tmp/mark") == b"made"))

async def main(how, given):
    async with await AsyncFarmClient.connect() as farm:
        env = ResumableDesktopEnv(farm, shape=DesktopShape(resolution=(320, 200)))
        if how == "delete":
            snapshot_id = json.loads(given)["snapshot_id"]
            await farm.delete_snapshot(snapshot_id)
            print(json.dumps({"deleted": snapshot_id}), flush=True)
            return
        if how == "resume":
            try:
                await env.resume(MarkTask(), ParkedDesktop(**json.loads(given)))
            except DartEnvError as error:
                print(json.dumps({"error": str(error)}), flush=True)
                return
            last = await env.step(Action(ActionType.DONE))
            print(json.dumps({"reward": last.reward, "steps": last.info["steps"]}), flush=True)
            await env.aclose()
            return
        await env.reset(MarkTask())
        await env.step(Action(ActionType.CLICK, x=5, y=5))
        await env.lease.write_file("/tmp/mark", b"made")
        parked = env.held_desktop() if how == "die" else await env.park()
        print(json.dumps(dataclasses.asdict(parked)), flush=True)
        if how == "die":
            await asyncio.sleep(600)

asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[dict[str, str]]:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DART_")},
        "DART_RUNTIME_DIR": str(runtime),
        "DART_PROVIDER": "sim",
    }
    yield environment
    subprocess.run([sys.executable, "-m", "dart_server.cli", "stop"], env=environment, check=False, timeout=60)


def start(place: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PLAY, *arguments],
        env=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str]) -> dict[str, object]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found: dict[str, object] = json.loads(out)
    return found


def test_another_process_goes_on_with_the_desktop_of_one_that_was_killed(place: dict[str, str]) -> None:
    first = start(place, "die")
    assert first.stdout is not None
    held = first.stdout.readline()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert answer(start(place, "resume", held)) == {"reward": 1.0, "steps": 2}


def test_a_parked_desktop_is_restored_until_its_snapshot_is_deleted(place: dict[str, str]) -> None:
    parked = answer(start(place, "park"))
    assert (parked["lease"], parked["steps"]) == (None, 1)
    for _ in range(2):
        assert answer(start(place, "resume", json.dumps(parked))) == {"reward": 1.0, "steps": 2}
    assert answer(start(place, "delete", json.dumps(parked))) == {"deleted": parked["snapshot_id"]}
    assert "error" in answer(start(place, "resume", json.dumps(parked)))


GIVE_BACK = """
import asyncio, json
from pathlib import Path
from dart_agent.rollouts.upkeep import lease_labels, release_former_leases
from dart_envs.farm.client import AsyncFarmClient

async def main():
    labels = lease_labels("rollout-vllm-0", Path("/run/data-1.sock"))
    async with await AsyncFarmClient.connect() as farm:
        if len(await farm.leases()):
            print(await release_former_leases(farm, labels, []), flush=True)
            await farm.lease(ttl_s=60, wait_s=5)
            return
        await farm.lease(labels=labels, ttl_s=60)
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def test_the_only_desktop_is_free_again_once_the_killed_worker_is_started_again(place: dict[str, str]) -> None:
    place = place | {"DART_MAX_DESKTOPS": "1"}
    command = [sys.executable, "-c", GIVE_BACK]
    with subprocess.Popen(command, env=place, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        first.kill()
    again = subprocess.run(command, env=place, capture_output=True, text=True, check=False, timeout=120)
    assert (again.returncode, again.stdout) == (0, "1\n"), again.stderr
