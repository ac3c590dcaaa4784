"""The layers over the packages: what must hold before a program of the image is run in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from imagebuild import layers


def test_font_directories_have_whole_seconds_when_their_cache_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fonts = tmp_path / "usr/share/fonts/truetype"
    fonts.mkdir(parents=True)
    places = (fonts, fonts.parent)
    for place in places:
        os.utime(place, ns=(0, 1_700_000_000_123_456_789))
    cached = []

    def fake_chroot(_rootfs: Path, argv: list[str]) -> None:
        cached.append((argv[0], [place.stat().st_mtime_ns for place in places]))

    monkeypatch.setattr(layers, "chroot", fake_chroot)
    layers.cache_fonts(tmp_path)
    assert cached == [("fc-cache", [1_700_000_000 * 10**9] * 2)]
