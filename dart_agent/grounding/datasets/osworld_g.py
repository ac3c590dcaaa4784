"""OSWorld-G.

Role: `read_osworld_g`. Rule: a box is [left, top, width, height] in pixels, a polygon x, y, x, y, ..., and where the type is "refusal" only
a refusal is right, whatever the coordinates say; polygons are judged by the authors' even-odd ray. The four published scores are {original,
refined instructions} x {all samples, those without refusals}; a policy that cannot refuse gets at most 510 of 564. Categories overlap.
Source: arXiv 2505.13227. Non-goals: copies with other boxes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from dart_agent.errors import ConfigError
from dart_agent.grounding.datasets.dataset import GroundingDataset
from dart_agent.grounding.datasets.source import (
    ImageFolder,
    InstructionText,
    PublishedRecord,
    box_target,
    check_inside,
    from_xywh,
    read_json,
    read_records,
    require_files,
    require_folder,
    rescale,
)
from dart_agent.grounding.samples import MIN_CORNERS, GroundingSample, GroundingTarget

Version = Literal["osworld-g", "osworld-g-refined"]
FILES: dict[Version, str] = {"osworld-g": "OSWorld-G.json", "osworld-g-refined": "OSWorld-G_refined.json"}
CATEGORIES = "classification_result.json"
PUBLISHED_SAMPLES = 564
_NAME = "OSWorld-G"


class _Record(PublishedRecord):
    id: Annotated[str, Field(min_length=1)]
    image_path: str
    image_size: tuple[float, float]
    instruction: InstructionText
    box_type: Literal["bbox", "polygon", "refusal"]
    box_coordinates: tuple[float, ...]
    GUI_types: tuple[str, ...] = ()


def benchmark_folder(folder: Path) -> Path:
    """Where the files of OSWorld-G are.

    Args:
        folder: Its repository, or the folder `benchmark` in it.

    Returns:
        The folder with the files.
    """
    inner = folder / "benchmark"
    return inner if any((inner / name).is_file() for name in FILES.values()) else folder


def read_osworld_g(folder: Path, version: Version) -> GroundingDataset:
    """Read OSWorld-G.

    Args:
        folder: Its repository, or the folder `benchmark` in it: `OSWorld-G.json` or `OSWorld-G_refined.json`, `classification_result.json`
            and `images`.
        version: With the original or the refined instructions.

    Returns:
        The samples; `categories` are the abilities of the published table, `group` is the type of the box.

    Raises:
        ConfigError: A file or an image is missing or wrong.
    """
    root = benchmark_folder(require_folder(folder))
    path, classified = require_files(root, [FILES[version], CATEGORIES], _NAME)
    images = ImageFolder(root, ("images",), _NAME, f"the images of {_NAME}")
    categories = _read_categories(classified)
    samples = [
        _sample(record, categories.get(record.id, ()), images, f"record {number} of {path}")
        for number, record in enumerate(read_records(path, _Record, _NAME))
    ]
    check_inside(samples, path, "[left, top, width, height]")
    return GroundingDataset(
        version, root, tuple(samples), average="micro", cells=cells, published_samples=PUBLISHED_SAMPLES
    )


def cells(sample: GroundingSample) -> tuple[str, ...]:
    """The cells of the published table.

    Args:
        sample: A sample of OSWorld-G.

    Returns:
        All categories that it stands in.
    """
    return sample.categories


def _sample(record: _Record, categories: tuple[str, ...], images: ImageFolder, place: str) -> GroundingSample:
    image_wh = images.size(record.image_path)
    if record.box_type == "refusal" and "refusal" not in categories:
        categories = (*categories, "refusal")
    return GroundingSample(
        sample_id=record.id,
        image=images.name(record.image_path),
        image_wh=image_wh,
        instruction=record.instruction,
        targets=_targets(record, image_wh, place),
        element_type=record.GUI_types[0] if record.GUI_types else "",
        screen_id=record.image_path,
        group=record.box_type,
        categories=categories,
    )


def _targets(record: _Record, image_wh: tuple[int, int], place: str) -> tuple[GroundingTarget, ...]:
    if record.box_type == "refusal":
        return ()
    given = record.box_coordinates
    if record.box_type == "bbox":
        if len(given) != 4:
            raise ConfigError(f"{place} is no record of {_NAME}: a box has four numbers, not {len(given)}")
        left, top, right, bottom = rescale(from_xywh(given), record.image_size, image_wh)
        return (box_target((left, top, right, bottom), place),)
    if len(given) % 2 or len(given) < 2 * MIN_CORNERS:
        raise ConfigError(f"{place} is no record of {_NAME}: a polygon has x, y of at least three corners, not {given}")
    scaled = rescale(given, record.image_size, image_wh)
    corners = tuple(zip(scaled[::2], scaled[1::2], strict=True))
    try:
        return (GroundingTarget(polygons=(corners,), polygon_border="even-odd"),)
    except ValidationError:
        raise ConfigError(
            f"the polygon of {place} has no area: its corners are {corners}; get the file again"
        ) from None


class _Categories(PublishedRecord):
    classified: dict[str, list[Any]]


def _read_categories(path: Path) -> dict[str, tuple[str, ...]]:
    try:
        classified = _Categories.model_validate(read_json(path)).classified
        by_id: dict[str, list[str]] = {}
        for category, items in classified.items():
            for item in items:
                by_id.setdefault(str(item["id"] if isinstance(item, dict) else item), []).append(category)
    except (ValidationError, KeyError) as error:
        raise ConfigError(f"{path} names no categories of {_NAME} ({error}): get the file again") from None
    return {name: tuple(found) for name, found in by_id.items()}
