"""Images by content hash in any file system of fsspec: `s3://`, `gs://`, `memory://` and so on.

Role: `BlobStorage` for storage that several hosts share. Rule: names and contents are those of the local directory, so that one can be
copied into the other. A put is one write of the whole object; where the file system does not make that atomic, a torn blob is found by its
hash when it is read. Credentials are those of the file system's own package (environment, profile); none are in the URL. What the file
system fails at, other than a missing file, is a `StoreUnavailableError`, which whoever waits without blocking tries again
(`dart_agent.data_client.client`); `get`, which blocks its caller anyway, tries again by itself. Several threads may call it. Non-goals:
local directories (`dart_agent.data_client.image_store`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import urlsplit

import fsspec

from dart_agent.data_client.image_store import REFRESH_S, BlobError, StoredBlob, blob_name, decode_png, encode_png
from dart_agent.errors import ConfigError, StoreUnavailableError
from dart_envs.clock import SYSTEM_CLOCK, block
from dart_envs.hashing import image_sha256
from dart_envs.types import RgbImage
from dart_server.wire import Clock

READ_RETRY_S = 60.0
"""How long a read is tried again."""
INITIAL_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0
log = logging.getLogger(__name__)
Answer = TypeVar("Answer")
KNOWN_HASHES = 65_536
"""So many hashes that were found are remembered, because asking a remote file system for each step costs a round trip."""


class FsspecImageStore:
    """`BlobStorage` in a file system of fsspec.

    Args:
        url: The URL of the root.
        clock: Clock of the ages of blobs, and of how long a read is tried.
        pause: Waits so many seconds between two tries of a read, in the thread that reads.

    Raises:
        ConfigError: The URL cannot be used, or its package is not installed.
    """

    def __init__(self, url: str, clock: Clock = SYSTEM_CLOCK, pause: Callable[[float], None] = block) -> None:
        if urlsplit(url).password is not None:
            raise ConfigError(
                "data.images_url holds a password: give credentials as the file system's package reads them"
            )
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"data.images_url: {url} cannot be used: {error}") from error
        self._root = str(root).rstrip("/")
        self.url = url
        self._clock, self._pause = clock, pause
        self._known: OrderedDict[str, None] = OrderedDict()
        self._known_lock = Lock()

    def put(self, image: RgbImage) -> str:
        """Store an image and return its hash; one that is older than `REFRESH_S` is written again, which refreshes it."""
        sha256 = image_sha256(image)
        path = self._path(sha256)
        try:
            if self._clock.time() - self._ask("looked up", lambda: self._modified_s(path)) <= REFRESH_S:
                return sha256
        except FileNotFoundError:
            pass
        # An object store has no directories; elsewhere they are made.
        self._ask("written", lambda: self._fs.makedirs(path.rpartition("/")[0], exist_ok=True))
        self._ask("written", lambda: self._fs.pipe_file(path, encode_png(image)))
        return sha256

    def get(self, sha256: str) -> RgbImage:
        """The image of a hash, checked against it."""
        path = self._path(sha256)
        try:
            content = self._ask("read", lambda: self._fs.cat_file(path), READ_RETRY_S)
        except FileNotFoundError:
            raise BlobError(f"image {sha256} is not in {self.url}") from None
        return decode_png(content, sha256, path)

    def missing(self, hashes: Iterable[str], *, recheck: bool = False) -> list[str]:
        """Those of `hashes` that are not stored; `recheck` costs a round trip for each hash that is remembered."""
        absent = []
        for sha256 in dict.fromkeys(hashes):
            path = self._path(sha256)
            if recheck:
                self._forget(sha256)
                self._fs.invalidate_cache(path.rpartition("/")[0])
            with self._known_lock:
                known = sha256 in self._known
            if known or self._is_there(path):
                self._remember(sha256)
            else:
                absent.append(sha256)
        return absent

    def list_blobs(self) -> Iterator[StoredBlob]:
        """Every stored blob."""
        self._fs.invalidate_cache()
        for path, info in self._ask("listed", lambda: self._fs.find(self._root, detail=True)).items():
            sha256 = path.rpartition("/")[2].removesuffix(".png")
            try:
                if path.endswith(blob_name(sha256)):
                    written_s = self._ask("looked up", partial(self._modified_s, path, info))
                    yield StoredBlob(sha256, int(info["size"]), written_s)
            except (BlobError, FileNotFoundError):
                continue

    def delete(self, sha256: str, unless_newer_than_s: float) -> bool:
        """Delete a blob that was not refreshed meanwhile."""
        path = self._path(sha256)
        try:
            if self._ask("looked up", lambda: self._modified_s(path)) > unless_newer_than_s:
                return False
            self._ask("deleted", lambda: self._fs.rm_file(path))
        except FileNotFoundError:
            return False
        self._forget(sha256)
        return True

    def _forget(self, sha256: str) -> None:
        with self._known_lock:
            self._known.pop(sha256, None)

    def _remember(self, sha256: str) -> None:
        """Remember a hash that was found now; the one that was not asked for longest is forgotten."""
        with self._known_lock:
            self._known[sha256] = None
            self._known.move_to_end(sha256)
            if len(self._known) > KNOWN_HASHES:
                self._known.popitem(last=False)

    def _is_there(self, path: str) -> bool:
        """Whether there is such a file; the file systems' own `exists` takes any failure for no."""
        try:
            self._ask("looked up", lambda: self._fs.info(path))
        except FileNotFoundError:
            return False
        return True

    def _ask(self, done: str, call: Callable[[], Answer], retry_s: float = 0.0) -> Answer:
        """Ask the file system; raises FileNotFoundError, and StoreUnavailableError for what it fails at after `retry_s` seconds."""
        give_up_at_s, pause_s = self._clock.monotonic() + retry_s, INITIAL_BACKOFF_S
        while True:
            try:
                return call()
            except FileNotFoundError:
                raise
            except Exception as error:
                said = f"images in {self.url} cannot be {done} ({type(error).__name__}: {error})"
                if self._clock.monotonic() >= give_up_at_s or isinstance(error, (PermissionError, NotImplementedError)):
                    raise StoreUnavailableError(
                        f"{said}: check that the storage answers and that its credentials allow it"
                    ) from error
                log.warning("%s, trying again in %g s", said, pause_s)
            self._pause(pause_s)
            pause_s = min(2 * pause_s, MAX_BACKOFF_S)

    def _path(self, sha256: str) -> str:
        return f"{self._root}/{blob_name(sha256)}"

    def _modified_s(self, path: str, info: dict[str, Any] | None = None) -> float:
        """When a blob was written; listings of object stores tell it, other file systems are asked."""
        told = None if info is None else info.get("LastModified", info.get("created"))
        if told is None:
            self._fs.invalidate_cache(path.rpartition("/")[0])
            told = self._fs.modified(path)
        return float(told) if isinstance(told, (int, float)) else float(told.timestamp())
