"""Which source judged an evaluation, told wherever its figures are.

Role: one source per set of episodes, and the words for it. Rule: episodes that different sources judged are never put into one figure; what
the tasks' evaluators judged with the default rule of success needs no mark, everything else has one. Non-goals: the sources
(`dart_agent.rewards`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dart_agent.data_client.wire import EpisodeResult
from dart_agent.rewards.settings import RewardSettings
from dart_agent.types import RewardKind
from dart_envs.success import SUCCESS_AT
from dart_train.config import RecipeError

REWARD_CONDITIONS: Mapping[str, Any] = {
    "reward_source": RewardKind.EVALUATOR.value,
    "reward_by": None,
    "success_at": SUCCESS_AT,
}
"""What a result says that does not name its rewards."""
_WORDS = {
    RewardKind.CHECKPOINTS: "partial credit of checkpoints",
    RewardKind.PROGRAM: "the program {}",
    RewardKind.JUDGE: "the judge model {}, not by evaluators",
}


class MixedRewardsError(RecipeError):
    """Episodes that different sources judged were to be put into one figure."""


def single_source(results: Iterable[EpisodeResult], what: str) -> RewardKind | None:
    """Find what judged some episodes.

    Args:
        results: The episodes.
        what: What they are, for the error.

    Returns:
        The source, None where there is no episode.

    Raises:
        MixedRewardsError: Several sources judged them.
    """
    found = sorted({each.reward_source for each in results})
    if len(found) > 1:
        raise MixedRewardsError(
            f"{what} has episodes that were judged by {' and by '.join(found)}: such rewards are not one figure; evaluate again with one "
            "reward.evaluation"
        )
    return found[0] if found else None


def describe_rewards(conditions: Mapping[str, Any]) -> str | None:
    """Say how the figures of an evaluation must be read.

    Args:
        conditions: What the evaluation says about its rewards (`REWARD_CONDITIONS` where it does not).

    Returns:
        A clause; None where evaluators judged it, and a success is a task that is solved as a whole.
    """
    known = {**REWARD_CONDITIONS, **conditions}
    kind, success_at = RewardKind(known["reward_source"]), known["success_at"]
    told = [] if kind is RewardKind.EVALUATOR else ["judged by " + _WORDS[kind].format(known["reward_by"])]
    told += [] if success_at == SUCCESS_AT else [f"success from a reward of {success_at:g}"]
    return "; ".join(told) or None


def reward_notes(settings: RewardSettings) -> list[str]:
    """Say where the rewards of a run come from.

    Args:
        settings: The recipe's section `reward`.

    Returns:
        A sentence for training and one for evaluation, where there is something to say.
    """
    described = {
        "Training": describe_rewards(settings.described(settings.source)),
        "Evaluation": describe_rewards(settings.described(settings.evaluation)),
    }
    return [f"{name}: {clause}." for name, clause in described.items() if clause is not None]
