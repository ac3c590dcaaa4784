"""Records the screen into a film.

Role: start, end and run one recording at a time, in a thread and on X connections of its own, so that steps do not wait for it.
Rule: the pointer is in the picture; a recording stops by itself at LIMIT_S, when the disk or the session fails, and before a
checkpoint; what it has until then stays to be fetched.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

from dart_guest import events
from dart_guest.desktop import Desktop
from dart_guest.movie import TICKS_PER_S, Movie
from dart_guest.xinput import SessionDown

FRAMES_PER_S = 10
JPEG_QUALITY = 75
LIMIT_S = 4 * 3600.0
LOOK = events.StepRequest(None, (), None, events.Frame("jpeg", JPEG_QUALITY, True))


class Recorder:
    """One recording, or none."""

    def __init__(self, display: str, path: Path) -> None:
        self.display = display
        self.path = path
        self.thread: threading.Thread | None = None
        self.over = threading.Event()

    @property
    def open(self) -> bool:
        """Whether a recording was started and not fetched."""
        return self.thread is not None

    def start(self) -> None:
        """Begin; raises SessionDown or OSError when there is nothing to record or nowhere to write."""
        self.path.unlink(missing_ok=True)
        desktop = Desktop(self.display)
        try:
            movie = Movie(self.path, *desktop.size())
        except BaseException:  # interrupted, too, the connection is closed; raised again
            desktop.disconnect()
            raise
        self.over = threading.Event()
        self.thread = threading.Thread(target=record, args=(desktop, movie, self.over), name="recorder", daemon=True)
        self.thread.start()

    def halt(self) -> None:
        """Stop filming; the film stays."""
        self.over.set()
        if self.thread is not None:
            self.thread.join()

    def end(self) -> None:
        """Stop, and be free for the next recording."""
        self.halt()
        self.thread = None


def record(desktop: Desktop, movie: Movie, over: threading.Event) -> None:
    """Film until told to stop."""
    start_s = time.monotonic()
    due_s = start_s
    try:
        with contextlib.suppress(SessionDown, OSError):
            while time.monotonic() - start_s < LIMIT_S:
                at = int((time.monotonic() - start_s) * TICKS_PER_S)
                movie.add(desktop.step(LOOK).payload, at)
                due_s = max(due_s + 1 / FRAMES_PER_S, time.monotonic())
                if over.wait(due_s - time.monotonic()):
                    break
    finally:
        desktop.disconnect()
        with contextlib.suppress(OSError):
            movie.finish(int((time.monotonic() - start_s) * TICKS_PER_S))
