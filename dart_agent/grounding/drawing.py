"""Pictures of answers: attention, regions, verifier scores, and where the target is.

Role: `draw_answer`, `draw_targets`, captions and contact sheets. Rule: the screen stays readable under the attention; what the model said
is red and orange, what the verifier said blue, what is right green. Non-goals: windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from dart_agent.grounding.grounder import GroundingAnswer
from dart_agent.grounding.labels import PatchGrid
from dart_agent.grounding.samples import GroundingTarget
from dart_agent.grounding.scoring import Point
from dart_envs.types import RgbImage

SAID, REGION, JUDGED, RIGHT = (220, 20, 20), (255, 140, 0), (30, 80, 255), (0, 150, 50)
SHOWN_REGIONS = 5
STRONGEST = 0.7
"""Opacity of the greatest attention."""
CAPTION_PX = 18
SHEET_GAP_PX = 8
_ARM_PX = 10


def draw_answer(
    image: RgbImage,
    answer: GroundingAnswer,
    points: Sequence[Point],
    *,
    judged: Sequence[tuple[Point, float]] = (),
    right: Sequence[GroundingTarget] = (),
) -> Image.Image:
    """Draw an answer over its image.

    Args:
        image: The image, uint8 [H, W, 3].
        answer: What the model said.
        points: The final points, which a verifier or a second look may have moved; none: it refused.
        judged: Candidates with the verifier's scores.
        right: Targets, to show where the answer should have been.

    Returns:
        A picture of the size of the image.
    """
    width, height = image.shape[1], image.shape[0]
    picture = image.astype(np.float64)
    for target in answer.targets:
        share = target.attention_M / max(float(target.attention_M.max()), 1e-12)
        heat = Image.fromarray((255 * share.reshape(answer.grid.rows, answer.grid.columns)).astype(np.uint8))
        strength = np.asarray(heat.resize((width, height), Image.Resampling.NEAREST)) / 255 * STRONGEST
        picture += strength[..., None] * (np.array(SAID) - picture)
    drawn = Image.fromarray(picture.astype(np.uint8))
    pen = ImageDraw.Draw(drawn)
    for target in answer.targets:
        for region in target.regions[:SHOWN_REGIONS]:
            _outline(pen, answer.grid, region.cells)
            x, y = min(_corners(answer.grid, cell)[:2] for cell in region.cells)
            _label(pen, (x + 2, y + 1), f"{region.score:.3f}", REGION)
    for (x, y), score in judged:
        pen.ellipse((x - 4, y - 4, x + 4, y + 4), outline=JUDGED, width=2)
        _label(pen, (x + 5, y - 5), f"{score:.2f}", JUDGED)
    _outline_targets(pen, right)
    for number, (x, y) in enumerate(points, 1):
        pen.line((x - _ARM_PX, y, x + _ARM_PX, y), fill=SAID, width=3)
        pen.line((x, y - _ARM_PX, x, y + _ARM_PX), fill=SAID, width=3)
        if len(points) > 1:
            _label(pen, (x + 4, y + 4), str(number), SAID)
    if not points:
        _label(pen, (4, 4), f"refused ({answer.refusal:.2f})", SAID)
    return drawn


def can_save(path: Path) -> bool:
    """Whether a picture can be written under a name.

    Args:
        path: The file to write.

    Returns:
        Whether Pillow writes colour pictures of the format that the name's ending says.
    """
    written = Image.registered_extensions().get(path.suffix.lower())
    if written is None:
        return False
    try:
        Image.new("RGB", (1, 1)).save(BytesIO(), written)
    except (KeyError, OSError, ValueError):
        return False
    return True


def draw_targets(image: RgbImage, targets: Sequence[GroundingTarget]) -> Image.Image:
    """Draw where targets are.

    Args:
        image: The image, uint8 [H, W, 3].
        targets: The targets.

    Returns:
        A picture of the size of the image.
    """
    drawn = Image.fromarray(image)
    _outline_targets(ImageDraw.Draw(drawn), targets)
    return drawn


def with_caption(picture: Image.Image, text: str) -> Image.Image:
    """Put a text above a picture.

    Args:
        picture: The picture.
        text: One line; what is wider than the picture is cut off.

    Returns:
        A picture that is higher by a line.
    """
    taller = Image.new("RGB", (picture.width, picture.height + CAPTION_PX), "white")
    taller.paste(picture, (0, CAPTION_PX))
    ImageDraw.Draw(taller).text((4, 3), _printable(text), fill="black")
    return taller


def contact_sheet(pictures: Sequence[Path], columns: int = 4, width: int = 480) -> Image.Image:
    """Show many pictures at once.

    Args:
        pictures: Files.
        columns: Pictures in a row.
        width: Width of each, in pixels.

    Returns:
        One picture.
    """
    tiles = []
    for path in pictures:
        with Image.open(path) as picture:
            tiles.append(picture.convert("RGB").resize((width, max(1, round(picture.height * width / picture.width)))))
    rows = [tiles[begin : begin + columns] for begin in range(0, len(tiles), columns)]
    heights = [max(tile.height for tile in row) + SHEET_GAP_PX for row in rows]
    sheet = Image.new("RGB", ((width + SHEET_GAP_PX) * min(columns, len(tiles)), sum(heights)), "white")
    for number, row in enumerate(rows):
        for column, tile in enumerate(row):
            sheet.paste(tile, (column * (width + SHEET_GAP_PX), sum(heights[:number])))
    return sheet


def _printable(text: str) -> str:
    """Without characters that Pillow's own font may lack."""
    return text.encode("latin-1", "replace").decode("latin-1")


def _outline_targets(pen: ImageDraw.ImageDraw, targets: Sequence[GroundingTarget]) -> None:
    for sought in targets:
        for box in sought.boxes:
            pen.rectangle(box, outline=RIGHT, width=2)
        for polygon in sought.polygons:
            pen.polygon(polygon, outline=RIGHT, width=2)


def _corners(grid: PatchGrid, cell: int) -> tuple[float, float, float, float]:
    row, column = divmod(cell, grid.columns)
    width, height = grid.cell_wh
    return column * width, row * height, (column + 1) * width, (row + 1) * height


def _outline(pen: ImageDraw.ImageDraw, grid: PatchGrid, cells: Sequence[int]) -> None:
    """The border of a region: the sides of its cells that no other cell of it shares."""
    own = set(cells)
    for cell in cells:
        row, column = divmod(cell, grid.columns)
        left, top, right, bottom = _corners(grid, cell)
        sides = (
            (column > 0 and cell - 1 in own, (left, top, left, bottom)),
            (column < grid.columns - 1 and cell + 1 in own, (right, top, right, bottom)),
            (row > 0 and cell - grid.columns in own, (left, top, right, top)),
            (row < grid.rows - 1 and cell + grid.columns in own, (left, bottom, right, bottom)),
        )
        for shared, line in sides:
            if not shared:
                pen.line(line, fill=REGION, width=2)


def _label(pen: ImageDraw.ImageDraw, at: tuple[float, float], text: str, colour: tuple[int, int, int]) -> None:
    pen.rectangle(pen.textbbox(at, text), fill=(255, 255, 255))
    pen.text(at, text, fill=colour)
