"""Task sampler: which task the next training group works on.

Role: draws a family, then takes the task of that family that was run least often. Rule: a family's probability is proportional to its
weight, times floor + 4p(1-p) with p its latest success rate when `difficulty_aware` is on: most groups go where reward variance is most
likely, and no family gets none. Source: the variance of a Bernoulli reward; the idea is that of difficulty pools in prime-rl's curriculum.
Non-goals: how many rollouts the task gets (`rollout_budget`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from pydantic import Field

from dart_agent.strict_model import StrictModel

UNKNOWN_SUCCESS_RATE = 0.5


class TaskSamplerSettings(StrictModel):
    """Settings of the task sampler.

    Attributes:
        difficulty_aware: Whether families with mixed results are drawn more often.
        weights: Weight per family, 1 where it is not named.
        floor: Part of its weight that a family keeps whatever its success rate is.
        window: Latest rollouts of a family from which its success rate is computed.
    """

    difficulty_aware: bool = False
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
        if settings.difficulty_aware:
            rate = success_rates.get(family, UNKNOWN_SUCCESS_RATE)
            weights[family] *= settings.floor + 4 * rate * (1 - rate)
    return weights


class TaskSampler:
    """Chooses tasks one after the other; each choice takes a constant time on average, however many tasks there are.

    Args:
        tasks_by_family: At least one task id per family.
        settings: Settings of the task sampler.
        runs: Groups opened so far per task id.
    """

    def __init__(
        self,
        tasks_by_family: Mapping[str, Sequence[str]],
        settings: TaskSamplerSettings,
        runs: Mapping[str, int] | None = None,
    ) -> None:
        self.families = sorted(tasks_by_family)
        self._tasks = tasks_by_family
        self._settings = settings
        self._runs = Counter(runs or {})
        self._fewest: dict[str, list[str]] = {family: [] for family in self.families}

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
        family = random.choices(self.families, list(weights.values()))[0]
        candidates = self._fewest[family]
        if not candidates:
            fewest = min(self._runs[task] for task in self._tasks[family])
            candidates += [task for task in self._tasks[family] if self._runs[task] == fewest]
        place = random.randrange(len(candidates))
        candidates[place], candidates[-1] = candidates[-1], candidates[place]
        task = candidates.pop()
        self._runs[task] += 1
        return task
