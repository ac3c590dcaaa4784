"""The text of answers, pointer tokens in the place of coordinates, and what cannot be asked.

Role: `answer_text` writes what the assistant says to point at so many targets, or to refuse; `check_question` refuses what no model with a
head can be asked, before one is loaded. Rule: GUI-Actor's form of an answer, in which a recipient comes first; pointing is for the
desktop, a refusal for the user. Non-goals: reading coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping

from dart_agent.errors import ConfigError

RECIPIENT, END_OF_ACTION = "<|recipient|>", "<|diff_marker|>"
POINTER_START, POINTER_END, POINTER_PAD = "<|pointer_start|>", "<|pointer_end|>", "<|pointer_pad|>"
ADDED_TOKENS = (RECIPIENT, END_OF_ACTION, POINTER_START, POINTER_END, POINTER_PAD)
"""In the order in which the published checkpoints number them."""
DESKTOP, USER = "os", "all"
"""Recipients."""
_POINTER = f"{POINTER_START}{POINTER_PAD}{POINTER_END}"
_ACTIONS: Mapping[int, str] = {
    1: f"pyautogui.click({_POINTER})",
    2: f"pyautogui.dragTo(from_coord={_POINTER}, to_coord={_POINTER})",
}
MAX_TARGETS = max(_ACTIONS)
IMAGE_PAD = "<|image_pad|>"
"""Stands for an image in a prompt."""
MAX_ASPECT_RATIO = 200
"""Of the longer to the shorter side of an image, in the image processors of all three families."""


def answer_text(targets: int) -> str:
    """The answer with so many targets.

    Args:
        targets: 1 for a click, 2 for a drag, 0 for a refusal.

    Returns:
        The text after the head of the assistant's turn.

    Raises:
        ConfigError: No answer has so many targets.
    """
    if targets == 0:
        return f"{RECIPIENT}{USER}\nNone{END_OF_ACTION}"
    if targets not in _ACTIONS:
        raise ConfigError(f"an answer has at most {MAX_TARGETS} targets, not {targets}: divide the question")
    return f"{RECIPIENT}{DESKTOP}\n{_ACTIONS[targets]}{END_OF_ACTION}"


def check_question(image_wh: tuple[int, int], instruction: str, targets: int = 1) -> None:
    """Check that a model with a head can be asked.

    Args:
        image_wh: (width, height) of the image in pixels.
        instruction: What is asked.
        targets: How many points the answer has; 0: it refuses.

    Raises:
        ConfigError: It cannot.
    """
    check_image(image_wh)
    check_instruction(instruction)
    answer_text(targets)


def check_image(image_wh: tuple[int, int]) -> None:
    """Check that an image processor takes an image.

    Args:
        image_wh: (width, height) in pixels.

    Raises:
        ConfigError: It does not.
    """
    if max(image_wh) > MAX_ASPECT_RATIO * min(image_wh):
        raise ConfigError(
            f"an image of {image_wh[0]}x{image_wh[1]} pixels cannot be asked about, because one side is more than "
            f"{MAX_ASPECT_RATIO} times the other: crop it"
        )


def check_instruction(instruction: str) -> None:
    """Check that an instruction has no token that stands for an image or a point.

    Args:
        instruction: What is asked.

    Raises:
        ConfigError: It has one.
    """
    for token in (IMAGE_PAD, POINTER_PAD):
        if token in instruction:
            raise ConfigError(f"an instruction cannot contain {token}: leave it out")
