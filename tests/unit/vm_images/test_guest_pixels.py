"""The X server's pixels as rows of RGB: libyuv and Pillow give what the definition gives."""

from __future__ import annotations

import ctypes
import os

import pytest
from dart_guest import pixels

SIZES = [(1, 1), (7, 3), (64, 2), (641, 5)]
"""Among them widths that no wide instruction fits."""


def screen(width: int, height: int) -> tuple[ctypes.Array[ctypes.c_char], bytes]:
    """Random memory of a screen, and the rows that it means."""
    memory = os.urandom(width * height * 4)
    meant = b"".join(
        memory[at + 2 : at + 3] + memory[at + 1 : at + 2] + memory[at : at + 1] for at in range(0, len(memory), 4)
    )
    return ctypes.create_string_buffer(memory, len(memory)), meant


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_pillow_gives_the_rows(monkeypatch: pytest.MonkeyPatch, width: int, height: int) -> None:
    monkeypatch.setattr(pixels, "libyuv", lambda: None)
    memory, meant = screen(width, height)
    assert pixels.rows(ctypes.addressof(memory), width, height) == meant


@pytest.mark.skipif(
    pixels.libyuv() is None, reason="libyuv (Debian: libyuv0) is not installed on this host; the images have it"
)
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_libyuv_gives_the_rows(width: int, height: int) -> None:
    memory, meant = screen(width, height)
    assert pixels.rows(ctypes.addressof(memory), width, height) == meant


def test_a_picture_is_its_own_and_stays_when_the_memory_changes() -> None:
    memory, meant = screen(9, 2)
    picture = pixels.picture(ctypes.addressof(memory), 9, 2)
    ctypes.memset(memory, 0, len(memory))
    assert picture.tobytes() == meant
