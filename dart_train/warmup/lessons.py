"""Lessons of the policy: recorded screens, augmented, with the questions that are asked about them.

Role: draws screens whose windows are translated, and what is asked about each. A policy that writes coordinates is asked for elements and
demonstrated answers of uniformly drawn screens. One with an action head is asked for the demonstrated answers, and its head for elements,
of kinds that are drawn by how little they are learned (`dart_train.warmup.lesson_mix`). Rule: the same source of randomness gives the same
lessons. Non-goals: what can be asked (`dart_train.warmup.queries`), pages (`dart_train.warmup.reading`), losses (`dart_train.warmup.fit`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from random import Random
from typing import NamedTuple

from dart_agent.grounding.acting.targets import head_instruction
from dart_agent.prompts.builder import PromptBuilder
from dart_envs.types import RgbImage
from dart_train.data_manager.catalog import task_family
from dart_train.warmup.config import WarmupConfig
from dart_train.warmup.lesson_mix import LessonMix
from dart_train.warmup.queries import HeadQuestion, Query, QueryBuilder
from dart_train.warmup.screens import AnnotatedScreen, Screenshot, name_elements, shift_windows

MAX_CACHED_IMAGES = 4_000
"""Translated images kept in memory (0.12 MB each at 256x160); resizing a screenshot takes a third as long as training on it."""

Step = tuple[str, int]
"""A family, and the number of a step of its demonstrations."""
Name = tuple[str, str | None]
"""A family, and what asks for an element by its place there; None: any element that is asked for by its text."""


class ImageLesson(NamedTuple):
    """An image, and what is asked about it."""

    image: RgbImage
    queries: list[Query]


class AnswerLesson(NamedTuple):
    """An image, demonstrated answers, and the step that they are of."""

    image: RgbImage
    queries: list[Query]
    step: Step


class QuestionLesson(NamedTuple):
    """An image, questions to the head, and the kind of each."""

    image: RgbImage
    questions: list[HeadQuestion]
    names: list[Name]


class _AugmentedScreen(NamedTuple):
    """A screen, possibly translated: the model-input image, and what can be asked about it."""

    image: RgbImage
    grounding: list[Query]
    guided: list[Query]
    demonstrations: list[Query]
    head: list[HeadQuestion]


class Lessons:
    """Draws lessons.

    Args:
        config: The configuration.
        builder: Builds model-input images.
        screens: Screenshots to learn from.
        random: Source of randomness.
        imitated: Task and step of the screens whose demonstrated action is imitated.
        described: Whether answers describe elements, for an action head, instead of giving coordinates.
        by_text: Whether elements are also named by a text that has to be read.
    """

    def __init__(
        self,
        config: WarmupConfig,
        builder: PromptBuilder,
        screens: Sequence[Screenshot],
        random: Random,
        *,
        imitated: Collection[tuple[str, int]],
        described: bool,
        by_text: bool,
    ) -> None:
        self._config, self._builder, self._random = config, builder, random
        self._imitated, self._described, self._by_text = imitated, described, by_text
        self._pixels = {screen.image: pixels for pixels, screen in screens}
        self._screens = [screen for _, screen in screens]
        self._pool: dict[tuple[str, int], list[_AugmentedScreen]] = defaultdict(list)
        self._by_step: dict[Step, list[AnnotatedScreen]] = defaultdict(list)
        self._by_name: dict[Name, list[AnnotatedScreen]] = defaultdict(list)
        self._steps: LessonMix[Step] = LessonMix()
        self._names: LessonMix[Name] = LessonMix()
        for screen in self._screens if described else ():
            family = task_family(screen.task_id)
            if screen.of_step in imitated and screen.action is not None:
                self._by_step[family, screen.step].append(screen)
            named = [part for part in name_elements(screen) if by_text or not part.by_text]
            for place in {None if part.by_text else head_instruction(part.name): None for part in named}:
                self._by_name[family, place].append(screen)

    def draw_images(self, count: int) -> list[ImageLesson]:
        """Draw lessons of a policy that writes coordinates.

        Args:
            count: How many images.

        Returns:
            Images with at least one query each.
        """
        found: list[ImageLesson] = []
        while len(found) < count:
            variant = self._augmented_screen(self._random.choice(self._screens))
            queries = list(self._queries(variant))
            if queries:
                found.append(ImageLesson(variant.image, queries))
        return found

    def draw_answers(self, count: int) -> list[AnswerLesson]:
        """Draw demonstrated answers of a policy with an action head.

        Args:
            count: How many images.

        Returns:
            Images with the answers.
        """
        found = []
        for _ in range(count):
            step = self._steps.draw(list(self._by_step), self._random)
            variant = self._augmented_screen(self._random.choice(self._by_step[step]))
            most = min(len(variant.demonstrations), self._config.queries_per_image)
            found.append(AnswerLesson(variant.image, self._random.sample(variant.demonstrations, most), step))
        return found

    def learn_answers(self, lessons: Sequence[AnswerLesson], nats: Sequence[float]) -> None:
        """Take the losses of answers into account.

        Args:
            lessons: The lessons.
            nats: The loss of each, summed over its answers' tokens.
        """
        self._steps.learn((lesson.step, loss / len(lesson.queries)) for lesson, loss in zip(lessons, nats, strict=True))

    def draw_questions(self, count: int) -> list[QuestionLesson]:
        """Draw questions to the head.

        Args:
            count: How many images.

        Returns:
            Images with at least one question each.
        """
        found: list[QuestionLesson] = []
        while len(found) < count:
            family, _ = name = self._names.draw(list(self._by_name), self._random)
            variant = self._augmented_screen(self._random.choice(self._by_name[name]))
            names: list[Name] = [
                (family, None if question.text is not None else question.instruction) for question in variant.head
            ]
            asked = self._names.draw_several(names, self._config.queries_per_image, self._random)
            if asked:
                found.append(
                    QuestionLesson(
                        variant.image, [variant.head[index] for index in asked], [names[index] for index in asked]
                    )
                )
        return found

    def learn_questions(self, lessons: Sequence[QuestionLesson], nats: Sequence[float]) -> None:
        """Take the losses of questions into account.

        Args:
            lessons: The lessons.
            nats: The loss of each of their questions, in their order.
        """
        self._names.learn(zip((name for lesson in lessons for name in lesson.names), nats, strict=True))

    def view(self, pixels: RgbImage) -> tuple[RgbImage, QueryBuilder]:
        """Resize a screenshot for the model.

        Args:
            pixels: The screenshot, uint8 [H, W, 3].

        Returns:
            The model-input image, and the builder of queries about it.
        """
        image = self._builder.model_image(pixels)
        return image, self.query_builder(pixels, image)

    def query_builder(self, pixels: RgbImage, image: RgbImage) -> QueryBuilder:
        """Make the builder of queries about an image.

        Args:
            pixels: The screenshot, uint8 [H, W, 3].
            image: Its model-input image.

        Returns:
            The builder.
        """
        points = self._builder.points(pixels, image)
        return QueryBuilder(points, self._config.coordinate_step_px, self._described, self._by_text)

    def _queries(self, variant: _AugmentedScreen) -> Iterator[Query]:
        left = self._config.queries_per_image
        if variant.demonstrations and self._random.random() < self._config.imitation_fraction:
            left -= 1
            yield self._random.choice(variant.demonstrations)
        for _ in range(left if variant.grounding else 0):
            guided = self._random.random() < self._config.thought_given_fraction
            yield self._random.choice(variant.guided if guided else variant.grounding)

    def _augmented_screen(self, screen: AnnotatedScreen) -> _AugmentedScreen:
        """One of the translated images of a screen; new ones are made until its pool is full."""
        pool = self._pool[screen.of_step]
        if len(pool) >= max(1, MAX_CACHED_IMAGES // len(self._screens)):
            return self._random.choice(pool)
        pixels = self._pixels[screen.image]
        if self._config.translate_windows:
            pixels, screen = shift_windows(pixels, screen, self._random)
        image, query_builder = self.view(pixels)
        demonstrations = self._demonstrations(query_builder, screen) if screen.of_step in self._imitated else []
        pool.append(
            _AugmentedScreen(
                image,
                query_builder.grounding_queries(screen),
                query_builder.thought_given_queries(screen, self._random),
                demonstrations,
                query_builder.head_questions(screen) if self._described else [],
            )
        )
        return pool[-1]

    def _demonstrations(self, query_builder: QueryBuilder, screen: AnnotatedScreen) -> list[Query]:
        if not self._config.imitate_order:
            return query_builder.unordered_queries(screen)
        demonstrated = query_builder.demonstration_query(screen)
        return [] if demonstrated is None else [demonstrated]
