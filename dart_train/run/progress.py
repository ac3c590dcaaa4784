"""What the user sees while a run is going on.

Role: one line per stage, live on a terminal, every few seconds in a log. Rule: a line shows the stage, its progress and its result so far;
in a log, lines that say why one waits hold back none that says what happened.
Non-goals: metrics files, decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status

from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock

LOG_INTERVAL_S = 15.0


class Progress:
    """Progress of a run on one console.

    Args:
        console: Where to print; None: standard output.
        clock: Clock of durations.
    """

    def __init__(self, console: Console | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.console = console or Console(highlight=False)
        self._clock = clock
        self._started_s = clock.monotonic()
        self._status: Status | None = None
        self._stage = ""
        self._last_line_s: dict[bool, float] = {}

    def note(self, text: str) -> None:
        """Print a line that stays.

        Args:
            text: The line.
        """
        self.console.print(f"{self._elapsed()} {text}", markup=False)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show a stage; its end is a line with its duration in seconds.

        Args:
            name: The stage.

        Yields:
            Nothing; what is printed within the context belongs to the stage.
        """
        began_s = self._clock.monotonic()
        self._stage, self._last_line_s = name, {}
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
        self.note(f"{name}: done in {self._clock.monotonic() - began_s:.0f} s")

    def update(self, text: str, *, news: bool = False) -> None:
        """Show the progress of the present stage.

        Args:
            text: The progress.
            news: Whether the text says what happened. In a log, only a line of the same sort holds it back.
        """
        now_s = self._clock.monotonic()
        if self._status is not None:
            self._status.update(f"{self._elapsed()} {self._stage}: {text}")
        elif now_s - self._last_line_s.get(news, float("-inf")) >= LOG_INTERVAL_S:
            self._last_line_s[news] = now_s
            self.note(f"{self._stage}: {text}")

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(self._clock.monotonic() - self._started_s), 60)
        return f"{minutes:3d}:{seconds:02d}"
