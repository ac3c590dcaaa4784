"""The desktop's own clock: the page that the preloaded `clock/dart_clock.so` reads.

Role: a task that declares its clock gets that time of day, and the desktop, programs started later and this agent agree on it.
Rule: two words in the page (nanoseconds), each written at once: a declared time counts from CLOCK_MONOTONIC, which goes on
after a restore as if no time had passed; else the kernel's time of day is corrected to the host's, should they differ.
Non-goals: file times, which are the kernel's; programs that ask the kernel without libc.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import time
from dataclasses import dataclass
from pathlib import Path

PAGE = Path("/dev/dart-clock")
PAGE_BYTES = 4096
DECLARED_AT, CORRECTED_AT = 0, 8
SECOND_NS = 1_000_000_000
NOTICED_S = 1.0
"""A kernel that is this near to the host's time of day is left alone."""
EARLIEST_S, LATEST_S = 1_000_000_000.0, 4_000_000_000.0
"""From 2001 to 2096: deadlines stay apart from those of the monotonic clock, and programs keep working."""
CLOCK_GETTIME = {"x86_64": 228, "aarch64": 113}


def make_page(path: Path = PAGE) -> None:
    """An empty page, before the first program that is to see it starts."""
    path.write_bytes(bytes(PAGE_BYTES))
    path.chmod(0o644)


def kernel_time_ns() -> int:
    """The kernel's own CLOCK_REALTIME, past the preloaded library."""
    words = (ctypes.c_int64 * 2)()
    ctypes.CDLL(None).syscall(CLOCK_GETTIME[platform.machine()], time.CLOCK_REALTIME, ctypes.byref(words))
    return int(words[0]) * SECOND_NS + int(words[1])


@dataclass(frozen=True, slots=True)
class DesktopClock:
    """Reads and writes the page."""

    path: Path = PAGE

    def _word(self, offset: int) -> int:
        with self.path.open("rb") as page:
            page.seek(offset)
            return int(struct.unpack("=q", page.read(8))[0])

    def _write(self, offset: int, value_ns: int) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            with mmap.mmap(descriptor, PAGE_BYTES) as page, memoryview(page) as view, view.cast("q") as words:
                words[offset // 8] = value_ns
        finally:
            os.close(descriptor)

    @property
    def usable(self) -> bool:
        """Whether there is a page: not in a desktop whose init did not make one."""
        return self.path.is_file()

    @property
    def declared(self) -> bool:
        """Whether a task has set the time of day."""
        return self.usable and self._word(DECLARED_AT) != 0

    def now_s(self) -> float:
        """The desktop's time of day, seconds since 1970."""
        if not self.usable:
            return time.time()
        from_monotonic_ns = self._word(DECLARED_AT)
        if from_monotonic_ns:
            return (time.monotonic_ns() + from_monotonic_ns) / SECOND_NS
        return (kernel_time_ns() + self._word(CORRECTED_AT)) / SECOND_NS

    def declare(self, time_s: float | None) -> None:
        """It is `time_s` now, whatever the host says; None: what the host says."""
        wanted = 0 if time_s is None else round(time_s * SECOND_NS) - time.monotonic_ns()
        self._write(DECLARED_AT, wanted)

    def follow(self, host_s: float) -> None:
        """Take over the host's time of day, unless a task has declared another."""
        apart_ns = round(host_s * SECOND_NS) - kernel_time_ns()
        self._write(CORRECTED_AT, apart_ns if abs(apart_ns) >= NOTICED_S * SECOND_NS else 0)
