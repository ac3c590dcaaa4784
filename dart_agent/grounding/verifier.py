"""A model that judges whether a marked point is what was asked for, and the choice among candidates with it.

Role: `Verifier.scores` judges candidate points; `choose_point` picks one of them. Rule (GUI-Actor, section 4): a score is
P(True) / (P(True) + P(False)) of the answer's first word; candidates are looked at in the pool's order, the first with a score of at
least gamma is taken, else the best. All candidates are judged in one batch, so that stopping early changes the choice and not the cost.
Training and use share `marked_crop` and the question, with the `Marking` and the template that the model keeps. A model that keeps neither
is a published one and is asked GUI-Actor's question. GUI-Actor's marker in use is a hollow red circle in
a crop that is clipped at the borders (appendix F); it trains on whole screens with another one. A single candidate needs no verifier.
Non-goals: the pool (`dart_agent.grounding.regions`), training (`dart_train.grounding`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dart_agent.errors import ConfigError
from dart_agent.grounding.scoring import Point
from dart_agent.inference.checkpoint_files import resolve_checkpoint
from dart_agent.inference.compat import patch_torch_extras, register_legacy_processors
from dart_envs.types import RgbImage

CROP_REACH_PX = 500
RADIUS_PX = 7
LINE_PX = 3
COLOUR = (255, 0, 0)
GAMMA = 0.8
"""GUI-Actor's threshold for ScreenSpot; 0.95 for ScreenSpot-Pro."""
TRUE, FALSE = "True", "False"
END_OF_TURN = "<|im_end|>"
SETTINGS_KEY = "dart_verifier"
"""Where config.json keeps what a verifier was trained with: `system`, `question`, and the lengths of its `Marking`."""
INSTRUCTION = "{instruction}"
"""Stands for the instruction in the template of a question."""
QUESTION = f'Is the red circle on the right place for "{INSTRUCTION}"? Answer {TRUE} or {FALSE}.'
"""What our training asks, and a model whose settings name no question."""
PUBLISHED_QUESTION = (
    "Please observe the screenshot and exame whether the hollow red circle accurately placed on the intended position in the image: "
    f"'{INSTRUCTION}'. Answer {TRUE} or {FALSE}."
)
"""What GUI-Actor-Verifier was trained with, to the letter."""


@dataclass(frozen=True, slots=True)
class Marking:
    """How a candidate is shown to a verifier; lengths in pixels of the image.

    Attributes:
        reach: How far the crop shows the image to each side of the point.
        radius: Of the circle around the point.
        line: Width of the circle's line.
    """

    reach: float = CROP_REACH_PX
    radius: float = RADIUS_PX
    line: float = LINE_PX

    def __post_init__(self) -> None:
        if min(self.reach, self.radius, self.line) <= 0:
            raise ValueError(f"lengths of a marking are above 0, not {self}")


def crop_box(image_wh: tuple[int, int], point: Point, reach: float) -> tuple[int, int, int, int]:
    """The box around a point, clipped at the borders of the image.

    Args:
        image_wh: (width, height) of the image in pixels.
        point: The middle, in pixels.
        reach: Pixels to each side.

    Returns:
        (left, top, right, bottom) in whole pixels, right and bottom exclusive; at least one pixel wide and high.
    """
    (width, height), (x, y) = image_wh, point
    left, top = (min(max(0, round(at - reach)), size - 1) for at, size in ((x, width), (y, height)))
    right, bottom = max(left + 1, min(width, round(x + reach))), max(top + 1, min(height, round(y + reach)))
    return left, top, right, bottom


def marked_crop(image: RgbImage, point: Point, marking: Marking) -> RgbImage:
    """Crop around a point and mark it.

    Args:
        image: The image, uint8 [H, W, 3].
        point: The point, in pixels of the image.
        marking: Sizes of crop and marker.

    Returns:
        A new picture; the marker is a hollow circle whose middle shows what is there.
    """
    left, top, right, bottom = crop_box((image.shape[1], image.shape[0]), point, marking.reach)
    picture: RgbImage = image[top:bottom, left:right].copy()
    rows, columns = np.ogrid[top:bottom, left:right]
    distance = np.hypot(columns + 0.5 - point[0], rows + 0.5 - point[1])
    picture[np.abs(distance - marking.radius) <= marking.line / 2] = COLOUR
    return picture


