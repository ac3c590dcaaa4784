"""Which screen a desktop shows: the identity of the nodes of an exploration.

Role: `identify` reduces a view to (application, tree shape, perceptual hash); `ScreenIndex` finds the known screen that a view is. Rule:
two views are the same screen where application and tree shape are equal and the perceptual hashes differ in at most `max_distance` bits.

- Tree shape: SHA-256 over the sorted elements as (role, name, selected or expanded), each with how often it occurs. Elements that hold
  content (texts, rows, labels) count once per role and without a name, so that a longer list is the same screen; plain containers do not
  count. Digits in names are replaced, so that "3 items" and "4 items" are the same.
- Perceptual hash: a difference hash of 16 x 16 bits. The grey image is averaged to 17 x 16 cells; a bit is set where a cell is brighter
  than its left neighbour by at least 2 of 255 levels, so that flat areas give 0 whatever their noise.

`appeared_names` tells what a view shows that another one did not.

Non-goals: what can be done on a screen (`dart_agent.explore.candidates`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from dart_envs.observations.views import MARKED_ROLES
from dart_envs.types import RgbImage
from dart_server.wire import A11yElement

HASH_SIDE = 16
HASH_BITS = HASH_SIDE * HASH_SIDE
MAX_DISTANCE = 20
"""Bits of the perceptual hash that may differ within one screen."""
BRIGHTER_LEVELS = 2
PIXEL_LEVELS = 8
"""A pixel has changed when a channel differs by more than so many of 255 levels."""
CHANGED_SHARE = 0.001
"""A screen has changed visibly when more than this share of its pixels has; a blinking caret is less."""
CONTROL_ROLES = frozenset(
    [
        "alert",
        "check box",
        "check menu item",
        "combo box",
        "dialog",
        "frame",
        "link",
        "menu",
        "menu item",
        "page tab",
        "push button",
        "radio button",
        "radio menu item",
        "slider",
        "spin button",
        "toggle button",
        "window",
    ]
)
"""Roles that count one by one and with their names. A window's title may hold a document's name, so that it is left out."""
WINDOW_ROLES = frozenset({"alert", "dialog", "frame", "window"})
_CONTAINER_ROLES = frozenset(
    {
        "application",
        "filler",
        "panel",
        "redundant object",
        "scroll pane",
        "section",
        "separator",
        "split pane",
        "viewport",
    }
)
_SHOWN_STATES = ("expanded", "selected")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class ScreenView:
    """What a desktop shows at one moment.

    Attributes:
        image: uint8 `[H, W, 3]`.
        elements: The showing elements of the accessibility tree; empty where there is none.
        application: Which application has the focus, such as a window class; "" where none has.
        window: Title of its window.
    """

    image: RgbImage
    elements: tuple[A11yElement, ...]
    application: str
    window: str = ""

    @property
    def resolution(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        return self.image.shape[1], self.image.shape[0]


@dataclass(frozen=True, slots=True)
class ScreenIdentity:
    """What tells screens apart.

    Attributes:
        application: As in the view.
        shape_hash: Hash of the tree's shape; "" where there is no tree.
        perceptual_hash: Difference hash of the image, `HASH_BITS` bits.
    """

    application: str
    shape_hash: str
    perceptual_hash: int


def identify(view: ScreenView) -> ScreenIdentity:
    """Reduce a view to its identity.

    Args:
        view: The view.

    Returns:
        The identity.
    """
    return ScreenIdentity(view.application, shape_hash(view.elements), perceptual_hash(view.image))


def shape_hash(elements: Iterable[A11yElement]) -> str:
    """Hash the shape of a tree; the module's docstring says what counts.

    Args:
        elements: The showing elements.

    Returns:
        16 hexadecimal digits; "" where no element counts.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    for element in elements:
        if element.role in _CONTAINER_ROLES:
            continue
        if element.role not in CONTROL_ROLES:
            counts[(element.role,)] = 1
            continue
        name = "" if element.role in WINDOW_ROLES else without_digits(element.name.strip())
        counts[(element.role, name, *(state for state in _SHOWN_STATES if state in element.states))] += 1
    if not counts:
        return ""
    text = json.dumps(sorted((*token, str(count)) for token, count in counts.items()))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def without_digits(name: str) -> str:
    """A name with each number replaced by #, so that what counts or shows the time has one name."""
    return _DIGITS.sub("#", name)


def perceptual_hash(image: RgbImage) -> int:
    """Hash the look of an image.

    Args:
        image: uint8 `[H, W, 3]`.

    Returns:
        `HASH_BITS` bits, the cell at the top left as the highest.
    """
    grey = Image.fromarray(image).convert("L").resize((HASH_SIDE + 1, HASH_SIDE), Image.Resampling.BOX)
    cells = np.asarray(grey, np.int16)
    bits = cells[:, 1:] - cells[:, :-1] >= BRIGHTER_LEVELS
    return int.from_bytes(np.packbits(bits.reshape(-1)).tobytes(), "big")


def hash_distance(first: int, second: int) -> int:
    """Number of bits in which two perceptual hashes differ."""
    return (first ^ second).bit_count()


def has_changed(before: RgbImage, after: RgbImage) -> bool:
    """Whether a person would see a difference.

    Args:
        before: uint8 `[H, W, 3]`.
        after: The same size, else it has changed.

    Returns:
        Whether more than `CHANGED_SHARE` of the pixels differ by more than `PIXEL_LEVELS`.
    """
    if before.shape != after.shape:
        return True
    differs = np.maximum(before, after) - np.minimum(before, after) > PIXEL_LEVELS
    changed = differs[..., 0] | differs[..., 1] | differs[..., 2]
    return bool(changed.mean() > CHANGED_SHARE)


def appeared_names(before: Iterable[A11yElement], after: Iterable[A11yElement]) -> tuple[str, ...]:
    """Names of controls that a view has and another one has not.

    Args:
        before: The elements of the view before.
        after: Those of the view after it.

    Returns:
        Names in the order of the tree, each once.
    """
    old = {element.name.strip() for element in before}
    names = (element.name.strip() for element in after if element.role in MARKED_ROLES)
    return tuple(dict.fromkeys(name for name in names if name and name not in old))


class ScreenIndex:
    """Finds known screens.

    Args:
        max_distance: Bits of the perceptual hash that may differ within one screen.
    """

    def __init__(self, max_distance: int = MAX_DISTANCE) -> None:
        self._max_distance = max_distance
        self._known: dict[tuple[str, str], list[tuple[int, int]]] = {}

    def add(self, screen_id: int, identity: ScreenIdentity) -> None:
        """Add a screen; the view that it was first seen as stands for it."""
        place = (identity.application, identity.shape_hash)
        self._known.setdefault(place, []).append((screen_id, identity.perceptual_hash))

    def find(self, identity: ScreenIdentity) -> int | None:
        """Find the screen that a view is.

        Args:
            identity: That of the view.

        Returns:
            The id of the most alike known screen, the oldest of equals; None where the view is a new screen.
        """
        alike: Sequence[tuple[int, int]] = self._known.get((identity.application, identity.shape_hash), ())
        if not alike:
            return None
        distance, screen_id = min((hash_distance(known, identity.perceptual_hash), at) for at, known in alike)
        return screen_id if distance <= self._max_distance else None
