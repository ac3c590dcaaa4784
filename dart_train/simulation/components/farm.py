"""A simulated farm behind the client's protocol: desktops that take as long as the latency models say.

Role: `SimulatedFarm` gives leases to the real environment (`dart_envs.envs`); `simulated_task` makes tasks for it. Rule: the farm keeps
prepared states, snapshots and build grants as the fake of the tests does; here they take time on the injected clock. A screen is one flat
colour that changes with every step. Non-goals: what a desktop shows or executes; who wins an episode (`policy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from random import Random
from typing import Any

import numpy as np

from dart_envs.tasks import Task
from dart_envs.tasks.model import Evaluator
from dart_envs.testing.fake_farm import FakeFarm, FakeLease
from dart_envs.types import Desktop, EndReason, Frame, Outcome, RgbImage
from dart_server.wire import Clock, DesktopShape, FrameSpec, InputEvent, ResetReply, SettleSpec, SnapshotView
from dart_train.simulation.models import DesktopModel

PREPARE, EVALUATE = "simulated-setup", "simulated-evaluator"


class SimulatedLease(FakeLease):
    """A lease of a simulated desktop.

    Args:
        farm: Its farm.
        lease_id: Its id.
        shape: Image, resolution and font size.
        setup_key: Key of the prepared state that it should start from.

    Attributes:
        solved: Whether the evaluator finds the task solved; whoever plays the episode sets it.
    """

    def __init__(self, farm: SimulatedFarm, lease_id: str, shape: DesktopShape, setup_key: str | None) -> None:
        super().__init__(farm, lease_id, shape, setup_key)
        self.solved = False
        self._simulated = farm
        self._looked = False

    async def step(
        self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
    ) -> Frame:
        """Perform an action; the first look at a restored desktop takes no time of its own.

        Args:
            events: The action.
            settle: Not used: the model's time contains it.
            frame: Encoding of the frame.

        Returns:
            The frame.
        """
        if self._looked:
            await self._simulated.execute()
        self._looked = True
        return await super().step(events, settle, frame=frame)

    def paint(self, *, cursor: bool = False) -> RgbImage:
        """Paint the screen.

        Args:
            cursor: Not used.

        Returns:
            uint8 [H, W, 3] in one colour, which no other step of the last 16 million has.
        """
        number = self._simulated.next_screen()
        colour = [(number >> shift) % 256 for shift in (0, 8, 16)]
        return np.full((*self._resolution[::-1], 3), colour, dtype=np.uint8)

    async def exec(self, argv: list[str], **options: Any) -> Any:
        """Run one of the two programs of simulated tasks.

        Args:
            argv: Its name.
            **options: As for a desktop.

        Returns:
            The program's answer.
        """
        model, random = self._simulated.model, self._simulated.random
        if argv[0] in (PREPARE, EVALUATE):
            await self._simulated.take((model.reset_s if argv[0] == PREPARE else model.evaluate_s).draw(random))
            argv = ["true"]
        return await super().exec(argv, **options)

    async def reset(self, setup_key: str | None = None, *, snapshot_id: str | None = None) -> ResetReply:
        """Replace the desktop; a copy of a state takes the time of a fork, the booted base none (it is part of the setup's).

        Args:
            setup_key: Key of a prepared state.
            snapshot_id: Id of a snapshot.

        Returns:
            The new desktop.
        """
        reply = await super().reset(setup_key, snapshot_id=snapshot_id)
        self._looked, self.solved = False, False
        if setup_key is not None or snapshot_id is not None:
            await self._simulated.take(self._simulated.model.fork_s.draw(self._simulated.random))
        return reply

    async def snapshot(self, name: str | None = None, **options: Any) -> SnapshotView:
        """Take a snapshot: of a prepared state in no time (it is part of the setup's), of a parked rollout as the model says.

        Args:
            name: Its name.
            **options: As for a lease.

        Returns:
            The snapshot.
        """
        if options.get("publish_key") is None:
            await self._simulated.take(self._simulated.model.park_s.draw(self._simulated.random))
        return await super().snapshot(name, **options)


class SimulatedFarm(FakeFarm):
    """Desktops without limit, each with the model's latencies.

    Args:
        model: The latencies.
        clock: The clock that they pass on.
        seed: Seed of the latencies.

    Attributes:
        model: The latencies.
        random: Source of randomness.
    """

    def __init__(self, model: DesktopModel, clock: Clock, seed: int) -> None:
        super().__init__()
        self.model = model
        self.random = Random(f"{seed}/farm")
        self._clock = clock
        self._screens = 0
        self._leases = 0

    async def lease(
        self,
        shape: DesktopShape | None = None,
        setup_key: str | None = None,
        ttl_s: float = 60.0,
        wait_s: float = 60.0,
        labels: Mapping[str, str] | None = None,
    ) -> SimulatedLease:
        """Lease a desktop; there is always one.

        Args:
            shape: Its shape.
            setup_key: Key of the prepared state to start from.
            ttl_s: Not used.
            wait_s: Not used.
            labels: Not used.

        Returns:
            The lease.
        """
        self._leases += 1
        lease = SimulatedLease(self, f"lease_{self._leases}", shape or DesktopShape(), setup_key)
        if lease.setup_key is not None:
            await self.take(self.model.fork_s.draw(self.random))
        return lease

    async def execute(self) -> None:
        """Let the time of an action pass."""
        await self._clock.sleep(self.model.step_s.draw(self.random))

    async def take(self, seconds: float) -> None:
        """Let time pass in which a desktop is prepared, kept or evaluated.

        Args:
            seconds: How much.
        """
        await self._clock.sleep(seconds)

    def next_screen(self) -> int:
        """Number the next screen."""
        self._screens += 1
        return self._screens


class SimulatedTask(Task):
    """A task whose setup and evaluator only take time; `SimulatedLease.solved` says what the evaluator finds."""

    def setup_key(self, image_digest: str, shape: DesktopShape) -> str:
        """Name the prepared state by the task."""
        return sha256(f"{self.id}/{image_digest}".encode()).hexdigest()

    async def check_requirements(self, shape: DesktopShape, *, local_images: bool) -> None:
        """Nothing is needed."""

    async def prepare(self, desktop: Desktop) -> None:
        """Take the time of the setup."""
        await desktop.exec([PREPARE])

    async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None, scorer: str | None = None) -> Outcome:
        """Take the time of the evaluator and return what it finds."""
        await desktop.exec([EVALUATE])
        return Outcome(float(isinstance(desktop, SimulatedLease) and desktop.solved))


def simulated_task(task_id: str, max_steps: int) -> SimulatedTask:
    """Make a task.

    Args:
        task_id: Its id.
        max_steps: Its step limit.

    Returns:
        The task.
    """
    return SimulatedTask(
        id=task_id, instruction="Simulated.", evaluator=Evaluator(func="infeasible"), max_steps=max_steps
    )
