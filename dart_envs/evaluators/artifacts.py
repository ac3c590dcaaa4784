"""What getters hand to metrics, and how they say that the policy left nothing to look at.

Role: plain values. Rule: frozen, no I/O. Non-goals: comparing.
"""

from __future__ import annotations

from dataclasses import dataclass


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
