"""Which files of a desktop are the image's own, by the layers of its overlay.

Rule: the number of an inode says nothing here, because an overlay keeps it when a file is copied up. A file is the image's when no layer
above the image has anything at its path, and no folder of the path hides or redirects what lies below it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

_HIDING = ("trusted.overlay.opaque", "trusted.overlay.redirect")


class ImageLayers:
    """The layers of one desktop. `above`: its writable layer and the frozen ones; `image`: candidates of the image, uppermost first."""

    def __init__(self, above: Sequence[Path], image: Sequence[Path]) -> None:
        self._above = tuple(above)
        self._image = tuple(image)
        self._known: dict[str, bool] = {}

    def holds(self, path: str) -> bool:
        """Whether the regular file at `path`, which has no links in it, is unchanged from the image."""
        if path not in self._known:
            self._known[path] = self._look(path)
        return self._known[path]

    def _look(self, path: str) -> bool:
        parts = Path(path).parts[1:]
        if not path.startswith("/") or not parts or ".." in parts:
            return False
        if any(_touches(layer, parts) for layer in self._above):
            return False
        for layer in self._image:
            try:
                return stat.S_ISREG(os.lstat(layer.joinpath(*parts)).st_mode)
            except OSError:
                continue
        return False


def _touches(layer: Path, parts: tuple[str, ...]) -> bool:
    """Whether a layer has something at a path, or hides what layers below it have there."""
    place = layer
    for index, part in enumerate(parts):
        place = place / part
        try:
            found = os.lstat(place)
        except OSError:
            return False
        if index == len(parts) - 1 or not stat.S_ISDIR(found.st_mode):
            return True
        for name in _HIDING:
            try:
                os.getxattr(place, name, follow_symlinks=False)
            except OSError:
                continue
            return True
    return False
