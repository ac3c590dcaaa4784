"""What can be asked about an annotated screen, with the right answers.

Role: `place_queries` asks for parts by their place among their like ("Choose the second row.") and for the buttons that commit
or cancel; `procedure_query` asks for what the demonstration did. Rule: answers are `click`s on the middle of an element, on the
model's coordinate grid and still inside it, in the words of `dart_agent.parse`. Non-goals: choosing which to ask
(`dart_train.warmup.fit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dart_agent.geometry import PointMap
from dart_agent.parse import format_action
from dart_envs.types import Action, ActionType
from dart_server.wire import A11yElement
from dart_train.warmup.screens import WINDOW_ROLES, Screen

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
VERBS = {"button": "Press", "row": "Choose", "box": "Tick"}
COMMITTING = frozenset({"OK", "Cancel", "Close", "Apply", "Save", "Open", "Yes", "No"})


@dataclass(frozen=True, slots=True)
class Query:
    """One question about a screen. box: (x0, y0, x1, y1) in model-input pixels where a click is right, None if it is not a click."""

    instruction: str
    past_answers: tuple[str, ...]
    answer: str
    box: tuple[float, float, float, float] | None


def place_queries(screen: Screen, points: PointMap, step_px: int) -> list[Query]:
    """Every part of the screen that can be named by its place, with every name it has."""
    windows = sorted(
        (element for element in screen.elements if element.role in WINDOW_ROLES), key=lambda element: element.y
    )
    sides = [""] if len(windows) < 2 else [" above", *([""] * (len(windows) - 2)), " below"]
    queries: list[Query] = []
    for window, side in zip(windows, sides, strict=True):
        inside = [element for element in screen.elements if element is not window and _within(element, window)]
        for noun, members in _alike(inside):
            for index, member in enumerate(members):
                names = {ORDINALS[index]} if index < len(ORDINALS) else set()
                if index == len(members) - 1:
                    names.add("last")
                queries.extend(
                    _ask(f"{VERBS[noun]} the {name} {noun}{side}.", member, points, step_px) for name in sorted(names)
                )
        queries.extend(
            _ask(f"Press {element.name}{side}.", element, points, step_px) for element in _committing(inside)
        )
    return queries


def procedure_query(screen: Screen, points: PointMap, step_px: int) -> Query | None:
    """What the demonstration did here; None where it did nothing."""
    if screen.action is None:
        return None
    aimed = _under(screen.elements, screen.action)
    past = () if screen.previous is None else (_snapped(screen.previous, None, points, step_px),)
    answer = _snapped(screen.action, aimed, points, step_px)
    return Query(screen.instruction, past, answer, None if aimed is None else _model_box(aimed, points))


def _ask(words: str, element: A11yElement, points: PointMap, step_px: int) -> Query:
    middle = Action(ActionType.CLICK, x=element.x + element.w // 2, y=element.y + element.h // 2)
    return Query(words, (), _snapped(middle, element, points, step_px), _model_box(element, points))


def _snapped(action: Action, element: A11yElement | None, points: PointMap, step_px: int) -> str:
    """The action's text; a click goes to the grid point nearest to the middle of `element` (or to where it was aimed)."""
    if action.type is not ActionType.CLICK or action.x is None or action.y is None:
        return format_action(action, points)
    if element is None:
        x, y = points.to_written(action.x, action.y)
    else:
        x0, y0, x1, y1 = _model_box(element, points)
        x, y = int((x0 + x1) / 2), int((y0 + y1) / 2)
    width, height = points.written_wh
    screen = points.to_screen(_to_grid(x, step_px, width), _to_grid(y, step_px, height))
    if screen is None:
        return format_action(action, points)
    return format_action(Action(ActionType.CLICK, x=screen[0], y=screen[1]), points)


def _to_grid(value: int, step_px: int, limit: int) -> int:
    return min(max(value, 0), limit - 1) // step_px * step_px + step_px // 2


def _model_box(element: A11yElement, points: PointMap) -> tuple[float, float, float, float]:
    across, down = (written / screen for written, screen in zip(points.written_wh, points.screen_wh, strict=True))
    return (
        element.x * across,
        element.y * down,
        (element.x + element.w) * across,
        (element.y + element.h) * down,
    )


def _alike(inside: Sequence[A11yElement]) -> list[tuple[str, list[A11yElement]]]:
    """Buttons from left to right, rows and boxes from top to bottom."""
    buttons = [e for e in inside if e.role == "push button" and e.name not in COMMITTING]
    cells = [e for e in inside if e.role == "table cell"]
    boxes = [e for e in cells if not e.name] + [e for e in inside if e.role == "check box"]
    rows = [e for e in cells if e.name]
    groups = [("button", sorted(buttons, key=lambda e: (e.y // 20, e.x)))]
    groups.append(("box", sorted(boxes, key=lambda e: e.y)))
    if not boxes:
        groups.append(("row", sorted(rows, key=lambda e: e.y)))
    return [(noun, members) for noun, members in groups if members]


def _committing(inside: Sequence[A11yElement]) -> list[A11yElement]:
    return [e for e in inside if e.role == "push button" and e.name in COMMITTING]


def _within(element: A11yElement, window: A11yElement) -> bool:
    return (
        window.x <= element.x
        and window.y <= element.y
        and element.x + element.w <= window.x + window.w
        and element.y + element.h <= window.y + window.h
    )


def _under(elements: Sequence[A11yElement], action: Action) -> A11yElement | None:
    """The smallest element that a click hits."""
    if action.type is not ActionType.CLICK or action.x is None or action.y is None:
        return None
    hit = [e for e in elements if e.x <= action.x < e.x + e.w and e.y <= action.y < e.y + e.h]
    return min(hit, key=lambda e: e.w * e.h, default=None)
