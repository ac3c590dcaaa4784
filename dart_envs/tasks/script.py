"""Scripts: how a task's oracle and its near miss say what a person would do.

Role: moves as data, and resolving their targets on the screen of the moment. Rule: targets are found through the
accessibility tree, as a teacher may; what comes out are canonical actions, real input events, or Python that the desktop's
user runs, for what a person would do in a shell. Non-goals: the policy never sees any of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dart_envs.actions import ACTION_SPECS, check_action
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.errors import ActionError
from dart_envs.types import Action, ActionType, DecodedAction, Desktop
from dart_server.wire import A11yElement, Clock

TARGET_TIMEOUT_S = 5.0
"""So long a move's target may take to appear, as a window of a busy program does."""
TARGET_POLL_S = 0.25
WINDOW_ROLES = frozenset({"dialog", "alert", "frame", "window", "file chooser"})
MAX_DESCRIBED_ELEMENTS = 12
MAX_DESCRIBED_CHARS = 40


class ElementTarget(BaseModel):
    """An element of the accessibility tree.

    Attributes:
        role: Role that it must have; None matches all.
        name: Name that it must have; None matches all.
        text: Text that it must have; None matches all.
        window: Name of the window that it is in; None: any.
        nth: Which of several, in tree order, from 0; -1: the last.
        at: Where in its box to point, as shares of its width and height.
        dx: Pixels to add to that point, to the right.
        dy: Pixels to add to that point, downwards.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: str | None = None
    name: str | None = None
    text: str | None = None
    window: str | None = None
    nth: int = 0
    at: tuple[float, float] = (0.5, 0.5)
    dx: int = 0
    dy: int = 0

    def __str__(self) -> str:
        named = "" if self.name is None else f" {self.name!r}"
        held = "" if self.window is None else f" in window {self.window!r}"
        return f"{self.role or 'element'}{named}{held}"


class ActionTemplate(BaseModel):
    """One entry of a script: an action type, and the target that it needs; or `code`, which is Python for the desktop's user to run.

    Attributes:
        do: Type of the action, or `code`.
        target: The element to point at; for a drag, where it begins.
        to: The element at which a drag ends.
        text: Text to type; with `code` the Python that is run.
        keys: Keys that are pressed together.
        dy: Clicks of the wheel, upwards.
        duration_s: Seconds that a `wait` takes.
        deferred: Resolve it only when it is its turn, because its target moves, or another one looks like it before.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    do: ActionType | Literal["code"]
    target: ElementTarget | None = None
    to: ElementTarget | None = None
    text: str = ""
    keys: tuple[str, ...] = ()
    dy: int = 0
    duration_s: float = Field(default=1.0, gt=0, le=60)
    deferred: bool = False

    @model_validator(mode="after")
    def _can_be_done(self) -> ActionTemplate:
        """Refuse what no screen could make an action: a missing target, a key that does not exist, text that cannot be typed."""
        if self.do == "code":
            return self
        needs = ACTION_SPECS[self.do].fields
        for name, target, coordinate in (("target", self.target, "x"), ("to", self.to, "x2")):
            if (target is not None) != (coordinate in needs):
                raise ValueError(f"a {self.do} {'needs' if target is None else 'takes no'} {name}")
        x, y = (0, 0) if self.target is not None else (None, None)
        x2, y2 = (0, 0) if self.to is not None else (None, None)
        try:
            check_action(
                Action(
                    self.do,
                    x=x,
                    y=y,
                    x2=x2,
                    y2=y2,
                    dy=self.dy,
                    text=self.text,
                    keys=self.keys,
                    duration_s=self.duration_s,
                ),
                (1, 1),
            )
        except ActionError as error:
            raise ValueError(str(error).rstrip(".")) from error
        return self


@dataclass(frozen=True, slots=True)
class ScriptAction:
    """A resolved move. target: what it points at, None for keys and the like."""

    action: Action | DecodedAction
    target: A11yElement | None = None


