"""What the user sees while a run is going on.

Role: one line per stage, live on a terminal, every few seconds in a log. Rule: a line shows the stage, its progress and its result so far.
Non-goals: metrics files, decisions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status

LOG_INTERVAL_S = 15.0


class Progress:
    """Progress of a run on one console.

    Args:
        console: Where to print; None: standard output.
        monotonic: Clock of durations, in seconds.
    """

    def __init__(self, console: Console | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.console = console or Console(highlight=False)
        self._monotonic = monotonic
        self._started_s = monotonic()
        self._status: Status | None = None
        self._stage = ""
        self._last_line_s = float("-inf")

    def note(self, text: str) -> None:
        """Print a line that stays.

        Args:
            text: The line.
        """
        self.console.print(f"{self._clock()} {text}", markup=False)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show a stage; its end is a line with its duration in seconds.

        Args:
            name: The stage.

        Yields:
            Nothing; what is printed within the context belongs to the stage.
        """
        began_s = self._monotonic()
        self._stage, self._last_line_s = name, float("-inf")
        if self.console.is_terminal:
            self._status = self.console.status(name)
            self._status.start()
        else:
            self.note(f"{name} …")
        try:
            yield
        finally:
            if self._status is not None:
                self._status.stop()
                self._status = None
        self.note(f"{name}: done in {self._monotonic() - began_s:.0f} s")

    def update(self, text: str) -> None:
        """Show the progress of the present stage.

        Args:
            text: The progress.
        """
        if self._status is not None:
            self._status.update(f"{self._clock()} {self._stage}: {text}")
        elif self._monotonic() - self._last_line_s >= LOG_INTERVAL_S:
            self._last_line_s = self._monotonic()
            self.note(f"{self._stage}: {text}")

    def _clock(self) -> str:
        minutes, seconds = divmod(int(self._monotonic() - self._started_s), 60)
        return f"{minutes:3d}:{seconds:02d}"
