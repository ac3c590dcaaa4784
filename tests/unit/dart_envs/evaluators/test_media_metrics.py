"""Pictures that tasks are about, and the metrics of the suite `media`."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from fake_window_desktop import FakeWindowDesktop, ManualClock, reply
from PIL import Image

from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact
from dart_envs.evaluators.getters import GETTERS, GetterContext
from dart_envs.evaluators.images import (
    IMAGE_CHANGES,
    MAX_PIXELS,
    RgbImage,
    apply_changes,
    decode_image,
    draw_scene,
    encode_png,
)
from dart_envs.evaluators.metrics import METRICS

SCENE = {
    "size": [64, 48],
    "background": [230, 230, 220],
    "shapes": [
        {"kind": "circle", "colour": [200, 30, 40], "x": 14, "y": 12, "r": 8},
        {"kind": "box", "colour": [30, 60, 200], "x": 48, "y": 14, "r": 6},
        {"kind": "triangle", "colour": [40, 150, 60], "x": 16, "y": 36, "r": 9},
    ],
}
ARGUMENTS: dict[str, tuple[int, ...]] = {
    "scale": (32, 24),
    "crop": (4, 2, 30, 20),
    "brightness": (50,),
    "threshold": (210,),
}


def file(picture: RgbImage, form: str = "PNG") -> GuestFile:
    written = io.BytesIO()
    Image.fromarray(picture).save(written, form)
    return GuestFile("/p", written.getvalue())


def is_picture(held: GuestFile, *any_of: list[list[Any]], **rules: Any) -> float:
    return METRICS["picture_is"](held, {"scene": SCENE, "any_of": list(any_of), **rules}, {})


@pytest.mark.parametrize("name", sorted(IMAGE_CHANGES))
def test_a_changed_picture_is_told_from_the_original_and_from_every_other_change(name: str) -> None:
    change = [name, *ARGUMENTS.get(name, ())]
    held = file(apply_changes(draw_scene(SCENE), [change]))
    assert is_picture(held, [change]) == 1
    assert is_picture(held, []) == 0
    others = [
        [other, *ARGUMENTS.get(other, ())] for other in IMAGE_CHANGES if other != name and not other.startswith("grey")
    ]
    assert all(is_picture(held, [other]) == 0 for other in others)
    assert is_picture(held, [["invert"], change], [change]) == 1


def test_slight_differences_are_forgiven_and_larger_ones_are_not() -> None:
    picture = draw_scene(SCENE)
    noise = np.random.default_rng(1).integers(-2, 3, picture.shape)
    assert is_picture(file(np.clip(picture + noise, 0, 255).astype(np.uint8)), []) == 1
    spoilt = picture.copy()
    spoilt[20:28, 20:28] = 0
    assert is_picture(file(spoilt), []) == 0
    assert is_picture(file(np.full_like(picture, 225)), []) == 0
    assert is_picture(file(picture[:-1]), []) == 0


def test_the_format_counts_where_it_is_asked_for() -> None:
    assert is_picture(file(draw_scene(SCENE)), [], format="PNG") == 1
    assert is_picture(file(draw_scene(SCENE)), [], format="JPEG") == 0


def test_our_png_is_read_back_as_it_was_drawn_and_never_changes() -> None:
    form, held = decode_image(encode_png(draw_scene(SCENE)))
    assert form == "PNG"
    assert (held == draw_scene(SCENE)).all()
    big = draw_scene(SCENE | {"size": [400, 300], "border": 7})
    assert (decode_image(encode_png(big))[1] == big).all()
    assert big.shape == (314, 414, 3)
    assert len(encode_png(big)) > big.size, "nothing is compressed, so that no library's version shows"


def test_what_is_transparent_is_seen_on_white() -> None:
    written = io.BytesIO()
    Image.new("RGBA", (4, 4), (200, 0, 0, 0)).save(written, "PNG")
    assert (decode_image(written.getvalue())[1] == 255).all()


def claims(width: int, height: int) -> bytes:
    """A PNG file that says it is so large."""
    content = bytearray(encode_png(draw_scene(SCENE)))
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        encode_png(draw_scene(SCENE))[:500],
        claims(2500, 2500),
        claims(60_000, 60_000),
    ],
)
def test_what_is_no_picture_or_a_huge_one_is_spoiled(content: bytes) -> None:
    assert MAX_PIXELS < 2500 * 2500
    with pytest.raises(InvalidArtifact):
        decode_image(content)


XSPF = (
    '<?xml version="1.0"?><playlist><trackList><track><location>file:///m/a%20b.wav</location></track>'
    "<track><location>file:///m/c.wav</location></track></trackList></playlist>"
)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("#EXTM3U\n#EXTINF:5,x\n/m/a b.wav\n/m/c.wav\n", 1),
        ("a b.wav\n./c.wav", 1),
        ("file:///m/a%20b.wav\nc.wav\n", 1),
        (XSPF, 1),
        ("c.wav\na b.wav\n", 0),
        ("a b.wav\n", 0),
        ("a b.wav\nc.wav\nc.wav\n", 0),
        ("", 0),
    ],
)
def test_playlists(text: str, score: float) -> None:
    rules = {"paths": ["/m/a b.wav", "/m/c.wav"], "folder": "/m"}
    assert METRICS["playlist_is"](GuestFile("/m/p", text.encode()), rules, {}) == score


async def test_a_player_tells_its_state_and_one_that_is_gone_is_spoiled() -> None:
    desktop = FakeWindowDesktop()
    said = '{"state": "paused", "information": {"category": {"meta": {"filename": "a.wav"}}}}'
    desktop.programs["curl"] = lambda _desktop, _args, _stdin: reply(said)
    held = await GETTERS["vlc_state"](GetterContext(desktop, ManualClock()), {"type": "vlc_state"})
    assert (held["state"], held["file"]) == ("paused", "a.wav")
    for answer in ("", "[]", "no"):
        desktop.programs["curl"] = lambda _desktop, _args, _stdin, answer=answer: reply(answer, returncode=7)
        with pytest.raises(InvalidArtifact, match="does not answer"):
            await GETTERS["vlc_state"](GetterContext(desktop, ManualClock()), {"type": "vlc_state"})
