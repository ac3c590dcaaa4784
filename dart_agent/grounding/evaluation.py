"""How often a model points at the right place.

Role: `evaluate` asks every sample, judges the answers and counts hit@1 and hit@k, by element type, size and application. Rule: all
methods are judged on the same samples with the same scorer; a verifier or a second look changes the first answer and leaves hit@k to the
head alone. Non-goals: reading data of other formats.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dart_agent.grounding.drawing import draw_answer
from dart_agent.grounding.grounder import REFUSE_ABOVE, Grounder, GroundingAnswer
from dart_agent.grounding.samples import GroundingSample, read_image
from dart_agent.grounding.scoring import Point, hit_rates, is_hit, is_hit_at
from dart_agent.grounding.verifier import GAMMA, Verifier, choose_point
from dart_agent.grounding.zoom import zoom_in
from dart_envs.types import RgbImage

SIZES: tuple[tuple[float, str], ...] = (
    (16, "below 16 px"),
    (32, "16 to 32 px"),
    (64, "32 to 64 px"),
    (math.inf, "64 px and more"),
)
"""Classes by the shorter side of a target."""
QUESTIONS_PER_PASS = 32


def size_class(sample: GroundingSample) -> str:
    """The class of a sample by the shorter side of its smallest target.

    Args:
        sample: The sample.

    Returns:
        The class; "refusal" without a target.
    """
    sides = [
        min(right - left, bottom - top) for left, top, right, bottom in (target.bounds() for target in sample.targets)
    ]
    return next(name for limit, name in SIZES if min(sides) < limit) if sides else "refusal"


BREAKDOWNS: Mapping[str, Callable[[GroundingSample], str]] = {
    "element_type": lambda sample: sample.element_type or "unknown",
    "size": size_class,
    "application": lambda sample: sample.application or "unknown",
    "kind": lambda sample: sample.kind,
    "group": lambda sample: sample.group or "none",
}


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """What is answered after all steps.

    Attributes:
        answer: What the head said.
        points: The final points; none: it refuses.
        judged: Candidates with the verifier's scores.
    """

    answer: GroundingAnswer
    points: tuple[Point, ...]
    judged: tuple[tuple[Point, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Answerer:
    """The head, and what corrects it; each part can be left out.

    Attributes:
        grounder: Asks the head.
        verifier: Judges candidates; None: the best region's point is the answer.
        gamma: The verifier's threshold.
        zoom: How many times smaller the sides of a second look's crop are; None: no second look.
        refuse: Whether the model may refuse.
    """

    grounder: Grounder
    verifier: Verifier | None = None
    gamma: float = GAMMA
    zoom: float | None = None
    refuse: bool = False

    def answer(self, image: RgbImage, instructions: list[str], targets: int = 1) -> list[FinalAnswer]:
        """Answer questions about an image.

        Args:
            image: The image, uint8 [H, W, 3].
            instructions: What is asked.
            targets: Points per answer. Verifier and second look are for answers with one point.

        Returns:
            One answer per instruction.
        """
        answers = self.grounder.ask(image, instructions, targets)
        return [self._finish(image, asked, answer) for asked, answer in zip(instructions, answers, strict=True)]

    def _finish(self, image: RgbImage, instruction: str, answer: GroundingAnswer) -> FinalAnswer:
        if self.refuse and answer.refusal > REFUSE_ABOVE:
            return FinalAnswer(answer, ())
        points = answer.points
        judged: tuple[tuple[Point, float], ...] = ()
        if len(points) == 1 and self.verifier is not None and len(answer.targets[0].pool) > 1:
            pool = answer.targets[0].pool
            scores = self.verifier.scores(image, instruction, pool)
            judged = tuple(zip(pool, scores, strict=True))
            points = (pool[choose_point(scores, self.gamma)],)
        if len(points) == 1 and self.zoom is not None:
            points = (zoom_in(self.grounder, image, instruction, points[0], self.zoom),)
        return FinalAnswer(answer, points, judged)


@dataclass(slots=True)
class Evaluation:
    """Counts of one evaluation.

    Attributes:
        k: How many answers hit@k looks at.
        first: Samples with whether the first answer is right.
        among: Samples with whether one of the first k is right.
        pictures: Pictures of failures that were written.
    """

    k: int
    first: list[tuple[GroundingSample, bool]] = field(default_factory=list)
    among: list[tuple[GroundingSample, bool]] = field(default_factory=list)
    pictures: list[Path] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """The rates as plain values.

        Returns:
            hit@1 and hit@k, micro over samples; by class: [right, samples] of hit@1 and of hit@k, and the macro mean of hit@1.
        """
        result: dict[str, Any] = {"samples": len(self.first)}
        result["hit@1"] = hit_rates(self.first, lambda sample: "all").micro
        result[f"hit@{self.k}"] = hit_rates(self.among, lambda sample: "all").micro
        for name, classify in BREAKDOWNS.items():
            rates, among = hit_rates(self.first, classify), hit_rates(self.among, classify)
            result[f"by_{name}"] = {
                str(key): {"hit@1": list(rates.by_class[key]), f"hit@{self.k}": list(among.by_class[key])}
                for key in sorted(rates.by_class, key=str)
            }
            result[f"macro_{name}"] = rates.macro
        return result


def evaluate(
    answerer: Answerer,
    samples: Iterable[GroundingSample],
    root: Path,
    *,
    k: int = 3,
    pictures: Path | None = None,
    most_pictures: int = 50,
) -> Evaluation:
    """Ask every sample and judge the answers.

    Args:
        answerer: Answers.
        samples: The samples.
        root: Folder that their images are relative to.
        k: How many answers hit@k looks at.
        pictures: Folder for pictures of failures; None: none are drawn.
        most_pictures: How many are drawn.

    Returns:
        The counts.

    Raises:
        ConfigError: An image cannot be read, or has another size than its sample says.
    """
    by_image: dict[tuple[str, tuple[int, int], int], list[GroundingSample]] = defaultdict(list)
    for sample in samples:
        by_image[sample.image, sample.image_wh, max(1, len(sample.targets))].append(sample)
    result = Evaluation(k)
    for (name, image_wh, targets), asked in by_image.items():
        image = read_image(root / name, image_wh)
        for begin in range(0, len(asked), QUESTIONS_PER_PASS):
            part = asked[begin : begin + QUESTIONS_PER_PASS]
            finals = answerer.answer(image, [sample.instruction for sample in part], targets)
            for sample, final in zip(part, finals, strict=True):
                _judge(result, sample, final)
                if pictures is not None and not result.first[-1][1] and len(result.pictures) < most_pictures:
                    result.pictures.append(_draw(pictures, image, sample, final))
    return result


def _judge(result: Evaluation, sample: GroundingSample, final: FinalAnswer) -> None:
    right = is_hit(sample, final.points)
    result.first.append((sample, right))
    result.among.append(
        (sample, right or (bool(final.points) and is_hit_at(sample, final.answer.candidates(result.k), result.k)))
    )


def _draw(folder: Path, image: RgbImage, sample: GroundingSample, final: FinalAnswer) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (re.sub(r"[^\w.-]+", "_", sample.sample_id) + ".png")
    picture = draw_answer(image, final.answer, final.points, judged=final.judged, right=sample.targets)
    picture.save(path)
    path.with_suffix(".json").write_text(
        json.dumps({"instruction": sample.instruction, "points": final.points, "sample": sample.sample_id}) + "\n",
        encoding="utf-8",
    )
    return path
