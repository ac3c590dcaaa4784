"""ScreenSpot and ScreenSpot-v2.

Role: `read_screenspot` and `write_screenspot`; `scored_as_published` says how either version is scored, whatever files it is from. Rule:
the published boxes are [left, top, width, height] in pixels; the converted copy in GUI-Actor's data has [left, top, right, bottom], and is
told by its keys `ui_type` and `img_size`. SeeClick's published average of ScreenSpot is the macro average over six cells; published
averages of ScreenSpot-v2 are micro. Sources: SeeClick, arXiv 2401.10935; OS-Copilot/ScreenSpot-v2. Non-goals: the files of the copies in
Parquet (`dart_agent.grounding.datasets.huggingface`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from dart_agent.grounding.datasets.dataset import GroundingDataset
from dart_agent.grounding.datasets.source import (
    ImageFolder,
    InstructionText,
    OurKeys,
    box_target,
    check_inside,
    copy_image,
    from_xywh,
    our_keys,
    read_records,
    require_files,
    rescale,
)
from dart_agent.grounding.samples import Box, GroundingSample

Version = Literal["screenspot", "screenspot-v2"]
PLATFORMS = ("mobile", "desktop", "web")
TYPES = ("text", "icon")
_PLATFORM_OF = {"ios": "mobile", "android": "mobile", "windows": "desktop", "macos": "desktop"}
"""By `data_source`; all others are sites of the web."""
NAMES: dict[Version, str] = {"screenspot": "ScreenSpot", "screenspot-v2": "ScreenSpot-v2"}
_FILES: dict[Version, str] = {"screenspot": "screenspot_{}.json", "screenspot-v2": "screenspot_{}_v2.json"}
_IMAGES: dict[Version, tuple[str, ...]] = {
    "screenspot": ("screenspot_imgs", "images", "."),
    "screenspot-v2": ("screenspotv2_image", "screenspotv2_imgs", "images", "."),
}
PUBLISHED_SAMPLES = 1272


class _Record(OurKeys):
    img_filename: str
    instruction: InstructionText
    bbox: tuple[float, float, float, float]
    data_type: str = ""
    data_source: str = ""
    ui_type: str | None = None
    img_size: tuple[float, float] | None = None

    def is_converted(self) -> bool:
        return self.ui_type is not None and self.img_size is not None


def file_names(version: Version) -> list[str]:
    """The files of annotations.

    Args:
        version: Which of the two.

    Returns:
        Their names.
    """
    return [_FILES[version].format(platform) for platform in PLATFORMS]


def read_screenspot(folder: Path, version: Version) -> GroundingDataset:
    """Read ScreenSpot or ScreenSpot-v2.

    Args:
        folder: Folder with the three files of annotations, and the images in `screenspot_imgs` or `screenspotv2_image`.
        version: Which of the two.

    Returns:
        The samples; `platform` is mobile, desktop or web, `application` the published `data_source`.

    Raises:
        ConfigError: A file or an image is missing or wrong.
    """
    what = NAMES[version]
    files = require_files(folder, file_names(version), what)
    images = ImageFolder(folder, _IMAGES[version], what, f"the images of {what}")
    samples = []
    for platform, path in zip(PLATFORMS, files, strict=True):
        of_file = [
            _sample(record, platform, f"{platform}-{number:04d}", images, f"record {number} of {path}")
            for number, record in enumerate(read_records(path, _Record, what))
        ]
        check_inside(of_file, path, "[left, top, width, height]")
        samples += of_file
    return scored_as_published(version, folder, samples)


def scored_as_published(version: Version, root: Path, samples: Iterable[GroundingSample]) -> GroundingDataset:
    """Say how samples of ScreenSpot are scored.

    Args:
        version: Which of the two.
        root: Folder of the images.
        samples: The samples, or a part of them, with their platforms and types.

    Returns:
        The data.
    """
    return GroundingDataset(
        version,
        root,
        tuple(samples),
        average="macro" if version == "screenspot" else "micro",
        cells=cells,
        published_samples=PUBLISHED_SAMPLES,
    )


def platform_of(data_source: str) -> str:
    """The platform of a published `data_source`, where no file's name tells it.

    Args:
        data_source: Such as "ios" or "gitlab".

    Returns:
        mobile, desktop or web.
    """
    return _PLATFORM_OF.get(data_source, "web")


def cells(sample: GroundingSample) -> tuple[str, ...]:
    """The cell of the published table.

    Args:
        sample: A sample of ScreenSpot.

    Returns:
        Platform with type.
    """
    return (f"{sample.platform} {sample.element_type}",)


def _sample(record: _Record, platform: str, number: str, images: ImageFolder, place: str) -> GroundingSample:
    image_wh = images.size(record.img_filename)
    box: Box
    if record.is_converted() and record.img_size is not None:
        left, top, right, bottom = rescale(record.bbox, record.img_size, image_wh)
        box = left, top, right, bottom
    else:
        box = from_xywh(record.bbox)
    published = {
        "sample_id": number,
        "application": record.data_source,
        "screen_id": record.img_filename,
        "platform": platform,
    }
    return GroundingSample.model_validate(
        {
            "image": images.name(record.img_filename),
            "image_wh": image_wh,
            "instruction": record.instruction,
            "targets": (box_target(box, place),),
            "element_type": record.data_type or record.ui_type or "",
            **(record.ours() or published),
        }
    )


def write_screenspot(folder: Path, samples: Iterable[GroundingSample], root: Path) -> int:
    """Write samples as ScreenSpot's files, with keys of ours beside the published ones.

    Args:
        folder: Where the files and `screenspot_imgs` go.
        samples: Samples with one box (`is_one_box`); those of other platforms than mobile and web stand in the file of desktops.
        root: Folder of their images.

    Returns:
        How many samples were written.
    """
    by_platform: dict[str, list[dict[str, Any]]] = defaultdict(list)
    images = folder / _IMAGES["screenspot"][0]
    images.mkdir(parents=True, exist_ok=True)
    count = 0
    for sample in samples:
        left, top, right, bottom = sample.targets[0].boxes[0]
        copy_image(sample, root, images)
        platform = sample.platform if sample.platform in PLATFORMS else "desktop"
        by_platform[platform].append(
            {
                "img_filename": sample.image,
                "instruction": sample.instruction,
                "bbox": [left, top, right - left, bottom - top],
                "data_type": sample.element_type,
                "data_source": sample.application or sample.platform,
                **our_keys(sample),
            }
        )
        count += 1
    for platform, name in zip(PLATFORMS, file_names("screenspot"), strict=True):
        text = json.dumps(by_platform[platform], ensure_ascii=False, indent=1)
        (folder / name).write_text(text + "\n", encoding="utf-8")
    return count
