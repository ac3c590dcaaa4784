"""Complete model directories, above all the published policy versions `v<N>`.

Role: write a directory whole or not at all; keep the newest versions. Rule: written to a temporary directory, synced, renamed; what is
there is never written again, so whoever sees the name may load it. Non-goals: telling anyone (the data manager), loading
(`dart_agent.inference`).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_NAME = re.compile(r"v(\d+)")


class PolicyVersionStore:
    """Versions below one directory; the `keep` newest stay."""

    def __init__(self, root: Path, keep: int) -> None:
        self.root = root
        self._keep = keep

    def path(self, version: int) -> Path:
        """Directory of a version, whether it is there or not."""
        return self.root / f"v{version}"

    def versions(self) -> list[int]:
        """Numbers of what is published, ascending."""
        if not self.root.exists():
            return []
        found = (_NAME.fullmatch(entry.name) for entry in self.root.iterdir())
        return sorted(int(match.group(1)) for match in found if match)

    def publish(self, version: int, save: Callable[[Path], None]) -> Path:
        """Publish a version by calling `save` with an empty directory; nothing happens when it is published already."""
        target = self.path(version)
        if target.exists():
            return target
        write_directory_atomically(target, save)
        self._prune()
        return target

    def remove_partial(self) -> None:
        """Remove what a killed trainer left half-written."""
        if self.root.exists():
            for leftover in self.root.glob(".v*-*"):
                shutil.rmtree(leftover, ignore_errors=True)

    def _prune(self) -> None:
        for version in self.versions()[: -self._keep]:
            shutil.rmtree(self.path(version))


def write_directory_atomically(target: Path, save: Callable[[Path], None]) -> None:
    """Make the directory `target` by calling `save` with an empty one; what a killed writer of the same left is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f".{target.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        save(staging)
        staging.chmod(0o755)
        _sync_tree(staging)
        os.rename(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _sync_tree(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
