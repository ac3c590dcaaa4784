"""Carriers survive the wire."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from dart_agent.data_client.fake_trajectories import fake_image, fake_trajectory
from dart_agent.data_client.payloads import SamplingPayload, TrajectoryPayload
from dart_agent.data_client.wire import PhaseSpec, TaskSelection
from dart_agent.types import Purpose, SamplingParams, VersionSpan, WorkItem
from dart_envs.types import EndReason

ITEM = WorkItem("roll_1", "grp_1", "basics/tick/0001", Purpose.TRAIN, SamplingParams(seed=3), 5, "train")


def test_trajectory_round_trip_through_json() -> None:
    spans = (VersionSpan(3, 0, 1), VersionSpan(4, 1, 4, kept_kv=True))
    trajectory, _ = fake_trajectory(ITEM, spans=spans, image=fake_image(0), reward=0.5)
    row = TrajectoryPayload.model_validate_json(TrajectoryPayload.from_value(trajectory).model_dump_json())
    assert row.to_value() == trajectory


@pytest.mark.parametrize(
    ("reward", "end"), [(1.0, EndReason.FARM_FAULT), (None, EndReason.DONE), (None, EndReason.BROKE_DESKTOP)]
)
def test_a_verdict_that_contradicts_the_end_is_refused(reward: float | None, end: EndReason) -> None:
    trajectory, _ = fake_trajectory(ITEM, reward=reward, end=end)
    with pytest.raises(ValidationError, match="reward"):
        TrajectoryPayload.from_value(trajectory)


def test_steps_out_of_order_are_refused() -> None:
    trajectory, _ = fake_trajectory(ITEM, steps=2)
    body = TrajectoryPayload.from_value(trajectory).model_dump()
    body["steps"].reverse()
    with pytest.raises(ValidationError, match="numbered"):
        TrajectoryPayload.model_validate(body)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_ids": None}, "either"),
        ({"select": TaskSelection(split="train")}, "either"),
        ({"sampling": SamplingPayload(temperature=0)}, "temperature"),
        ({"sampling": SamplingPayload(top_p=0.9)}, "top_p"),
        ({"rollouts_per_task": 1}, "two rollouts"),
        ({"purpose": Purpose.EVAL, "endless": True}, "endless"),
    ],
)
def test_phases_that_cannot_work_are_refused(changes: dict[str, object], message: str) -> None:
    spec = {"name": "p", "purpose": "train", "task_ids": ["a/b/c"], "rollouts_per_task": 2, "max_steps": 3}
    PhaseSpec.model_validate(spec)
    with pytest.raises(ValidationError, match=message):
        PhaseSpec.model_validate(spec | changes)
