"""Reading published files: records, images, boxes.

Role: what the readers share. Rule: whatever a folder lacks is one `ConfigError` that names the file and the fix. The size of an image is
the image's own; what an annotation notes is only the scale of its coordinates. Records are left out of training data only, on demand, and
counted; a benchmark is read whole or not at all. Non-goals: any one format.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dart_agent.errors import ConfigError
from dart_agent.grounding.samples import Box, GroundingSample, GroundingTarget, QueryKind, leads_outside
from dart_agent.inference.checkpoint_files import is_lfs_pointer
from dart_agent.strict_model import format_validation_error

DIGITS = 9
"""Decimals of a pixel that a coordinate keeps when it was stored as a share or as a difference: enough to undo the rounding of doubles."""
MOST_OUTSIDE = 0.05
"""Share of boxes whose middle may lie outside of its image before the boxes are taken to be in another form."""
BORDER_SLACK = 1e-3
"""How far beyond the image a share may be: published boxes overlap the border by parts of a pixel."""
SHARES = "shares of the image from 0 to 1"
"""The form of boxes that `check_shares` checks, as errors name it."""
InstructionText = Annotated[str, Field(min_length=1)]
"""What a record of a benchmark asks. Training data has `require_instruction` in its place, so that a record without a question can be left
out."""


class PublishedRecord(BaseModel):
    """A record of a published file: what a reader needs of it; further keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)


class OurKeys(PublishedRecord):
    """Keys of ours beside the published ones; published files lack them."""

    sample_id: str = ""
    application: str = ""
    role: str = ""
    kind: QueryKind = "name"
    screen_id: str = ""
    platform: str = ""
    group: str = ""

    def ours(self) -> dict[str, str] | None:
        """The keys of a sample that we wrote; None for a published record."""
        names = OurKeys.model_fields
        return {name: str(getattr(self, name)) for name in names} if self.sample_id else None


R = TypeVar("R", bound=PublishedRecord)


def require_folder(path: Path) -> Path:
    """Check that a folder is there.

    Args:
        path: The folder.

    Returns:
        The same.

    Raises:
        ConfigError: It is not.
    """
    if not path.is_dir():
        raise ConfigError(f"there is no folder {path}: give the folder that holds the data set's files")
    return path


def require_files(folder: Path, names: Sequence[str], what: str) -> list[Path]:
    """Check that a folder has all files of a data set.

    Args:
        folder: The folder.
        names: The files.
        what: Name of the data set.

    Returns:
        Their paths.

    Raises:
        ConfigError: Some are missing.
    """
    missing = [name for name in names if not (require_folder(folder) / name).is_file()]
    if missing:
        raise ConfigError(
            f"{folder} is no complete {what}: {', '.join(missing)} is missing; put all files of {what} into this folder, "
            "as its authors publish them"
        )
    return [folder / name for name in names]


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        hint = "; it is a pointer of Git LFS: fetch the file itself with `git lfs pull`" if is_lfs_pointer(path) else ""
        raise ConfigError(f"{path} is no JSON file ({error}){hint or ': get the file again'}") from None


def read_records(path: Path, kind: type[R], what: str) -> list[R]:
    """Read a file with a list of records.

    Args:
        path: JSON, a list of objects.
        kind: What a record has.
        what: Name of the data set.

    Returns:
        The records.

    Raises:
        ConfigError: The file is none of that kind; the sentence names the record.
    """
    content = read_json(path)
    if not isinstance(content, list):
        raise ConfigError(f"{path} is no file of {what}: it holds no list of records")
    return [parse_record(record, kind, f"record {number} of {path}", what) for number, record in enumerate(content)]


def parse_record(record: Any, kind: type[R], place: str, what: str) -> R:
    """Read one record.

    Args:
        record: JSON value.
        kind: What it has.
        place: Where it stands, for the error.
        what: Name of the data set.

    Returns:
        The record.

    Raises:
        ConfigError: It is none.
    """
    try:
        return kind.model_validate(record)
    except ValidationError as error:
        raise ConfigError(f"{place} is no record of {what}: {format_validation_error(error)}") from None


