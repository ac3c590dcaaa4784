"""What getters hand to metrics, and how they say that the policy left nothing to look at.

Role: plain values. Rule: frozen, no I/O. Non-goals: comparing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dart_server.wire.guest_answers import JsonLimit, parse_json

JSON_LIMIT = JsonLimit(64 * 1024**2, depth=64, values=2_000_000)
"""More than any program's settings."""


class InvalidArtifact(Exception):
    """The artefact is missing, deleted, or not what it should be: the policy's doing, worth 0. Never our own failure."""


@dataclass(frozen=True, slots=True)
class GuestFile:
    """A file read from the desktop."""

    path: str
    content: bytes

    @property
    def text(self) -> str:
        """Content as UTF-8. Raises InvalidArtifact where it is something else."""
        try:
            return self.content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidArtifact(f"{self.path} is not UTF-8 text") from error


def load_json(content: str | bytes) -> Any:
    """JSON that a program in the desktop wrote. Raises `ValueError` where it is none, or nested deeper than a parser stands."""
    return parse_json(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content, JSON_LIMIT)
