"""Partial credit on a fake desktop with real getters and metrics: the evaluator alone decides success."""

from __future__ import annotations

from typing import Any

import pytest
from fake_window_desktop import FakeWindowDesktop, reply

from dart_envs.errors import EvaluatorError, TaskError
from dart_envs.tasks import Scoring, Task, parse_task
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.types import EndReason
from dart_server.wire import DesktopShape, ExecReply


def holds(name: str, text: str) -> dict[str, Any]:
    """An evaluator that wants a text in a file."""
    return {
        "func": "compare_text_file",
        "result": {"type": "vm_file", "path": f"/home/user/{name}"},
        "expected": {"type": "rule", "rules": {"expected": text}},
    }


TASK = {
    "id": "own/files/0001",
    "suite": "own",
    "instruction": "Write both files.",
    "evaluator": holds("report", "all"),
    "checkpoints": [
        {"name": "a", "weight": 2, "evaluator": holds("a", "x")},
        {"evaluator": holds("b", "y")},
    ],
}


HASH_WITHOUT_CHECKPOINTS = "3cc3cdcb4fecbeacc4df4a0025ec601f9238c01da4c9c835b908fb76cd7350af"
"""As it was before tasks could have checkpoints: demonstrations and records refer to it."""


def stat(desktop: FakeDesktop, args: list[str], _stdin: str) -> ExecReply:
    content = desktop.state.files.get(args[-1])
    return reply(returncode=1) if content is None else reply(f"{len(content)} regular file")


def desktop_with(**files: str) -> FakeWindowDesktop:
    made = FakeWindowDesktop()
    made.programs["stat"] = stat
    made.state.files.update({f"/home/user/{name}": text.encode() + b"\n" for name, text in files.items()})
    return made


def task() -> Task:
    return parse_task(TASK, name="own").scored(Scoring.CHECKPOINTS)


@pytest.mark.parametrize(
    ("files", "reward"),
    [
        ({}, 0.0),
        ({"a": "x"}, 0.5),
        ({"a": "x", "b": "y"}, 0.75),
        ({"b": "y", "report": "no"}, 0.25),
        ({"report": "all"}, 1.0),
    ],
)
async def test_weighted_checkpoints_earn_a_part_and_the_evaluator_all(files: dict[str, str], reward: float) -> None:
    outcome = await task().evaluate(desktop_with(**files), end=EndReason.DONE)
    assert outcome.reward == reward
    if 0 < reward < 1:
        assert [part["name"] for part in outcome.details["checkpoints"]] == ["a", "2"]


async def test_no_credit_for_giving_up_nor_where_none_is_asked_for() -> None:
    desktop = desktop_with(a="x", b="y")
    assert (await task().evaluate(desktop, end=EndReason.FAIL)).reward == 0.0
    assert (await task().scored(Scoring.EVALUATOR).evaluate(desktop, end=EndReason.DONE)).reward == 0.0


async def test_great_weights_never_look_like_success() -> None:
    parts = [{"weight": 1000, "evaluator": holds("a", "x")}] * 60
    heavy = parse_task({**TASK, "checkpoints": parts}, name="own").scored(Scoring.CHECKPOINTS)
    reward = (await heavy.evaluate(desktop_with(a="x"), end=EndReason.DONE)).reward
    assert 0.99 < reward < 1.0


async def test_a_checkpoint_that_fails_by_itself_is_no_score() -> None:
    broken = parse_task({**TASK, "checkpoints": [{"evaluator": {"func": "no_such"}}]}, name="own")
    with pytest.raises(EvaluatorError):
        await broken.scored(Scoring.CHECKPOINTS).evaluate(desktop_with(), end=EndReason.DONE)
    assert broken.unsupported == ()
    assert broken.scored(Scoring.CHECKPOINTS).unsupported == ("metric 'no_such'",)


def test_checkpoints_identify_a_task_and_their_absence_changes_no_other() -> None:
    bare = parse_task({key: value for key, value in TASK.items() if key != "checkpoints"}, name="own")
    assert task().content_hash != bare.content_hash
    assert bare.content_hash == HASH_WITHOUT_CHECKPOINTS
    with pytest.raises(TaskError, match="give the task an evaluator"):
        parse_task({key: value for key, value in TASK.items() if key != "evaluator"}, name="own")


async def test_a_task_without_an_evaluator_runs_only_where_something_else_judges_it() -> None:
    unjudged = parse_task({"id": "own/1", "instruction": "Make it nice."}, name="own")
    with pytest.raises(TaskError, match="no evaluator"):
        await unjudged.check_requirements(DesktopShape(image="basic"), local_images=False)
    elsewhere = unjudged.scored(Scoring.NONE)
    await elsewhere.check_requirements(DesktopShape(image="basic"), local_images=False)
    assert (await elsewhere.evaluate(desktop_with(), end=EndReason.DONE)).details == {"scoring": "none"}
