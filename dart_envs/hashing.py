"""The identity of an image, which runner, store, trainer and demonstrations share.

It is the SHA-256 over the ASCII text `H,W` and the raw RGB bytes, row by row. Two screens with the same pixels are the
same image, whatever file they are stored in.
"""

from __future__ import annotations

import hashlib

import numpy as np

from dart_envs.types import RgbImage


def image_sha256(image: RgbImage) -> str:
    """Hash an image.

    Args:
        image: uint8 `[H, W, 3]`.

    Returns:
        64 hexadecimal digits.

    Raises:
        ValueError: If the array has another type or shape.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"expected a uint8 image [H, W, 3], got {image.dtype} {list(image.shape)}")
    height, width = image.shape[:2]
    digest = hashlib.sha256(f"{height},{width}".encode("ascii"))
    digest.update(np.ascontiguousarray(image).data)
    return digest.hexdigest()
