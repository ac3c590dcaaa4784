"""`dart-agent ground`: point at something on a screenshot, and measure how often that is right.

Role: the command; `ground IMAGE INSTRUCTION` draws an answer, `ground eval DATA` measures. Rule: as `dart_agent.cli`: heavy modules are
imported when the command runs. Non-goals: training (`python -m dart_train.grounding`).
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from dart_agent.errors import ConfigError

if TYPE_CHECKING:
    from dart_agent.grounding.evaluation import Answerer


class RegionScoreOption(StrEnum):
    """How regions of attention are scored."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"


def make_answerer(
    model: str, *, verifier: str | None, gamma: float, zoom: float | None, score: RegionScoreOption, refuse: bool
) -> Answerer:
    """Load what answers.

    Args:
        model: Directory or name of a model with an action head.
        verifier: Directory or name of a verifier; None: none.
        gamma: The verifier's threshold.
        zoom: As `Answerer.zoom`.
        score: How regions are scored.
        refuse: Whether the model may refuse.

    Returns:
        The answerer.

    Raises:
        ConfigError: A model cannot be loaded.
    """
    from dart_agent.grounding.evaluation import Answerer
    from dart_agent.grounding.grounder import Grounder
    from dart_agent.grounding.model import load_grounding_model
    from dart_agent.grounding.verifier import load_verifier

    grounder = Grounder(load_grounding_model(model), score.value)
    return Answerer(grounder, None if verifier is None else load_verifier(verifier), gamma, zoom, refuse)


def draw(answerer: Answerer, image: Path, instruction: str, out: Path, targets: int) -> str:
    """Answer one question and draw the answer.

    Args:
        answerer: Answers.
        image: The screenshot.
        instruction: What is asked.
        out: The picture to write.
        targets: 1 for a click, 2 for a drag.

    Returns:
        What to print.

    Raises:
        ConfigError: The image cannot be read.
    """
    from dart_agent.grounding.drawing import draw_answer
    from dart_agent.grounding.samples import read_image

    pixels = read_image(image)
    (final,) = answerer.answer(pixels, [instruction], targets)
    out.parent.mkdir(parents=True, exist_ok=True)
    draw_answer(pixels, final.answer, final.points, judged=final.judged).save(out)
    lines = [f"({x:.1f}, {y:.1f})" for x, y in final.points] or ["refused"]
    for number, target in enumerate(final.answer.targets, 1):
        regions = ", ".join(f"({r.point[0]:.0f}, {r.point[1]:.0f}) {r.score:.3f}" for r in target.regions[:5])
        lines.append(f"target {number}: {len(target.regions)} regions: {regions}")
    lines += [f"verifier: ({x:.0f}, {y:.0f}) {score:.3f}" for (x, y), score in final.judged]
    return "\n".join([*lines, f"drawn to {out}"])


def measure(answerer: Answerer, data: Path, k: int, out: Path | None) -> str:
    """Evaluate on a file of samples.

    Args:
        answerer: Answers.
        data: File of samples, images beside it.
        k: How many answers hit@k looks at.
        out: Folder for `result.json` and pictures of failures; None: nothing is written.

    Returns:
        The summary as JSON.

    Raises:
        ConfigError: The data cannot be read, or is empty.
    """
    from dart_agent.grounding.evaluation import evaluate
    from dart_agent.grounding.samples import read_samples

    samples = list(read_samples(data))
    if not samples:
        raise ConfigError(f"{data} holds no grounding sample")
    result = evaluate(answerer, samples, data.parent, k=k, pictures=None if out is None else out / "failures")
    text = json.dumps(result.summary(), indent=2)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "result.json").write_text(text + "\n", encoding="utf-8")
    return text
