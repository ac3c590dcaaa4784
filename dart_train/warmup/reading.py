"""The vision tower learns to read before the policy learns to answer, and does not forget it meanwhile.

Role: `Reading` trains the vision tower, and the embeddings of the texts' words, to say for each part of each image token which texts have
their middle there, and which name an element that has (`dart_train.warmup.text_scores`). Rule: every image token of a page is a lesson, so
that a tower without pre-training reads words after some ten thousand pages; some of the images are whole screens, which show what stands
around texts. The policy's own lessons ask for few texts, and a tower that is trained on them alone forgets all others: `Reading.losses`
belong to every update after the pages. There the policy is asked for the texts of pages, too: among many texts it pays to find the right
one.
An action head learns with the tower where each text is. The text's embedding takes the place of the pointer token's state, so that this
lesson needs no language model. Afterwards the language model learns to give these states (`text_states`).
Non-goals: making pages (`dart_train.warmup.pages`), the policy's own lessons (`dart_train.warmup.fit`).
Axes: B images, N tokens of an image, P parts of a token (its patches, or those that an action head tells apart), W texts.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from dart_agent.grounding.labels import PatchGrid
from dart_agent.grounding.samples import Box
from dart_agent.metrics_file import append_metrics
from dart_envs.tasks.screen_names import NamedElement
from dart_envs.types import RgbImage
from dart_server.wire import A11yElement, Clock
from dart_train.model.device import ComputeDevice
from dart_train.model.policy_model import LoadedModel, pixel_inputs
from dart_train.trainer.ranks import Ranks
from dart_train.trainer.replicas import share_parameters
from dart_train.warmup.config import WarmupConfig
from dart_train.warmup.optimisation import make_optimizer, of_rank
from dart_train.warmup.pages import PageWriter, PlacedText, ScreenBox, find_texts
from dart_train.warmup.pointing import HeadLearner
from dart_train.warmup.screens import AnnotatedScreen, ScreenError, Screenshot, shift_windows
from dart_train.warmup.stage import Stage, StageLimits, StageProgress, UnfinishedWarmStart
from dart_train.warmup.text_scores import TextScores

if TYPE_CHECKING:
    from torch import Tensor

SCREEN_FRACTION = 0.25
"""Fraction of the images that are whole screens."""
AROUND_TEXT_PX = 6
"""A click so near to the ink of a text has found it, in screen pixels."""


class ReadImage(NamedTuple):
    """A model-input image, the texts on it, the size of the screen that their boxes are of, and whether it is a page."""

    image: RgbImage
    texts: Sequence[PlacedText]
    screen_wh: tuple[int, int]
    is_page: bool

    def input_box(self, text: PlacedText) -> Box:
        """Where a text may be clicked.

        Args:
            text: A text on the image.

        Returns:
            The element that it names, or its ink and a little around it, in pixels of the model-input image.
        """
        height, width = self.image.shape[:2]
        x0, y0, x1, y1 = self._click_box(text)
        across, down = width / self.screen_wh[0], height / self.screen_wh[1]
        return x0 * across, y0 * down, x1 * across, y1 * down

    def _click_box(self, text: PlacedText) -> ScreenBox:
        if text.click_box is not None:
            return text.click_box
        x0, y0, x1, y1 = text.box
        width, height = self.screen_wh
        near = AROUND_TEXT_PX
        return max(0, x0 - near), max(0, y0 - near), min(width, x1 + near), min(height, y1 + near)

    def named_elements(self, sentences: Mapping[str, Sequence[str]], random: Random) -> list[NamedElement]:
        """Ask for the texts of a page; on a screen a text may name the box beside it, so that nothing is asked.

        Args:
            sentences: What asks for a text; others are not asked for.
            random: Source of randomness.

        Returns:
            The texts of the page, as elements.
        """
        if not self.is_page:
            return []
        found = []
        for text in self.texts:
            if text.text in sentences:
                x0, y0, x1, y1 = self._click_box(text)
                element = A11yElement(role="label", name=text.text, x=x0, y=y0, w=x1 - x0, h=y1 - y0)
                found.append(NamedElement(text.text, random.choice(sentences[text.text]), element, by_text=True))
        return found


class _Part(NamedTuple):
    """Where a text is: index of the image, of the token, of the part of the token, and of the text.

    Parts are counted twice: the first P are for the middles of texts, the next P for the middles of the elements that the texts name.
    """

    image: int
    token: int
    part: int
    text: int


class ReadImages:
    """Draws what the tower learns from: pages, and screens whose windows are translated.

    Args:
        screens: Screenshots.
        model_image: The model-input image of a screenshot.
        mentioned: Texts that instructions mention; pages show mostly these.

    Attributes:
        texts: The texts that are taught.
    """

    def __init__(
        self,
        screens: Sequence[Screenshot],
        model_image: Callable[[RgbImage], RgbImage],
        mentioned: Collection[str] = (),
    ) -> None:
        self._screens, self._model_image = screens, model_image
        self._writer = PageWriter(((pixels, find_texts(pixels, screen)) for pixels, screen in screens), mentioned)
        self.texts = self._writer.texts

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
        return ReadImage(self._model_image(pixels), texts, (pixels.shape[1], pixels.shape[0]), is_page=True)

    def of_screen(self, pixels: RgbImage, screen: AnnotatedScreen) -> ReadImage:
        """What is read on a screen.

        Args:
            pixels: The screenshot, uint8 [H, W, 3].
            screen: Its labels.

        Returns:
            The model-input image with the texts.
        """
        size = pixels.shape[1], pixels.shape[0]
        return ReadImage(self._model_image(pixels), find_texts(pixels, screen), size, is_page=False)


class Reading:
    """Teaches the vision tower of a policy to read.

    Args:
        loaded: The policy; its vision tower and embeddings are changed.
        compute: Where it is trained.
        images: What it learns from.
        measured: Screenshots of held-out tasks.
        config: The configuration.
        ranks: The processes that learn together.
        head: Its action head, which is changed, too; None: it has none.

    Attributes:
        scores: Scores the texts at every part of a token.

    Raises:
        ScreenError: No text is on enough screens.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        compute: ComputeDevice,
        images: ReadImages,
        measured: Sequence[Screenshot],
        config: WarmupConfig,
        ranks: Ranks,
        head: HeadLearner | None = None,
    ) -> None:
        import torch

        if not images.texts:
            raise ScreenError(
                f"warmup.pages: no text is on enough screens of {config.screens}: collect more demonstrations, or set it to 0"
            )
        self._loaded, self._compute, self._config, self._images = loaded, compute, config, images
        self._ranks = ranks
        self._measured = [images.of_screen(*screenshot) for screenshot in measured]
        self._text_index = {text: index for index, text in enumerate(images.texts)}
        merge: int = loaded.processor.image_processor.merge_size
        self._cell_px: int = merge * loaded.processor.image_processor.patch_size
        self._side = merge if head is None else max(merge, head.offset_parts)
        self._tower = loaded.model.model.visual
        tokenizer = loaded.processor.tokenizer
        token_ids_W = [list(tokenizer(text, add_special_tokens=False).input_ids) for text in images.texts]
        self.scores = TextScores(loaded.model.get_input_embeddings(), token_ids_W, 2 * self._side**2)
        self._head = head
        self._pointers = torch.nn.Linear(self._tower.config.out_hidden_size, self._tower.config.out_hidden_size)
        with torch.no_grad():
            torch.nn.init.eye_(self._pointers.weight)
            self._pointers.bias.zero_()
        self._pointers.to(compute.device)

    def learn(self, clock: Clock, report: Callable[[Mapping[str, Any]], None], unfinished: UnfinishedWarmStart) -> None:
        """Train until all pages are seen or the minutes are used up.

        Args:
            clock: Clock of the time limit.
            report: Called with every metric line.
            unfinished: What an interrupted warm start had learned, and where it is kept.
        """
        config, ranks = self._config, self._ranks
        parameters = [*self._tower.parameters(), self.scores.embedding.weight, *self.parameters()]
        if self._head is not None:
            parameters += self._head.parameters()
        optimizer = make_optimizer(parameters, config.pages_learning_rate, config)
        progress = unfinished.restore("pages", optimizer, parameters)
        share_parameters(parameters, ranks)
        limits = StageLimits(
            config.pages, config.pages_max_minutes, config.report_every_pages, config.pages_learning_rate
        )
        stage = Stage("pages", limits, config, optimizer, parameters, progress, unfinished, ranks, clock)
        random = Random(of_rank(f"{config.seed}/pages{unfinished.seed_suffix}", ranks))
        with contextlib.closing(self.draw_ahead(max(1, config.batch_size // ranks.size), random)) as batches:
            stage.run(
                lambda: self.losses(next(batches)),
                lambda losses: losses[0],
                lambda progress: self._report_progress(progress, clock.time(), report),
            )

    def _report_progress(
        self, progress: StageProgress, time_s: float, report: Callable[[Mapping[str, Any]], None]
    ) -> None:
        if not self._ranks.first:
            return
        accuracy = self.accuracy()
        line = {
            "kind": "reading",
            "time_s": time_s,
            "pages": progress.seen,
            "loss": round(progress.mean_loss, 4),
            "reading_accuracy": None if math.isnan(accuracy) else round(accuracy, 4),
            "elapsed_s": round(progress.elapsed_s, 1),
        }
        append_metrics(self._config.metrics, line)
        report(line)

    def parameters(self) -> Iterator[Any]:
        """What is trained here and thrown away at the end.

        Yields:
            Parameters.
        """
        yield from self.scores.parameters()
        yield from self._pointers.parameters()

    def text_states(self) -> dict[str, Tensor]:
        """What stands for the hidden state of a pointer token that points at a text.

        Returns:
            States [D] by text, without gradients.
        """
        import torch

        with torch.no_grad():
            states_WD = self._pointers(self.scores.directions())
        return dict(zip(self._images.texts, states_WD, strict=True))

    def draw_ahead(self, count: int, random: Random) -> Generator[list[ReadImage]]:
        """Draw new images without end, always the next ones while the last ones are learned from; drawing takes half of the time.

        Args:
            count: How many at a time.
            random: Source of randomness, used by another thread until the generator is closed.

        Yields:
            Pages and screens.
        """

        def draw() -> list[ReadImage]:
            return [self._images.draw(random) for _ in range(count)]

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="pages") as pool:
            upcoming = pool.submit(draw)
            while True:
                images, upcoming = upcoming.result(), pool.submit(draw)
                yield images

    def losses(self, images: Sequence[ReadImage]) -> list[Tensor]:
        """Compute the losses of reading.

        Args:
            images: Images with texts.

        Returns:
            Scalars with their gradients: binary cross-entropy of all parts of all tokens, in nats per text on the images, and of a policy
            with an action head the head's divergence from where the texts are, in nats.
        """
        import torch

        features_BND, parts = self._features(images), self._all_parts(images)
        logits_BNPW = self.scores.score(features_BND)
        targets_BNPW = torch.zeros_like(logits_BNPW)
        if parts:
            targets_BNPW[tuple(torch.tensor(parts, device=logits_BNPW.device).T)] = 1.0
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits_BNPW, targets_BNPW, reduction="sum")
        losses = [loss / max(1, len(parts))]
        if self._head is not None and parts:
            losses.append(self._pointing_loss(self._head, images, features_BND))
        return losses

    def _pointing_loss(self, head: HeadLearner, images: Sequence[ReadImage], features_BND: Tensor) -> Tensor:
        """The head's divergence from the places of texts, for pointers that are made of their embeddings."""
        pointers_WD = self._pointers(self.scores.directions())
        texts_B = [[text for text in one.texts if text.text in self._text_index] for one in images]
        shown = [index for index, texts in enumerate(texts_B) if texts]
        return head.loss_of_states(
            self._grid(images[0]),
            features_BND[shown],
            [pointers_WD[[self._text_index[text.text] for text in texts_B[index]]] for index in shown],
            [[images[index].input_box(text) for text in texts_B[index]] for index in shown],
        )

    def accuracy(self) -> float:
        """Measure how often the part of a held-out screen that scores highest for a text is one where the text is.

        Returns:
            The fraction of right places among the texts that are taught; NaN where there are none.
        """
        import torch

        hits: list[bool] = []
        for start in range(0, len(self._measured), self._config.batch_size):
            with torch.no_grad():
                images = self._measured[start : start + self._config.batch_size]
                logits_BNPW, parts = self.scores.score(self._features(images)), self._all_parts(images)
            count = self._side**2
            parts = [part for part in parts if part.part < count]
            best_BW = logits_BNPW[:, :, :count].flatten(1, 2).argmax(dim=1).tolist()
            right = {(part.image, part.text, part.token * count + part.part) for part in parts}
            hits += [(part.image, part.text, best_BW[part.image][part.text]) in right for part in parts]
        return sum(hits) / len(hits) if hits else math.nan

    def _features(self, images: Sequence[ReadImage]) -> Tensor:
        """Image tokens as they enter the language model [B, N, D]."""
        import torch

        pixels, grid = pixel_inputs(self._loaded.processor, [one.image for one in images])
        device = self._compute.device
        with self._compute.autocast():
            features = self._loaded.model.model.get_image_features(pixels.to(device), grid.to(device)).pooler_output
        return torch.stack(tuple(features)).float()

    def _all_parts(self, images: Sequence[ReadImage]) -> list[_Part]:
        return [part for index, one in enumerate(images) for part in self._parts(index, one)]

    def _parts(self, index: int, one: ReadImage) -> list[_Part]:
        side, columns = self._side, self._grid(one).columns
        fine = self._grid(one).split(side)
        found = []
        for text in one.texts:
            if text.text not in self._text_index:
                continue
            for of_kind, (x0, y0, x1, y1) in enumerate((text.box, text.click_box or text.box)):
                column = min(int((x0 + x1) / 2 * fine.columns / one.screen_wh[0]), fine.columns - 1)
                row = min(int((y0 + y1) / 2 * fine.rows / one.screen_wh[1]), fine.rows - 1)
                token, part = row // side * columns + column // side, row % side * side + column % side
                found.append(_Part(index, token, of_kind * side**2 + part, self._text_index[text.text]))
        return found

    def _grid(self, one: ReadImage) -> PatchGrid:
        """The image tokens of an image."""
        height, width = one.image.shape[:2]
        return PatchGrid(width // self._cell_px, height // self._cell_px, (width, height))
