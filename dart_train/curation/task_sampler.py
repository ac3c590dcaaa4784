"""Task sampler: which task the next training group works on.

Role: draws a task by one of three rules, by name.

    uniform             a family, in proportion to its weight, then the task of that family that was run least often
    family-difficulty   the same, the family's weight times floor + 4 p (1 - p), p its latest success rate, 1/2 while it is not known:
                        the variance of a Bernoulli reward relative to its greatest value
    learnability        a task, in proportion to floor + min(1, 4 E[p (1 - p)] + (1/3) / (n + 1)) over its latest n rollouts with s
                        successes; E is taken over the posterior Beta(1 + s, 1 + n - s): (1 + s)(1 + n - s) / ((n + 2)(n + 3)). A task
                        that was never run has the greatest weight, because 4 E + 1/3 = 1 there. A family has the mean weight of its
                        tasks, times its own. By family, a family's rollouts count together, and a draw takes its task that was run
                        least often

Rule: no family and no task gets nothing, unless its family's weight is 0; all draws come from the given source of randomness. Sources:
p (1 - p) as learnability: sampling for learnability in curricula (arXiv 2408.15099); pools of difficulty in prime-rl; the optimism for what
was never run is ours. Non-goals: how many rollouts the task gets (`rollout_budget`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Literal

from pydantic import Field

from dart_agent.strict_model import StrictModel
from dart_envs.success import SUCCESS_AT, count_successes
from dart_train.curation.weighted_draw import WeightedDraw

TaskSamplingRule = Literal["uniform", "family-difficulty", "learnability"]
UNKNOWN_SUCCESS_RATE = 0.5
UNSEEN_OPTIMISM = 1 / 3
"""What a task gets for being unknown: 4 E[p (1 - p)] of a task that was never run is 2/3."""


class TaskSamplerSettings(StrictModel):
    """Settings of the task sampler.

    Attributes:
        rule: How the next task is drawn.
        weights: Weight per family, 1 where it is not named.
        floor: Part of its weight that a family or task keeps whatever its success rate is.
        window: Latest rollouts of a family or task from which its success rate is computed.
    """

    rule: TaskSamplingRule = "uniform"
    weights: dict[str, float] = Field(default_factory=dict)
    floor: float = Field(default=0.25, gt=0)
    window: int = Field(default=32, ge=1)


def family_weights(
    families: Sequence[str], success_rates: Mapping[str, float], settings: TaskSamplerSettings
) -> dict[str, float]:
    """Compute the weight of every family.

    Args:
        families: Names of the families.
        success_rates: Success rate per family; one without a rate counts as half solved.
        settings: Settings of the task sampler.

    Returns:
        Weight per family, not normalised.
    """
    weights = {}
    for family in families:
        weights[family] = settings.weights.get(family, 1.0)
        if settings.rule == "family-difficulty":
            rate = success_rates.get(family, UNKNOWN_SUCCESS_RATE)
            weights[family] *= settings.floor + 4 * rate * (1 - rate)
    return weights


def learnability(rewards: Sequence[float], success_at: float = SUCCESS_AT) -> float:
    """Estimate how much a task can teach.

    Args:
        rewards: Rewards of its latest rollouts.
        success_at: Least reward of a success.

    Returns:
        A number in (0, 1]; 1 for a task that was never run.
    """
    count, successes = len(rewards), count_successes(rewards, success_at)
    variance = (1 + successes) * (1 + count - successes) / ((count + 2) * (count + 3))
    return min(1.0, 4 * variance + UNSEEN_OPTIMISM / (count + 1))


class TaskSampler:
    """Chooses tasks one after the other; a choice takes at most O(log n) on average, for n tasks.

    Args:
        tasks_by_family: At least one task id per family.
        settings: Settings of the task sampler.
        runs: Groups opened so far per task id.
        success_at: Least reward of a success.
        by_family: Whether the rule `learnability` weighs families, where tasks are hardly ever run twice; False: tasks.
    """

    def __init__(
        self,
        tasks_by_family: Mapping[str, Sequence[str]],
        settings: TaskSamplerSettings,
        runs: Mapping[str, int] | None = None,
        *,
        success_at: float = SUCCESS_AT,
        by_family: bool = False,
    ) -> None:
        self.families = sorted(tasks_by_family)
        self._tasks = tasks_by_family
        self._settings = settings
        self._success_at = success_at
        self._runs = Counter(runs or {})
        self._fewest: dict[str, list[str]] = {family: [] for family in self.families}
        self._numbers: dict[str, int] = {}
        self._scales: list[float] = []
        self._draw: WeightedDraw | None = None
        self._by_family = by_family
        if settings.rule == "learnability":
            for family in self.families:
                weighed = [family] if by_family else tasks_by_family[family]
                for name in weighed:
                    self._numbers[name] = len(self._numbers)
                    self._scales.append(settings.weights.get(family, 1.0) / len(weighed))
            self._draw = WeightedDraw([scale * (settings.floor + 1) for scale in self._scales])

    def observe(self, name: str, rewards: Sequence[float]) -> None:
        """Note how a task went, or with `by_family` a family; only the rule `learnability` needs it.

        Args:
            name: The task or family; one that is not among the sampler's changes nothing.
            rewards: Rewards of its latest `window` rollouts.
        """
        number = self._numbers.get(name)
        if self._draw is not None and number is not None:
            learnable = learnability(rewards, self._success_at)
            self._draw.change(number, self._scales[number] * (self._settings.floor + learnable))

    def choose(self, success_rates: Mapping[str, float], random: Random) -> str:
        """Choose the next task and count it as run.

        Args:
            success_rates: Success rate per family.
            random: Source of randomness; ties are broken at random.

        Returns:
            The task id.

        Raises:
            ValueError: The weights of all families are zero.
        """
        weights = family_weights(self.families, success_rates, self._settings)
        if sum(weights.values()) <= 0:
            raise ValueError("the weights of all task families are zero: nothing can be chosen")
        if self._draw is None:
            return self._least_run(random.choices(self.families, list(weights.values()))[0], random)
        number = self._draw.draw(random.random())
        if self._by_family:
            return self._least_run(self.families[number], random)
        task_id = self._by_number(number)
        self._runs[task_id] += 1
        return task_id

    def _least_run(self, family: str, random: Random) -> str:
        """The task of a family that was run least often; it counts as run."""
        candidates = self._fewest[family]
        if not candidates:
            fewest = min(self._runs[task] for task in self._tasks[family])
            candidates += [task for task in self._tasks[family] if self._runs[task] == fewest]
        place = random.randrange(len(candidates))
        candidates[place], candidates[-1] = candidates[-1], candidates[place]
        task = candidates.pop()
        self._runs[task] += 1
        return task

    def take(self, task_id: str) -> None:
        """Count a task as run that was chosen for another reason, or by another sampler.

        Args:
            task_id: The task; one that is not among the sampler's changes no choice.
        """
        self._runs[task_id] += 1
        for candidates in self._fewest.values():
            if task_id in candidates:
                candidates.remove(task_id)

    def _by_number(self, number: int) -> str:
        for family in self.families:
            if number < len(self._tasks[family]):
                return self._tasks[family][number]
            number -= len(self._tasks[family])
        raise AssertionError("a drawn task has a family")
