"""Questions about an annotated screen, with their correct answers.

Role: makes four kinds of queries of the elements that the screen's suite has names for (`Suite.screen_names`), by their text only where
an instruction of the suite's recorded tasks does so (`mentioned_texts`):

    grounding_queries       "Choose the second row."                    thought and click are learnt
    thought_given_queries   the task's instruction, thought given       the click is learnt: where a thought leads
    demonstration_query     the task's instruction and demonstration    thought and click of the demonstration are learnt
    unordered_queries       the task's instruction                      thought and click of any element it mentions, in no order

and `head_questions` for an action head, which finds an element by its name. Rule: answers are in UI-TARS' language; a click goes to the
middle of an element, on the coordinate grid of the model and inside the element. A policy with a head describes the element instead, by
the name that is the thought of others. Non-goals: names of elements (the suite's), choosing which to ask (`dart_train.warmup.fit`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from dart_agent.grounding.acting.targets import describe_target, head_instruction
from dart_envs.action_formats.uitars import format_action
from dart_envs.observations.geometry import PointMap
from dart_envs.tasks import load_suite
from dart_envs.tasks.screen_names import NamedElement, ScreenNames
from dart_envs.types import Action, ActionType
from dart_server.wire import A11yElement
from dart_train.warmup.screens import AnnotatedScreen, name_elements, name_target, pointed_at

CLICKS = frozenset({ActionType.CLICK, ActionType.DOUBLE_CLICK, ActionType.TRIPLE_CLICK, ActionType.RIGHT_CLICK})
"""Actions on one element."""


@dataclass(frozen=True, slots=True)
class Query:
    """One question about a screen.

    Attributes:
        instruction: What the policy is asked to do.
        past_answers: Earlier responses of the policy in the prompt.
        answer: The correct response.
        box: (x0, y0, x1, y1) in model-input pixels where a click is correct, None where the answer is not a click.
        given: Number of characters at the head of `answer` that are context and not learnt.
        by_text: Whether the element is asked for by a text that has to be read.
    """

    instruction: str
    past_answers: tuple[str, ...]
    answer: str
    box: tuple[float, float, float, float] | None
    given: int = 0
    by_text: bool = False


@dataclass(frozen=True, slots=True)
class HeadQuestion:
    """A question to an action head.

    Attributes:
        instruction: What it is asked.
        box: (x0, y0, x1, y1) of the element, in pixels of the model-input image.
        text: The text that names the element and has to be read; None: the element is asked for by its place.
    """

    instruction: str
    box: tuple[float, float, float, float]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class QueryBuilder:
    """Makes queries for one size of screens and model-input images.

    Attributes:
        points: Maps between screen and model-input pixels.
        step_px: Grid of clicks, in the numbers that the policy writes.
        described: Whether answers describe elements, for an action head, instead of giving coordinates.
        by_text: Whether elements are also named by a text that has to be read.
    """

    points: PointMap
    step_px: int
    described: bool = False
    by_text: bool = False

    def grounding_queries(self, screen: AnnotatedScreen) -> list[Query]:
        """Ask for every element of the screen by every name that it has.

        Args:
            screen: The screen.

        Returns:
            The queries.
        """
        return self.element_queries(self._named(screen))

    def element_queries(self, parts: Sequence[NamedElement]) -> list[Query]:
        """Ask for elements by their names.

        Args:
            parts: The elements.

        Returns:
            The queries.
        """
        return [
            Query(part.sentence, (), self._click(part.element, part.name), self._box(part.element), 0, part.by_text)
            for part in parts
        ]

    def thought_given_queries(self, screen: AnnotatedScreen, random: Random) -> list[Query]:
        """Ask for every element under the task's instruction, after no click or a random one.

        Args:
            screen: The screen.
            random: Source of randomness.

        Returns:
            The queries.
        """
        parts = self._named(screen)
        queries = []
        for part in parts:
            past = (self._click(random.choice(parts).element, ""),) if random.random() < 0.5 else ()
            answer, action = self._click(part.element, part.name), self._click(part.element, "")
            queries.append(
                Query(screen.instruction, past, answer, self._box(part.element), len(answer) - len(action) - 1)
            )
        return queries

    def demonstration_query(self, screen: AnnotatedScreen) -> Query | None:
        """Ask for what the demonstration did on this screen.

        Args:
            screen: The screen.

        Returns:
            The query, None where the demonstration did nothing.
        """
        if screen.action is None:
            return None
        target = _element_at(screen.elements, screen.action)
        thought = "" if target is None else self._thought(screen, target)
        return Query(
            screen.instruction,
            self._past(screen),
            self._answer(screen.action, target, thought),
            None if target is None else self._box(target),
        )

    def unordered_queries(self, screen: AnnotatedScreen) -> list[Query]:
        """Ask for every element that the task's instruction mentions and the screen shows.

        Where the demonstration clicks none of them, what it did is asked for: it types, or clicks an element whose name the instruction
        does not say (the last of two windows has no side any more).

        Args:
            screen: The screen.

        Returns:
            The queries.
        """
        demonstrated = self.demonstration_query(screen)
        if demonstrated is None or screen.action is None:
            return []
        mentioned = [part for part in self._named(screen) if _is_mentioned(part.name, screen)]
        target = _element_at(screen.elements, screen.action)
        if target is None or all(part.element != target for part in mentioned):
            return [demonstrated]
        past = self._past(screen)
        return [
            Query(
                screen.instruction,
                past,
                self._click(part.element, part.name, screen.action),
                self._box(part.element),
            )
            for part in mentioned
        ]

    def head_questions(self, screen: AnnotatedScreen) -> list[HeadQuestion]:
        """Ask an action head for every element of the screen by every name that it has.

        Args:
            screen: The screen.

        Returns:
            The questions about elements that the image shows.
        """
        return self.element_questions(self._named(screen))

    def element_questions(self, parts: Sequence[NamedElement]) -> list[HeadQuestion]:
        """Ask an action head for elements by their names.

        Args:
            parts: The elements.

        Returns:
            The questions about elements that the image shows.
        """
        (screen_w, screen_h), (width, height) = self.points.screen_wh, self.points.model_wh
        questions = []
        for part in parts:
            element = part.element
            x0, y0 = max(0, element.x), max(0, element.y)
            x1, y1 = min(screen_w, element.x + element.w), min(screen_h, element.y + element.h)
            if x0 < x1 and y0 < y1:
                box = x0 * width / screen_w, y0 * height / screen_h, x1 * width / screen_w, y1 * height / screen_h
                questions.append(HeadQuestion(head_instruction(part.name), box, part.name if part.by_text else None))
        return questions

    def _named(self, screen: AnnotatedScreen) -> list[NamedElement]:
        """The elements of a screen by the names that are taught."""
        return [part for part in name_elements(screen) if self.by_text or not part.by_text]

    def _thought(self, screen: AnnotatedScreen, target: A11yElement) -> str:
        """The name of the target element: the one that the instruction mentions where it mentions one."""
        return name_target(_names(screen), screen.elements, target, screen.instruction, by_text=self.by_text)

    def _past(self, screen: AnnotatedScreen) -> tuple[str, ...]:
        """The answer before this screen, which has no thought."""
        if screen.previous is None:
            return ()
        target, name = None, ""
        if self.described:
            before = replace(screen, elements=screen.previous_elements)
            target = _element_at(before.elements, screen.previous)
            name = "" if target is None else self._thought(before, target)
        return (self._answer(screen.previous, target, name),)

    def _click(self, element: A11yElement, thought: str, like: Action | None = None) -> str:
        """A click on the middle of an element, of the same type as another action."""
        x, y = element.x + element.w // 2, element.y + element.h // 2
        middle = Action(ActionType.CLICK, x=x, y=y) if like is None else replace(like, x=x, y=y)
        return self._answer(middle, element, thought)

    def _answer(self, action: Action, element: A11yElement | None, thought: str) -> str:
        """The action's text; a click goes to the grid point nearest to the middle of `element` (or to where the action points)."""
        if action.type not in CLICKS or action.x is None or action.y is None:
            return format_action(action, self.points, thought=thought)
        if element is None:
            x, y = self.points.to_model(action.x, action.y)
        else:
            x0, y0, x1, y1 = self._box(element)
            x, y = int((x0 + x1) / 2), int((y0 + y1) / 2)
        screen = self.points.to_screen(*self.points.on_grid(x, y, self.step_px))
        if screen is not None:
            action = replace(action, x=screen[0], y=screen[1])
        if self.described and thought and element is not None:
            return describe_target(format_action(action, self.points), thought)
        return format_action(action, self.points, thought=thought)

    def _box(self, element: A11yElement) -> tuple[float, float, float, float]:
        across, down = (
            written / screen for written, screen in zip(self.points.coordinate_wh, self.points.screen_wh, strict=True)
        )
        right, bottom = element.x + element.w, element.y + element.h
        return element.x * across, element.y * down, right * across, bottom * down


