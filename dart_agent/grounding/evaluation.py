"""How often a model points at the right place.

Role: `evaluate` asks every sample, judges the answers and draws failures. Rule: all methods are judged on the same samples with the same
scorer. hit@k judges k different answers: the first answer, which a verifier or a second look may have changed, then the head's candidates
in their order. A sample that cannot be asked is wrong and named. Non-goals: reading data and counting (`dart_agent.grounding.datasets`).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dart_agent.errors import ConfigError
from dart_agent.grounding.answers import check_question
from dart_agent.grounding.datasets.dataset import GroundingDataset
from dart_agent.grounding.datasets.report import summarize
from dart_agent.grounding.drawing import contact_sheet, draw_answer, draw_targets, with_caption
from dart_agent.grounding.grounder import REFUSE_ABOVE, Grounder, GroundingAnswer
from dart_agent.grounding.samples import GroundingSample, read_image
from dart_agent.grounding.scoring import Point, is_hit, is_hit_at
from dart_agent.grounding.verifier import GAMMA, Verifier, choose_point
from dart_agent.grounding.zoom import zoom_in
from dart_envs.types import RgbImage

QUESTIONS_PER_PASS = 32
MOST_PICTURES = 50
SHEET = "failures.png"
"""Name of the contact sheet beside the folder of failures."""


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

        Raises:
            ConfigError: The image or an instruction cannot be asked (`dart_agent.grounding.answers.check_question`).
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
        dataset: The data.
        k: How many answers hit@k looks at, the first one included.
        first: Samples with whether the first answer is right.
        among: Samples with whether one of the first k is right.
        pictures: Pictures of failures that were written.
        not_asked: By name of a sample that cannot be asked: why.
    """

    dataset: GroundingDataset
    k: int
    first: list[tuple[GroundingSample, bool]] = field(default_factory=list)
    among: list[tuple[GroundingSample, bool]] = field(default_factory=list)
    pictures: list[Path] = field(default_factory=list)
    not_asked: dict[str, str] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """The rates as plain values.

        Returns:
            As `dart_agent.grounding.datasets.report.summarize`, and the samples that were not asked where there are some.
        """
        summary = summarize(self.dataset, self.first, self.among, self.k)
        return summary | ({"not_asked": self.not_asked} if self.not_asked else {})


def evaluate(
    answerer: Answerer,
    dataset: GroundingDataset,
    *,
    k: int = 3,
    pictures: Path | None = None,
    most_pictures: int = MOST_PICTURES,
) -> Evaluation:
    """Ask every sample and judge the answers; a sample that cannot be asked counts as wrong.

    Args:
        answerer: Answers.
        dataset: The questions.
        k: How many answers hit@k looks at, the first one included.
        pictures: Folder for pictures of failures, with a contact sheet of them beside it; None: none are drawn.
        most_pictures: How many are drawn.

    Returns:
        The counts.

    Raises:
        ConfigError: An image cannot be read, or has another size than its sample says.
    """
    by_image: dict[tuple[str, tuple[int, int], int], list[GroundingSample]] = defaultdict(list)
    for sample in dataset.samples:
        by_image[sample.image, sample.image_wh, max(1, len(sample.targets))].append(sample)
    result = Evaluation(dataset, k)
    for (name, image_wh, targets), samples in by_image.items():
        image = read_image(dataset.root / name, image_wh)
        asked: list[GroundingSample] = []
        found: list[tuple[GroundingSample, FinalAnswer | None]] = []
        for sample in samples:
            if _can_be_asked(result, sample):
                asked.append(sample)
            else:
                found.append((sample, None))
        for begin in range(0, len(asked), QUESTIONS_PER_PASS):
            part = asked[begin : begin + QUESTIONS_PER_PASS]
            finals = answerer.answer(image, [sample.instruction for sample in part], targets)
            found += zip(part, finals, strict=True)
        for sample, final in found:
            _judge(result, sample, final)
            if pictures is not None and not result.first[-1][1] and len(result.pictures) < most_pictures:
                result.pictures.append(_draw(pictures, image, sample, final))
    if pictures is not None and result.pictures:
        contact_sheet(result.pictures).save(pictures.with_name(SHEET))
    return result


def _can_be_asked(result: Evaluation, sample: GroundingSample) -> bool:
    try:
        check_question(sample.image_wh, sample.instruction, len(sample.targets))
    except ConfigError as error:
        result.not_asked[sample.sample_id] = str(error)
        return False
    return True


def _judge(result: Evaluation, sample: GroundingSample, final: FinalAnswer | None) -> None:
    if final is None:
        result.first.append((sample, False))
        result.among.append((sample, False))
        return
    right = is_hit(sample, final.points)
    result.first.append((sample, right))
    further = final.answer.candidates(result.k) if final.points else []
    others = [points for points in further if points != final.points]
    result.among.append((sample, right or is_hit_at(sample, others, result.k - 1)))


def _draw(folder: Path, image: RgbImage, sample: GroundingSample, final: FinalAnswer | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (re.sub(r"[^\w.-]+", "_", sample.sample_id) + ".png")
    if final is None:
        picture = draw_targets(image, sample.targets)
    else:
        picture = draw_answer(image, final.answer, final.points, judged=final.judged, right=sample.targets)
    points = None if final is None else final.points
    with_caption(picture, f"{sample.sample_id}: {sample.instruction}").save(path)
    wanted = [target.model_dump(mode="json", exclude_defaults=True) for target in sample.targets]
    told = {"sample": sample.sample_id, "instruction": sample.instruction, "points": points, "targets": wanted}
    path.with_suffix(".json").write_text(json.dumps(told) + "\n", encoding="utf-8")
    return path
