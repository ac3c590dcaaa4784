"""OS-Atlas-data.

Role: `read_os_atlas` and `write_os_atlas`. Rule: boxes are [left, top, right, bottom] as shares of the image; a record is one question, or
an image with a list of `elements`. These are training data: records that give no sample may be left out. Source: arXiv 2410.23218;
OS-Copilot/OS-Atlas-data. Non-goals: its zip files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dart_agent.errors import ConfigError
from dart_agent.grounding.datasets.dataset import GroundingDataset
from dart_agent.grounding.datasets.source import (
    SHARES,
    ImageFolder,
    OurKeys,
    PublishedRecord,
    UnusableRecords,
    box_target,
    check_shares,
    copy_image,
    from_shares,
    our_keys,
    parse_record,
    read_json,
    require_folder,
    require_instruction,
)
from dart_agent.grounding.samples import GroundingSample

ANNOTATIONS = "os_atlas.json"
"""Name of the file that `write_os_atlas` writes."""
_NAME = "OS-Atlas-data"
_HEAD_BYTES = 1 << 16


class _Element(OurKeys):
    instruction: str
    bbox: tuple[float, float, float, float]
    data_type: str = ""


class _Screen(PublishedRecord):
    img_filename: str
    elements: tuple[_Element, ...]


class _Flat(_Element):
    img_filename: str


def annotation_files(folder: Path) -> list[Path]:
    """The files that hold records of this format.

    Args:
        folder: The folder.

    Returns:
        JSON files that begin with a list of records with `img_filename`, and `elements` or `bbox`; the rest is not read.
    """
    return [path for path in sorted(folder.glob("*.json")) if _is_annotation(path)]


def _is_annotation(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return head.lstrip().startswith(b"[") and b'"img_filename"' in head and (b'"elements"' in head or b'"bbox"' in head)


def read_os_atlas(folder: Path, *, drop: bool = False) -> GroundingDataset:
    """Read data of OS-Atlas's form.

    Args:
        folder: Folder with files of annotations, and the images beside them, in `images`, or in the only other folder.
        drop: Leave out records without an instruction, and those whose box has no area or lies outside of its image.

    Returns:
        The samples.

    Raises:
        ConfigError: There is no file of annotations, or it or an image is wrong.
    """
    files = annotation_files(require_folder(folder))
    if not files:
        raise ConfigError(
            f"{folder} is no {_NAME}: it has no JSON file of records with img_filename, instruction and bbox"
        )
    folders = sorted(path.name for path in folder.iterdir() if path.is_dir())
    places = ["images", *(folders if len(folders) == 1 else []), "."]
    images = ImageFolder(folder, places, _NAME, f"the zip files of {_NAME}")
    samples = []
    bad = UnusableRecords(drop)
    for path in files:
        for number, record in enumerate(read_json(path)):
            place = f"record {number} of {path}"
            for index, (file, element) in enumerate(_elements(record, place)):
                with bad.leave_out():
                    samples.append(_sample(file, element, f"{path.stem}-{number}-{index}", images, place))
    bad.check(len(samples), folder, SHARES)
    return GroundingDataset("os-atlas", folder, tuple(samples), left_out=bad.count)


def _elements(record: Any, place: str) -> list[tuple[str, _Element]]:
    if isinstance(record, dict) and "elements" in record:
        screen = parse_record(record, _Screen, place, _NAME)
        return [(screen.img_filename, element) for element in screen.elements]
    flat = parse_record(record, _Flat, place, _NAME)
    return [(flat.img_filename, flat)]


def _sample(file: str, element: _Element, number: str, images: ImageFolder, place: str) -> GroundingSample:
    check_shares(element.bbox, place)
    image_wh = images.size(file)
    return GroundingSample.model_validate(
        {
            "image": images.name(file),
            "image_wh": image_wh,
            "instruction": require_instruction(element.instruction, place),
            "targets": (box_target(from_shares(element.bbox, image_wh), place),),
            "element_type": element.data_type,
            **(element.ours() or {"sample_id": number, "screen_id": file}),
        }
    )


def write_os_atlas(folder: Path, samples: Iterable[GroundingSample], root: Path) -> int:
    """Write samples in OS-Atlas's form, with keys of ours beside the published ones.

    Args:
        folder: Where the file and the images go.
        samples: Samples with one box (`is_one_box`).
        root: Folder of their images.

    Returns:
        How many samples were written.
    """
    screens: dict[str, list[dict[str, Any]]] = {}
    count = 0
    for sample in samples:
        copy_image(sample, root, folder / "images")
        (left, top, right, bottom), (width, height) = sample.targets[0].boxes[0], sample.image_wh
        screens.setdefault(sample.image, []).append(
            {
                "instruction": sample.instruction,
                "bbox": [left / width, top / height, right / width, bottom / height],
                "data_type": sample.element_type,
                **our_keys(sample),
            }
        )
        count += 1
    records = [{"img_filename": image, "elements": elements} for image, elements in screens.items()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ANNOTATIONS).write_text(json.dumps(records, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return count
