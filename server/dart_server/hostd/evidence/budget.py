"""What one request for evidence may take of the host: time, the bytes of its answers, descriptors and tables that are looked at.

Rule: every loop whose length a desktop decides takes from the budget, and what is over it is `Refused`; so a look ends soon whatever the
desktop holds, and its message has a largest size. Non-goals: contents and digests of files (`files`).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

DEADLINE_S = 5.0
ANSWERS_NBYTES = 16 << 20
"""Of all answers of a request, as JSON; contents of files come beside them."""
DESCRIPTORS = 1 << 16
"""Of all processes, looked at."""
TABLES_NBYTES = 64 << 20
"""Of the kernel's tables about processes: maps, inotify watches, sockets."""


class Refused(Exception):
    """A query has no good answer; the text is the answer's `error`."""


def _deadline_s() -> float:
    return time.monotonic() + DEADLINE_S


@dataclass(slots=True)
class Budget:
    """What is left. It begins when it is made, so it is made once the desktop stands still."""

    deadline_s: float = field(default_factory=_deadline_s)
    answers_nbytes: int = field(default_factory=lambda: ANSWERS_NBYTES)
    descriptors: int = field(default_factory=lambda: DESCRIPTORS)
    tables_nbytes: int = field(default_factory=lambda: TABLES_NBYTES)

    def check_time(self) -> None:
        """Raises Refused once the time is over."""
        if time.monotonic() > self.deadline_s:
            raise Refused("too_slow")

    def take_answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, or a part of one, once its bytes are counted. Raises Refused."""
        self.answers_nbytes -= len(json.dumps(answer, separators=(",", ":"))) + 1
        if self.answers_nbytes < 0:
            raise Refused("too_large")
        return answer

    def take_descriptor(self) -> None:
        """Count a descriptor that is looked at. Raises Refused."""
        self.check_time()
        self.descriptors -= 1
        if self.descriptors < 0:
            raise Refused("too_slow")

    def read_table(self, path: str) -> str:
        """A table of the kernel about a process. Raises Refused when it is longer than what is left, OSError."""
        self.check_time()
        with open(path, "rb", buffering=0) as file:
            content = bytearray()
            while chunk := file.read(1 << 16):
                content += chunk
                self.tables_nbytes -= len(chunk)
                if self.tables_nbytes < 0:
                    raise Refused("too_slow")
                self.check_time()
        return content.decode("utf-8", "surrogateescape")