class ImageFolder:
    """The images of a data set, with their sizes.

    Args:
        root: Folder of the data set.
        places: Folders below it where its authors' archives put the images, the first that exists is taken; "." is the folder itself.
        what: Name of the data set.
        archive: What the images come in, for the error.

    Raises:
        ConfigError: None of the folders exists.
    """

    def __init__(self, root: Path, places: Sequence[str], what: str, archive: str) -> None:
        self._root, self._what, self._archive = root, what, archive
        found = next((place for place in places if (root / place).is_dir()), None)
        if found is None:
            raise ConfigError(f"{root} has no folder of images ({', '.join(places)}): unpack {archive} there")
        self._place = found
        self._sizes: dict[str, tuple[int, int]] = {}

    def name(self, file: str) -> str:
        """The image relative to the folder of the data set.

        Args:
            file: The image as a record names it.

        Returns:
            The path with slashes.

        Raises:
            ConfigError: The name leads out of the folder.
        """
        name = file.replace("\\", "/")
        if leads_outside(name):
            raise ConfigError(f"{self._what} names an image outside of its folder: {file}; get the annotations again")
        return str(PurePosixPath(self._place) / name)

    def size(self, file: str) -> tuple[int, int]:
        """The size of an image.

        Args:
            file: The image as a record names it.

        Returns:
            (width, height) in pixels.

        Raises:
            ConfigError: There is no such image, or it cannot be read.
        """
        if file not in self._sizes:
            path = self._root / self.name(file)
            try:
                with Image.open(path) as image:
                    self._sizes[file] = image.size
            except FileNotFoundError:
                raise ConfigError(
                    f"the image {file} of {self._what} is not in {self._root / self._place}: unpack {self._archive} there"
                ) from None
            except OSError as error:
                raise ConfigError(f"the image {path} cannot be read ({error}): unpack {self._archive} again") from None
        return self._sizes[file]


class UnusableRecordError(ConfigError):
    """A record gives no sample: it asks nothing, or its box has no area or lies outside of its image.

    Args:
        message: The sentence.
        outside: Whether the middle of its box lies outside.
    """

    def __init__(self, message: str, *, outside: bool = False) -> None:
        super().__init__(message)
        self.outside = outside


class UnusableRecords:
    """The records of training data that give no sample.

    Args:
        drop: Leave them out and count them. Otherwise the first of them is an error.
    """

    def __init__(self, drop: bool) -> None:
        self.count = 0
        self._drop = drop
        self._outside = 0

    @contextmanager
    def leave_out(self) -> Iterator[None]:
        """Read one record.

        Yields:
            None.

        Raises:
            UnusableRecordError: It gives no sample, and records are not left out.
        """
        try:
            yield
        except UnusableRecordError as error:
            if not self._drop:
                raise UnusableRecordError(
                    f"{error}; `dart-agent ground convert --drop` leaves such records out"
                ) from None
            self.count += 1
            self._outside += error.outside

    def check(self, kept: int, where: Path, form: str) -> None:
        """Check that what was left out are single records, and not boxes in another form than expected.

        Args:
            kept: How many records were read.
            where: The folder that they are from.
            form: The form that the boxes were read in.

        Raises:
            ConfigError: Too many boxes lie outside.
        """
        _check_form(self._outside, kept + self.count, where, form)


def require_instruction(instruction: str | None, place: str) -> str:
    """Check that a record of training data asks something.

    Args:
        instruction: What it asks; None where the file has no value.
        place: Where it stands, for the error.

    Returns:
        The instruction.

    Raises:
        UnusableRecordError: It is empty.
    """
    if not instruction:
        raise UnusableRecordError(f"the instruction of {place} is empty")
    return instruction


def box_target(box: Box, place: str) -> GroundingTarget:
    """A target of one box.

    Args:
        box: (left, top, right, bottom) in pixels.
        place: Where it stands, for the error.

    Returns:
        The target.

    Raises:
        UnusableRecordError: The box has no area.
    """
    try:
        return GroundingTarget(boxes=(box,))
    except ValidationError:
        raise UnusableRecordError(f"the box of {place} has no area: left, top, right, bottom would be {box}") from None


