"""The forward pass of backbone and head over packed questions.

Role: `run_forward` gives for each question the head's logits over the visual tokens, and what the language model's loss and the refusal
need; `run_backbone` is the pass of a model that has no head. Rule: the visual features are computed once per image and go both into the
language model and into the head; training, inference and the log-probs of a policy all use this one pass. Non-goals: losses, points.
Axes: see `dart_agent.grounding.head` and `dart_agent.grounding.packing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dart_agent.grounding.answers import DESKTOP, USER
from dart_agent.grounding.labels import PatchGrid
from dart_agent.grounding.model import GroundingModel
from dart_agent.grounding.packing import PackedQuestions


@dataclass(frozen=True, slots=True)
class QuestionOutput:
    """What the head says to one question.

    Attributes:
        grid: Visual tokens of the image.
        logits_KM: Logits over them, one row per target, at least float32.
        context_MD: The visual tokens as the head sees them.
        pointers_KD: Hidden states of the pointer tokens.
    """

    grid: PatchGrid
    logits_KM: Tensor
    context_MD: Tensor
    pointers_KD: Tensor


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """What one forward pass gives.

    Attributes:
        questions: By image and question.
        hidden_BTD: Final hidden states of all tokens.
    """

    questions: tuple[tuple[QuestionOutput, ...], ...]
    hidden_BTD: Tensor


def run_forward(model: GroundingModel, packed: PackedQuestions) -> ForwardOutput:
    """Run backbone and head.

    Args:
        model: The model.
        packed: The questions, on any device.

    Returns:
        The outputs, with gradients where they are enabled.
    """
    device = model.device
    backbone = model.backbone.model
    features = backbone.get_image_features(packed.pixel_values.to(device), packed.image_grid_thw.to(device))
    visual = tuple(features.pooler_output)
    hidden_BTD: Tensor = backbone(
        input_ids=packed.input_ids_BT.to(device),
        attention_mask=packed.attention_mask_B1TT.to(device),
        position_ids=packed.position_ids_3BT.to(device),
        mm_encoder_outputs={"image": features},
        use_cache=False,
    ).last_hidden_state
    outputs = []
    dtype = torch.promote_types(hidden_BTD.dtype, model.head.layer_norm.weight.dtype)
    with torch.autocast(device.type, enabled=False):  # the head has the precision of its weights
        for index, (grid, pointers) in enumerate(zip(packed.grids, packed.pointers, strict=True)):
            context_MD = model.head.context(visual[index].to(dtype))
            states = [hidden_BTD[index, list(positions)].to(dtype) for positions in pointers]
            outputs.append(
                tuple(
                    QuestionOutput(grid, model.head.attend(context_MD, state_KD), context_MD, state_KD)
                    for state_KD in states
                )
            )
    return ForwardOutput(tuple(outputs), hidden_BTD)


def run_backbone(backbone: Any, packed: PackedQuestions) -> Tensor:
    """Run a model without a head.

    Args:
        backbone: A transformers model of images and text.
        packed: The questions, on any device.

    Returns:
        Final hidden states [B, T, D], with gradients where they are enabled.
    """
    device = backbone.device
    hidden_BTD: Tensor = backbone.model(
        input_ids=packed.input_ids_BT.to(device),
        attention_mask=packed.attention_mask_B1TT.to(device),
        position_ids=packed.position_ids_3BT.to(device),
        pixel_values=packed.pixel_values.to(device),
        image_grid_thw=packed.image_grid_thw.to(device),
        use_cache=False,
    ).last_hidden_state
    return hidden_BTD


def refusal_probabilities(model: GroundingModel, packed: PackedQuestions, output: ForwardOutput) -> list[list[float]]:
    """How likely the model refuses each question: its probability of speaking to the user, against the desktop.

    Args:
        model: The model.
        packed: The questions.
        output: Of their forward pass.

    Returns:
        Probabilities, by image and question.
    """
    choices = [model.tokenizer(name, add_special_tokens=False).input_ids[0] for name in (USER, DESKTOP)]
    found = []
    for index, positions in enumerate(packed.decisions):
        states = output.hidden_BTD[index, list(positions)]
        logits_Q2 = model.backbone.lm_head(states)[:, choices].float()
        found.append(torch.softmax(logits_Q2, dim=1)[:, 0].tolist())
    return found
