"""The identity of an image."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from dart_envs.hashing import image_sha256


def test_hash_covers_size_and_pixels() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert image_sha256(image) == hashlib.sha256(b"2,4" + bytes(range(24))).hexdigest()
    assert image_sha256(image.reshape(4, 2, 3)) != image_sha256(image)


def test_a_view_hashes_like_its_copy() -> None:
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    assert image_sha256(image[:, ::2]) == image_sha256(image[:, ::2].copy())


def test_other_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="uint8 image"):
        image_sha256(np.zeros((2, 2, 3), np.float32))
