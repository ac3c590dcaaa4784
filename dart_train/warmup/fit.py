"""The training loop of the warm start.

Role: `warm_start(config)` reads the screens, trains, measures on held-out tasks and writes policy version 0. A policy with an action head
learns from half of the images of an update what to say, and its head from the other half where things are.
Rule: the result appears under its final name only when it is complete; the same configuration and screens give the same order of
images and questions; a warm start that was interrupted goes on from its last report. Non-goals: choosing a checkpoint (the last one is the
result), limits and interruptions (`dart_train.warmup.stage`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from dart_agent.grounding.acting.settings import tell_of_targets
from dart_agent.grounding.acting.targets import find_targets
from dart_agent.metrics_file import append_metrics
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.types import RgbImage
from dart_server.wire import Clock
from dart_train.data_manager.catalog import task_family
from dart_train.model.device import ComputeDevice
from dart_train.model.fast_vision import optimize_vision
from dart_train.model.pointing_model import PointingModel
from dart_train.model.policy_model import LoadedModel, load_model, pixel_inputs
from dart_train.model.weights import write_directory_atomically
from dart_train.trainer.ranks import Ranks
from dart_train.trainer.replicas import share_parameters
from dart_train.warmup.config import WarmupConfig
from dart_train.warmup.lessons import Lessons
from dart_train.warmup.optimisation import make_optimizer, of_rank, sum_of
from dart_train.warmup.packing import NO_LABEL, PackedBatch, Packer
from dart_train.warmup.pointing import HeadLearner, load_with_head
from dart_train.warmup.queries import HeadQuestion, Query, mentioned_texts, text_sentences
from dart_train.warmup.reading import ReadImage, ReadImages, Reading
from dart_train.warmup.screens import (
    AnnotatedScreen,
    ScreenError,
    load_pixels,
    read_screens,
)
from dart_train.warmup.stage import Stage, StageLimits, StageProgress, UnfinishedWarmStart

if TYPE_CHECKING:
    from torch import Tensor

MAX_EVAL_SCREENS = 64


@dataclass(frozen=True, slots=True)
class WarmupResult:
    """The result of a warm start; accuracies are fractions of correct greedy clicks on held-out tasks, NaN where nothing was asked.

    Attributes:
        images: Training images used.
        seconds: Time of learning from them, of all goes.
        loss: Running mean of the loss, in nats per token.
        grounding_accuracy: Accuracy of grounding queries.
        imitation_accuracy: Accuracy of demonstration queries.
    """

    images: int
    seconds: float
    loss: float
    grounding_accuracy: float
    imitation_accuracy: float


def warm_start(
    config: WarmupConfig,
    on_progress: Callable[[Mapping[str, Any]], None] | None = None,
    ranks: Ranks | None = None,
) -> WarmupResult:
    """Train version 0 and write it to `config.out_dir`; go on where an interrupted warm start of the same configuration was.

    Args:
        config: The configuration.
        on_progress: Called with every metric line.
        ranks: The processes that learn together, each from its part of every batch, and of which the first one measures and writes; None:
            this one alone.

    Returns:
        The result.

    Raises:
        ScreenError: There are no usable screens.
        ModelNotFoundError: The start model cannot be loaded.
        FileExistsError: `out_dir` exists already, or an unfinished warm start with other settings does.
    """
    if config.out_dir.exists():
        raise FileExistsError(f"{config.out_dir} exists already: remove it to warm-start again")
    import torch

    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    loaded = load_with_head(config) if config.pointer else load_model(config.start_model)
    ranks = ranks or Ranks()
    trainer = _WarmStartTrainer(config, loaded, on_progress or (lambda line: None), ranks=ranks)
    result = trainer.run()
    if ranks.first:
        write_directory_atomically(config.out_dir, loaded.save)
        trainer.unfinished.remove()
    return result


def held_out_tasks(screens: Sequence[AnnotatedScreen], fraction: float) -> set[str]:
    """Choose the tasks whose screens are used only for measuring: those with the smallest hashes, at least one.

    Args:
        screens: All screens.
        fraction: Fraction of the tasks.

    Returns:
        Task ids.
    """
    task_ids = sorted(
        {screen.task_id for screen in screens}, key=lambda task_id: hashlib.sha256(task_id.encode()).digest()
    )
    return set(task_ids[: math.ceil(fraction * len(task_ids))])


def imitated_steps(screens: Sequence[AnnotatedScreen], config: WarmupConfig) -> set[tuple[str, int]]:
    """Choose the screens whose demonstrated action is imitated, in a seeded order of demonstrations.

    Args:
        screens: Screens to train on.
        config: The configuration.

    Returns:
        Task and step of each.
    """
    by_family: dict[str, list[str]] = defaultdict(list)
    for task_id in sorted({screen.task_id for screen in screens}):
        by_family[task_family(task_id)].append(task_id)
    imitated: set[str] = set()
    for family, task_ids in sorted(by_family.items()):
        if config.imitated_families is None or family in config.imitated_families:
            Random(f"{config.seed}/{family}").shuffle(task_ids)
            imitated.update(task_ids[: config.imitated_demos_per_family])
    return {screen.of_step for screen in screens if screen.task_id in imitated}


class _WarmStartTrainer:
    def __init__(
        self,
        config: WarmupConfig,
        loaded: LoadedModel,
        report: Callable[[Mapping[str, Any]], None],
        clock: Clock = SYSTEM_CLOCK,
        ranks: Ranks | None = None,
    ) -> None:
        self.clock = clock
        self.ranks = ranks or Ranks()

        self.config = config
        self.loaded = loaded
        self.compute = ComputeDevice.resolve(config.device, config.dtype, fastest_on_cpu=True)
        self.model = loaded.model.to(self.compute.device).train()
        self.report = report
        self.unfinished = UnfinishedWarmStart(config)
        anew = self.ranks.first and not self.unfinished.seed_suffix
        self.random = Random(
            config.seed if anew else of_rank(f"{config.seed}{self.unfinished.seed_suffix}", self.ranks)
        )
        self.batch_size = max(1, config.batch_size // self.ranks.size)
        self.head = HeadLearner(loaded, self.compute) if isinstance(loaded, PointingModel) else None
        self.reading: Reading | None = None
        self.pages: Iterator[list[ReadImage]] = iter(())
        spec = preset(config.prompt, images=1, min_pixels=config.min_pixels, max_pixels=config.max_pixels)
        self.builder = PromptBuilder(spec if self.head is None else tell_of_targets(spec))
        everything = read_screens(config.screens)
        held_out = held_out_tasks(everything, config.held_out_fraction)
        measured = [screen for screen in everything if screen.task_id in held_out]
        self.measured = Random(config.seed).sample(measured, min(len(measured), MAX_EVAL_SCREENS))
        self.screens = [screen for screen in everything if screen.task_id not in held_out]
        if not self.screens:
            raise ScreenError(f"too few demonstrations in {config.screens}: some must be left over to measure on")
        self.mentioned = mentioned_texts(self.screens)
        self.by_text = bool(self.mentioned)
        self.sentences = text_sentences(self.screens) if self.by_text else {}
        self.imitated = imitated_steps(self.screens, config)
        answered = any(screen.action is not None and screen.of_step in self.imitated for screen in self.screens)
        if self.head is not None and not answered:
            raise ScreenError(
                "a policy with an action head learns what to say from demonstrations alone: raise warmup.imitated_demos_per_family"
            )
        self.pixels = {screen.image: load_pixels(screen) for screen in everything}
        self.lessons = Lessons(
            config, self.builder, [(self.pixels[screen.image], screen) for screen in self.screens], self.random,
            imitated=self.imitated, described=self.head is not None, by_text=self.by_text,
        )  # fmt: skip
        optimize_vision(self.model)
        _, grid = pixel_inputs(loaded.processor, [self.builder.model_image(next(iter(self.pixels.values())))])
        self.packer = Packer(self.model, loaded.processor, self.builder, tuple(grid[0].tolist()))
        self.parameters = [parameter for _, parameter in loaded.named_parameters()]
        share_parameters(self.parameters, self.ranks)
        self.optimizer = make_optimizer(self.parameters, config.learning_rate, config)

    def run(self) -> WarmupResult:
        if self.config.pages:
            self._learn_to_read()
        config, accuracy = self.config, {}
        limits = StageLimits(config.images, config.max_minutes, config.report_every_images, config.learning_rate)
        progress = self.unfinished.restore("images", self.optimizer, self.parameters)
        stage = Stage(
            "images", limits, config, self.optimizer, self.parameters, progress, self.unfinished, self.ranks, self.clock
        )  # fmt: skip

        def report(progress: StageProgress) -> None:
            accuracy.update(self._report_progress(progress))

        stage.run(self._losses, sum_of, report)
        if not accuracy:  # it was interrupted after its last update
            report(progress)
        return WarmupResult(
            progress.seen, progress.elapsed_s, progress.mean_loss, accuracy["grounding"], accuracy["demonstration"]
        )

    def _learn_to_read(self) -> None:
        known, measured = (
            [(self.pixels[screen.image], screen) for screen in screens] for screens in (self.screens, self.measured)
        )
        images = ReadImages(known, self.builder.model_image, self.mentioned)
        self.reading = Reading(self.loaded, self.compute, images, measured, self.config, self.ranks, self.head)
        if self.unfinished.stage != "images":
            self.reading.learn(self.clock, self.report, self.unfinished)
        count = max(1, self.batch_size // 2)
        seed = f"{self.config.seed}/pages of the policy{self.unfinished.seed_suffix}"
        self.pages = self.reading.draw_ahead(count, Random(of_rank(seed, self.ranks)))
        self.parameters = [*self.parameters, *self.reading.parameters()]
        self.optimizer = make_optimizer(
            self.parameters, self.config.learning_rate, self.config, slow=list(self.model.model.visual.parameters())
        )

    def _losses(self) -> list[Tensor]:
        if self.head is None:
            examples = self.lessons.draw_images(self.batch_size)
            losses = [self._answer_loss([each.image for each in examples], [each.queries for each in examples])]
        else:
            half = max(1, self.batch_size // 2)
            losses = [self._described_loss(half), self._head_loss(self.head, half)]
        if self.reading is not None:
            losses += self._page_losses(self.reading)
        return losses

    def _described_loss(self, count: int) -> Tensor:
        """What a policy with an action head says, in nats per answer, as the head's loss is per question."""
        import torch

        lessons = self.lessons.draw_answers(count)
        batch = self.packer.pack([lesson.queries for lesson in lessons])
        logits_MV, labels_M = self._forward([lesson.image for lesson in lessons], batch)
        nats_M = torch.nn.functional.cross_entropy(logits_MV, labels_M, reduction="none")
        of_image_M = (batch.labels_BT[:, 1:] != NO_LABEL).nonzero()[:, 0].to(nats_M.device)
        nats_B = torch.zeros(count, device=nats_M.device).index_add(0, of_image_M, nats_M)
        self.lessons.learn_answers(lessons, nats_B.detach().tolist())
        return nats_B.sum() / sum(len(lesson.queries) for lesson in lessons)

    def _answer_loss(self, images: Sequence[RgbImage], queries_B: Sequence[Sequence[Query]]) -> Tensor:
        import torch

        logits_MV, labels_M = self._forward(images, self.packer.pack(queries_B))
        return torch.nn.functional.cross_entropy(logits_MV, labels_M)

    def _page_losses(self, reading: Reading) -> list[Tensor]:
        """What keeps the tower reading, and what asks for texts of pages where instructions name elements by a text."""
        pages = next(self.pages)
        losses = reading.losses(pages)
        asked = [(page.image, page.named_elements(self.sentences, self.random)) for page in pages]
        images = [image for image, parts in asked if parts]
        if images:
            most = self.config.queries_per_image
            parts_B = [self.random.sample(parts, min(most, len(parts))) for _, parts in asked if parts]
            builder = self.lessons.query_builder(self.pixels[self.screens[0].image], images[0])
            if self.head is None:
                losses.append(self._answer_loss(images, [builder.element_queries(parts) for parts in parts_B]))
            else:
                questions_B = [builder.element_questions(parts) for parts in parts_B]
                losses.append(self.head.loss(images, questions_B, reading.text_states()).mean)
        return losses

    def _head_loss(self, head: HeadLearner, count: int) -> Tensor:
        """Where elements are."""
        lessons = self.lessons.draw_questions(count)
        states = None if self.reading is None else self.reading.text_states()
        loss = head.loss([lesson.image for lesson in lessons], [lesson.questions for lesson in lessons], states)
        self.lessons.learn_questions(lessons, loss.by_question)
        return loss.mean

    def _forward(self, images: Sequence[RgbImage], batch: PackedBatch) -> tuple[Tensor, Tensor]:
        pixels, grid = pixel_inputs(self.loaded.processor, images)
        device = self.compute.device
        with self.compute.autocast():
            hidden_BTD = self.model.model(
                input_ids=batch.input_ids_BT.to(device),
                attention_mask=batch.attention_mask_B1TT.to(device),
                position_ids=batch.position_ids_3BT.to(device),
                pixel_values=pixels.to(device),
                image_grid_thw=grid.to(device),
                use_cache=False,
            ).last_hidden_state
            labels_BT = batch.labels_BT[:, 1:].to(device)
            asked_BT = labels_BT != NO_LABEL
            logits_MV = self.model.lm_head(hidden_BTD[:, :-1][asked_BT]).float()
        return logits_MV, labels_BT[asked_BT]

    def _report_progress(self, progress: StageProgress) -> dict[str, float]:
        if not self.ranks.first:
            return {"grounding": math.nan, "demonstration": math.nan}
        accuracy = self._measure()
        line = {
            "kind": "warmup",
            "time_s": self.clock.time(),
            "images": progress.seen,
            "loss": round(progress.mean_loss, 4),
            "grounding_accuracy": round(accuracy["grounding"], 4),
            **({"text_accuracy": _rounded(accuracy["text"])} if self.by_text else {}),
            "imitation_accuracy": _rounded(accuracy["demonstration"]),
            "elapsed_s": round(progress.elapsed_s, 1),
        }
        append_metrics(self.config.metrics, line)
        self.report(line)
        return accuracy

    def _measure(self) -> dict[str, float]:
        """Accuracy on held-out tasks of grounding queries, of those by a text, and of demonstration queries; NaN where none was asked."""
        import torch

        images, queries_B, kinds = [], [], []
        hits: dict[str, list[bool]] = defaultdict(list)
        pointed: list[tuple[RgbImage, list[HeadQuestion]]] = []
        for screen in self.measured:
            image, query_builder = self.lessons.view(self.pixels[screen.image])
            grounding, demonstration = (
                query_builder.grounding_queries(screen),
                query_builder.demonstration_query(screen),
            )
            if self.head is not None:
                grounding = []
                questions = query_builder.head_questions(screen)
                pointed += [(image, questions)] if questions else []
            queries = [
                *grounding,
                *([demonstration] if demonstration is not None else []),
            ]
            if queries:
                images.append(image)
                queries_B.append(queries)
                kinds += ["grounding"] * len(grounding) + ["demonstration"] * (len(queries) - len(grounding))
        self.model.eval()
        if self.head is not None and pointed:
            hits["grounding"] = self.head.hits(*zip(*pointed, strict=True))
            asked = [question for _, questions in pointed for question in questions]
            hits["text"] = [
                hit for hit, question in zip(hits["grounding"], asked, strict=True) if question.text is not None
            ]
        if queries_B:
            with torch.no_grad():
                logits_MV, _ = self._forward(images, self.packer.pack(queries_B))
            guesses = logits_MV.argmax(dim=-1).tolist()
            position = 0
            for kind, query in zip(kinds, (q for queries in queries_B for q in queries), strict=True):
                length = len(self.packer.target_ids(query))
                hit = _is_correct(query, self.loaded.tokenizer.decode(guesses[position : position + length]))
                for each in (kind, *(["text"] if query.by_text else [])):
                    hits[each].append(hit)
                position += length
            if position != len(guesses):
                raise RuntimeError("the answers of the measured screens do not line up with the model's outputs")
        self.model.train()
        return {kind: _mean(hits[kind]) for kind in ("grounding", "text", "demonstration")}


def _is_correct(query: Query, text: str) -> bool:
    """Whether the thought in `text` is the wanted one and the click after it hits the box; other answers have to be the wanted ones."""
    if query.box is None or find_targets(query.answer):
        return text.removesuffix("<|im_end|>").strip() == query.answer.strip()
    thought, _, action = text.partition("Action:")
    numbers = [int(number) for number in re.findall(r"\d+", action)]
    wanted = query.answer[query.given :].partition("Action:")[0]
    if len(numbers) != 2 or thought.strip() != wanted.strip():
        return False
    x0, y0, x1, y1 = query.box
    return x0 <= numbers[0] <= x1 and y0 <= numbers[1] <= y1


def _rounded(accuracy: float) -> float | None:
    return None if math.isnan(accuracy) else round(accuracy, 4)


def _mean(hits: Sequence[bool]) -> float:
    return float(np.mean(hits)) if hits else math.nan
