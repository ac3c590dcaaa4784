"""Right and wrong points of a verifier's training, and that it learns to judge."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from dart_agent.grounding.samples import GroundingSample, GroundingTarget, read_image, read_samples  # noqa: E402
from dart_agent.grounding.scoring import in_target  # noqa: E402
from dart_agent.grounding.verifier import Marking, load_verifier  # noqa: E402
from dart_train.grounding.__main__ import main  # noqa: E402
from dart_train.grounding.config import VerifierConfig  # noqa: E402
from dart_train.grounding.verifier import right_point, train_verifier, wrong_point  # noqa: E402
from dart_train.model.init_model import init_model  # noqa: E402
from tests.unit.dart_train.test_grounding_training import make_samples  # noqa: E402

MARKING = Marking(reach=32, radius=5, line=2)
BUTTON = GroundingSample(
    sample_id="s", image="a.png", image_wh=(400, 200), instruction="click Save", role="push button",
    targets=(GroundingTarget(boxes=((100, 100, 140, 120),)),),
    distractors=(
        ("label", (145, 100, 165, 120)),  # nearer, of another role
        ("push button", (180, 100, 220, 120)),
        ("push button", (260, 100, 300, 120)),
        ("push button", (20, 100, 60, 120)),
        ("push button", (360, 0, 400, 20)),  # the fourth of its role
        ("push button", (90, 90, 150, 130)),  # around the target: its middle is right
    ),
)  # fmt: skip


def test_right_points_are_on_the_target() -> None:
    random = Random(0)
    shape = GroundingTarget(polygons=(((0, 0), (40, 0), (0, 40)),))
    for sample in (BUTTON, BUTTON.model_copy(update={"targets": (shape,)})):
        points = [right_point(sample, random) for _ in range(200)]
        assert all(in_target(point, sample.targets[0]) for point in points)
        assert len({*points}) == 200


def test_wrong_points_are_siblings_nearby_or_just_beside() -> None:
    random = Random(0)
    points = [wrong_point(BUTTON, random, hard_fraction=1.0) for _ in range(400)]
    assert not any(point is None or in_target(point, BUTTON.targets[0]) for point in points)
    siblings = [(180, 100, 220, 120), (260, 100, 300, 120), (20, 100, 60, 120)]
    on_one = {box: [point for point in points if point is not None and _is_on(point, box)] for box in siblings}
    assert all(len(found) > 40 for found in on_one.values())
    assert 0.35 < sum(map(len, on_one.values())) / len(points) < 0.65
    for x, y in (point for point in points if point is not None and not any(_is_on(point, box) for box in siblings)):
        assert 60 <= x <= 180
        assert 80 <= y <= 140


def _is_on(point: tuple[float, float], box: tuple[float, float, float, float]) -> bool:
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def test_the_place_within_an_element_does_not_tell_right_from_wrong() -> None:
    """Points on another element were its middle, and right ones anywhere: a verifier could tell them apart without looking at the name."""
    random = Random(0)
    wrong = [wrong_point(BUTTON, random, hard_fraction=1.0) for _ in range(3000)]
    within = {
        "right": [((x - 100) / 40, (y - 100) / 20) for x, y in (right_point(BUTTON, random) for _ in range(1000))],
        "wrong": [((p[0] - 180) / 40, (p[1] - 100) / 20) for p in wrong if p and _is_on(p, (180, 100, 220, 120))],
    }
    for places in within.values():
        for axis in (0, 1):
            values = sorted(place[axis] for place in places)
            assert len(values) > 300
            quarters = [values[len(values) * part // 4] for part in (1, 2, 3)]
            assert quarters == pytest.approx([0.25, 0.5, 0.75], abs=0.08)


def test_easy_points_are_anywhere_else() -> None:
    random = Random(0)
    points = [wrong_point(BUTTON, random, hard_fraction=0.0) for _ in range(200)]
    assert not any(point is None or in_target(point, BUTTON.targets[0]) for point in points)
    assert max(math.dist((120, 110), point) for point in points if point is not None) > 200


def test_a_target_as_large_as_the_image_has_no_wrong_point() -> None:
    whole = BUTTON.model_copy(update={"targets": (GroundingTarget(boxes=((0, 0, 400, 200),)),), "distractors": ()})
    assert wrong_point(whole, Random(0), hard_fraction=0.5) is None


def test_a_verifier_learns_at_its_own_rate_unless_told_otherwise(tmp_path: Path) -> None:
    assert make_config(tmp_path).optimizer.learning_rate == 2e-5
    assert make_config(tmp_path, optimizer={"grad_clip": 2.0}).optimizer.learning_rate == 2e-5
    assert make_config(tmp_path, optimizer={"learning_rate": 1e-3}).optimizer.learning_rate == 1e-3


def make_config(folder: Path, **changes: Any) -> VerifierConfig:
    if not (folder / "start").exists():
        init_model("tiny", folder / "start")
        make_samples(folder / "data", count=8)
    name = changes.pop("name", "verifier")
    return VerifierConfig.model_validate(
        {
            "start_model": str(folder / "start"), "samples": (folder / "data" / "samples.jsonl",), "marking": asdict(MARKING),
            "out_dir": folder / name, "checkpoints": folder / f"{name}-states", "metrics": folder / f"{name}.jsonl",
            "updates": 4, "images_per_update": 8, "checkpoint_every": 2, "report_every": 1, "threads": 1, "device": "cpu",
        }
        | changes
    )  # fmt: skip


def test_a_verifier_learns_to_judge_and_keeps_its_crops(tmp_path: Path) -> None:
    schedule = {"learning_rate": 2e-3, "lr_warmup_updates": 10, "lr_schedule": "cosine"}
    settings = make_config(tmp_path, updates=100, checkpoint_every=1000, optimizer=schedule)
    lines: list[Any] = []
    train_verifier(settings, lines.append)
    verifier = load_verifier(str(settings.out_dir))
    assert verifier.marking == MARKING
    right, wrong = [], []
    for sample in read_samples(settings.samples[0]):
        left, top, _, _ = sample.targets[0].boxes[0]
        points = [(left + 12, top + 12), ((left + 64) % 128, top + 12)]
        scores = verifier.scores(read_image(settings.samples[0].parent / sample.image), sample.instruction, points)
        right.append(scores[0])
        wrong.append(scores[1])
    assert sum(right) / 8 > sum(wrong) / 8 + 0.3, (lines[-1], right, wrong)


def test_a_resumed_verifier_ends_with_the_same_bits(tmp_path: Path) -> None:
    train_verifier(make_config(tmp_path, name="whole"))
    stopped = make_config(tmp_path, name="resumed")

    class Killed(Exception):
        pass

    def kill(line: Any) -> None:
        if line["update"] == 3:
            raise Killed

    with pytest.raises(Killed):
        train_verifier(stopped, kill)
    train_verifier(stopped)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_the_process_trains_a_verifier(tmp_path: Path) -> None:
    settings = make_config(tmp_path, updates=1)
    path = tmp_path / "config.json"
    path.write_text(settings.model_dump_json())
    assert main(["--verifier", "--config", str(path)]) == 0
    assert (settings.out_dir / "model.safetensors").is_file()
    assert main(["--verifier", "--config", str(path)]) == 2