def mentioned_texts(screens: Sequence[AnnotatedScreen]) -> frozenset[str]:
    """Collect the texts by which instructions call an element of their screen, so that they have to be read.

    Args:
        screens: Screens of recorded tasks.

    Returns:
        The texts; none where the instructions name elements by their places.
    """
    return frozenset(
        part.name
        for screen in screens
        for part in name_elements(screen)
        if part.by_text and _is_mentioned(part.name, screen)
    )


def text_sentences(screens: Sequence[AnnotatedScreen]) -> dict[str, list[str]]:
    """Collect how elements are asked for by a text that has to be read.

    Args:
        screens: Screens of recorded tasks.

    Returns:
        The sentences by text, both in alphabetical order.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for screen in screens:
        for part in name_elements(screen):
            if part.by_text:
                found[part.name].add(part.sentence)
    return {text: sorted(sentences) for text, sentences in sorted(found.items())}


def _is_mentioned(name: str, screen: AnnotatedScreen) -> bool:
    names = _names(screen)
    return names is not None and names.is_mentioned(name, screen.instruction)


def _names(screen: AnnotatedScreen) -> ScreenNames | None:
    return load_suite(screen.task_id.split("/", 1)[0]).screen_names


def _element_at(elements: Sequence[A11yElement], action: Action) -> A11yElement | None:
    """The smallest element that a click hits."""
    if action.type not in CLICKS:
        return None
    return next(iter(pointed_at(elements, action)), None)
