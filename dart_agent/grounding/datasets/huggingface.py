"""Parquet files of Hugging Face's `datasets`, with the images inside.

Role: `read_huggingface` and `write_huggingface`. Rule: the columns are those of rootsautomation/ScreenSpot (image, file_name, instruction,
bbox as shares of the image, data_type, data_source); a column `sample` of ours holds the whole sample, so that polygons, refusals and drags
come back, too. Published rows with all these columns and ScreenSpot's types are ScreenSpot and are scored as it; the name of the nearest
folder that says "screenspot" tells ScreenSpot-v2. Needs the extra `data`. Non-goals: uploading.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image
from pydantic import ValidationError

from dart_agent.errors import ConfigError
from dart_agent.grounding.datasets.dataset import GroundingDataset
from dart_agent.grounding.datasets.screenspot import NAMES, TYPES, Version, platform_of, scored_as_published
from dart_agent.grounding.datasets.source import (
    SHARES,
    UnusableRecords,
    box_target,
    check_inside,
    check_shares,
    from_shares,
    is_one_box,
    require_folder,
    require_instruction,
)
from dart_agent.grounding.samples import GroundingSample
from dart_agent.strict_model import format_validation_error

SINGLE_DIGITS = 3
"""Decimals of a pixel that survive a share of single precision on a screen."""
ROWS_PER_GROUP = 64
FEATURES = {
    "image": {"_type": "Image"},
    "file_name": {"dtype": "string", "_type": "Value"},
    "instruction": {"dtype": "string", "_type": "Value"},
    "bbox": {"feature": {"dtype": "float64", "_type": "Value"}, "_type": "Sequence"},
    "data_type": {"dtype": "string", "_type": "Value"},
    "data_source": {"dtype": "string", "_type": "Value"},
    "sample": {"dtype": "string", "_type": "Value"},
}
_NAME = "data set of Hugging Face"
_SCREENSPOT_COLUMNS = {"image", "file_name", "instruction", "bbox", "data_type", "data_source"}
_SCREENSPOT_V2 = re.compile("screenspot[-_ ]?v2", re.IGNORECASE)
_CARD = """---
configs:
- config_name: default
  data_files:
  - split: {split}
    path: data/{split}-*
---
# Grounding samples

{count} questions about screenshots, exported by DART. `bbox` is [left, top, right, bottom] as shares of the image, and empty where the
answer is not one box; `sample` is the whole sample as JSON, in pixels.
"""


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files of a data set.

    Args:
        folder: Its folder.

    Returns:
        Those in `data`, else those in the folder.
    """
    return sorted((folder / "data").glob("*.parquet")) or sorted(folder.glob("*.parquet"))


