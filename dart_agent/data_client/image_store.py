"""Images by content hash: write once, read by anyone who shares the directory.

Role: `ImageStore` keeps pixels as PNG under `aa/<hash>.png`, the hash being `dart_envs.hashing.image_sha256`.
Rule: a blob is complete or absent (temporary file, then rename), never changed, and checked against its hash when read.
Non-goals: deletion; a run directory goes as a whole.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from dart_agent.errors import StoreError
from dart_envs.hashing import image_sha256
from dart_envs.types import RgbImage

_HASH = re.compile(r"[0-9a-f]{64}")
PNG_LEVEL = 1


class BlobError(StoreError):
    """A blob is missing or does not hold what its name says."""


class BlobStorage(Protocol):
    """Where image blobs live: a shared directory now, any object store later."""

    def put(self, image: RgbImage) -> str:
        """Store an image and return its hash; a known image is not written again."""
        ...

    def get(self, sha256: str) -> RgbImage:
        """The image of a hash, uint8 [H, W, 3]. Raises BlobError when it is missing or damaged."""
        ...

    def missing(self, hashes: Iterable[str]) -> list[str]:
        """Those of `hashes` that are not stored, in order, without repeats."""
        ...


class ImageStore:
    """`BlobStorage` in a local directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, sha256: str) -> Path:
        """File of a hash. Raises BlobError when `sha256` is not one."""
        if not _HASH.fullmatch(sha256):
            raise BlobError(f"{sha256!r} is not an image hash (64 hexadecimal digits)")
        return self.root / sha256[:2] / f"{sha256}.png"

    def put(self, image: RgbImage) -> str:
        """Store an image and return its hash."""
        sha256 = image_sha256(image)
        target = self.path(sha256)
        if target.exists():
            return sha256
        target.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, format="PNG", compress_level=PNG_LEVEL)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(buffer.getbuffer())
            os.replace(temporary, target)
        except BaseException:  # interrupted, too, no file may stay; raised again
            Path(temporary).unlink(missing_ok=True)
            raise
        return sha256

    def get(self, sha256: str) -> RgbImage:
        """The image of a hash, checked against it."""
        path = self.path(sha256)
        try:
            with Image.open(path) as picture:
                image = np.array(picture.convert("RGB"), dtype=np.uint8)
        except FileNotFoundError:
            raise BlobError(f"image {sha256} is not in {self.root}") from None
        except (OSError, SyntaxError) as error:
            raise BlobError(f"image {path} cannot be read: {error}") from error
        if image_sha256(image) != sha256:
            raise BlobError(f"image {path} does not hold the pixels of its name")
        return image

    def missing(self, hashes: Iterable[str]) -> list[str]:
        """Those of `hashes` that are not stored."""
        return [sha256 for sha256 in dict.fromkeys(hashes) if not self.path(sha256).exists()]
