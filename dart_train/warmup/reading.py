"""The vision tower learns to read before the policy learns to answer.

Role: `ReadingLearner` trains the vision tower with a linear layer that says, for each part of each image token, which texts have their
middle there; the layer is thrown away afterwards. Rule: every image token of a page is a lesson, so that a tower without pre-training
reads words after some ten thousand pages; some of the images are whole screens, which show what stands around texts. Non-goals: making
pages (`dart_train.warmup.pages`), finding elements (the policy learns it from queries).
Axes: B images, N tokens of an image, P parts of a token (its patches), W texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from dart_agent.metrics_file import append_metrics
from dart_envs.types import RgbImage
from dart_server.wire import Clock
from dart_train.model.device import ComputeDevice
from dart_train.model.policy_model import LoadedModel, pixel_inputs
from dart_train.warmup.config import WarmupConfig
from dart_train.warmup.optimisation import make_optimizer, set_rate
from dart_train.warmup.pages import PageWriter, PlacedText, find_texts
from dart_train.warmup.screens import AnnotatedScreen, shift_windows

if TYPE_CHECKING:
    from torch import Tensor

NO_TEXT_LOGIT = -4.0
"""What the layer begins with: nearly every part of nearly every token shows no text."""


SCREEN_FRACTION = 0.25
"""Fraction of the images that are whole screens."""


class ReadImage(NamedTuple):
    """A model-input image, the texts on it, and the size of the screen that their boxes are of."""

    image: RgbImage
    texts: Sequence[PlacedText]
    screen_wh: tuple[int, int]


class ReadImages:
    """Draws what the tower learns from: pages, and screens whose windows are translated.

    Args:
        writer: Writes the pages.
        screens: Screenshots with their labels.
        model_image: The model-input image of a screenshot.
    """

    def __init__(
        self,
        writer: PageWriter,
        screens: Sequence[tuple[RgbImage, AnnotatedScreen]],
        model_image: Callable[[RgbImage], RgbImage],
    ) -> None:
        self._writer, self._screens, self._model_image = writer, screens, model_image

    def draw(self, random: Random) -> ReadImage:
        """Draw one image.

        Args:
            random: Source of randomness.

        Returns:
            A page or a screen.
        """
        if random.random() < SCREEN_FRACTION:
            return self.of_screen(*shift_windows(*random.choice(self._screens), random))
        pixels, texts = self._writer.write(random)
        return ReadImage(self._model_image(pixels), texts, (pixels.shape[1], pixels.shape[0]))

    def of_screen(self, pixels: RgbImage, screen: AnnotatedScreen) -> ReadImage:
        """What is read on a screen.

        Args:
            pixels: The screenshot, uint8 [H, W, 3].
            screen: Its labels.

        Returns:
            The model-input image with the texts.
        """
        return ReadImage(self._model_image(pixels), find_texts(pixels, screen), (pixels.shape[1], pixels.shape[0]))


def learn_to_read(
    learner: ReadingLearner,
    images: ReadImages,
    measured: Sequence[ReadImage],
    config: WarmupConfig,
    clock: Clock,
    report: Callable[[Mapping[str, Any]], None],
) -> None:
    """Train until all pages are seen or the minutes are used up.

    Args:
        learner: What is trained.
        images: What it learns from.
        measured: Screens of held-out tasks.
        config: The configuration.
        clock: Clock of the time limit.
        report: Called with every metric line.
    """
    random, began_s, limit_s = Random(f"{config.seed}/pages"), clock.monotonic(), config.pages_max_minutes * 60
    seen, update, mean_loss, next_report, elapsed_s = 0, 0, math.nan, config.report_every_pages, 0.0
    while seen < config.pages and elapsed_s < limit_s:
        batch = [images.draw(random) for _ in range(config.batch_size)]
        loss = learner.update(batch, update, max(seen / config.pages, elapsed_s / limit_s))
        seen, update, elapsed_s = seen + config.batch_size, update + 1, clock.monotonic() - began_s
        mean_loss = loss if math.isnan(mean_loss) else 0.95 * mean_loss + 0.05 * loss
        if seen >= min(next_report, config.pages) or elapsed_s >= limit_s:
            next_report += config.report_every_pages
            accuracy = learner.accuracy(measured)
            line = {
                "kind": "reading",
                "time_s": clock.time(),
                "pages": seen,
                "loss": round(mean_loss, 4),
                "reading_accuracy": None if math.isnan(accuracy) else round(accuracy, 4),
                "elapsed_s": round(elapsed_s, 1),
            }
            append_metrics(config.metrics, line)
            report(line)


class _Part(NamedTuple):
    """Where a text is: index of the image, of the token, of the part of the token, and of the text."""

    image: int
    token: int
    part: int
    text: int


class ReadingLearner:
    """Trains a vision tower to read.

    Args:
        loaded: The policy; its vision tower is changed.
        compute: Where it is trained.
        texts: The texts that it learns; others are left out.
        config: The configuration.
    """

    def __init__(self, loaded: LoadedModel, compute: ComputeDevice, texts: Sequence[str], config: WarmupConfig) -> None:
        import torch

        self._loaded, self._compute, self._config = loaded, compute, config
        self._text_index = {text: index for index, text in enumerate(texts)}
        self._merge: int = loaded.processor.image_processor.merge_size
        self._patch: int = loaded.processor.image_processor.patch_size
        tower = loaded.model.model.visual
        width = tower.config.out_hidden_size
        self._layer = torch.nn.Linear(width, self._merge**2 * len(texts)).to(compute.device)
        with torch.no_grad():
            self._layer.weight.zero_()
            self._layer.bias.fill_(NO_TEXT_LOGIT)
        self._parameters = [*tower.parameters(), *self._layer.parameters()]
        self._optimizer = make_optimizer(self._parameters, config.pages_learning_rate, config)

    def update(self, images: Sequence[ReadImage], number: int, done: float) -> float:
        """Learn from one batch.

        Args:
            images: The images.
            number: Number of the update, from 0.
            done: Fraction of the work that is done.

        Returns:
            The loss: binary cross-entropy of all parts of all tokens, in nats per text on the images.
        """
        import torch

        set_rate(self._optimizer, self._config.pages_learning_rate, number, done, self._config)
        logits_BNPW, parts = self._score(images)
        targets_BNPW = torch.zeros_like(logits_BNPW)
        if parts:
            targets_BNPW[tuple(torch.tensor(parts, device=logits_BNPW.device).T)] = 1.0
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits_BNPW, targets_BNPW, reduction="sum")
        loss = loss / max(1, len(parts))
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, self._config.grad_clip)
        self._optimizer.step()
        return float(loss.detach())

    def accuracy(self, images: Sequence[ReadImage]) -> float:
        """Measure how often the part that scores highest for a text is one where the text is.

        Args:
            images: Images with texts.

        Returns:
            The fraction of right places among all texts that are learnt; NaN where there are none.
        """
        import torch

        hits: list[bool] = []
        for start in range(0, len(images), self._config.batch_size):
            with torch.no_grad():
                logits_BNPW, parts = self._score(images[start : start + self._config.batch_size])
            best_BW = logits_BNPW.flatten(1, 2).argmax(dim=1).tolist()
            right = {(part.image, part.text, part.token * self._merge**2 + part.part) for part in parts}
            hits += [(part.image, part.text, best_BW[part.image][part.text]) in right for part in parts]
        return sum(hits) / len(hits) if hits else math.nan

    def _score(self, images: Sequence[ReadImage]) -> tuple[Tensor, list[_Part]]:
        """Logits of every text at every part of every token, and where the texts are."""
        pixels, grid = pixel_inputs(self._loaded.processor, [one.image for one in images])
        device = self._compute.device
        with self._compute.autocast():
            features = self._loaded.model.model.get_image_features(pixels.to(device), grid.to(device)).pooler_output
            import torch

            logits = self._layer(torch.stack(tuple(features))).float()
        parts = [part for index, one in enumerate(images) for part in self._parts(index, one)]
        return logits.unflatten(-1, (self._merge**2, len(self._text_index))), parts

    def _parts(self, index: int, one: ReadImage) -> list[_Part]:
        height, width = one.image.shape[:2]
        columns, rows = width // self._patch, height // self._patch
        found = []
        for text in one.texts:
            if text.text not in self._text_index:
                continue
            x0, y0, x1, y1 = text.box
            column = min(int((x0 + x1) / 2 * columns / one.screen_wh[0]), columns - 1)
            row = min(int((y0 + y1) / 2 * rows / one.screen_wh[1]), rows - 1)
            token = row // self._merge * (columns // self._merge) + column // self._merge
            part = row % self._merge * self._merge + column % self._merge
            found.append(_Part(index, token, part, self._text_index[text.text]))
        return found
