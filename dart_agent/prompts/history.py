"""What an episode has seen and said so far, as far as the next prompt needs it.

Role: the finished turns that the next prompt shows, by one of four policies. Rule: what a prompt showed stays in the next one, in the same
place, unless the policy drops it; the turns then begin a new segment of the token stream. An image that no prompt can show any more is let
go, so that an episode's memory does not grow with its length. Non-goals: wording (`dart_agent.prompts.builder`), tokens.

    full      every screenshot and every answer                        one segment, until the context is full
    screens   every answer, the last N screenshots                     a new segment with each screenshot that is dropped
    window    the last N turns                                         drops more turns where the context is full
    summary   the last N turns; of the earlier ones their actions      drops more turns where the context is full
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from dart_agent.strict_model import StrictModel
from dart_envs.types import RgbImage

HistoryPolicy = Literal["full", "screens", "window", "summary"]


class HistorySettings(StrictModel):
    """Which turns a prompt shows beside the present screen.

    Attributes:
        policy: `full`, `screens`, `window` or `summary`; docs/rollouts.md describes them.
        keep: N of the policy (the present screen is one of the screenshots, and not one of the turns).
        drop: How many are dropped at once when there are more than N; more than one makes longer segments, of which an engine computes only
            what is new.
    """

    policy: HistoryPolicy = "screens"
    keep: int = Field(default=1, ge=1, le=1024)
    drop: int = Field(default=1, ge=1, le=1024)

    @property
    def shrinks(self) -> bool:
        """Whether turns are dropped where the context is full."""
        return self.policy in ("window", "summary")

    def most_images(self, turns: int) -> int:
        """Images in the longest prompt of an episode of `turns` model calls."""
        if self.policy == "full":
            return turns
        return min(self.keep if self.policy == "screens" else self.keep + 1, turns)


@dataclass(frozen=True, slots=True)
class Turn:
    """One finished step: what the model saw (None once it is too old to be shown) and what it answered."""

    image: RgbImage | None
    text: str


class History:
    """Turns of one episode, oldest first.

    Args:
        settings: Which turns are shown.
        summarise: From the answer of a dropped turn to its line in the summary.
    """

    def __init__(self, settings: HistorySettings, summarise: Callable[[str], str] = str) -> None:
        self.settings = settings
        self._summarise = summarise
        self._turns: list[Turn] = []
        self._first_screen = 0
        self._first_turn = 0

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The finished turns that the next prompt shows."""
        return tuple(self._turns[self._first_turn :])

    @property
    def first_turn(self) -> int:
        """Number of turns that are shown no more; saved with an episode (`restore`)."""
        return self._first_turn

    @property
    def first_screen(self) -> int:
        """Index of the first turn whose screenshot is shown; saved with an episode (`restore`)."""
        return self._first_screen

    @property
    def summary(self) -> tuple[str, ...]:
        """One line for each turn that is shown no more, oldest first; empty unless the policy is `summary`."""
        if self.settings.policy != "summary":
            return ()
        return tuple(self._summarise(turn.text) for turn in self._turns[: self._first_turn])

    def restore(self, turns: Iterable[Turn], first_turn: int, first_screen: int) -> None:
        """Take over the turns of a saved episode in place of those that are here; nothing else is dropped than what was.

        Args:
            turns: Every finished turn, oldest first; those whose screenshots are not shown need no image.
            first_turn: Number of turns that are shown no more.
            first_screen: Index of the first turn whose screenshot is shown.
        """
        self._turns = list(turns)
        self._first_turn = self._first_screen = 0
        self._drop_before(first_turn, first_screen)

    def restore_shown(self, turns: Iterable[Turn], images: int) -> None:
        """Take over the turns that an earlier prompt was built from, as that prompt showed them.

        Args:
            turns: Every turn that was finished then, oldest first; those whose screenshots were shown have their image.
            images: How many of these screenshots it showed: the last ones.
        """
        earlier = list(turns)
        first = len(earlier) - images
        # Turns that are dropped are dropped with their screenshots, and no policy drops both turns and, for itself, screenshots.
        self.restore(earlier, first if self.settings.shrinks else 0, first)

    def add(self, image: RgbImage | None, text: str) -> None:
        """One more step is finished; its image may be missing where no prompt can show it any more."""
        self._turns.append(Turn(image, text))
        settings, count = self.settings, len(self._turns)
        if settings.policy == "screens" and count - self._first_screen >= settings.keep:
            # The coming screen is one of those that are shown.
            self._drop_before(self._first_turn, count - settings.keep + settings.drop)
        elif settings.policy in ("window", "summary") and count - self._first_turn > settings.keep:
            self._drop_before(count - settings.keep + settings.drop - 1, self._first_screen)

    def shrink(self) -> bool:
        """Drop the older half of the turns, because the context is full. False: this policy drops none, or there is none to drop."""
        shown = len(self._turns) - self._first_turn
        if not self.settings.shrinks or not shown:
            return False
        self._drop_before(self._first_turn + (shown + 1) // 2, self._first_screen)
        return True

    def _drop_before(self, first_turn: int, first_screen: int) -> None:
        """Show neither turns before `first_turn` nor screenshots before `first_screen`."""
        count = len(self._turns)
        self._first_turn = max(self._first_turn, min(first_turn, count))
        self._first_screen = max(self._first_screen, self._first_turn, min(first_screen, count))
        for index in range(self._first_screen):
            turn = self._turns[index]
            if turn.image is not None:
                self._turns[index] = Turn(None, turn.text)
