"""What can be done on a screen: candidate actions from the accessibility tree, and from vision alone.

Role: `list_candidates` returns the candidates of a view. Rule: a candidate has a key, by which it is found again on later visits of its
screen, and a group, which it shares with similar elements of other screens. Both come from what is done, role and name; an element without
a name is told by its place on a grid instead. Numbers in names do not count in the group, so that a clock is not new at each look. Of
several elements that would have the same key, each has its number. Elements that are not sensitive, outside the screen, or whose name is to
be avoided are left out.

From vision alone: the image is cut into cells of 8 x 8 pixels; cells with strong gradients that touch form regions; regions of the size of
a control are clicked in their middle. No region is clicked in an element that is to be avoided. Where the tree is used, none is clicked in
an element of a marked role either, whether it has a candidate or not.

Non-goals: which candidate is taken (`dart_agent.explore.choosers`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from pydantic import field_validator

from dart_agent.explore.screens import WINDOW_ROLES, ScreenView, without_digits
from dart_agent.grounding.samples import Box
from dart_agent.strict_model import StrictModel
from dart_envs.actions import action_from_dict, action_to_dict
from dart_envs.observations.views import MARKED_ROLES
from dart_envs.types import Action, ActionType, RgbImage
from dart_server.wire import A11yElement

CandidateSource = Literal["tree", "vision", "keyboard"]
"""Where a candidate comes from."""
VisionUse = Literal["never", "beside_tree", "without_tree", "only"]
"""When candidates come from vision: never; beside those of the tree; where the tree has none; instead of the tree."""
TYPED_ROLES = frozenset({"entry", "password text", "text", "spin button"})
OPENED_ROLES = frozenset({"icon", "list item", "table cell", "tree item"})
"""A double click opens them."""
SCROLLED_ROLES = frozenset(
    {"document frame", "document web", "list", "scroll pane", "table", "text", "tree", "tree table"}
)
WHOLE_ROLES = WINDOW_ROLES | {"application", "document frame", "document web"}
"""Their names are those of windows and documents, which hold more than what the name says."""
CELL_PX = 8
GRADIENT_LEVELS = 40
"""Sum of the differences to the right and the lower neighbour from which a pixel counts as an edge."""
MIN_EDGE_PIXELS = 3
MIN_SIDE_PX = 8
MAX_WIDTH_SHARE, MAX_HEIGHT_SHARE = 0.5, 0.2
PLACE_CELLS = 16
"""Cells per side of the grid by which elements without a name are told apart."""
SCROLL_CLICKS = 5
ALWAYS_AVOIDED = (r"\blog ?out\b", r"\bshut ?down\b", r"\breboot\b", r"\bsuspend\b")
"""Names of elements that end the session, whatever the application is."""


class CandidateSettings(StrictModel):
    """Which candidates there are.

    Attributes:
        vision: When candidates come from vision.
        max_candidates: Most candidates of a screen; the first ones are kept.
        text: What is typed into entries, where no model writes something else.
        avoid: Regular expressions; elements whose name holds one of them are never touched, not by vision either. Case does not count.
        escape: Whether pressing Escape is a candidate of every screen.
    """

    vision: VisionUse = "without_tree"
    max_candidates: int = 120
    text: str = "Alpha 42"
    avoid: tuple[str, ...] = ALWAYS_AVOIDED
    escape: bool = True

    @field_validator("avoid")
    @classmethod
    def _are_expressions(cls, avoid: tuple[str, ...]) -> tuple[str, ...]:
        for expression in avoid:
            try:
                re.compile(expression)
            except re.error as error:
                raise ValueError(f"{expression!r} is no regular expression: {error}") from None
        return avoid


@dataclass(frozen=True, slots=True)
class CandidateAction:
    """Something that can be done on a screen.

    Attributes:
        key: Names it on its screen.
        group: Names it and similar elements of all screens.
        kind: What is done: `click`, `double_click`, `fill`, `scroll_down`, `scroll_up` or `escape`.
        actions: What is performed, in order, in screen pixels.
        source: Where it comes from.
        role: Role of the element; "region" from vision, "" for keys.
        name: Name of the element.
        box: (left, top, right, bottom) of the element, in pixels; None for keys.
    """

    key: str
    group: str
    kind: str
    actions: tuple[Action, ...]
    source: CandidateSource
    role: str = ""
    name: str = ""
    box: Box | None = None

    def describe(self) -> str:
        """What it is, in a few words."""
        what = f"{self.role} {self.name!r}" if self.name else self.role
        return f"{self.kind.replace('_', ' ')} {what}".strip()

    def with_text(self, text: str) -> CandidateAction:
        """The same with another text to type.

        Args:
            text: The text.

        Returns:
            A candidate with the same key.
        """
        actions = tuple(replace(one, text=text) if one.type is ActionType.TYPE else one for one in self.actions)
        return replace(self, actions=actions)

    def to_dict(self) -> dict[str, Any]:
        """Its JSON form, for the store."""
        return {
            "key": self.key,
            "group": self.group,
            "kind": self.kind,
            "actions": [action_to_dict(one) for one in self.actions],
            "source": self.source,
            "role": self.role,
            "name": self.name,
            "box": None if self.box is None else list(self.box),
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> CandidateAction:
        """Read the JSON form.

        Args:
            record: What `to_dict` wrote.

        Returns:
            The candidate.
        """
        left = {**record, "actions": tuple(action_from_dict(one) for one in record["actions"])}
        return cls(**left | {"box": None if record["box"] is None else tuple(record["box"])})


def list_candidates(view: ScreenView, settings: CandidateSettings) -> list[CandidateAction]:
    """List what can be done.

    Args:
        view: The screen.
        settings: Which candidates there are.

    Returns:
        Candidates with different keys: those of the tree in its order, then those of vision in reading order, then keys.
    """
    found = [] if settings.vision == "only" else list(_of_tree(view, settings))
    wants_vision = settings.vision in ("beside_tree", "only") or (settings.vision == "without_tree" and not found)
    if wants_vision:
        taken = [candidate.box for candidate in found if candidate.box is not None]
        controls = [] if settings.vision == "only" else [one for one in view.elements if one.role in MARKED_ROLES]
        untouched = [one for one in view.elements if one.role not in WHOLE_ROLES and _is_avoided(one, settings.avoid)]
        shown = (visible_box(one, view.resolution) for one in (*controls, *untouched))
        found += _of_vision(view, [*taken, *(box for box in shown if box is not None)])
    numbered = _number(found)[: settings.max_candidates]
    if settings.escape:
        press = Action(ActionType.KEY, keys=("esc",))
        numbered.append(CandidateAction("escape", "escape", "escape", (press,), "keyboard"))
    return numbered


def _is_avoided(element: A11yElement, avoid: Sequence[str]) -> bool:
    return any(re.search(expression, element.name, re.IGNORECASE) for expression in avoid)


def _of_tree(view: ScreenView, settings: CandidateSettings) -> Iterator[CandidateAction]:
    seen: set[tuple[str, Box]] = set()
    for element in view.elements:
        box = visible_box(element, view.resolution)
        if box is None or (element.role, box) in seen or (element.states and "sensitive" not in element.states):
            continue
        if _is_avoided(element, settings.avoid):
            continue
        seen.add((element.role, box))
        x, y = _middle(box)
        kinds: dict[str, tuple[Action, ...]] = {}
        if element.role in MARKED_ROLES:
            kinds["click"] = (Action(ActionType.CLICK, x=x, y=y),)
        if element.role in TYPED_ROLES:
            kinds["fill"] = (Action(ActionType.CLICK, x=x, y=y), Action(ActionType.TYPE, text=settings.text))
        if element.role in OPENED_ROLES:
            kinds["double_click"] = (Action(ActionType.DOUBLE_CLICK, x=x, y=y),)
        if element.role in SCROLLED_ROLES:
            kinds["scroll_down"] = (Action(ActionType.SCROLL, x=x, y=y, dy=-SCROLL_CLICKS),)
            kinds["scroll_up"] = (Action(ActionType.SCROLL, x=x, y=y, dy=SCROLL_CLICKS),)
        for kind, actions in kinds.items():
            name = element.name.strip()
            key, group = (
                f"{kind}|{element.role}|{told or _place(box, view.resolution)}" for told in (name, without_digits(name))
            )
            yield CandidateAction(key, group, kind, actions, "tree", element.role, name, box)


def _of_vision(view: ScreenView, taken: Sequence[Box]) -> list[CandidateAction]:
    found = []
    for box in find_regions(view.image):
        x, y = _middle(box)
        if any(left <= x <= right and top <= y <= bottom for left, top, right, bottom in taken):
            continue
        group = f"click|region|{_place(box, view.resolution)}"
        actions = (Action(ActionType.CLICK, x=x, y=y),)
        found.append(CandidateAction(group, group, "click", actions, "vision", "region", "", box))
    return found


def _number(candidates: Sequence[CandidateAction]) -> list[CandidateAction]:
    """Give candidates of one screen different keys."""
    counts: Counter[str] = Counter()
    numbered = []
    for candidate in candidates:
        counts[candidate.key] += 1
        number = counts[candidate.key]
        numbered.append(candidate if number == 1 else replace(candidate, key=f"{candidate.key}#{number}"))
    return numbered


def find_regions(image: RgbImage) -> list[Box]:
    """Find what could be a control, from pixels alone.

    Args:
        image: uint8 `[H, W, 3]`.

    Returns:
        Boxes in pixels, in reading order of cells.
    """
    grey = image.astype(np.int16).mean(axis=2)
    height, width = grey.shape
    rows, columns = height // CELL_PX, width // CELL_PX
    if rows == 0 or columns == 0:
        return []
    edges = np.zeros(grey.shape, np.float64)
    edges[:, :-1] += np.abs(np.diff(grey, axis=1))
    edges[:-1] += np.abs(np.diff(grey, axis=0))
    strong = (edges >= GRADIENT_LEVELS)[: rows * CELL_PX, : columns * CELL_PX]
    active = strong.reshape(rows, CELL_PX, columns, CELL_PX).sum(axis=(1, 3)) >= MIN_EDGE_PIXELS
    boxes = []
    waiting = {(int(row), int(column)) for row, column in np.argwhere(active)}
    for start in sorted(waiting):
        if start not in waiting:
            continue
        waiting.discard(start)
        cells, border = [start], [start]
        while border:
            row, column = border.pop()
            for near in ((row, column + 1), (row, column - 1), (row + 1, column), (row - 1, column)):
                if near in waiting:
                    waiting.discard(near)
                    border.append(near)
                    cells.append(near)
        box = _cells_box(cells)
        if _is_control_size(box, (width, height)):
            boxes.append(box)
    return boxes


def _cells_box(cells: Sequence[tuple[int, int]]) -> Box:
    rows, columns = [row for row, _ in cells], [column for _, column in cells]
    return (
        float(min(columns) * CELL_PX),
        float(min(rows) * CELL_PX),
        float((max(columns) + 1) * CELL_PX),
        float((max(rows) + 1) * CELL_PX),
    )


def _is_control_size(box: Box, resolution: tuple[int, int]) -> bool:
    width, height = box[2] - box[0], box[3] - box[1]
    return MIN_SIDE_PX <= width <= MAX_WIDTH_SHARE * resolution[0] and MIN_SIDE_PX <= height <= max(
        4 * CELL_PX, MAX_HEIGHT_SHARE * resolution[1]
    )


def visible_box(element: A11yElement, resolution: tuple[int, int]) -> Box | None:
    """The part of an element that is on the screen.

    Args:
        element: The element.
        resolution: (width, height) of the screen in pixels.

    Returns:
        Its box; None where less than 2 pixels each way are on the screen, which cannot be hit.
    """
    left, top = max(0, element.x), max(0, element.y)
    right, bottom = min(resolution[0], element.x + element.w), min(resolution[1], element.y + element.h)
    return (float(left), float(top), float(right), float(bottom)) if right - left >= 2 and bottom - top >= 2 else None


def _middle(box: Box) -> tuple[int, int]:
    return int((box[0] + box[2]) // 2), int((box[1] + box[3]) // 2)


def _place(box: Box, resolution: tuple[int, int]) -> str:
    x, y = _middle(box)
    return f"@{x * PLACE_CELLS // resolution[0]},{y * PLACE_CELLS // resolution[1]}"
