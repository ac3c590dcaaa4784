"""Short films of the documentation: scenes with a caption, written as one animated WebP.

Role: draw captions and sheets, write the film. Rule: a film is at most `WIDTH_LIMIT_PX` wide and `LIMIT_KIB` large.
Non-goals: where the scenes come from (`make_pictures`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

WIDTH_LIMIT_PX = 800
LIMIT_KIB = 1536
CAPTION_PX = 34
GAP_PX = 6
QUALITY = 80
_DARK, _LIGHT, _MARK = (32, 36, 44), (255, 255, 255), (255, 196, 0)


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture of a film and how long it is shown, in milliseconds."""

    picture: Image.Image
    shown_ms: int


def with_caption(picture: Image.Image, text: str, *, marked: bool = False) -> Image.Image:
    """A picture with a line of text above it. marked: in a colour that says that something happens now."""
    taller = Image.new("RGB", (picture.width, picture.height + CAPTION_PX), _DARK)
    taller.paste(picture, (0, CAPTION_PX))
    font = ImageFont.load_default(size=17)
    ImageDraw.Draw(taller).text((10, CAPTION_PX // 2), text, fill=_MARK if marked else _LIGHT, font=font, anchor="lm")
    return taller


def sheet(pictures: Sequence[Image.Image | None], columns: int, size_wh: tuple[int, int]) -> Image.Image:
    """Pictures side by side, each reduced to a size; None leaves its place dark."""
    width, height = size_wh
    rows = -(-len(pictures) // columns)
    whole = Image.new("RGB", (columns * (width + GAP_PX) - GAP_PX, rows * (height + GAP_PX) - GAP_PX), _DARK)
    for number, picture in enumerate(pictures):
        if picture is not None:
            row, column = divmod(number, columns)
            place = (column * (width + GAP_PX), row * (height + GAP_PX))
            whole.paste(picture.resize(size_wh, Image.Resampling.LANCZOS), place)
    return whole


def save_film(scenes: Sequence[Scene], path: Path) -> None:
    """Write a film that begins again at its end. Raises SystemExit for one that is too wide or too large."""
    first, *others = (scene.picture for scene in scenes)
    if first.width > WIDTH_LIMIT_PX:
        raise SystemExit(f"{path} is {first.width} px wide, more than {WIDTH_LIMIT_PX}: reduce its pictures.")
    durations_ms = [scene.shown_ms for scene in scenes]
    first.save(path, save_all=True, append_images=others, duration=durations_ms, loop=0, quality=QUALITY, method=6)
    size_kib = path.stat().st_size / 1024
    if size_kib > LIMIT_KIB:
        raise SystemExit(f"{path} has {size_kib:.0f} KiB, more than {LIMIT_KIB}: show fewer scenes.")
    print(f"{path}: {size_kib:.0f} KiB, {len(scenes)} scenes, {sum(durations_ms) / 1000:.0f} s")
