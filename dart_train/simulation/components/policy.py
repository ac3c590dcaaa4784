"""The policy of simulated episodes: real or simulated responses, with the length and the outcome that the models draw.

Role: `SimulatedEpisodes` makes the policy of each episode (a `PolicyFactory`) around the one that samples. Rule: token ids, log-probs,
versions and times are those of the sampled response; its text is replaced, so that the episode performs its action and ends at the step
that was drawn for it. Non-goals: sampling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dart_agent.prompts.builder import PromptSpec
from dart_agent.rollouts.policy_factory import PolicyFactory, WorkerEnv
from dart_agent.types import Completion, Policy, PolicyRequest
from dart_envs.observations.geometry import PointMap
from dart_envs.tasks import Task
from dart_envs.types import Action, ActionType
from dart_server.wire import Clock
from dart_train.simulation.components.activity import RequestLog
from dart_train.simulation.components.farm import SimulatedLease
from dart_train.simulation.episodes import EpisodeDraw, TaskBook
from dart_train.simulation.models import EpisodeModel


class SimulatedEpisodes:
    """Makes the policy of each episode.

    Args:
        inner: Makes what samples the responses.
        model: Lengths and outcomes of episodes.
        spec: The prompt, in whose format actions are written.
        max_steps: Step limit.
        seed: Seed of the draws.
        clock: Clock of the log.
        log: Gets every answered request.
    """

    def __init__(
        self,
        inner: PolicyFactory,
        model: EpisodeModel,
        spec: PromptSpec,
        max_steps: int,
        seed: int,
        clock: Clock,
        log: RequestLog,
    ) -> None:
        self.inner = inner
        self.clock = clock
        self.log = log
        self.spec = spec
        self._book = TaskBook(model, seed)
        self._max_steps = max_steps
        self._draws: dict[str, EpisodeDraw] = {}

    def __call__(self, task: Task, env: WorkerEnv) -> Policy:
        """Make the policy of an episode.

        Args:
            task: Its task.
            env: Its environment, on a `SimulatedFarm`.

        Returns:
            The policy.
        """
        return _EpisodePolicy(self, self.inner(task, env), task, env)

    def draw(self, task_id: str, rollout_id: str) -> EpisodeDraw:
        """Draw an episode; a rollout that is continued gets its own draw again.

        Args:
            task_id: The task.
            rollout_id: The rollout.

        Returns:
            Its length and its outcome.
        """
        known = self._draws.get(rollout_id)
        if known is None:
            known = self._draws[rollout_id] = self._book.draw(task_id, self._max_steps)
        return known


class _EpisodePolicy:
    """The policy of one episode."""

    def __init__(self, episodes: SimulatedEpisodes, inner: Policy, task: Task, env: WorkerEnv) -> None:
        self._episodes = episodes
        self._inner = inner
        self._task = task
        self._env = env

    async def complete(self, request: PolicyRequest) -> Completion:
        episodes, began_s = self._episodes, self._episodes.clock.time()
        completion = await self._inner.complete(request)
        episodes.log.add(completion.worker, began_s, episodes.clock.time())
        rollout_id, _, step = request.request_id.rpartition(".")
        draw = episodes.draw(self._task.id, rollout_id)
        ends = int(step) + 1 >= draw.steps
        lease = self._env.lease
        if ends and isinstance(lease, SimulatedLease):
            lease.solved = draw.succeeds
        action = Action(ActionType.DONE) if ends and draw.stops else Action(ActionType.WAIT)
        return dataclasses.replace(completion, text=self._write(action, request.images))

    def _write(self, action: Action, images: Sequence[object]) -> str:
        return self._episodes.spec.write(action, PointMap((32, 32), (32, 32), self._episodes.spec.coordinates))
