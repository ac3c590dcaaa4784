"""The formats by name, and which one a folder has.

Role: `read_dataset` and `write_dataset`. Rule: a folder that fits no format, or a format that cannot hold a sample, is one sentence with
the fix. Non-goals: the formats themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path

from dart_agent.errors import ConfigError
from dart_agent.grounding.datasets.dataset import GroundingDataset
from dart_agent.grounding.datasets.huggingface import parquet_files, read_huggingface, write_huggingface
from dart_agent.grounding.datasets.os_atlas import annotation_files, read_os_atlas, write_os_atlas
from dart_agent.grounding.datasets.osworld_g import FILES, benchmark_folder, read_osworld_g
from dart_agent.grounding.datasets.screenspot import Version, file_names, read_screenspot, write_screenspot
from dart_agent.grounding.datasets.screenspot_pro import ANNOTATIONS, read_screenspot_pro
from dart_agent.grounding.datasets.source import copy_image, is_one_box
from dart_agent.grounding.samples import GroundingSample, read_samples, write_samples

SAMPLES_FILE = "samples.jsonl"


class ReadableFormat(StrEnum):
    """Formats of data."""

    AUTO = "auto"
    SAMPLES = "samples"
    SCREENSPOT = "screenspot"
    SCREENSPOT_V2 = "screenspot-v2"
    SCREENSPOT_PRO = "screenspot-pro"
    OSWORLD_G = "osworld-g"
    OSWORLD_G_REFINED = "osworld-g-refined"
    OS_ATLAS = "os-atlas"
    HUGGINGFACE = "huggingface"


class WritableFormat(StrEnum):
    """Formats that samples are written in."""

    SAMPLES = "samples"
    SCREENSPOT = "screenspot"
    OS_ATLAS = "os-atlas"
    HUGGINGFACE = "huggingface"


def _samples_dataset(path: Path) -> GroundingDataset:
    file = path / SAMPLES_FILE if path.is_dir() else path
    return GroundingDataset("samples", file.parent, tuple(read_samples(file)))


def _screenspot_dataset(path: Path, unpack_to: Path, version: Version) -> GroundingDataset:
    if parquet_files(path) and not any((path / name).is_file() for name in file_names(version)):
        return read_huggingface(path, unpack_to, version=version)
    return read_screenspot(path, version)


_READERS: Mapping[ReadableFormat, Callable[[Path, Path, bool], GroundingDataset]] = {
    ReadableFormat.SAMPLES: lambda path, _, drop: _samples_dataset(path),
    ReadableFormat.SCREENSPOT: lambda path, unpack_to, drop: _screenspot_dataset(path, unpack_to, "screenspot"),
    ReadableFormat.SCREENSPOT_V2: lambda path, unpack_to, drop: _screenspot_dataset(path, unpack_to, "screenspot-v2"),
    ReadableFormat.SCREENSPOT_PRO: lambda path, _, drop: read_screenspot_pro(path),
    ReadableFormat.OSWORLD_G: lambda path, _, drop: read_osworld_g(path, "osworld-g"),
    ReadableFormat.OSWORLD_G_REFINED: lambda path, _, drop: read_osworld_g(path, "osworld-g-refined"),
    ReadableFormat.OS_ATLAS: lambda path, _, drop: read_os_atlas(path, drop=drop),
    ReadableFormat.HUGGINGFACE: lambda path, unpack_to, drop: read_huggingface(path, unpack_to, drop=drop),
}


def detect_format(path: Path) -> ReadableFormat:
    """Tell the format of data by the names of its files.

    Args:
        path: A file of samples, or a folder.

    Returns:
        The format; of OSWorld-G's two versions the original one where both are there.

    Raises:
        ConfigError: There is nothing, or nothing that is known.
    """
    if path.is_file():
        if path.suffix == ".jsonl":
            return ReadableFormat.SAMPLES
        raise ConfigError(f"{path} is no file of samples (JSON lines, .jsonl): give that, or the folder of a data set")
    if not path.is_dir():
        raise ConfigError(f"there is no file or folder {path}")
    marks: tuple[tuple[ReadableFormat, bool], ...] = (
        (ReadableFormat.SAMPLES, (path / SAMPLES_FILE).is_file()),
        (ReadableFormat.SCREENSPOT_V2, any((path / name).is_file() for name in file_names("screenspot-v2"))),
        (ReadableFormat.SCREENSPOT, any((path / name).is_file() for name in file_names("screenspot"))),
        (ReadableFormat.OSWORLD_G, (benchmark_folder(path) / FILES["osworld-g"]).is_file()),
        (ReadableFormat.OSWORLD_G_REFINED, (benchmark_folder(path) / FILES["osworld-g-refined"]).is_file()),
        (ReadableFormat.SCREENSPOT_PRO, (path / ANNOTATIONS).is_dir()),
        (ReadableFormat.HUGGINGFACE, bool(parquet_files(path))),
    )
    for found, there in marks:
        if there:
            return found
    if annotation_files(path):
        return ReadableFormat.OS_ATLAS
    known = ", ".join(kind.value for kind in ReadableFormat if kind is not ReadableFormat.AUTO)
    raise ConfigError(f"{path} has no files of a known format ({known}): give the folder that holds them")


def read_dataset(path: Path, format_name: ReadableFormat, unpack_to: Path, *, drop: bool = False) -> GroundingDataset:
    """Read data of any format.

    Args:
        path: A file of samples, or a folder.
        format_name: Its format; `AUTO` looks at the names of the files.
        unpack_to: Where images are written that lie inside of other files.
        drop: Leave out records of training data without an instruction, and those whose box has no area or lies outside of its image.
            Benchmarks are read whole.

    Returns:
        The data.

    Raises:
        ConfigError: It cannot be read, or is empty.
    """
    chosen = detect_format(path) if format_name is ReadableFormat.AUTO else format_name
    found = _READERS[chosen](path, unpack_to, drop)
    if not found.samples:
        raise ConfigError(f"{path} holds no grounding sample: get its files again")
    return found


def write_dataset(
    folder: Path, dataset: GroundingDataset, format_name: WritableFormat, *, split: str = "test", drop: bool = False
) -> tuple[int, int]:
    """Write data in a format.

    Args:
        folder: An empty or missing folder.
        dataset: The data.
        format_name: The format.
        split: Name of the split, where the format has splits.
        drop: Leave out what the format cannot hold.

    Returns:
        How many samples were written, and how many were left out, here or when the data were read.

    Raises:
        ConfigError: The folder has files already, or the format cannot hold a sample.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty: give a new folder")
    samples: Iterable[GroundingSample] = dataset.samples
    left_out = dataset.left_out
    if format_name in (WritableFormat.SCREENSPOT, WritableFormat.OS_ATLAS):
        fitting = [sample for sample in dataset.samples if is_one_box(sample)]
        unfit = len(dataset.samples) - len(fitting)
        if unfit and not drop:
            raise ConfigError(
                f"{unfit} of {len(dataset.samples)} samples have no place in the format {format_name}, which knows one box per "
                "question (refusals, polygons, drags): add --drop to leave them out, or write samples or huggingface, which hold all"
            )
        samples, left_out = fitting, left_out + unfit
    folder.mkdir(parents=True, exist_ok=True)
    if format_name is WritableFormat.SCREENSPOT:
        return write_screenspot(folder, samples, dataset.root), left_out
    if format_name is WritableFormat.OS_ATLAS:
        return write_os_atlas(folder, samples, dataset.root), left_out
    if format_name is WritableFormat.HUGGINGFACE:
        return write_huggingface(folder, samples, dataset.root, split), left_out
    for sample in dataset.samples:
        copy_image(sample, dataset.root, folder)
    return write_samples(folder / SAMPLES_FILE, dataset.samples), left_out
