"""What `dart-agent ground` does: point at something on a screenshot, and measure how often that is right.

Role: the work of the commands in `dart_agent.ground_cli`. Rule: as `dart_agent.cli`: heavy modules are
imported when the command runs. Non-goals: training (`python -m dart_train.grounding`).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dart_agent.grounding.datasets.dataset import GroundingDataset
    from dart_agent.grounding.datasets.formats import ReadableFormat
    from dart_agent.grounding.evaluation import Answerer
    from dart_envs.types import RgbImage


AUTO = "auto"
"""In the place of a device: a GPU where torch finds one, else the CPU."""


class RegionScoreOption(StrEnum):
    """How regions of attention are scored."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"


class WeightsDtype(StrEnum):
    """Data type of the weights of what answers."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def make_answerer(
    model: str,
    *,
    verifier: str | None,
    gamma: float | None,
    zoom: float | None,
    score: RegionScoreOption,
    refuse: bool,
    resize_to_pixels: int | None = None,
    device: str = AUTO,
    dtype: WeightsDtype = WeightsDtype.AUTO,
) -> Answerer:
    """Load what answers.

    Args:
        model: Directory or name of a model with an action head.
        verifier: Directory or name of a verifier; None: none.
        gamma: The verifier's threshold; None: `dart_agent.grounding.verifier.GAMMA`.
        zoom: As `Answerer.zoom`.
        score: How regions are scored.
        refuse: Whether the model may refuse.
        resize_to_pixels: As for `Grounder`.
        device: Name of the torch device of both models; auto: a GPU where torch finds one.
        dtype: Data type of their weights but the head's; auto: bfloat16 on a GPU, else float32.

    Returns:
        The answerer.

    Raises:
        ConfigError: A threshold is given without a verifier, a model cannot be loaded, or torch has no such device.
    """
    from dart_agent.errors import ConfigError
    from dart_agent.grounding.evaluation import Answerer
    from dart_agent.grounding.grounder import Grounder
    from dart_agent.grounding.model import load_grounding_model
    from dart_agent.grounding.verifier import GAMMA, load_verifier

    if gamma is not None and verifier is None:
        raise ConfigError(
            "--gamma is the threshold of a verifier, and there is none: add --verifier, or leave --gamma out"
        )
    place = torch_device(device)
    half = dtype is WeightsDtype.BFLOAT16 or (dtype is WeightsDtype.AUTO and place.startswith("cuda"))
    grounder = Grounder(load_grounding_model(model, place, bfloat16=half), score.value, resize_to_pixels)
    judge = None if verifier is None else load_verifier(verifier, place, bfloat16=half)
    return Answerer(grounder, judge, GAMMA if gamma is None else gamma, zoom, refuse)


def torch_device(name: str, option: str = "--device") -> str:
    """Resolve the device that an option names.

    Args:
        name: Name of a torch device; auto: a GPU where torch finds one, else the CPU.
        option: The option, for the error.

    Returns:
        Name of a device that torch has.

    Raises:
        ConfigError: Torch has no such device.
    """
    import torch

    from dart_agent.errors import ConfigError

    if name == AUTO:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{option} {name} cannot be used: {reason}; give cpu, or cuda where a GPU is") from None
    return name


def read_question(image: Path, instruction: str, out: Path, targets: int) -> RgbImage:
    """Read the image of a question, and check that it can be asked and its answer drawn, before a model is loaded.

    Args:
        image: The screenshot.
        instruction: What is asked.
        out: The picture to write.
        targets: 1 for a click, 2 for a drag.

    Returns:
        The image, uint8 [H, W, 3].

    Raises:
        ConfigError: The image cannot be read, the question cannot be asked, or a picture cannot have this name.
    """
    from dart_agent.errors import ConfigError
    from dart_agent.grounding.answers import check_question
    from dart_agent.grounding.drawing import can_save
    from dart_agent.grounding.samples import read_image

    if not image.is_file():
        raise ConfigError(f"there is no file {image}")
    if not can_save(out):
        raise ConfigError(f"--out {out} is no name of a picture: let it end with .png, .jpg or .webp")
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder: give the name of a picture")
    pixels = read_image(image)
    check_question((pixels.shape[1], pixels.shape[0]), instruction, targets)
    return pixels


def draw(answerer: Answerer, image: RgbImage, instruction: str, out: Path, targets: int) -> str:
    """Answer one question and draw the answer.

    Args:
        answerer: Answers.
        image: The screenshot, uint8 [H, W, 3].
        instruction: What is asked.
        out: The picture to write.
        targets: 1 for a click, 2 for a drag.

    Returns:
        What to print.

    Raises:
        ConfigError: The question cannot be asked, or the picture cannot be written.
    """
    from dart_agent.errors import ConfigError
    from dart_agent.grounding.drawing import draw_answer

    (final,) = answerer.answer(image, [instruction], targets)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        draw_answer(image, final.answer, final.points, judged=final.judged).save(out)
    except OSError as error:
        raise ConfigError(f"the picture {out} cannot be written: {error}") from None
    lines = [f"({x:.1f}, {y:.1f})" for x, y in final.points] or ["refused"]
    for number, target in enumerate(final.answer.targets, 1):
        regions = ", ".join(f"({r.point[0]:.0f}, {r.point[1]:.0f}) {r.score:.3f}" for r in target.regions[:5])
        lines.append(f"target {number}: {len(target.regions)} regions: {regions}")
    lines += [f"verifier: ({x:.0f}, {y:.0f}) {score:.3f}" for (x, y), score in final.judged]
    return "\n".join([*lines, f"drawn to {out}"])


@contextmanager
def open_dataset(path: Path, format_name: ReadableFormat, *, drop: bool = False) -> Iterator[GroundingDataset]:
    """Read data for as long as the context lasts; images that lie inside of files are unpacked for that time.

    Args:
        path: A file of samples, or a folder.
        format_name: Its format.
        drop: Leave out records of training data that give no sample.

    Yields:
        The data.

    Raises:
        ConfigError: The data cannot be read, or are empty.
    """
    from dart_agent.grounding.datasets.formats import read_dataset

    with tempfile.TemporaryDirectory(prefix="dart-ground-") as directory:
        yield read_dataset(path, format_name, Path(directory), drop=drop)


def measure(answerer: Answerer, dataset: GroundingDataset, k: int, out: Path | None, pictures: int) -> str:
    """Evaluate on data.

    Args:
        answerer: Answers.
        dataset: The questions.
        k: How many answers hit@k looks at, the first one included.
        out: Folder for `result.json` and pictures of failures; None: nothing is written.
        pictures: Most pictures of failures.

    Returns:
        The summary as JSON.

    Raises:
        ConfigError: An image cannot be read.
    """
    from dart_agent.grounding.evaluation import evaluate

    folder = None if out is None or pictures == 0 else out / "failures"
    result = evaluate(answerer, dataset, k=k, pictures=folder, most_pictures=pictures)
    text = json.dumps(result.summary(), indent=2)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "result.json").write_text(text + "\n", encoding="utf-8")
    return text


def score_file(dataset: GroundingDataset, answers: Path, k: int) -> str:
    """Score a file of answers.

    Args:
        dataset: The questions.
        answers: The file.
        k: How many answers hit@k looks at, the first one included.

    Returns:
        The summary as JSON.

    Raises:
        ConfigError: The answers cannot be read, or are to other data.
    """
    from dart_agent.grounding.datasets.report import judge_answers, read_answers

    return json.dumps(judge_answers(dataset, read_answers(answers), k), indent=2)


def draw_samples(dataset: GroundingDataset, out: Path, count: int) -> str:
    """Draw samples with their targets.

    Args:
        dataset: The samples.
        out: A new folder for the pictures and `sheet.png`.
        count: How many, evenly over the data.

    Returns:
        What to print.

    Raises:
        ConfigError: The folder has files, or an image cannot be read.
    """
    from PIL import Image

    from dart_agent.errors import ConfigError
    from dart_agent.grounding.drawing import contact_sheet, draw_targets, with_caption
    from dart_agent.grounding.samples import read_image

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty: give a new folder")
    out.mkdir(parents=True, exist_ok=True)
    total = len(dataset.samples)
    drawn = []
    for number in range(min(count, total)):
        sample = dataset.samples[number * total // min(count, total)]
        picture: Image.Image = draw_targets(read_image(dataset.root / sample.image, sample.image_wh), sample.targets)
        drawn.append(out / f"{number:04d}.png")
        with_caption(picture, f"{sample.sample_id}: {sample.instruction}").save(drawn[-1])
    contact_sheet(drawn).save(out / "sheet.png")
    return f"{len(drawn)} of {total} samples drawn to {out}"