def verifier_question(instruction: str, template: str = QUESTION) -> str:
    """What the verifier is asked about a marked crop.

    Args:
        instruction: What the policy was asked to do.
        template: The question, with `INSTRUCTION` in the place of the instruction.

    Returns:
        The text beside the picture.
    """
    return template.replace(INSTRUCTION, instruction)


def verifier_answer(right: bool) -> str:
    """The answer that the verifier learns.

    Args:
        right: Whether the marked point is right.

    Returns:
        The text after the head of the assistant's turn.
    """
    return f"\n{TRUE if right else FALSE}{END_OF_TURN}"


@dataclass(frozen=True, slots=True)
class Verifier:
    """A model that judges marked points.

    Attributes:
        backbone: A transformers model of images and text, in evaluation mode.
        processor: Its processor.
        system: System prompt; "": none.
        marking: How candidates are shown to it.
        question: Template of the question that it was trained with.
    """

    backbone: Any
    processor: Any
    system: str = ""
    marking: Marking = Marking()
    question: str = QUESTION

    def __post_init__(self) -> None:
        if INSTRUCTION not in self.question:
            raise ValueError(
                f"a verifier's question needs {INSTRUCTION} in the place of the instruction: {self.question}"
            )

    def scores(self, image: RgbImage, instruction: str, points: Sequence[Point]) -> list[float]:
        """Judge candidates, all in one batch.

        Args:
            image: The image, uint8 [H, W, 3].
            instruction: What was asked.
            points: The candidates, in pixels of the image.

        Returns:
            P(True) / (P(True) + P(False)) for each.
        """
        import torch

        from dart_agent.grounding.forward import run_backbone
        from dart_agent.grounding.packing import Question, pack

        asked = Question(verifier_question(instruction, self.question), verifier_answer(True))
        crops = [marked_crop(image, point, self.marking) for point in points]
        packed = pack(self, crops, [[asked]] * len(crops))
        device = self.backbone.device
        words = [self.processor.tokenizer(word, add_special_tokens=False).input_ids[0] for word in (TRUE, FALSE)]
        with torch.inference_mode():
            hidden_BTD = run_backbone(self.backbone, packed)
            rows = torch.arange(len(crops), device=device)
            at = torch.tensor([position for (position,) in packed.decisions], device=device)
            logits_B2 = self.backbone.lm_head(hidden_BTD[rows, at])[:, words].float()
            found: list[float] = torch.softmax(logits_B2, dim=1)[:, 0].tolist()
        return found


def choose_point(scores: Sequence[float], gamma: float = GAMMA) -> int:
    """Choose among judged candidates.

    Args:
        scores: Scores in the order of the pool.
        gamma: Score from which the first candidate is taken at once.

    Returns:
        Index of the candidate; of equal ones the first.
    """
    for index, score in enumerate(scores):
        if score >= gamma:
            return index
    return max(range(len(scores)), key=lambda index: (scores[index], -index))


def load_verifier(name_or_path: str, device: str = "cpu", *, bfloat16: bool = False) -> Verifier:
    """Load a verifier.

    Args:
        name_or_path: Directory or name of a model of images and text that was trained to judge.
        device: Name of the torch device.
        bfloat16: Whether its weights are bfloat16 and not float32.

    Returns:
        The verifier.

    Raises:
        ConfigError: It cannot be loaded.
    """
    directory = resolve_checkpoint(name_or_path)
    patch_torch_extras()
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForImageTextToText, AutoProcessor

    register_legacy_processors()
    try:
        dtype = torch.bfloat16 if bfloat16 else torch.float32
        backbone = AutoModelForImageTextToText.from_pretrained(directory, dtype=dtype)
        settings = dict(getattr(backbone.config, SETTINGS_KEY, {"question": PUBLISHED_QUESTION}))
        processor = AutoProcessor.from_pretrained(directory)
        system, question = str(settings.pop("system", "")), str(settings.pop("question", QUESTION))
        return Verifier(backbone.to(device).eval(), processor, system, Marking(**settings), question)
    except (OSError, TypeError, ValueError, SafetensorError) as error:
        raise ConfigError(f"cannot load a verifier from {name_or_path}: {error}") from error
