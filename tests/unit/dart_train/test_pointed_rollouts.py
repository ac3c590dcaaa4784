"""Stored points train the head by the reward of their episodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dart_agent.grounding.acting.pointer import Pointer  # noqa: E402
from dart_agent.types import FinishReason, Purpose, SamplingParams, StepRecord, StopReason, Trajectory  # noqa: E402
from dart_train.grounding.rollouts import pointed_steps, points_loss  # noqa: E402
from dart_train.model.point_scores import point_logprobs  # noqa: E402
from dart_train.objectives.settings import LossSettings  # noqa: E402
from tests.unit.dart_agent.grounding_models import screen, small_model  # noqa: E402

ASKED = "click the button"


def play(pointer: Pointer, number: int, targets: int = 1) -> Trajectory:
    """An episode of one step that is solved by a point in the right third of the screen."""
    found = pointer.point(screen(), [ASKED] * targets, temperature=1.0, seed=number)
    solved = all(target.point[0] >= 64 for target in found)
    step = StepRecord(
        index=0, prompt_ids_P=(1,), token_ids_T=(2,), logprobs_T=(0.0,), version_spans=(), image_sha256=("sha",),
        image_hw=((64, 96),), text="", action=None, parse_error=None, sampling=SamplingParams(),
        finish_reason=FinishReason.STOP, model_s=0.0, env_s=0.0, pointers=tuple(found),
    )  # fmt: skip
    return Trajectory(
        f"roll_{number}", "grp", "a/b", Purpose.TRAIN, "", (step,), float(solved), StopReason.DONE, None, 0.0, 1.0
    )


def test_log_probs_are_those_of_the_policy_that_acted(tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path, offset_parts=2)
    pointer = Pointer(model)
    group = [play(pointer, 1), play(pointer, 2, targets=2)]
    steps = pointed_steps(group, {"sha": screen()})
    logprobs, entropies, mask = point_logprobs(model, steps)
    assert mask.tolist() == [[True, False], [True, True]]
    stored = [target.logprob for trajectory in group for target in trajectory.steps_S[0].pointers]
    assert logprobs[mask].tolist() == pytest.approx(stored, abs=1e-4)
    assert bool((entropies[mask] > 0).all())
    terms = points_loss(model, steps, LossSettings())
    assert terms.sums["ratio"] == pytest.approx(3.0)
    assert terms.sums["mismatch_k3"] == pytest.approx(0.0, abs=1e-6)


def test_groups_without_a_verdict_give_no_steps(tmp_path: Path) -> None:
    pointer = Pointer(small_model("qwen3_vl", tmp_path))
    lost = [dataclasses.replace(play(pointer, number), reward=None) for number in (1, 2)]
    assert pointed_steps([play(pointer, 3), lost[0]], {"sha": screen()}) == []
    planned = [dataclasses.replace(one, steps_S=()) for one in (play(pointer, 3), play(pointer, 4))]
    assert pointed_steps(planned, {"sha": screen()}) == []


def test_grpo_through_the_head_raises_the_reward(tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path)
    pointer = Pointer(model)
    parameters: list[Any] = [*model.head.parameters(), *model.backbone.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    means = []
    for update in range(16):
        group = [play(pointer, update * 100 + number) for number in range(12)]
        means.append(sum(trajectory.reward or 0.0 for trajectory in group) / len(group))
        steps = pointed_steps(group, {"sha": screen()})
        optimizer.zero_grad()
        points_loss(model, steps, LossSettings()).loss.backward()
        optimizer.step()
    assert sum(means[:2]) / 2 < 0.65, means
    assert sum(means[-3:]) / 3 > 0.9, means
