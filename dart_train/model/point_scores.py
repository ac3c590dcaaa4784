"""Log-probs of stored points, with gradients into head and backbone.

Role: `point_logprobs` asks a model again what its head was asked in some steps, all in one forward pass. Rule: with the weights that acted,
a log-prob is the stored one: the questions are packed as in a rollout (`dart_agent.grounding.acting.pointer`), and the distribution is the
same class. Non-goals: losses (`dart_train.objectives`). Axes: B steps, T targets of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from dart_agent.grounding.model import GroundingModel
from dart_train.types import PointedImage

if TYPE_CHECKING:
    from torch import Tensor


def point_logprobs(
    model: GroundingModel,
    steps: Sequence[PointedImage],
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    entropy_gradient: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the log-probs of stored points under a model.

    Args:
        model: The model, without dropout, so that it is the policy that acts.
        steps: The steps, at least one.
        autocast: The precision of the backbone; the head has that of its weights.
        entropy_gradient: Whether entropies have gradients, too, for which the parts of every cell are kept and not those of one.

    Returns:
        Log-probs and entropies in nats, and which of them there are; [B, T] each.
    """
    import torch

    from dart_agent.grounding.forward import run_forward
    from dart_agent.grounding.packing import Question, pack
    from dart_agent.grounding.pointing import PointChoice, PointDistribution

    asked = [[Question.point(target.instruction) for target in step.targets] for step in steps]
    packed = pack(model, [step.image for step in steps], asked)
    with autocast():
        output = run_forward(model, packed)
    rows, entropies = [], []
    for step, found in zip(steps, output.questions, strict=True):
        points = [PointDistribution.of_head(model.head, question, temperature=step.temperature) for question in found]
        choices = [PointChoice(target.cell, target.part) for target in step.targets]
        rows.append(torch.stack([point.logprob(choice) for point, choice in zip(points, choices, strict=True)]))
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropies.append(torch.stack([point.entropy() for point in points]))
    logprobs_BT, entropy_BT = (torch.nn.utils.rnn.pad_sequence(part, batch_first=True) for part in (rows, entropies))
    lengths_B1 = torch.tensor([len(step.targets) for step in steps], device=logprobs_BT.device)[:, None]
    mask_BT = torch.arange(logprobs_BT.shape[1], device=logprobs_BT.device)[None] < lengths_B1
    return logprobs_BT, entropy_BT, mask_BT
