"""What an environment returns of an observation: size and form of the screenshot, texts, and marks on the screenshot.

`ObservationEncoder` has the observation space of an `ObservationSpec` and makes its elements. They are pure functions
of the observations of one episode; every element is inside the space and shares no memory with another. Actions are in
screen pixels whatever the size of the picture. Fetching the parts is in `dart_envs.envs.core`, prompts are in
`dart_agent.prompts.builder`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from dart_envs.observations.transforms import a11y_to_text, resize_image
from dart_envs.spaces import INSTRUCTION_LENGTH, TREE_LENGTH, UnicodeText
from dart_envs.types import Observation
from dart_server.wire import A11yElement

A11yFormat = Literal["json", "xml", "table"]
ColorMode = Literal["rgb", "gray"]
PixelDtype = Literal["uint8", "float32"]
PixelLayout = Literal["HWC", "CHW"]
PIXELS = "pixels"
PARTS = ("screenshot", "a11y", "a11y_xml", "a11y_table", "terminal", "marks")
MARKED_ROLES = frozenset(
    [
        "check box",
        "check menu item",
        "combo box",
        "entry",
        "icon",
        "link",
        "list item",
        "menu",
        "menu item",
        "page tab",
        "password text",
        "push button",
        "radio button",
        "radio menu item",
        "slider",
        "spin button",
        "table cell",
        "text",
        "toggle button",
        "tree item",
    ]
)
"""Roles that get a mark: what a person would click or type into."""
_ARROW_XY = ((0, 0), (0, 16), (4, 12), (7, 18), (9, 17), (6, 11), (11, 11))
"""Corners of the arrow, in pixels from its tip."""
_MARK_RGB, _LABEL_RGB = (220, 30, 30), (255, 255, 255)


@dataclass(frozen=True, slots=True)
class ObservationSpec:
    """What an observation holds.

    Attributes:
        screenshot_wh: (width, height) that screenshots are scaled to; None keeps the size of the screen.
        color_mode: `rgb`, 3 channels, or `gray`, 1 channel.
        dtype: `uint8`, 0 to 255, or `float32`, 0 to 1.
        layout: Order of the axes of a screenshot: `HWC` (height, width, channels) or `CHW`.
        frames: How many screenshots of the episode are stacked along the channels, the newest last. The first
            screenshot of an episode stands in for those before it.
        cursor: Whether an arrow is drawn at the position of the mouse pointer.
        pixels: Whether an observation is the screenshot alone, a plain Box instead of a Dict. There are no texts then.
        a11y: The accessibility tree as `json` (one element per line), OSWorld's `xml`, or a compact `table`; None
            leaves it out.
        terminal: Whether the text of the focused terminal is included.
        marks: Whether clickable elements get numbered boxes on the screenshot, with a table of them.
        instruction: Whether the task's instruction is included.

    Raises:
        ValueError: If a field has a value that is not allowed.
    """

    screenshot_wh: tuple[int, int] | None = None
    color_mode: ColorMode = "rgb"
    dtype: PixelDtype = "uint8"
    layout: PixelLayout = "HWC"
    frames: int = 1
    cursor: bool = False
    pixels: bool = False
    a11y: A11yFormat | None = None
    terminal: bool = False
    marks: bool = False
    instruction: bool = True

    def __post_init__(self) -> None:
        if self.screenshot_wh is not None and min(self.screenshot_wh) < 1:
            raise ValueError(f"screenshot_wh is (width, height) of at least one pixel each, not {self.screenshot_wh}.")
        if self.color_mode not in get_args(ColorMode) or self.a11y not in (None, *get_args(A11yFormat)):
            raise ValueError(
                f"color_mode is rgb or gray, a11y is json, xml, table or None; got {self.color_mode!r} and {self.a11y!r}."
            )
        if self.dtype not in get_args(PixelDtype) or self.layout not in get_args(PixelLayout):
            raise ValueError(
                f"dtype is uint8 or float32, layout is HWC or CHW; got {self.dtype!r} and {self.layout!r}."
            )
        if not isinstance(self.frames, int) or self.frames < 1:
            raise ValueError(f"frames is a whole number from 1 on, not {self.frames!r}.")
        if self.pixels and (self.a11y is not None or self.terminal or self.marks):
            raise ValueError("An observation of pixels has no texts; leave a11y, terminal and marks out.")

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that must be fetched at every step: `screenshot`, and `a11y`, `a11y_xml` and `terminal` where needed."""
        tree = self.a11y in ("json", "table") or self.marks
        wanted = {"a11y": tree, "a11y_xml": self.a11y == "xml", "terminal": self.terminal}
        return ("screenshot", *(name for name, is_wanted in wanted.items() if is_wanted))


