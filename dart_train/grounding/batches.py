"""Samples and the order in which they are trained on.

Role: `SampleSet` reads files of samples, keeps them by image, and gives the batch of an update. Rule: a batch is a function of seed and
number of the update alone, so that a resumed training sees what an uninterrupted one does; the images of an epoch are shuffled, and every
image occurs once in it. Non-goals: tensors (`dart_agent.grounding.packing`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random

from dart_agent.errors import ConfigError
from dart_agent.grounding.answers import check_question
from dart_agent.grounding.labels import PatchGrid, coverage
from dart_agent.grounding.samples import GroundingSample, GroundingTarget, read_samples

BatchRow = tuple[Path, list[GroundingSample]]
"""An image file with samples of it."""
Batch = list[BatchRow]
"""Image files, each with the samples that are asked about it."""


class SampleSet:
    """Samples of one or more files.

    Args:
        files: Files of samples; images lie relative to their folders.

    Raises:
        ConfigError: A file cannot be read, an image is missing, a target lies outside its image, a sample cannot be asked, or there is no
            sample.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        by_image: dict[Path, list[GroundingSample]] = defaultdict(list)
        for file in files:
            for sample in read_samples(file):
                by_image[file.parent / sample.image].append(sample)
        missing = [path for path in by_image if not path.is_file()]
        if missing:
            raise ConfigError(f"{missing[0]} and {len(missing) - 1} more images of the grounding samples are missing")
        for path, found in by_image.items():
            if len({sample.image_wh for sample in found}) > 1:
                raise ConfigError(f"the samples of {path} do not agree on its size: correct their image_wh")
        if not by_image:
            raise ConfigError(f"there is no grounding sample in {', '.join(map(str, files))}")
        self._images = sorted(by_image.items())
        self._epoch: tuple[tuple[int, int], list[int]] | None = None
        for sample in (sample for _, samples in self._images for sample in samples):
            _check_trainable(sample)

    def __len__(self) -> int:
        """How many samples there are."""
        return sum(len(samples) for _, samples in self._images)

    def batch(self, update: int, images: int, questions: int, seed: int) -> Batch:
        """Choose the images of an update, and questions about each.

        Args:
            update: Number of the update, from 0.
            images: How many images.
            questions: The greatest number of questions about one.
            seed: Seed of the order.

        Returns:
            Image files with samples.
        """
        random = Random(f"{seed}/{update}")
        chosen = []
        for position in range(update * images, (update + 1) * images):
            path, samples = self._images[self._shuffled(position, seed)]
            chosen.append((path, random.sample(samples, min(questions, len(samples)))))
        return chosen

    def _shuffled(self, position: int, seed: int) -> int:
        """The image at a position of the endless sequence of shuffled epochs."""
        epoch, place = divmod(position, len(self._images))
        if self._epoch is None or self._epoch[0] != (epoch, seed):
            order = list(range(len(self._images)))
            Random(f"{seed}/epoch/{epoch}").shuffle(order)
            self._epoch = (epoch, seed), order
        return self._epoch[1][place]


def _is_on_image(target: GroundingTarget, image_wh: tuple[int, int]) -> bool:
    """Whether the target has an area on the image, so that it has a label."""
    width, height = image_wh
    if any(left < width and top < height and right > 0 and bottom > 0 for left, top, right, bottom in target.boxes):
        return True
    return bool(target.polygons) and bool(coverage(PatchGrid(1, 1, image_wh), target).any())


def _check_trainable(sample: GroundingSample) -> None:
    if not all(_is_on_image(target, sample.image_wh) for target in sample.targets):
        raise ConfigError(
            f"the target of grounding sample {sample.sample_id} lies outside its image: correct or remove it"
        )
    try:
        check_question(sample.image_wh, sample.instruction, len(sample.targets))
    except ConfigError as error:
        raise ConfigError(f"grounding sample {sample.sample_id} cannot be learnt: {error}") from None
