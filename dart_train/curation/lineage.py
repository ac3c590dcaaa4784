"""Lineage of policy versions: which of them the trainer's present weights come from.

Role: the identity of a version is its number with the digest of its weights; `parent` is the digest of the weights that it was trained
from. A trainer that goes on from an older checkpoint leaves versions behind that are in use, but no ancestors of its weights: a lost
future.
Rule: tokens of a lost future are never trained on; a version without a digest is of a run folder from before digests and cannot be told
apart, so it is no lost one. Non-goals: how old a token may be (`staleness`), storing versions (the data manager).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class VersionIdentity(NamedTuple):
    """Attributes: number: Its number. digest: Digest of its weights. parent: Digest of the weights that it was trained from."""

    number: int
    digest: str | None
    parent: str | None


def lost_versions(versions: Iterable[VersionIdentity], digest: str | None) -> frozenset[int]:
    """Find the versions that are no ancestors of some weights.

    Args:
        versions: All registered versions.
        digest: Digest of the weights; None: not known.

    Returns:
        Their numbers; none where the digest is not known or not registered.
    """
    known = list(versions)
    parents: dict[str, set[str]] = defaultdict(set)
    for version in known:
        if version.digest is not None:
            parents[version.digest] |= {version.parent} if version.parent is not None else set()
    if digest is None or digest not in parents:
        return frozenset()
    ancestors: set[str] = set()
    open_ends = [digest]
    while open_ends:
        present = open_ends.pop()
        if present not in ancestors:
            ancestors.add(present)
            open_ends += parents.get(present, ())
    return frozenset(
        version.number for version in known if version.digest is not None and version.digest not in ancestors
    )
