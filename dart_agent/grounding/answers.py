"""The text of answers: pointer tokens in the place of coordinates.

Role: `answer_text` writes what the assistant says to point at so many targets, or to refuse. Rule: GUI-Actor's form of an answer, in which
a recipient comes first; pointing is for the desktop, a refusal for the user. Non-goals: reading coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def answer_text(targets: int) -> str:
    """The answer with so many targets.

    Args:
        targets: 1 for a click, 2 for a drag, 0 for a refusal.

    Returns:
        The text after the head of the assistant's turn.
    """
    if targets == 0:
        return f"{RECIPIENT}{USER}\nNone{END_OF_ACTION}"
    return f"{RECIPIENT}{DESKTOP}\n{_ACTIONS[targets]}{END_OF_ACTION}"
