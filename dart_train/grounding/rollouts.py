"""GRPO through the head: from stored steps with points to a loss.

Role: `pointed_steps` takes the steps of a group in which a head found targets, with their advantages; `points_loss` is the loss of the
trainer of rollouts (`dart_train.objectives.policy_loss`) on them, with one row per step and one column per target in the place of tokens.
Rule: with the weights that acted, a log-prob is the stored one (`dart_train.model.point_scores`), so that ratio and clipping mean what
they mean for tokens; a step has its trajectory's advantage. Non-goals: the tokens of the planner, and runs (`dart_train.trainer` trains
on both); reading a store. Axes: B steps, T targets of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dart_agent.grounding.model import GroundingModel
from dart_agent.types import Trajectory
from dart_envs.types import RgbImage
from dart_train.model.point_scores import point_logprobs
from dart_train.objectives.advantages import group_advantages
from dart_train.objectives.settings import AdvantageOver, LossSettings
from dart_train.types import PointedImage

if TYPE_CHECKING:
    from torch import Tensor

    from dart_train.objectives.policy_loss import LossTerms


@dataclass(frozen=True, slots=True)
class PointedStep(PointedImage):
    """A step whose action was pointed at.

    Attributes:
        advantage: Of its trajectory.
        share: 1 / number of such steps of its trajectory.
    """

    advantage: float
    share: float


def pointed_steps(
    group: Sequence[Trajectory],
    images: Mapping[str, RgbImage],
    kind: str = "grpo",
    over: AdvantageOver = "group_trajectories",
) -> list[PointedStep]:
    """Take the steps of a group in which targets were found.

    Args:
        group: Trajectories of one task; those without a reward are left out.
        images: Model-input images by hash.
        kind: How rewards become advantages.
        over: Whether mean and deviation are those over trajectories, or over all their steps with targets.

    Returns:
        The steps; none where fewer than two trajectories have a reward.
    """
    judged = [(trajectory, trajectory.reward) for trajectory in group if trajectory.reward is not None]
    if len(judged) < 2:
        return []
    steps_G = [[step for step in trajectory.steps_S if step.pointers] for trajectory, _ in judged]
    counts_G = [len(steps) for steps in steps_G] if over == "group_steps" else None
    advantages_G = group_advantages([reward for _, reward in judged], kind, counts_G)
    return [
        PointedStep(
            images[step.image_sha256[-1]],
            step.pointers,
            step.sampling.temperature or 1.0,
            float(advantage),
            1 / len(steps),
        )
        for steps, advantage in zip(steps_G, advantages_G, strict=True)
        for step in steps
    ]


def points_loss(
    model: GroundingModel, steps: Sequence[PointedStep], settings: LossSettings, old_BT: Tensor | None = None
) -> LossTerms:
    """Compute the loss of a mini-batch of steps.

    Args:
        model: The model that is trained.
        steps: The steps, at least one.
        settings: Parts and coefficients, as for tokens; there is no KL term.
        old_BT: Log-probs before the first update with these steps, [B, T]; None: this is the first.

    Returns:
        The loss with its gradient, and the sums of the metrics.
    """
    import torch

    from dart_train.objectives.aggregation import Denominators
    from dart_train.objectives.policy_loss import MicroBatch, policy_loss

    new_BT, entropy_BT, mask_BT = point_logprobs(model, steps)
    stored = [torch.tensor([target.logprob for target in step.targets]) for step in steps]
    rollout_BT = torch.nn.utils.rnn.pad_sequence(stored, batch_first=True).to(new_BT)
    shares_B = torch.tensor([step.share for step in steps]).to(new_BT)
    batch = MicroBatch(
        new_BT=new_BT,
        old_BT=new_BT.detach() if old_BT is None else old_BT,
        rollout_BT=rollout_BT,
        entropy_BT=entropy_BT,
        advantages_B=torch.tensor([step.advantage for step in steps]).to(new_BT),
        mask_BT=mask_BT,
        shares_B=shares_B,
    )
    whole = Denominators(int(mask_BT.sum()), len(steps), float(shares_B.sum()))
    return policy_loss(batch, settings, whole)
