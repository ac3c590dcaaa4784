"""What an action head learns in the warm start.

Role: `load_with_head` loads the start model with its head, or with a new one; `HeadLearner` computes the head's loss on questions about
images, and on states that stand for a pointer token, and which questions it answers. Rule: a question is packed as in a rollout
(`dart_agent.grounding.packing`); the head is without dropout, as it is in rollouts and in the trainer.
Non-goals: the loop (`dart_train.warmup.fit`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dart_agent.errors import ConfigError
from dart_agent.grounding.labels import PatchGrid, offset_targets, token_targets
from dart_agent.grounding.model import attach_head, has_head
from dart_agent.grounding.samples import Box, GroundingTarget
from dart_agent.inference.checkpoint_files import resolve_checkpoint
from dart_envs.types import RgbImage
from dart_train.model.device import ComputeDevice
from dart_train.model.pointing_model import PointingModel, load_pointing_model
from dart_train.model.policy_model import ModelNotFoundError, load_model
from dart_train.warmup.config import WarmupConfig
from dart_train.warmup.queries import HeadQuestion

if TYPE_CHECKING:
    from torch import Tensor

    from dart_agent.grounding.forward import QuestionOutput


def load_with_head(config: WarmupConfig) -> PointingModel:
    """Load the start model with an action head.

    Args:
        config: The configuration.

    Returns:
        The model; a new head where it had none.

    Raises:
        ModelNotFoundError: It cannot be loaded, or a head cannot be put on it.
    """
    try:
        if has_head(resolve_checkpoint(config.start_model)):
            return load_pointing_model(config.start_model)
        loaded = load_model(config.start_model)
        made = attach_head(loaded.model, loaded.processor, offset_parts=config.offset_parts, seed=config.seed)
    except ConfigError as error:
        raise ModelNotFoundError(str(error)) from None
    return PointingModel(made.backbone, made.processor, made.head, made.system)


AIM_FRACTION = 0.5
"""Share of an element's width and height that the head learns to point at: the greatest part of a flat distribution over a whole row may
be one at its border, whose middle lies outside."""


class HeadLoss(NamedTuple):
    """The loss of an action head on some questions.

    Attributes:
        mean: Nats; a scalar with its gradient.
        by_question: The divergence of each question in nats, in their order.
    """

    mean: Tensor
    by_question: list[float]


class HeadLearner:
    """The head's part of the warm start.

    Args:
        loaded: The model.
        compute: Where it is trained.
    """

    def __init__(self, loaded: PointingModel, compute: ComputeDevice) -> None:
        from dart_agent.grounding.packing import QuestionPacker

        self._model = loaded.grounding
        self._packer = QuestionPacker(self._model)
        self._model.head.to(compute.device).eval()
        self._compute = compute

    def loss(
        self,
        images: Sequence[RgbImage],
        questions_B: Sequence[Sequence[HeadQuestion]],
        text_states: Mapping[str, Tensor] | None = None,
    ) -> HeadLoss:
        """Compute the mean divergence of the head from the boxes (`dart_train.grounding.losses`); cells count by their covered share.

        Args:
            images: Model-input images.
            questions_B: At least one question about each.
            text_states: Hidden states [D] of a pointer token for which the head finds a text; the language model learns to give them.

        Returns:
            The loss. With `text_states` the mean squared distance from them, relative to their size, is added to the mean.
        """
        import torch

        outputs_B = self._ask(images, questions_B)
        outputs = [found for outputs in outputs_B for found in outputs]
        questions = [question for questions in questions_B for question in questions]
        pointers_KD = torch.cat([found.pointers_KD for found in outputs])
        divergences_K = self._divergences(
            outputs[0].grid,
            torch.cat([found.logits_KM for found in outputs]),
            torch.stack([outputs[0].context_MD for outputs in outputs_B]),
            pointers_KD,
            torch.tensor([image for image, outputs in enumerate(outputs_B) for _ in outputs]),
            [question.box for question in questions],
        )
        known = [index for index, question in enumerate(questions) if question.text in (text_states or {})]
        loss = divergences_K.mean()
        if text_states and known:
            wanted_KD = torch.stack([text_states[str(questions[index].text)] for index in known])
            loss = loss + (pointers_KD[known] - wanted_KD).square().mean() / wanted_KD.square().mean()
        return HeadLoss(loss, divergences_K.detach().tolist())

    def loss_of_states(
        self, grid: PatchGrid, visual_BMD: Tensor, pointers_B: Sequence[Tensor], boxes_B: Sequence[Sequence[Box]]
    ) -> Tensor:
        """Compute the mean divergence of the head from boxes for states that did not come from the language model.

        Args:
            grid: Visual tokens of every image.
            visual_BMD: Their features as they enter the language model.
            pointers_B: What stands for the hidden states of pointer tokens, [K, D] for each image.
            boxes_B: The boxes that they point at, in pixels of the model-input image.

        Returns:
            Nats; a scalar with its gradient.
        """
        import torch

        counts_B = torch.tensor([len(pointers_KD) for pointers_KD in pointers_B], device=visual_BMD.device)
        padded_BKD = torch.nn.utils.rnn.pad_sequence(list(pointers_B), batch_first=True)
        is_pointer_BK = torch.arange(padded_BKD.shape[1], device=visual_BMD.device) < counts_B[:, None]
        context_BMD = self._model.head.context(visual_BMD)
        return self._divergences(
            grid,
            self._model.head.attend(context_BMD, padded_BKD)[is_pointer_BK],
            context_BMD,
            torch.cat(list(pointers_B)),
            is_pointer_BK.nonzero()[:, 0],
            [box for boxes in boxes_B for box in boxes],
        ).mean()

    @property
    def offset_parts(self) -> int:
        """Parts per side of a cell that the head tells apart."""
        return self._model.head.offset_parts

    def parameters(self) -> list[Any]:
        """The parameters of the head."""
        return list(self._model.head.parameters())

    def _divergences(
        self,
        grid: PatchGrid,
        logits_KM: Tensor,
        context_BMD: Tensor,
        pointers_KD: Tensor,
        image_K: Tensor,
        boxes_K: Sequence[Box],
    ) -> Tensor:
        """Divergence [K] of the head from the box of each pointer token."""
        import torch

        from dart_train.grounding.losses import attention_divergences, offset_divergences

        head, targets = self._model.head, [GroundingTarget(boxes=(_middle(box),)) for box in boxes_K]
        targets_KM = torch.from_numpy(token_targets(grid, targets, soft=True)).to(logits_KM)
        divergences_K = attention_divergences(logits_KM, targets_KM)
        if head.offset is not None:
            parts_KMP = torch.from_numpy(offset_targets(grid, targets, head.offset_parts)).to(logits_KM)
            image_K = image_K.to(logits_KM.device)
            divergences_K = divergences_K + offset_divergences(
                head, context_BMD, pointers_KD, image_K, targets_KM, parts_KMP
            )
        return divergences_K

    def hits(self, images: Sequence[RgbImage], questions_B: Sequence[Sequence[HeadQuestion]]) -> list[bool]:
        """Tell which questions are answered with a point inside of their box.

        Args:
            images: Model-input images.
            questions_B: Questions about each.

        Returns:
            One per question, in their order.
        """
        import torch

        from dart_agent.grounding.pointing import PointDistribution

        hits = []
        with torch.no_grad():
            for outputs, questions in zip(self._ask(images, questions_B), questions_B, strict=True):
                for found, question in zip(outputs, questions, strict=True):
                    distribution = PointDistribution.of_head(self._model.head, found)
                    x, y = distribution.point(distribution.best())
                    x0, y0, x1, y1 = question.box
                    hits.append(x0 <= x <= x1 and y0 <= y <= y1)
        return hits

    def _ask(
        self, images: Sequence[RgbImage], questions_B: Sequence[Sequence[HeadQuestion]]
    ) -> tuple[tuple[QuestionOutput, ...], ...]:
        from dart_agent.grounding.forward import run_forward
        from dart_agent.grounding.packing import Question

        asked = [[Question.point(question.instruction) for question in questions] for questions in questions_B]
        packed = self._packer.pack(images, asked)
        with self._compute.autocast():
            return run_forward(self._model, packed).questions


def _middle(box: Box) -> Box:
    """The middle of an element, where clicks aim."""
    x0, y0, x1, y1 = box
    dx, dy = (1 - AIM_FRACTION) / 2 * (x1 - x0), (1 - AIM_FRACTION) / 2 * (y1 - y0)
    return x0 + dx, y0 + dy, x1 - dx, y1 - dy
