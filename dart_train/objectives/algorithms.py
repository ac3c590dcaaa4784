"""Algorithms by name: which advantage, surrogate, aggregation and clip widths belong together.

Role: the table behind `train.algorithm`, open to packages. Rule: a recipe may change every setting of an algorithm; the module imports no
torch until a surrogate is loaded. Non-goals: formulas.

    algorithm         advantage       centred over         surrogate          aggregation           clip
    grpo              grpo            group_steps           clipped           seq_mean_token_mean   0.2, 0.28   DART (arXiv 2509.23866)
    grpo-trajectory   grpo            group_trajectories    clipped           trajectory_mean       0.2, 0.28   arXiv 2402.03300
    dr-grpo           no_std          group_trajectories    clipped           constant_length       0.2, 0.2    arXiv 2503.20783
    rloo              leave_one_out   group_trajectories    policy_gradient   trajectory_mean       -           arXiv 2402.14740
    dapo              grpo            group_trajectories    clipped           token_mean            0.2, 0.28   arXiv 2503.14476
    gspo              grpo            group_steps           sequence_clipped  seq_mean_token_mean   3e-4, 4e-4  arXiv 2507.18071
    cispo             grpo            group_trajectories    weighted          token_mean            1, 4        arXiv 2506.13585

DAPO's dynamic sampling needs no setting here: groups whose rewards are all equal never enter a batch, and sampling goes on until it is
full. Its penalty for overlong answers is not part of the loss and does not exist here.

A package adds an algorithm by an entry point of the group `dart_train.algorithms` that names an `Algorithm`; its surrogate is any
function `(TokenTerms, LossSettings) -> Surrogate`, named as `module:function`, and its advantage any function of
`dart_train.objectives.advantages.AdvantageFunction`, named in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from dart_train.objectives.own_functions import load_function

if TYPE_CHECKING:
    from dart_train.objectives.settings import LossSettings
    from dart_train.objectives.terms import Surrogate, TokenTerms

ENTRY_POINT_GROUP = "dart_train.algorithms"
SURROGATES: Mapping[str, str] = {
    "clipped": "dart_train.objectives.grpo:surrogate",
    "sequence_clipped": "dart_train.objectives.gspo:surrogate",
    "weighted": "dart_train.objectives.cispo:surrogate",
    "policy_gradient": "dart_train.objectives.policy_gradient:surrogate",
}
DUAL_CLIPPED = ("clipped", "sequence_clipped")
"""The surrogates of this package that read `dual_clip`."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """Settings that belong together.

    Attributes:
        name: Name in recipes.
        settings: Values of keys of the recipe's section `train`: those that differ from the section's own defaults.
    """

    name: str
    settings: Mapping[str, Any]


_OVER_TRAJECTORIES = {"advantage_over": "group_trajectories"}
ALGORITHMS: Mapping[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("grpo", {}),
        Algorithm("grpo-trajectory", _OVER_TRAJECTORIES | {"aggregation": "trajectory_mean"}),
        Algorithm(
            "dr-grpo",
            _OVER_TRAJECTORIES | {"advantage": "no_std", "aggregation": "constant_length", "clip_high": 0.2},
        ),
        Algorithm(
            "rloo",
            _OVER_TRAJECTORIES
            | {"advantage": "leave_one_out", "aggregation": "trajectory_mean", "surrogate": "policy_gradient"},
        ),
        Algorithm("dapo", _OVER_TRAJECTORIES | {"aggregation": "token_mean"}),
        Algorithm("gspo", {"surrogate": "sequence_clipped", "clip_low": 3e-4, "clip_high": 4e-4}),
        Algorithm(
            "cispo",
            _OVER_TRAJECTORIES
            | {"aggregation": "token_mean", "surrogate": "weighted", "clip_low": 1.0, "clip_high": 4.0},
        ),
    )
}


def algorithm_names() -> tuple[str, ...]:
    """Return the names of all algorithms, those of entry points included."""
    return (*ALGORITHMS, *sorted(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)))


def find_algorithm(name: str) -> Algorithm:
    """Find an algorithm.

    Args:
        name: Its name.

    Returns:
        The algorithm.

    Raises:
        ValueError: There is none of that name, its entry point cannot be loaded, or it names something else.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            try:
                found = entry.load()
            except Exception as error:
                raise ValueError(
                    f"the algorithm {name!r} of the entry point {entry.value} cannot be loaded: {type(error).__name__}: {error}"
                ) from error
            if not isinstance(found, Algorithm):
                raise ValueError(f"the entry point {name!r} of {ENTRY_POINT_GROUP} names no Algorithm: let it name one")
            return found
    raise ValueError(f"there is no algorithm {name!r}; there are {', '.join(algorithm_names())}")


@cache
def load_surrogate(name: str) -> Callable[[TokenTerms, LossSettings], Surrogate]:
    """Load a surrogate.

    Args:
        name: A name of `SURROGATES`, or `module:function`.

    Returns:
        The function.

    Raises:
        ValueError: There is no such function.
    """
    return load_function("surrogate", SURROGATES.get(name, name), SURROGATES)


__all__ = ["ENTRY_POINT_GROUP", "Algorithm", "algorithm_names", "find_algorithm", "load_surrogate"]
