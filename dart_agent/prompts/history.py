"""What an episode has seen and said so far, as far as the next prompt needs it.

Role: the last N model-input images with the answers that followed them. Rule: an image that no prompt can show any more is let go, so
that an episode's memory does not grow with its length; all answers are kept (they are short). Non-goals: wording
(`dart_agent.prompts.builder`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dart_envs.types import RgbImage


@dataclass(frozen=True, slots=True)
class Turn:
    """One finished step: what the model saw (None once it is too old to be shown) and what it answered."""

    image: RgbImage | None
    text: str


class History:
    """Turns of one episode, oldest first; at most `images` pictures can be in a prompt, the coming one included."""

    def __init__(self, images: int) -> None:
        self._images = images
        self._turns: list[Turn] = []

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All finished steps."""
        return tuple(self._turns)

    def add(self, image: RgbImage, text: str) -> None:
        """One more step is finished."""
        self._turns.append(Turn(image, text))
        old = len(self._turns) - self._images
        if old >= 0:
            self._turns[old] = Turn(None, self._turns[old].text)