def check_shares(box: Sequence[float], place: str, *, whole: bool = True) -> None:
    """Check that a box in shares of its image lies on the image.

    Args:
        box: (left, top, right, bottom).
        place: Where it stands, for the error.
        whole: Whether all of it has to, but for `BORDER_SLACK`, and not only a part.

    Raises:
        UnusableRecordError: It does not.
    """
    left, top, right, bottom = box
    in_part = left < 1 and top < 1 and right > 0 and bottom > 0
    if in_part and (not whole or all(-BORDER_SLACK <= share <= 1 + BORDER_SLACK for share in box)):
        return
    raise UnusableRecordError(
        f"the box of {place} lies beyond its image: {tuple(box)} is not in {SHARES}; divide pixels by width and height",
        outside=not (0 <= (left + right) / 2 <= 1 and 0 <= (top + bottom) / 2 <= 1),
    )


def from_xywh(box: Sequence[float]) -> Box:
    """Turn a box with width and height into edges.

    Args:
        box: (left, top, width, height).

    Returns:
        (left, top, right, bottom).
    """
    left, top, width, height = box
    return left, top, round(left + width, DIGITS), round(top + height, DIGITS)


def from_shares(box: Sequence[float], image_wh: tuple[int, int], digits: int = DIGITS) -> Box:
    """Turn shares of an image into pixels.

    Args:
        box: (left, top, right, bottom) in 0..1.
        image_wh: (width, height) of the image.
        digits: Decimals of a pixel that are kept.

    Returns:
        The box in pixels.
    """
    (width, height), (left, top, right, bottom) = image_wh, box
    return (
        round(left * width, digits),
        round(top * height, digits),
        round(right * width, digits),
        round(bottom * height, digits),
    )


def rescale(values: Sequence[float], noted_wh: tuple[float, float], image_wh: tuple[int, int]) -> tuple[float, ...]:
    """Move coordinates from an image of the noted size to the image as it is, as scorers do that compare shares of the sides.

    Args:
        values: x, y, x, y, ... in pixels of the noted size.
        noted_wh: (width, height) that the annotation notes.
        image_wh: (width, height) of the image.

    Returns:
        x, y, x, y, ... in pixels of the image.
    """
    if noted_wh == image_wh:
        return tuple(values)
    return tuple(
        value * image_wh[index % 2] / noted_wh[index % 2] if noted_wh[index % 2] != image_wh[index % 2] else value
        for index, value in enumerate(values)
    )


def is_one_box(sample: GroundingSample) -> bool:
    """Whether a format with one box per question can hold a sample.

    Args:
        sample: Any sample.

    Returns:
        True with one target that is one box.
    """
    return len(sample.targets) == 1 and len(sample.targets[0].boxes) == 1 and not sample.targets[0].polygons


def our_keys(sample: GroundingSample) -> dict[str, str]:
    """What a sample has and published records lack.

    Args:
        sample: The sample.

    Returns:
        By key of the sample; texts that are not empty.
    """
    values = {name: str(getattr(sample, name)) for name in OurKeys.model_fields}
    return {name: value for name, value in values.items() if value}


def copy_image(sample: GroundingSample, root: Path, folder: Path) -> None:
    """Copy the image of a sample, once.

    Args:
        sample: The sample.
        root: Folder that its image is relative to.
        folder: Folder that the copy is relative to.

    Raises:
        ConfigError: There is no such image.
    """
    copied = folder / sample.image
    if copied.exists():
        return
    copied.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(root / sample.image, copied)
    except OSError as error:
        raise ConfigError(f"the image {root / sample.image} cannot be copied: {error.strerror}") from None


def check_inside(samples: Iterable[GroundingSample], where: Path, form: str) -> None:
    """Check that boxes lie on their images: boxes in another form than expected do not.

    Args:
        samples: The samples.
        where: The file or folder that they are from.
        form: The form that the boxes were read in.

    Raises:
        ConfigError: Too many middles lie outside.
    """
    inside = []
    for sample in samples:
        for left, top, right, bottom in (target.bounds() for target in sample.targets):
            width, height = sample.image_wh
            inside.append(0 <= (left + right) / 2 <= width and 0 <= (top + bottom) / 2 <= height)
    _check_form(inside.count(False), len(inside), where, form)


def _check_form(outside: int, boxes: int, where: Path, form: str) -> None:
    if outside > MOST_OUTSIDE * boxes:
        raise ConfigError(
            f"{outside} of {boxes} boxes in {where} lie outside of their images when they are read as {form}: "
            "use the files of the data set's authors, or convert the boxes"
        )