ObservationSpecLike = ObservationSpec | Mapping[str, Any] | Sequence[str]
"""A spec, its fields by name, names of parts (`PARTS`), or `pixels`."""


def make_observation_spec(choice: ObservationSpecLike) -> ObservationSpec:
    """Make a spec from any of its forms.

    Args:
        choice: A spec, its fields by name, names of parts (`PARTS`), or `pixels` for the screenshot alone.

    Returns:
        The spec.

    Raises:
        ValueError: If a name or a value is not allowed.
    """
    if isinstance(choice, ObservationSpec):
        return choice
    if isinstance(choice, Mapping):
        unknown = sorted(set(choice) - {spec.name for spec in fields(ObservationSpec)})
        if unknown:
            raise ValueError(f"observation has no {', '.join(unknown)}; its fields are those of ObservationSpec.")
        return ObservationSpec(**choice)
    if choice == PIXELS:
        return ObservationSpec(pixels=True)
    names = (choice,) if isinstance(choice, str) else tuple(choice)
    trees = [name for name in names if name.startswith("a11y")]
    if set(names) - set(PARTS) or "screenshot" not in names or len(trees) > 1:
        raise ValueError(
            "observation is pixels, or must name screenshot and may name one of a11y, a11y_xml and a11y_table, terminal and "
            f"marks; got {names}."
        )
    forms: dict[str, A11yFormat] = {"a11y": "json", "a11y_xml": "xml", "a11y_table": "table"}
    return ObservationSpec(
        a11y=forms[trees[0]] if trees else None, terminal="terminal" in names, marks="marks" in names
    )


class ObservationEncoder:
    """The observation space of a spec, and its elements.

    Args:
        spec: What an observation holds.
        resolution: (width, height) of the screen in pixels.

    Attributes:
        spec: What an observation holds.
        space: The observation space.
    """

    def __init__(self, spec: ObservationSpec, resolution: tuple[int, int]) -> None:
        self.spec = spec
        width, height = spec.screenshot_wh or resolution
        self._picture_wh = (width, height)
        channels = (3 if spec.color_mode == "rgb" else 1) * spec.frames
        shape = (height, width, channels) if spec.layout == "HWC" else (channels, height, width)
        screenshot = spaces.Box(0, 255, shape, np.uint8) if spec.dtype == "uint8" else spaces.Box(0.0, 1.0, shape)
        self._frames: deque[NDArray[np.uint8]] = deque(maxlen=spec.frames)
        self._last_observation: Observation | None = None
        members: dict[str, Space[Any]] = {"screenshot": screenshot}
        if spec.instruction:
            members["instruction"] = UnicodeText(INSTRUCTION_LENGTH)
        members |= {name: UnicodeText(TREE_LENGTH) for name in self._texts()}
        self.space: Space[Any] = screenshot if spec.pixels else spaces.Dict(members)

    def _texts(self) -> list[str]:
        wanted = {"a11y": self.spec.a11y is not None, "terminal": self.spec.terminal, "marks": self.spec.marks}
        return [name for name, is_wanted in wanted.items() if is_wanted]

    def reset(self) -> None:
        """Begin an episode: forget the screenshots of the one before."""
        self._frames.clear()
        self._last_observation = None

    def encode(self, observation: Observation) -> Any:
        """Encode an observation of the running episode. The same observation once more does not add a frame.

        Args:
            observation: The observation, with the parts of `ObservationSpec.parts`.

        Returns:
            A fresh element of `space`.
        """
        screenshot = observation.screenshot
        element: dict[str, Any] = {}
        if self.spec.cursor:
            screenshot = draw_cursor(screenshot, observation.pointer)
        if self.spec.marks:
            marked = clickable_elements(observation.a11y or ())
            screenshot = draw_marks(screenshot, marked)
            element["marks"] = _to_text_space(a11y_to_table(marked, numbered=True))
        element["screenshot"] = self._stack_screenshot(observation, screenshot)
        if self.spec.pixels:
            return element["screenshot"]
        if self.spec.instruction:
            element["instruction"] = observation.instruction[:INSTRUCTION_LENGTH]
        if self.spec.a11y is not None:
            element["a11y"] = _to_text_space(self._tree(observation))
        if self.spec.terminal:
            element["terminal"] = _to_text_space(observation.terminal or "")
        return element

    def _stack_screenshot(self, observation: Observation, screenshot: NDArray[np.uint8]) -> NDArray[Any]:
        if observation is not self._last_observation:
            frame = self._encode_screenshot(screenshot)
            missing = self.spec.frames - 1 if self._last_observation is None else 0
            self._frames.extend([frame] * (missing + 1))
            self._last_observation = observation
        stacked: NDArray[Any] = np.concatenate(self._frames, axis=2)
        if self.spec.layout == "CHW":
            stacked = np.ascontiguousarray(stacked.transpose(2, 0, 1))
        return stacked if self.spec.dtype == "uint8" else stacked.astype(np.float32) / np.float32(255)

    def _encode_screenshot(self, screenshot: NDArray[np.uint8]) -> NDArray[np.uint8]:
        resized = resize_image(screenshot, self._picture_wh)
        if self.spec.color_mode == "rgb":
            return resized
        from PIL import Image

        return np.array(Image.fromarray(resized).convert("L"), dtype=np.uint8)[:, :, None]

    def _tree(self, observation: Observation) -> str:
        if self.spec.a11y == "xml":
            return observation.a11y_xml or ""
        elements = observation.a11y or ()
        return a11y_to_text(elements) if self.spec.a11y == "json" else a11y_to_table(elements)


