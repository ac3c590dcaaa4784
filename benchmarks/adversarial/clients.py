"""The clients of the hostile farm, each in a process of its own: `neighbour`, `attacked` and `worker`.

`python -m benchmarks.adversarial.clients ROLE SECONDS WIDTH HEIGHT` uses `DART_FARM_URL` and prints what it saw as JSON. `neighbour` steps
an honest desktop and times each step; `attacked` makes every call of a lease into hostile ones; `worker` is the rollout worker on two.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.rollouts.policies import RandomPolicy
from dart_agent.rollouts.worker import RolloutWorker
from dart_agent.types import Purpose, SamplingParams, Trajectory, WorkItem
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import DartEnvError, DesktopFailedError, LeaseLostError
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.types import Action, Desktop, EndReason, Outcome
from dart_server.wire import DesktopShape, FrameSpec, MoveEvent

ATTACKED = 24
"""Most of their time a desktop is being reset, or a caller waits for an answer that never comes: more desktops cost the farm little."""
EPISODE_STEPS = 10
REST_SHARE = 0.02
PATIENCE_S = 20.0
"""After so long a call without an answer is given up, and the next one made: the farm itself waits up to five minutes for some answers."""


async def neighbour(shape: DesktopShape, seconds: float) -> dict[str, Any]:
    """Step an honest desktop, twenty times a second."""
    took_ms = []
    async with await AsyncFarmClient.connect() as farm, await farm.lease(shape) as lease:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            started_s = time.monotonic()
            await lease.step([MoveEvent(x=1, y=1)])
            took_ms.append((time.monotonic() - started_s) * 1000)
            await asyncio.sleep(0.05)
    took_ms.sort()
    return {
        "steps": len(took_ms),
        "p50_ms": round(took_ms[len(took_ms) // 2], 2),
        "p99_ms": round(took_ms[len(took_ms) * 99 // 100], 2),
        "max_ms": round(took_ms[-1], 2),
    }


async def attacked(shape: DesktopShape, seconds: float) -> dict[str, Any]:
    """Call into hostile desktops; count what was raised, and what should never be."""
    seen: Counter[str] = Counter()
    foreign: list[str] = []
    end_s = time.monotonic() + seconds

    async def one(farm: AsyncFarmClient, seed: int) -> None:
        rng = random.Random(seed)
        lease: AsyncLease | None = None
        while time.monotonic() < end_s:
            try:
                lease = lease or await farm.lease(shape, ttl_s=60.0)
                async with asyncio.timeout(PATIENCE_S):
                    await _call(lease, rng)
                seen["answered"] += 1
            except TimeoutError:
                seen["given_up"] += 1
            except (DesktopFailedError, LeaseLostError) as error:
                seen[getattr(error, "cause", "lease_lost")] += 1
                lease = await _renewed(lease, seen)
            except DartEnvError as error:
                seen[str(getattr(error, "code", type(error).__name__))] += 1
            except Exception as error:  # noqa: BLE001 - exceptions of other kinds are what is counted
                foreign.append(f"{type(error).__name__}: {error}"[:300])
        if lease is not None:
            await lease.release()

    async with await AsyncFarmClient.connect() as farm:
        await asyncio.gather(*(one(farm, seed) for seed in range(ATTACKED)))
    return {"seen": dict(seen.most_common()), "foreign": len(foreign), "first_foreign": foreign[:5]}


async def _renewed(lease: AsyncLease | None, seen: Counter[str]) -> AsyncLease | None:
    """The lease on a fresh desktop, or None where another lease is needed."""
    if lease is None:
        return None
    try:
        if not lease.lost:
            await lease.reset()
            return lease
    except DartEnvError as error:
        seen[f"reset: {type(error).__name__}"] += 1
    await lease.release()
    return None


async def _call(lease: AsyncLease, rng: random.Random) -> None:
    """One call; mostly steps, which are the most frequent in training."""
    if rng.random() >= REST_SHARE:
        encoding = rng.choice(("raw", "raw", "none", "none", "png", "jpeg", "webp"))
        await lease.step([], frame=FrameSpec.model_validate({"encoding": encoding}))
        return
    match rng.randrange(6):
        case 0:
            await lease.a11y()
        case 1:
            await lease.exec(["true"])
        case 2:
            await lease.clock()
        case 3:
            await lease.terminal()
        case 4:
            await lease.read_file("/tmp/x")
        case _:
            await lease.activate_window("x")


@dataclass
class HostileTask:
    """Nothing to do on a desktop that lies."""

    id: str = "adversarial/answers/0000"
    instruction: str = "Stay."
    max_steps: int = EPISODE_STEPS
    publish_setup: bool = False

    def setup_key(self, image_digest: str, shape: DesktopShape) -> str:
        return hashlib.sha256(f"{image_digest}{shape}".encode()).hexdigest()

    async def prepare(self, desktop: Desktop) -> None:
        pass

    async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
        await desktop.exec(["true"])
        return Outcome(0.0)

    async def oracle(self, desktop: Desktop, *, step: int = 0) -> Sequence[Action]:
        return []


class EndlessWork:
    """A work source without end; counts how its work ended."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self._number = 0

    async def acquire(self, worker_id: str) -> WorkItem | None:
        self._number += 1
        name = f"roll_{self._number}"
        return WorkItem(name, name, HostileTask.id, Purpose.EVAL, SamplingParams(), EPISODE_STEPS)

    async def report(self, trajectory: Trajectory, images: Any) -> None:
        self.ends[trajectory.end.value] += 1

    async def abandon(self, item: WorkItem, cause: str, *, uses_attempt: bool = True) -> None:
        self.ends["abandoned"] += 1


async def worker(shape: DesktopShape, seconds: float) -> dict[str, Any]:
    """The rollout worker on two hostile desktops. An exception of it is the end of the process, as in training."""
    work, spec = EndlessWork(), preset("tiny")
    async with await AsyncFarmClient.connect() as farm:
        policy = RandomPolicy(spec, seed=1)
        running = asyncio.create_task(
            RolloutWorker(
                "hostile",
                work,
                desktops=2,
                make_env=lambda: AsyncDesktopEnv(farm, shape=shape),
                make_policy=lambda task, env: policy,
                builder=PromptBuilder(spec),
                load_task=lambda task_id: HostileTask(),  # type: ignore[arg-type,return-value]
            ).run()
        )
        done, _ = await asyncio.wait({running}, timeout=seconds)
        if done:
            running.result()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return {"ends": dict(work.ends)}


def main() -> None:
    """One role until its time is over."""
    role, seconds, width, height = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    run = {"neighbour": neighbour, "attacked": attacked, "worker": worker}[role]
    print(json.dumps(asyncio.run(run(DesktopShape(resolution=(width, height)), seconds))))


if __name__ == "__main__":
    main()
