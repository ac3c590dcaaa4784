"""Images by content hash: write once, read by anyone who shares the storage.

Role: `BlobStorage`, and its implementation in a local directory. Pixels are PNG under `aa/<hash>.png`, the hash being
`dart_envs.hashing.image_sha256`. Rule: a blob is complete or absent (temporary file, then rename), never changed, and checked against its
hash when read. A blob that is put again is refreshed: it counts as new for `REFRESH_S` and longer, so that garbage collection, which leaves
new blobs alone, cannot take it from the one who put it. Non-goals: which blobs are garbage (`dart_train.data_commands.garbage`), other
file systems (`dart_agent.data_client.fsspec_images`).
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from dart_agent.errors import StoreError, StoreUnavailableError
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.hashing import image_sha256
from dart_envs.types import RgbImage
from dart_server.wire import Clock

_HASH = re.compile(r"[0-9a-f]{64}")
PNG_LEVEL = 1
REFRESH_S = 1800.0
"""A blob that is put again when it is older than this is refreshed."""


class BlobError(StoreError):
    """A blob is missing or does not hold what its name says."""


class BlobUnreadableError(BlobError, StoreUnavailableError):
    """A blob is there, and the file system does not give its content now."""


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob as a listing shows it.

    Attributes:
        sha256: Its content hash.
        size_bytes: Its length.
        modified_s: When it was written or refreshed, in seconds since the epoch.
    """

    sha256: str
    size_bytes: int
    modified_s: float


class ImageReader(Protocol):
    """Anything that has images by their hash."""

    def get(self, sha256: str) -> RgbImage:
        """The image of a hash, uint8 [H, W, 3]. Raises BlobError when it is missing or damaged."""
        ...


class BlobStorage(ImageReader, Protocol):
    """Where image blobs live: a shared directory, or any file system of fsspec."""

    def put(self, image: RgbImage) -> str:
        """Store an image and return its hash; a known image is not written again."""
        ...

    def missing(self, hashes: Iterable[str], *, recheck: bool = False) -> list[str]:
        """Find the hashes that are not stored.

        Args:
            hashes: Content hashes.
            recheck: Whether the storage is asked for every hash, also for those that it is remembered to have. Without it, a blob that
                another process has deleted meanwhile may be taken for stored.

        Returns:
            Those that are not stored, in order, without repeats.
        """
        ...

    def list_blobs(self) -> Iterator[StoredBlob]:
        """Every stored blob, in no order."""
        ...

    def delete(self, sha256: str, unless_newer_than_s: float) -> bool:
        """Delete a blob; False where it is gone already, or was refreshed after that time (seconds since the epoch)."""
        ...


class ImageStore:
    """`BlobStorage` in a local directory."""

    def __init__(self, root: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self.root = root
        self._clock = clock

    def path(self, sha256: str) -> Path:
        """File of a hash. Raises BlobError when `sha256` is not one."""
        return self.root / blob_name(sha256)

    def put(self, image: RgbImage) -> str:
        """Store an image and return its hash."""
        sha256 = image_sha256(image)
        target = self.path(sha256)
        try:
            if self._clock.time() - target.stat().st_mtime > REFRESH_S:
                os.utime(target, (self._clock.time(), self._clock.time()))
            return sha256
        except FileNotFoundError:
            pass
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(encode_png(image))
            os.replace(temporary, target)
        except BaseException:  # interrupted, too, no file may stay; raised again
            Path(temporary).unlink(missing_ok=True)
            raise
        return sha256

    def get(self, sha256: str) -> RgbImage:
        """The image of a hash, checked against it."""
        path = self.path(sha256)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise BlobError(f"image {sha256} is not in {self.root}") from None
        except OSError as error:
            raise BlobUnreadableError(f"image {path} cannot be read: {error}") from error
        return decode_png(content, sha256, str(path))

    def missing(self, hashes: Iterable[str], *, recheck: bool = False) -> list[str]:
        """Those of `hashes` that are not stored; nothing is remembered here, so that each call checks all of them."""
        return [sha256 for sha256 in dict.fromkeys(hashes) if not self.path(sha256).exists()]

    def list_blobs(self) -> Iterator[StoredBlob]:
        """Every stored blob."""
        for path in self.root.glob("??/*.png"):
            if _HASH.fullmatch(path.stem):
                try:
                    found = path.stat()
                except FileNotFoundError:
                    continue
                yield StoredBlob(path.stem, found.st_size, found.st_mtime)

    def delete(self, sha256: str, unless_newer_than_s: float) -> bool:
        """Delete a blob that was not refreshed meanwhile."""
        path = self.path(sha256)
        try:
            if path.stat().st_mtime > unless_newer_than_s:
                return False
            path.unlink()
        except FileNotFoundError:
            return False
        return True


def blob_name(sha256: str) -> str:
    """Name of a blob below the root.

    Args:
        sha256: The content hash.

    Returns:
        The relative path.

    Raises:
        BlobError: It is no hash.
    """
    if not _HASH.fullmatch(sha256):
        raise BlobError(f"{sha256!r} is not an image hash (64 hexadecimal digits)")
    return f"{sha256[:2]}/{sha256}.png"


def encode_png(image: RgbImage) -> bytes:
    """Encode an image, uint8 [H, W, 3], as it is stored."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG", compress_level=PNG_LEVEL)
    return buffer.getvalue()


def decode_png(content: bytes, sha256: str, where: str) -> RgbImage:
    """Decode a stored blob and check it.

    Args:
        content: The PNG.
        sha256: Hash of its pixels.
        where: What messages call it.

    Returns:
        The image, uint8 [H, W, 3].

    Raises:
        BlobError: It is damaged, or holds other pixels.
    """
    try:
        with Image.open(io.BytesIO(content)) as picture:
            image = np.array(picture.convert("RGB"), dtype=np.uint8)
    except (OSError, SyntaxError) as error:
        raise BlobError(f"image {where} cannot be read: {error}") from error
    if image_sha256(image) != sha256:
        raise BlobError(f"image {where} does not hold the pixels of its name")
    return image
