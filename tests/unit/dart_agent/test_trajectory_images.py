"""The image store: content addressed, atomic, checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dart_agent.data_client.fake_trajectories import fake_image
from dart_agent.data_client.image_store import BlobError, ImageStore
from dart_envs.hashing import image_sha256


def test_image_comes_back_pixel_by_pixel(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    image = fake_image(1)
    sha256 = store.put(image)
    assert sha256 == image_sha256(image)
    assert np.array_equal(store.get(sha256), image)


def test_putting_twice_keeps_one_file_and_no_leftovers(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    assert store.put(fake_image(1)) == store.put(fake_image(1))
    store.put(fake_image(2))
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ImageStore(tmp_path)

    def fail(source: str, target: str) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        store.put(fake_image(1))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_missing_names_what_is_not_there_once(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    known, unknown = store.put(fake_image(1)), image_sha256(fake_image(2))
    assert store.missing([unknown, known, unknown]) == [unknown]
    with pytest.raises(BlobError, match="is not in"):
        store.get(unknown)


def test_damage_and_swapped_content_are_noticed(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    one, two = store.put(fake_image(1)), store.put(fake_image(2))
    store.path(one).write_bytes(store.path(two).read_bytes())
    with pytest.raises(BlobError, match="does not hold the pixels"):
        store.get(one)
    store.path(two).write_bytes(b"not a png")
    with pytest.raises(BlobError, match="cannot be read"):
        store.get(two)


@pytest.mark.parametrize("name", ["../../etc/passwd", "A" * 64, "ab", ""])
def test_a_name_that_is_no_hash_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BlobError, match="is not an image hash"):
        ImageStore(tmp_path).get(name)
