"""Actions whose targets are described instead of given as coordinates.

Role: `find_targets` finds the descriptions in an answer, `fill_targets` puts points in their place, `describe_target` does the contrary.
Rule: the language is UI-TARS' (`dart_envs.action_formats.uitars`); where a box would hold coordinates, it may hold words:
`click(start_box='the button that saves the file')`, `drag(start_box='the first row', end_box='the bin')`. What holds coordinates is left
alone, so that an answer may use either. Only the text behind the last "Action:" is looked at. Non-goals: finding the elements
(`dart_agent.grounding.acting.pointer`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dart_agent.grounding.scoring import Point
from dart_envs.observations.geometry import Coordinates

TARGET_RULES = (
    "Instead of (x,y), a box may describe one element in words, such as click(start_box='the button that saves the file'): "
    "the element is looked for on the screen. Write no quotes inside a description."
)
"""What a planner is told beside the list of actions."""
MAX_TARGET = 300
_TYPED = r"\bcontent\s*=\s*(?P<typed>['\"])(?:\\.|[^\\])*?(?P=typed)(?=\s*(?:,\s*[A-Za-z_]\w*\s*=|\)\s*(?:\n|$)))"
_BOX = r"\b(?:start_box|end_box|point)\s*=\s*(?P<quote>['\"])(?P<value>[^'\"\n]*)(?P=quote)"
_ARGUMENT = re.compile(f"{_TYPED}|{_BOX}", re.DOTALL)
"""A text that is typed or told, in which nothing is a box, or a box with its value."""
_MARKS = re.compile(r"<\|box_start\|>|<\|box_end\|>|</?point>|</?bbox>")
_ACTION = re.compile(r"Action\s*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TargetSpan:
    """A description in an answer.

    Attributes:
        text: The description, without the marks that a box may stand in.
        start: Where the value of the box begins in the answer, marks included.
        end: Where it ends.
    """

    text: str
    start: int
    end: int

    @property
    def instruction(self) -> str:
        """What the head is asked: an instruction, as its samples have them."""
        return head_instruction(self.text)


def head_instruction(description: str) -> str:
    """What the head is asked to find.

    Args:
        description: An element in words.

    Returns:
        An instruction, as its samples have them.
    """
    return description if description.lower().startswith("click ") else f"click {description}"


def describe_target(answer: str, description: str) -> str:
    """Put a description in the place of the one point of an answer.

    Args:
        answer: An answer with one box that holds coordinates.
        description: The element in words.

    Returns:
        The answer; unchanged where the description has a quote or the answer has not one box.
    """
    boxes = list(re.finditer(_BOX, answer))
    if len(boxes) != 1 or set(description) & set("'\"\n") or not description:
        return answer
    return f"{answer[: boxes[0].start('value')]}{description}{answer[boxes[0].end('value') :]}"


def find_targets(answer: str) -> list[TargetSpan]:
    """Find the descriptions of an answer.

    Args:
        answer: What the planner said.

    Returns:
        In the order of the answer, none where every box holds coordinates. A description that is longer than `MAX_TARGET` or spells a
        special token, which no question may hold, is left out.
    """
    marks = list(_ACTION.finditer(answer))
    if not marks:
        return []
    found = []
    for box in _ARGUMENT.finditer(answer, marks[-1].end()):
        words = _MARKS.sub("", box["value"] or "").strip()
        if re.search(r"[^\W\d_]", words) and "<|" not in words and len(words) <= MAX_TARGET:
            found.append(TargetSpan(words, box.start("value"), box.end("value")))
    return found


def fill_targets(
    answer: str,
    targets: Sequence[TargetSpan],
    points: Sequence[Point],
    image_wh: tuple[int, int],
    coordinates: Coordinates = "pixels",
) -> str:
    """Put points in the place of descriptions.

    Args:
        answer: What the planner said.
        targets: Its descriptions, as found.
        points: Where each is, in pixels of the image.
        image_wh: (width, height) of the image.
        coordinates: What the numbers of the answer mean.

    Returns:
        An answer that an action format reads.
    """
    for target, (x, y) in sorted(zip(targets, points, strict=True), key=lambda pair: -pair[0].start):
        written = [
            min(size - 1, int(at)) if coordinates == "pixels" else min(1000, round(at * 1000 / size))
            for at, size in zip((x, y), image_wh, strict=True)
        ]
        answer = f"{answer[: target.start]}({written[0]},{written[1]}){answer[target.end :]}"
    return answer