def read_huggingface(
    folder: Path, unpack_to: Path, *, version: Version | None = None, drop: bool = False
) -> GroundingDataset:
    """Read a data set in Parquet files.

    Args:
        folder: Its folder.
        unpack_to: Where the images are written.
        version: Which version of ScreenSpot it is; None: what it is, is told by columns, types and names of folders.
        drop: Leave out rows without an instruction, and those whose bbox has no area or lies outside of its image; not where the columns
            are ScreenSpot's.

    Returns:
        The samples; of ScreenSpot with the platforms and the score of its authors.

    Raises:
        ConfigError: There are no Parquet files, they lack columns, or they are not ScreenSpot's.
    """
    import pyarrow.parquet as pq

    files = parquet_files(require_folder(folder))
    if not files:
        raise ConfigError(f"{folder} is no {_NAME}: it has no Parquet file; download the files of its folder data/")
    samples: list[GroundingSample] = []
    bad = UnusableRecords(drop)
    of_screenspot = True
    for path in files:
        try:
            file = pq.ParquetFile(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is no Parquet file ({error}): download it again") from None
        names = set(file.schema_arrow.names)
        lacking = [name for name in ("image", "instruction", "bbox") if name not in names]
        if lacking:
            raise ConfigError(f"{path} is no grounding data: it lacks the columns {', '.join(lacking)}")
        double = str(file.schema_arrow.field("bbox").type).endswith("double>")
        published = names >= _SCREENSPOT_COLUMNS and "sample" not in names
        of_screenspot = of_screenspot and published
        for number, row in enumerate(_rows(file)):
            with nullcontext() if published else bad.leave_out():
                samples.append(_sample(row, unpack_to, f"{path.stem}-{number}", double=double, benchmark=published))
    bad.check(len(samples), folder, SHARES)
    if of_screenspot:
        check_inside(samples, folder, SHARES)
    of_screenspot = of_screenspot and all(sample.element_type in TYPES for sample in samples)
    if of_screenspot:
        placed = [sample.model_copy(update={"platform": platform_of(sample.application)}) for sample in samples]
        return scored_as_published(version or _version_of(folder), unpack_to, placed)
    if version is not None:
        raise ConfigError(
            f"{folder} is no copy of {NAMES[version]}: its Parquet files need the columns {', '.join(sorted(_SCREENSPOT_COLUMNS))}, and "
            f"{' or '.join(TYPES)} as data_type; read it with --format huggingface"
        )
    return GroundingDataset("huggingface", unpack_to, tuple(samples), left_out=bad.count)


def _version_of(folder: Path) -> Version:
    """The version of ScreenSpot that the nearest folder with its name says: that of the data, or the Hub's in the cache."""
    named = next((part for part in reversed(folder.resolve().parts) if "screenspot" in part.lower()), "")
    return "screenspot-v2" if _SCREENSPOT_V2.search(named) else "screenspot"


def _rows(file: Any) -> Iterator[dict[str, Any]]:
    for batch in file.iter_batches(ROWS_PER_GROUP):
        yield from batch.to_pylist()


def _sample(row: dict[str, Any], folder: Path, number: str, *, double: bool, benchmark: bool) -> GroundingSample:
    content = (row["image"] or {}).get("bytes")
    if not content:
        raise ConfigError(f"row {number} has no image in it: only data sets with embedded images can be read")
    image, image_wh = _unpack(content, folder)
    try:
        if row.get("sample"):
            return GroundingSample.model_validate(json.loads(row["sample"]) | {"image": image, "image_wh": image_wh})
        check_shares(row["bbox"], f"row {number}", whole=not benchmark)
        box = from_shares(row["bbox"], image_wh) if double else from_shares(row["bbox"], image_wh, SINGLE_DIGITS)
        return GroundingSample(
            sample_id=number,
            image=image,
            image_wh=image_wh,
            instruction=require_instruction(row["instruction"], f"row {number}"),
            targets=(box_target(box, f"row {number}"),),
            application=row.get("data_source") or "",
            element_type=row.get("data_type") or "",
            screen_id=row.get("file_name") or image,
        )
    except ValidationError as error:
        raise ConfigError(f"row {number} is no grounding sample: {format_validation_error(error)}") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"row {number} is no grounding sample: {error}") from None


def _unpack(content: bytes, folder: Path) -> tuple[str, tuple[int, int]]:
    try:
        with Image.open(io.BytesIO(content)) as image:
            suffix, image_wh = (image.format or "png").lower(), image.size
    except OSError as error:
        raise ConfigError(f"an image in the Parquet file cannot be read: {error}") from None
    name = f"images/{hashlib.sha256(content).hexdigest()[:32]}.{suffix}"
    path = folder / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return name, image_wh


def write_huggingface(folder: Path, samples: Iterable[GroundingSample], root: Path, split: str = "test") -> int:
    """Write samples as a data set that `datasets.load_dataset(FOLDER)` reads.

    Args:
        folder: Where `data/SPLIT-00000-of-00001.parquet` and the card go.
        samples: Any samples.
        root: Folder of their images.
        split: Name of the split.

    Returns:
        How many samples were written.

    Raises:
        ConfigError: An image cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            ("file_name", pa.string()), ("instruction", pa.string()), ("bbox", pa.list_(pa.float64())),
            ("data_type", pa.string()), ("data_source", pa.string()), ("sample", pa.string()),
        ],
        metadata={"huggingface": json.dumps({"info": {"features": FEATURES}})},
    )  # fmt: skip
    path = folder / "data" / f"{split}-00000-of-00001.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    rows, count = (_row(sample, root) for sample in samples), 0
    with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        while chunk := list(islice(rows, ROWS_PER_GROUP)):
            writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
            count += len(chunk)
    os.replace(temporary, path)
    (folder / "README.md").write_text(_CARD.format(split=split, count=count), encoding="utf-8")
    return count


def _row(sample: GroundingSample, root: Path) -> dict[str, Any]:
    try:
        content = (root / sample.image).read_bytes()
    except OSError as error:
        raise ConfigError(f"the image {root / sample.image} cannot be read: {error.strerror}") from None
    box = None
    if is_one_box(sample):
        (left, top, right, bottom), (width, height) = sample.targets[0].boxes[0], sample.image_wh
        box = [left / width, top / height, right / width, bottom / height]
    return {
        "image": {"bytes": content, "path": Path(sample.image).name},
        "file_name": sample.image,
        "instruction": sample.instruction,
        "bbox": box,
        "data_type": sample.element_type,
        "data_source": sample.application,
        "sample": sample.model_dump_json(exclude_defaults=True),
    }