def _to_text_space(text: str) -> str:
    """Return the part of a text that a text space can hold."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")[:TREE_LENGTH]


def a11y_to_table(elements: Iterable[A11yElement], *, numbered: bool = False) -> str:
    """Write elements as a tab-separated table with a header: role, name, text, x, y, w, h (pixels).

    Args:
        elements: The elements, one per line.
        numbered: Whether each line begins with the number of its mark.

    Returns:
        The text.
    """
    lines = ["\t".join((*(("mark",) if numbered else ()), "role", "name", "text", "x", "y", "w", "h"))]
    for number, one in enumerate(elements, start=1):
        cells = (*((number,) if numbered else ()), one.role, one.name, one.text, one.x, one.y, one.w, one.h)
        lines.append("\t".join(" ".join(str(cell).split()) for cell in cells))
    return "\n".join(lines)


def clickable_elements(elements: Iterable[A11yElement]) -> list[A11yElement]:
    """Return the elements that get a mark, in the order of the tree.

    Args:
        elements: The showing elements.

    Returns:
        Those with a role in `MARKED_ROLES` and a size above 0.
    """
    return [one for one in elements if one.role.replace("-", " ") in MARKED_ROLES and one.w > 0 and one.h > 0]


def draw_cursor(screenshot: NDArray[np.uint8], pointer: tuple[int, int]) -> NDArray[np.uint8]:
    """Draw an arrow, white with a black edge, whose tip is at the position of the mouse pointer.

    Args:
        screenshot: uint8 `[H, W, 3]`.
        pointer: (x, y) in pixels.

    Returns:
        A new image, uint8 `[H, W, 3]`.
    """
    from PIL import Image, ImageDraw

    image = Image.fromarray(screenshot)
    x, y = pointer
    corners = [(x + dx, y + dy) for dx, dy in _ARROW_XY]
    ImageDraw.Draw(image).polygon(corners, fill=(255, 255, 255), outline=(0, 0, 0))
    return np.array(image, dtype=np.uint8)


def draw_marks(screenshot: NDArray[np.uint8], marked: Sequence[A11yElement]) -> NDArray[np.uint8]:
    """Draw a box with a number, from 1, around each element.

    Args:
        screenshot: uint8 `[H, W, 3]`.
        marked: The elements.

    Returns:
        A new image, uint8 `[H, W, 3]`.
    """
    from PIL import Image, ImageDraw

    image = Image.fromarray(screenshot)
    draw = ImageDraw.Draw(image)
    for number, one in enumerate(marked, start=1):
        draw.rectangle((one.x, one.y, one.x + one.w - 1, one.y + one.h - 1), outline=_MARK_RGB)
        left, top, right, bottom = draw.textbbox((0, 0), str(number))
        label_wh = (right - left + 2, bottom - top + 2)
        x = min(max(one.x, 0), max(0, image.width - label_wh[0]))
        y = min(max(one.y, 0), max(0, image.height - label_wh[1]))
        draw.rectangle((x, y, x + label_wh[0], y + label_wh[1]), fill=_MARK_RGB)
        draw.text((x + 1 - left, y + 1 - top), str(number), fill=_LABEL_RGB)
    return np.array(image, dtype=np.uint8)
