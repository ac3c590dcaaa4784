"""Metrics of training: one JSON object per line.

Role: `summarize_step` turns the sums of a train step into means under stable names; `training_reward` reads how well the policy did in
training. Rule: the latter is of all rollouts, not of those in the batch: a group trains only where some members succeed and some fail, so
that the mean over batches is near one half whatever the policy does. Non-goals: writing lines (`dart_agent.metrics_file`), charts
(`dart_train.report.page`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from dart_agent.data_client.wire import Batch

ROLLOUT_REWARD = "rollout_reward"
"""Mean reward of the training rollouts that were stored since the batch before; with a slash and the name of a family, of its rollouts."""


def summarize_step(batch: Batch, totals: Mapping[str, float], grad_norms: Sequence[float]) -> dict[str, float]:
    """Compute the metrics of one train step.

    Args:
        batch: The batch that was trained on.
        totals: Sums over trained tokens, with their number under `tokens`.
        grad_norms: Norms before clipping, one per optimiser step.

    Returns:
        Metrics by name.
    """
    tokens, imitated = totals.get("tokens", 0.0), totals.get("imitated_tokens", 0.0)
    targets = totals.get("targets", 0.0)
    per_target = {name for name in totals if name.startswith("target_")}
    per_token = totals.keys() - per_target - {"tokens", "imitated_tokens", "imitation_nll", "targets"}
    means = {name: totals[name] / tokens for name in sorted(per_token)} if tokens else {}
    if targets:
        means |= {name: totals[name] / targets for name in sorted(per_target)} | {"targets": targets}
    if imitated:
        means["imitation_nll"] = totals["imitation_nll"] / imitated
    squared = means.pop("tis_weight_squared", 0.0)
    if squared:
        means["ess_fraction"] = means["tis_weight"] ** 2 / squared
    rewards = [(group.family, member.reward) for group in batch.groups for member in group.members]
    by_family: dict[str, list[float]] = defaultdict(list)
    for family, reward in rewards:
        by_family[family].append(reward)
    return (
        means
        | _rollout_rewards(batch)
        | {
            "tokens": tokens,
            "optimizer_steps": float(len(grad_norms)),
            "grad_norm": sum(grad_norms) / len(grad_norms) if grad_norms else 0.0,
            "groups": float(len(batch.groups)),
            "trajectories": float(len(rewards)),
            "pool_members": float(sum(member.source == "pool" for group in batch.groups for member in group.members)),
            "reward_mean": sum(reward for _, reward in rewards) / len(rewards) if rewards else 0.0,
            **{f"reward/{family}": sum(values) / len(values) for family, values in sorted(by_family.items())},
            "staleness_mean": batch.staleness_mean,
            "staleness_max": float(batch.staleness_max),
            "steps_excluded": float(sum(batch.excluded_steps.values())),
        }
    )


def _rollout_rewards(batch: Batch) -> dict[str, float]:
    """Mean rewards of what was stored since the batch before."""
    stored = batch.stored_rewards
    rollouts = sum(each.rollouts for each in stored.values())
    if not rollouts:
        return {"rollouts": 0.0}
    return {
        "rollouts": float(rollouts),
        "rollout_reward": sum(each.reward_sum for each in stored.values()) / rollouts,
        **{f"rollout_reward/{family}": each.reward_sum / each.rollouts for family, each in sorted(stored.items())},
    }


def training_reward(line: Mapping[str, Any]) -> float | None:
    """Read the mean reward of all training rollouts before an update.

    Args:
        line: The line of the update in the metrics file.

    Returns:
        The reward; that of the batch in lines of releases that wrote no other, and None where no rollout was stored.
    """
    reward = line.get(ROLLOUT_REWARD, None if "rollouts" in line else line.get("reward_mean"))
    return None if reward is None else float(reward)
