"""Hit rates of answers, as JSON.

Role: `summarize` counts judged answers by type, size, application and the cells of the authors' table; `read_answers` and `judge_answers`
score answers of any model that were kept in a file. Rule: a sample without an answer is wrong, as an answer that cannot be read is; hit@1
judges the first answer and hit@k the first answer with the k - 1 next ones; a refusal has no next ones; micro and macro stand beside each
other, and the published average is named. Non-goals: asking a model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dart_agent.errors import ConfigError
from dart_agent.grounding.datasets.dataset import GroundingDataset
from dart_agent.grounding.samples import GroundingSample
from dart_agent.grounding.scoring import Point, hit_rates, is_hit, is_hit_at, label_rates
from dart_agent.strict_model import StrictModel, format_validation_error

Judged = Sequence[tuple[GroundingSample, bool]]
"""Samples, each with whether its answer is right."""
SIZES: tuple[tuple[float, str], ...] = (
    (16, "below 16 px"),
    (32, "16 to 32 px"),
    (64, "32 to 64 px"),
    (math.inf, "64 px and more"),
)
"""Classes by the shorter side of a target."""


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
    "platform": lambda sample: sample.platform or "unknown",
    "kind": lambda sample: sample.kind,
    "group": lambda sample: sample.group or "none",
}


def summarize(dataset: GroundingDataset, first: Judged, among: Judged, k: int) -> dict[str, Any]:
    """Count judged answers.

    Args:
        dataset: Where the samples are from.
        first: Whether the first answer is right.
        among: Whether one of the first k is right, in the same order; not looked at where k is 1.
        k: How many answers hit@k looks at, the first one included.

    Returns:
        hit@1 and hit@k over all samples, and without refusals where there are some; by class: [right, samples] of both, and the macro mean
        of hit@1; the published average with its table.
    """
    judged_at = {"hit@1": first} | ({f"hit@{k}": among} if k > 1 else {})
    result: dict[str, Any] = {"dataset": dataset.name, "samples": len(first)}
    if dataset.published_samples is not None:
        result["published_samples"] = dataset.published_samples
    result |= {name: _micro(judged) for name, judged in judged_at.items()}
    answerable = {name: [one for one in judged if not one[0].is_refusal] for name, judged in judged_at.items()}
    if len(answerable["hit@1"]) < len(first):
        result["without_refusals"] = {"samples": len(answerable["hit@1"])} | {
            name: _micro(judged) for name, judged in answerable.items()
        }
    rates_of_cells = {name: label_rates(judged, dataset.cells) for name, judged in judged_at.items()}
    cells = rates_of_cells["hit@1"]
    if cells:
        macro = sum(right / count for right, count in cells.values()) / len(cells)
        result["published"] = {
            "average": dataset.average,
            "hit@1": macro if dataset.average == "macro" else result["hit@1"],
            "micro": result["hit@1"],
            "macro": macro,
            "cells": {cell: {name: list(rates[cell]) for name, rates in rates_of_cells.items()} for cell in cells},
        }
    for name, classify in BREAKDOWNS.items():
        rates = {at: hit_rates(judged, classify) for at, judged in judged_at.items()}
        result[f"by_{name}"] = {
            str(key): {at: list(found.by_class[key]) for at, found in rates.items()}
            for key in sorted(rates["hit@1"].by_class, key=str)
        }
        result[f"macro_{name}"] = rates["hit@1"].macro
    return result


def _micro(judged: Judged) -> float:
    return hit_rates(judged, lambda sample: "all").micro


class AnswerRecord(StrictModel):
    """One line of a file of answers.

    Attributes:
        sample_id: The question.
        points: One (x, y) per target, in pixels of the image; empty: the model refused; None: its answer could not be read.
        candidates: Further answers, the best first, for hit@k; without the first one. After a refusal they do not count.
    """

    sample_id: str
    points: tuple[Point, ...] | None
    candidates: tuple[tuple[Point, ...], ...] = ()


def read_answers(path: Path) -> dict[str, AnswerRecord]:
    """Read a file of answers.

    Args:
        path: JSON lines.

    Returns:
        By sample id.

    Raises:
        ConfigError: It cannot be read, or answers a question twice.
    """
    answers: dict[str, AnswerRecord] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"the answers {path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        try:
            answer = AnswerRecord.model_validate(json.loads(line))
        except ValidationError as error:
            raise ConfigError(f"line {number} of {path} is no answer: {format_validation_error(error)}") from None
        except ValueError as error:
            raise ConfigError(f"line {number} of {path} is no JSON: {error}") from None
        if answer.sample_id in answers:
            raise ConfigError(
                f"line {number} of {path} answers {answer.sample_id} a second time: keep one of the lines"
            )
        answers[answer.sample_id] = answer
    return answers


def judge_answers(dataset: GroundingDataset, answers: Mapping[str, AnswerRecord], k: int) -> dict[str, Any]:
    """Score answers that were kept in a file.

    Args:
        dataset: The questions.
        answers: The answers by sample id.
        k: How many answers hit@k looks at, the first one included.

    Returns:
        The summary, with how many samples have no answer.

    Raises:
        ConfigError: An answer is to a question that the data lack.
    """
    known = {sample.sample_id for sample in dataset.samples}
    strange = sorted(answers.keys() - known)
    if strange:
        raise ConfigError(
            f"{len(strange)} answers are to questions that the data lack, such as {strange[0]}: score them with the data they are for"
        )
    first, among = [], []
    for sample in dataset.samples:
        answer = answers.get(sample.sample_id)
        right = answer is not None and is_hit(sample, answer.points)
        first.append((sample, right))
        refused = answer is not None and answer.points == ()
        further = () if answer is None or refused else answer.candidates
        among.append((sample, right or is_hit_at(sample, further, k - 1)))
    return summarize(dataset, first, among, k) | {"unanswered": len(known - answers.keys())}
