"""Image storage: the same contract in a local directory and in any file system of fsspec."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from uuid import uuid4

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from settable_clock import EPOCH_S, SettableClock

from dart_agent.data_client import fsspec_images
from dart_agent.data_client.fake_trajectories import fake_image
from dart_agent.data_client.fsspec_images import FsspecImageStore
from dart_agent.data_client.image_location import open_images
from dart_agent.data_client.image_store import REFRESH_S, BlobError, BlobStorage, ImageStore
from dart_agent.errors import ConfigError, StoreUnavailableError


@pytest.fixture(params=["directory", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStorage:
    return open_images(tmp_path / "images" if request.param == "directory" else f"memory://{uuid4().hex}/images")


def test_a_blob_is_put_found_listed_and_deleted(storage: BlobStorage) -> None:
    first, second = storage.put(fake_image(1)), storage.put(fake_image(2))
    assert storage.put(fake_image(1)) == first
    assert np.array_equal(storage.get(first), fake_image(1))
    absent = "0" * 64
    assert storage.missing([first, absent, absent, second]) == [absent]
    blobs = {blob.sha256: blob for blob in storage.list_blobs()}
    assert blobs.keys() == {first, second}
    assert all(blob.size_bytes > 100 and blob.modified_s > 1e9 for blob in blobs.values())
    assert not storage.delete(first, blobs[first].modified_s - 1), "it was written later than that"
    assert storage.delete(first, blobs[first].modified_s + 1)
    assert not storage.delete(first, blobs[first].modified_s + 1)
    assert storage.missing([first, second]) == [first]
    with pytest.raises(BlobError, match="is not in"):
        storage.get(first)
    with pytest.raises(BlobError, match="is not an image hash"):
        storage.get("../../etc/passwd")


@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_a_recheck_finds_what_another_process_deleted(kind: str, tmp_path: Path) -> None:
    location = tmp_path if kind == "directory" else f"memory://{uuid4().hex}"
    storage, elsewhere = open_images(location), open_images(location)
    deleted, kept = storage.put(fake_image(1)), storage.put(fake_image(2))
    assert storage.missing([deleted, kept]) == []
    assert elsewhere.delete(deleted, inf)
    assert storage.missing([deleted, kept], recheck=True) == [deleted]
    assert storage.missing([deleted, kept]) == [deleted], "what is gone is not remembered"


@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_an_old_blob_that_is_put_again_counts_as_new(kind: str, tmp_path: Path) -> None:
    clock = SettableClock()
    make: Callable[[], BlobStorage] = lambda: (  # noqa: E731 - one of two, made after the clock is set
        ImageStore(tmp_path, clock) if kind == "directory" else FsspecImageStore(f"memory://{uuid4().hex}", clock)
    )
    storage = make()
    sha256 = storage.put(fake_image(1))
    written_s = next(iter(storage.list_blobs())).modified_s
    clock.now_s = written_s + 2 * REFRESH_S - EPOCH_S
    storage.put(fake_image(1))
    refreshed = next(iter(storage.list_blobs()))
    if kind == "directory":
        assert refreshed.modified_s == pytest.approx(written_s + 2 * REFRESH_S)
    else:
        assert refreshed.modified_s > written_s, "an object is refreshed by writing it again, at the store's own time"
    assert not storage.delete(sha256, written_s)


def test_a_file_url_is_the_local_directory_and_secrets_are_refused(tmp_path: Path) -> None:
    opened = open_images(f"file://{tmp_path}/a%20b")
    assert isinstance(opened, ImageStore)
    assert opened.root == tmp_path / "a b"
    with pytest.raises(ConfigError, match="holds a password") as refused:
        open_images("s3://key:hidden@bucket/x")
    assert "hidden" not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot be used"):
        open_images("nosuchscheme://x")


class EndpointGoneError(Exception):
    """As packages of object stores raise: no OSError."""


class FlakyFileSystem(MemoryFileSystem):
    """Fails so many times at one of its methods."""

    protocol = "flaky"
    cachable = False
    fails: dict[str, int] = {}  # noqa: RUF012 - the test sets it

    def _maybe_fail(self, name: str) -> None:
        if self.fails.get(name, 0) > 0:
            self.fails[name] -= 1
            raise EndpointGoneError("no route to the endpoint")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> object:
        self._maybe_fail("pipe_file")
        return super().pipe_file(path, value, mode, **options)

    def cat_file(self, path: str, start: object = None, end: object = None, **options: object) -> object:
        self._maybe_fail("cat_file")
        return super().cat_file(path, start, end, **options)

    def info(self, path: str, **options: object) -> object:
        self._maybe_fail("info")
        return super().info(path, **options)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> FsspecImageStore:
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    monkeypatch.setattr(FlakyFileSystem, "fails", {})
    monkeypatch.setattr(fsspec_images, "INITIAL_BACKOFF_S", 0.001)
    return FsspecImageStore(f"flaky://{uuid4().hex}/images")


def test_storage_that_fails_is_no_missing_image(flaky: FsspecImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked tries again, and no rollout is blamed for it."""
    sha256 = flaky.put(fake_image(1))
    FlakyFileSystem.fails |= {"pipe_file": 1, "info": 1, "cat_file": 3}
    with pytest.raises(StoreUnavailableError, match=r"cannot be written \(EndpointGoneError: no route.*credentials"):
        flaky.put(fake_image(2))
    with pytest.raises(StoreUnavailableError, match="cannot be looked up"):
        flaky.missing([sha256])
    assert np.array_equal(flaky.get(sha256), fake_image(1)), "a read is tried again"
    assert flaky.missing([sha256, flaky.put(fake_image(2))]) == []
    FlakyFileSystem.fails["cat_file"] = 10**6
    monkeypatch.setattr(fsspec_images, "READ_RETRY_S", 0.02)
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        flaky.get(sha256)
    FlakyFileSystem.fails.clear()
    with pytest.raises(BlobError, match="is not in"):
        flaky.get("0" * 64)
