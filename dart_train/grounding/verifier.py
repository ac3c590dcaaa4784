"""The training of a verifier: right and wrong points on crops, and the judgement after them.

Role: `train_verifier(config)` trains a model to answer True or False about marked points. Rule: crops, marker and question are those of
`dart_agent.grounding.verifier`, with the marking that the model keeps. Right and wrong points are equally many. Wrong ones are hard: on
another element, of the target's role where there is one and near the target, or just beside the target; GUI-Actor's data has none of
these, because it takes no negative within 22 % of the screen. Points on another element are as spread as right points are on the target.
Non-goals: the loop (`dart_train.grounding.supervised`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from dart_agent.grounding.forward import run_backbone
from dart_agent.grounding.packing import Question, QuestionPacker
from dart_agent.grounding.samples import Box, GroundingSample, read_image
from dart_agent.grounding.scoring import Point, in_target
from dart_agent.grounding.verifier import SETTINGS_KEY, Verifier, marked_crop, verifier_answer, verifier_question
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.types import RgbImage
from dart_server.wire import Clock
from dart_train.grounding.batches import SampleSet
from dart_train.grounding.config import VerifierConfig
from dart_train.grounding.losses import judgement_loss, share
from dart_train.grounding.supervised import ALONE, BackboneTrainer, Progress, run_training
from dart_train.model.policy_model import LoadedModel, load_model
from dart_train.trainer.ranks import Ranks

if TYPE_CHECKING:
    from torch import Tensor

Crop = tuple[RgbImage, Question]
"""A marked crop, uint8 [H, W, 3], and what is asked about it."""
NEAREST = 3
"""A hard negative is one of so many nearest elements."""
TRIES = 50


def right_point(sample: GroundingSample, random: Random) -> Point:
    """Draw a point on the target.

    Args:
        sample: A sample with a target.
        random: Source of randomness.

    Returns:
        A point of the first target.
    """
    target = sample.targets[0]
    left, top, right, bottom = target.bounds()
    for _ in range(TRIES):
        point = random.uniform(left, right), random.uniform(top, bottom)
        if in_target(point, target):
            return point
    return target.boxes[0][:2] if target.boxes else target.polygons[0][0]


def wrong_point(sample: GroundingSample, random: Random, hard_fraction: float) -> Point | None:
    """Draw a point that is not on the target.

    Args:
        sample: A sample with a target.
        random: Source of randomness.
        hard_fraction: How often the point is a hard one.

    Returns:
        The point, None where the target covers the whole image.
    """
    if random.random() < hard_fraction:
        others = _hard_elements(sample)
        # Half of the hard points are on other elements, where there are some; the rest is beside the target.
        if others and random.random() < 0.5:
            # Anywhere on it, as right points are on the target: else the place within an element would tell right from wrong.
            point = _outside(sample, random.choice(others), random)
            if point is not None:
                return point
        left, top, right, bottom = sample.targets[0].bounds()
        width, height = right - left, bottom - top
        beside = (left - width, top - height, right + width, bottom + height)
        point = _outside(sample, beside, random)
        if point is not None:
            return point
    return _outside(sample, (0.0, 0.0, *sample.image_wh), random)


def _hard_elements(sample: GroundingSample) -> list[Box]:
    """The nearest other elements, those of the target's role before all others."""
    x, y = _middle(sample.targets[0].bounds())
    free = [
        (role != sample.role, math.dist((x, y), _middle(box)), box)
        for role, box in sample.distractors
        if not any(in_target(_middle(box), target) for target in sample.targets)
    ]
    return [box for _, _, box in sorted(free)[:NEAREST]]


def _middle(box: Box) -> Point:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def _outside(sample: GroundingSample, area: Box, random: Random) -> Point | None:
    width, height = sample.image_wh
    left, top, right, bottom = max(0.0, area[0]), max(0.0, area[1]), min(width, area[2]), min(height, area[3])
    for _ in range(TRIES):
        point = random.uniform(left, right), random.uniform(top, bottom)
        if not any(in_target(point, target) for target in sample.targets):
            return point
    return None


def train_verifier(
    config: VerifierConfig,
    on_progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
    ranks: Ranks | None = None,
) -> None:
    """Train a verifier and write it to `config.out_dir`.

    Args:
        config: The configuration.
        on_progress: Called with every metric line.
        clock: Measures the duration.
        ranks: The processes that train together; None: this one alone.

    Raises:
        ConfigError: The samples cannot be used.
        ModelNotFoundError: The start model cannot be loaded.
        FileExistsError: `out_dir` exists already.
    """

    def trainer_of(samples: SampleSet, ranks: Ranks) -> VerifierTrainer:
        return VerifierTrainer(config, samples, load_model(config.start_model), ranks)

    run_training(trainer_of, config, "verifier", on_progress, clock, ranks)


class VerifierTrainer(BackboneTrainer[Crop]):
    """A verifier with its optimiser.

    Args:
        config: The configuration.
        samples: Samples with targets; refusals are left out.
        loaded: The model; it is set up for training in place.
        ranks: The processes that train together.
    """

    def __init__(self, config: VerifierConfig, samples: SampleSet, loaded: LoadedModel, ranks: Ranks = ALONE) -> None:
        super().__init__(config, samples, loaded, ranks, freeze_vision=config.freeze_vision)
        self._config = config
        self._packer = QuestionPacker(Verifier(loaded.model, loaded.processor, marking=config.marking))

    def losses(self, rows: list[Crop], batch: list[Crop]) -> dict[str, Tensor]:
        """The loss of the judgements; see `SupervisedTrainer.losses`."""
        packed = self._packer.pack([crop for crop, _ in rows], [[question] for _, question in rows])
        with self.precision():
            hidden_BTD = run_backbone(self.loaded.model, packed)
            loss = judgement_loss(self.loaded.model, hidden_BTD, packed)
        return {"judgement_loss": loss * share(len(rows), len(batch))}

    def rows(self, number: int) -> list[Crop]:
        """The marked crops of an update, a right and a wrong point of each sample, and what is asked about them."""
        config = self._config
        random = Random(f"{config.seed}/points/{number}")
        found = []
        for path, samples in self.samples.batch(
            number, config.images_per_update, config.questions_per_image, config.seed
        ):
            image = read_image(path, samples[0].image_wh)
            for sample in samples:
                wrong = None if sample.is_refusal else wrong_point(sample, random, config.hard_fraction)
                if wrong is None:
                    continue
                for point, right in ((right_point(sample, random), True), (wrong, False)):
                    question = Question(verifier_question(sample.instruction), verifier_answer(right))
                    found.append((marked_crop(image, point, config.marking), question))
        return found

    def save(self, directory: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the model with its marking; see `SupervisedTrainer.save`."""
        setattr(self.loaded.model.config, SETTINGS_KEY, {**asdict(self._config.marking), "system": ""})
        super().save(directory, weights)
