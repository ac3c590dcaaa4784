"""Evaluators: what a desktop looks like at the end of an episode, turned into a reward.

Role: getters read the desktop (I/O), metrics compare (pure), `verdict` puts them together in OSWorld's form. Rule:
expected values never go into the guest; what the policy deleted or corrupted scores 0; an evaluator that fails by
itself raises `EvaluatorError`, never a silent 0. Non-goals: setup, deciding when an episode ends.
"""

from __future__ import annotations

from dart_envs.evaluators.checkpoints import evaluate_checkpoints
from dart_envs.evaluators.getters import GETTERS
from dart_envs.evaluators.metrics import METRICS
from dart_envs.evaluators.scorer_choice import (
    INFEASIBLE,
    NO_EVALUATOR,
    Scorer,
    choose_scorer,
    parse_scorer,
    unsupported_parts,
)
from dart_envs.evaluators.scoring import evaluate

__all__ = [
    "GETTERS",
    "INFEASIBLE",
    "METRICS",
    "NO_EVALUATOR",
    "Scorer",
    "choose_scorer",
    "evaluate",
    "evaluate_checkpoints",
    "parse_scorer",
    "unsupported_parts",
]