def _shown_elements(elements: Sequence[A11yElement]) -> Iterator[tuple[A11yElement, str]]:
    """Elements with a box, each with the name of its window."""
    window = ""
    for element in elements:
        if element.role in WINDOW_ROLES:
            window = element.name
        if element.w > 0 and element.h > 0:
            yield element, window


def find_element(elements: Sequence[A11yElement], target: ElementTarget) -> A11yElement:
    """The element that is meant. Raises LookupError, which names elements of the screen, when there is none."""
    fitting = [
        element
        for element, window in _shown_elements(elements)
        if target.role in (None, element.role)
        and target.name in (None, element.name)
        and target.text in (None, element.text.strip())
        and target.window in (None, window)
    ]
    try:
        return fitting[target.nth]
    except IndexError:
        raise LookupError(f"no {target} on the screen; {describe_elements(elements, target)}") from None


def describe_elements(elements: Sequence[A11yElement], target: ElementTarget) -> str:
    """Say what the screen has in place of a target, in one clause: elements of its role first, those without a name last."""
    shown = list(_shown_elements(elements))
    if not shown:
        return "its accessibility tree is empty"
    shown.sort(key=lambda pair: (pair[0].role != target.role, not pair[0].name))
    described: dict[str, None] = {}
    for element, window in shown:
        named = f" {_shorten(element.name)!r}" if element.name else ""
        text = f" with text {_shorten(element.text.strip())!r}" if target.text is not None and element.text else ""
        held = f" in window {_shorten(window)!r}" if target.window not in (None, window) else ""
        described[f"{element.role}{named}{text}{held}"] = None
    left = len(described) - MAX_DESCRIBED_ELEMENTS
    more = f" and {left} more" if left > 0 else ""
    return f"it shows {', '.join(list(described)[:MAX_DESCRIBED_ELEMENTS])}{more}"


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_DESCRIBED_CHARS else text[: MAX_DESCRIBED_CHARS - 1] + "…"


def target_point(element: A11yElement, target: ElementTarget) -> tuple[int, int]:
    """Screen pixel that a target points at."""
    x = element.x + int(element.w * target.at[0]) + target.dx
    y = element.y + int(element.h * target.at[1]) + target.dy
    return x, y


def to_action(move: ActionTemplate, elements: Sequence[A11yElement]) -> ScriptAction:
    """Resolve one move. Raises LookupError when a target is not there."""
    if move.do == "code":
        return ScriptAction(DecodedAction(code=move.text))
    element: A11yElement | None = None
    x = y = x2 = y2 = None
    if move.target is not None:
        element = find_element(elements, move.target)
        x, y = target_point(element, move.target)
    if move.to is not None:
        x2, y2 = target_point(find_element(elements, move.to), move.to)
    action = Action(
        move.do, x=x, y=y, x2=x2, y2=y2, dy=move.dy, text=move.text, keys=move.keys, duration_s=move.duration_s
    )
    return ScriptAction(action, element)


async def resolve_actions(
    desktop: Desktop, moves: Sequence[ActionTemplate], *, timeout_s: float = 0.0, clock: Clock = SYSTEM_CLOCK
) -> list[ScriptAction]:
    """Resolve moves on the screen as it is now, up to the first (but not the very first) whose time has not come.

    timeout_s: so long the target of the first is waited for. Raises LookupError when it is not on the screen then.
    """
    until_s = clock.monotonic() + timeout_s
    while True:
        try:
            return await _resolve_now(desktop, moves)
        except LookupError:
            if clock.monotonic() >= until_s:
                raise
            await clock.sleep(TARGET_POLL_S)


async def _resolve_now(desktop: Desktop, moves: Sequence[ActionTemplate]) -> list[ScriptAction]:
    plays: list[ScriptAction] = []
    elements: list[A11yElement] | None = None
    for index, move in enumerate(moves):
        if index and move.deferred:
            break
        if elements is None and (move.target is not None or move.to is not None):
            elements = await desktop.a11y()
        try:
            plays.append(to_action(move, elements or []))
        except LookupError:
            if index == 0:
                raise
            break
    return plays
