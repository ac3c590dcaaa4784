"""The baseline: the same backbone says coordinates as text.

Role: `TextTrainer` trains a model to answer with `click(start_box='(x,y)')`; `text_points` asks it. Rule: samples, order, packing,
optimiser and numbers of updates are those of the head; the format is that of the demo's policy: whole pixels of the image on a grid of
`STEP_PX`, one token each. The form around the numbers is given when the model is asked, and only numbers on the image may be chosen, so
that no answer of the baseline is lost to its form. Non-goals: sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dart_agent.grounding.forward import run_backbone
from dart_agent.grounding.packing import Question, QuestionPacker, pack
from dart_agent.grounding.samples import GroundingSample, read_image
from dart_agent.grounding.scoring import Point
from dart_envs.types import RgbImage
from dart_train.grounding.batches import Batch, BatchRow, SampleSet
from dart_train.grounding.config import SupervisedConfig
from dart_train.grounding.losses import language_loss, share
from dart_train.grounding.supervised import BackboneTrainer
from dart_train.model.policy_model import LoadedModel
from dart_train.trainer.ranks import Ranks

if TYPE_CHECKING:
    from torch import Tensor

STEP_PX = 8
"""Grid of the coordinates, that of the preset `tiny`."""
_HEAD, _END = "\nAction: click(start_box='(", ")')<|im_end|>"


@dataclass(frozen=True, slots=True)
class AskedText:
    """A model as packing wants it."""

    backbone: Any
    processor: Any
    system: str = ""


class TextTrainer(BackboneTrainer[BatchRow]):
    """A model with its optimiser.

    Args:
        config: The configuration.
        samples: What is learnt; samples with one target.
        loaded: The model; it is set up for training in place.
        ranks: The processes that train together.
    """

    def __init__(self, config: SupervisedConfig, samples: SampleSet, loaded: LoadedModel, ranks: Ranks) -> None:
        super().__init__(config, samples, loaded, ranks)
        self._config = config
        self._packer = QuestionPacker(AskedText(loaded.model, loaded.processor))

    def rows(self, number: int) -> Batch:
        """The images of an update with their samples; see `SupervisedTrainer.rows`."""
        config = self._config
        return self.samples.batch(number, config.images_per_update, config.questions_per_image, config.seed)

    def losses(self, rows: Batch, batch: Batch) -> dict[str, Tensor]:
        """The loss of the answers; see `SupervisedTrainer.losses`."""
        images = [read_image(path, samples[0].image_wh) for path, samples in rows]
        asked = [
            [Question(sample.instruction, text_answer(*text_target(sample))) for sample in samples]
            for _, samples in rows
        ]
        packed = self._packer.pack(images, asked)
        with self.precision():
            hidden_BTD = run_backbone(self.loaded.model, packed)
            loss = language_loss(self.loaded.model, hidden_BTD, packed)
        # All answers have the same number of tokens.
        return {"language_loss": loss * share(sum(map(len, asked)), sum(len(samples) for _, samples in batch))}


def text_target(sample: GroundingSample) -> tuple[int, int]:
    """The point that a sample teaches: the middle of its box, on the grid and inside the box.

    Args:
        sample: A sample with a target of at least `STEP_PX` pixels per side.

    Returns:
        (x, y) in pixels of the image.
    """
    left, top, right, bottom = sample.targets[0].bounds()
    return round((left + right) / 2 / STEP_PX) * STEP_PX, round((top + bottom) / 2 / STEP_PX) * STEP_PX


def text_answer(x: int, y: int) -> str:
    """The answer with these coordinates.

    Args:
        x: Pixels from the left.
        y: Pixels from the top.

    Returns:
        The text after the head of the assistant's turn.
    """
    return f"{_HEAD}{x},{y}{_END}"


def text_points(loaded: LoadedModel, image: RgbImage, instructions: Sequence[str]) -> list[Point]:
    """Ask for coordinates: the likeliest x, then the likeliest y after it.

    Args:
        loaded: A trained model, in evaluation mode.
        image: The image, uint8 [H, W, 3].
        instructions: What is asked.

    Returns:
        One point per instruction, in pixels of the image.
    """
    import torch

    model = loaded.model
    # The first word of an answer is its position `decisions`; the digits of x follow the form's own tokens, y the comma.
    x_at = len(_encode(loaded, _HEAD)) - 1
    asked, chosen = AskedText(model, loaded.processor), [(0, 0)] * len(instructions)
    for place, (offset, size) in enumerate(((x_at, image.shape[1]), (x_at + 2, image.shape[0]))):
        numbers = range(0, size, STEP_PX)
        ids = torch.tensor([_encode(loaded, str(number))[0] for number in numbers])
        questions = [Question(text, text_answer(*at)) for text, at in zip(instructions, chosen, strict=True)]
        packed = pack(asked, [image], [questions])
        with torch.inference_mode():
            positions = torch.tensor(packed.decisions[0]) + offset
            logits_QN = model.lm_head(run_backbone(model, packed)[0, positions])[:, ids]
        found = [numbers[index] for index in logits_QN.argmax(dim=1).tolist()]
        chosen = [(value, y) if place == 0 else (x, value) for value, (x, y) in zip(found, chosen, strict=True)]
    return [(float(x), float(y)) for x, y in chosen]


def _encode(loaded: LoadedModel, text: str) -> list[int]:
    return list(loaded.tokenizer(text, add_special_tokens=False).input_ids)
