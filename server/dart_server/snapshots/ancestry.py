"""Which snapshot stands on which. Rule: one that is gone stays known for as long as something that is kept stands on its files.

Physically a snapshot is a memory image, which goes with it, and a layer of files, which stays until the last snapshot or desktop above it
is gone; so both what to fall back to and how many bytes are held follow from here. Non-goals: what a snapshot is (`snapshots.service`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

PRUNE_THRESHOLD = 1_000
"""Entries that may be known beyond those that are needed before they are looked through."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a snapshot stands on, and the bytes of its own layer of files."""

    parent: str | None
    files_bytes: int


class Ancestry:
    """The parents of all snapshots that matter."""

    def __init__(self) -> None:
        self._origins: dict[str, Origin] = {}

    def add(self, snapshot_id: str, parent: str | None, files_bytes: int) -> None:
        self._origins[snapshot_id] = Origin(parent, files_bytes)

    def load(self, found: Mapping[str, tuple[str | None, int]]) -> None:
        """Take over what a database knows."""
        for snapshot_id, (parent, files_bytes) in found.items():
            self.add(snapshot_id, parent, files_bytes)

    def lineage(self, parent: str | None) -> list[str]:
        """`parent` and what it stands on, nearest first, as far as it is known."""
        found: list[str] = []
        while parent is not None:
            found.append(parent)
            origin = self._origins.get(parent)
            parent = origin.parent if origin else None
        return found

    def held_bytes(self, kept: Iterable[str], present: Collection[str]) -> int:
        """Bytes of the layers under `kept` that belong to snapshots which are not `present` any more."""
        return sum(self._origins[name].files_bytes for name in self._below(kept) if name not in present)

    def prune(self, kept: Iterable[str]) -> None:
        """Forget what nothing in `kept` stands on; done now and then only."""
        needed = self._below(kept)
        if len(self._origins) > len(needed) + PRUNE_THRESHOLD:
            self._origins = {name: origin for name, origin in self._origins.items() if name in needed}

    def _below(self, kept: Iterable[str]) -> set[str]:
        """`kept` and everything that it stands on, as far as it is known."""
        found: set[str] = set()
        for name in kept:
            while name not in found and (origin := self._origins.get(name)) is not None:
                found.add(name)
                if origin.parent is None:
                    break
                name = origin.parent
        return found
