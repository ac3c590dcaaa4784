"""ScreenSpot-Pro.

Role: `read_screenspot_pro`. Rule: boxes are [left, top, right, bottom] in pixels of the noted `img_size`; the authors' scorer compares
shares of the sides, so that an image of another size is right where the same share of it is. A record of the type "negative" is a refusal.
The average is micro: the mean of the six groups is not the published score. Source: arXiv 2504.07981. Non-goals: the Chinese instructions.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

from dart_agent.errors import ConfigError
from dart_agent.grounding.datasets.dataset import GroundingDataset
from dart_agent.grounding.datasets.source import (
    ImageFolder,
    InstructionText,
    PublishedRecord,
    box_target,
    check_inside,
    read_records,
    require_folder,
    rescale,
)
from dart_agent.grounding.samples import GroundingSample

ANNOTATIONS = "annotations"
MERGED = "all.json"
"""Copies hold all files of the applications once more, under this name."""
PUBLISHED_SAMPLES = 1581
_NAME = "ScreenSpot-Pro"


class _Record(PublishedRecord):
    id: str
    img_filename: str
    img_size: tuple[float, float]
    bbox: tuple[float, float, float, float]
    instruction: InstructionText
    application: str
    platform: str
    group: str
    ui_type: str
    gt_type: Literal["positive", "negative"] = "positive"


def read_screenspot_pro(folder: Path) -> GroundingDataset:
    """Read ScreenSpot-Pro.

    Args:
        folder: Folder with `annotations/*.json` and `images`.

    Returns:
        The samples; `group` is the published one (Dev, Creative, CAD, Scientific, Office, OS), `platform` the operating system.

    Raises:
        ConfigError: A file or an image is missing or wrong, or all annotations are there twice.
    """
    files = sorted((require_folder(folder) / ANNOTATIONS).glob("*.json"))
    if not files:
        raise ConfigError(
            f"{folder} is no {_NAME}: {ANNOTATIONS}/ has no JSON file; put its annotations and images there"
        )
    if len(files) > 1 and any(path.name == MERGED for path in files):
        raise ConfigError(
            f"{folder / ANNOTATIONS} holds every sample twice, in {MERGED} and in the files of the applications: remove {MERGED}"
        )
    images = ImageFolder(folder, ("images",), _NAME, f"the images of {_NAME}")
    samples = [sample for path in files for sample in _samples(path, read_records(path, _Record, _NAME), images)]
    check_inside(samples, folder / ANNOTATIONS, "[left, top, right, bottom]")
    return GroundingDataset(
        "screenspot-pro", folder, tuple(samples), average="micro", cells=cells, published_samples=PUBLISHED_SAMPLES
    )


def _samples(path: Path, records: list[_Record], images: ImageFolder) -> list[GroundingSample]:
    seen: Counter[str] = Counter()
    found = []
    for number, record in enumerate(records):
        image_wh = images.size(record.img_filename)
        left, top, right, bottom = rescale(record.bbox, record.img_size, image_wh)
        place = f"record {number} of {path}"
        seen[record.id] += 1
        again = f"#{seen[record.id]}" if seen[record.id] > 1 else ""
        found.append(
            GroundingSample(
                sample_id=f"{path.stem}/{record.id}{again}",
                image=images.name(record.img_filename),
                image_wh=image_wh,
                instruction=record.instruction,
                targets=() if record.gt_type == "negative" else (box_target((left, top, right, bottom), place),),
                application=record.application,
                element_type=record.ui_type,
                screen_id=record.img_filename,
                platform=record.platform,
                group=record.group,
            )
        )
    return found


def cells(sample: GroundingSample) -> tuple[str, ...]:
    """The cells of the published table.

    Args:
        sample: A sample of ScreenSpot-Pro.

    Returns:
        The group, and the group with the type.
    """
    return sample.group, f"{sample.group} {sample.element_type}"
