"""What is refused of a rollout worker: trajectories by the data manager, requests by the policy.

Role: `RejectedTrajectories` writes one JSON file for each trajectory that was refused; it and `RefusedRequests` end a worker of which
everything is refused. Rule: nothing reads the files but people; the rollout itself is given back and played again. One task whose requests
are refused ends no worker. Non-goals: deciding what is refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from pathlib import Path

from dart_agent.errors import (
    ConfigError,
    PolicyUnavailableError,
    PromptTooLongError,
    RequestRejected,
    StoreError,
    StoreRefusedError,
)
from dart_agent.types import Completion, Policy, PolicyRequest, Trajectory
from dart_server.wire import Clock

logger = logging.getLogger(__name__)

MAX_REJECTED_IN_A_ROW = 5
"""So many refused rollouts in a row are no accident of one trajectory: the worker ends with the last cause."""
MAX_REFUSED_TASKS = 3
"""Where the requests of so many tasks are refused, and none is answered meanwhile, no task is to blame: the worker ends."""
MAX_REFUSED_REQUESTS = 20
"""The same of requests, where they are of fewer tasks: several times as many as one rollout has attempts."""
PROMPT_ADVICE = (
    "raise inference.max_model_len, or lower rollout.max_tokens, model.history_images or desktops.resolution"
)


class RejectedTrajectories:
    """What was refused of one worker.

    Args:
        directory: Folder that gets a file for each refused trajectory; None: nothing is kept.
        clock: The clock.
    """

    def __init__(self, directory: Path | None, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._in_a_row = 0

    async def keep(self, trajectory: Trajectory, cause: str) -> None:
        """Write `<rollout id>.json`; a later one of the same rollout replaces it."""
        if self._directory is not None:
            await asyncio.to_thread(self._write, self._directory, trajectory, cause)

    def count(self, error: StoreRefusedError) -> None:
        """Count one refused trajectory, which is lost. Raises StoreError when everything is refused: nothing is played on for nothing."""
        self._in_a_row += 1
        logger.error("%s", error)
        if self._in_a_row >= MAX_REJECTED_IN_A_ROW:
            raise StoreError(f"{self._in_a_row} rollouts in a row were refused; the last one: {error}") from error

    def accepted(self) -> None:
        """One was stored."""
        self._in_a_row = 0

    def _write(self, directory: Path, trajectory: Trajectory, cause: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        content = {"cause": cause, "at_s": self._clock.time(), "trajectory": dataclasses.asdict(trajectory)}
        path = directory / f"{trajectory.rollout_id}.json"
        path.write_text(json.dumps(content, default=str, indent=1) + "\n", encoding="utf-8")


class RefusedRequests:
    """Counts the requests that the policy refuses between two answers, and ends a worker whose requests are all refused.

    Nothing is decided while a request is being answered: a refusal is faster than an answer. Prompts that are too long count only until the
    first answer, after which it is known that there are some that fit.
    """

    def __init__(self) -> None:
        self._pending = 0
        self._answered = False
        self._refused = 0
        self._tasks: set[str] = set()

    def watch(self, policy: Policy) -> Policy:
        """Make a policy whose requests are counted.

        Args:
            policy: The policy of one episode.

        Returns:
            The same policy, watched.
        """
        return _WatchedPolicy(policy, self)

    def count(self, task_id: str, error: RequestRejected) -> None:
        """Count one request that was refused, and so ended its episode.

        Args:
            task_id: The task of its episode.
            error: The refusal.

        Raises:
            ConfigError: No first prompt fits into the model's context.
            PolicyUnavailableError: Every request is refused.
        """
        too_long = isinstance(error, PromptTooLongError)
        if too_long and self._answered:
            return
        self._refused += 1
        self._tasks.add(task_id)
        few = len(self._tasks) < MAX_REFUSED_TASKS and self._refused < MAX_REFUSED_REQUESTS
        if few or self._pending:
            return
        counted = f"{self._refused} in a row, of {len(self._tasks)} tasks"
        if too_long:
            raise ConfigError(
                f"no first prompt fits ({counted}), the last one of {task_id}: {error}; {PROMPT_ADVICE}"
            ) from error
        raise PolicyUnavailableError(f"the policy refuses every request ({counted}); the last one: {error}") from error

    async def complete(self, policy: Policy, request: PolicyRequest) -> Completion:
        """Ask a policy, and note whether it answers. Raises what it raises."""
        self._pending += 1
        try:
            completion = await policy.complete(request)
        finally:
            self._pending -= 1
        self._answered = True
        self._refused = 0
        self._tasks.clear()
        return completion


class _WatchedPolicy:
    """A policy whose requests are counted."""

    def __init__(self, inner: Policy, requests: RefusedRequests) -> None:
        self._inner = inner
        self._requests = requests

    async def complete(self, request: PolicyRequest) -> Completion:
        return await self._requests.complete(self._inner, request)
