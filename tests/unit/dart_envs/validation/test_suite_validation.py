from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import FarmError, SetupError
from dart_envs.tasks import Task, parse_task
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.testing.fake_farm import FakeFarm
from dart_envs.validation.records import ValidationRecords, to_text
from dart_envs.validation.suites import (
    ValidationJob,
    ValidationKind,
    ValidationResult,
    make_jobs,
    validate_all,
    validate_job,
)
from dart_server.wire import DesktopShape, ExecReply, FaultOwner, InputEvent

SHAPE = DesktopShape(resolution=(640, 400))


class VirtualNow:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s


def typed(desktop: FakeDesktop, _args: list[str], _stdin: str) -> ExecReply:
    return ExecReply(returncode=0, stdout=desktop.state.typed, stderr="")


def task(expected: str = "right", **changes: Any) -> Task:
    data = {
        "id": f"mine/words/{expected}",
        "family": "words",
        "instruction": "Type it.",
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": ["typed"]},
            "expected": {"type": "rule", "rules": {"expected": expected}},
        },
        "max_steps": 3,
        "oracle": [{"do": "type", "text": "right"}],
        "near_miss": [{"do": "type", "text": "wrong"}, {"do": "done"}],
    }
    return parse_task(data | changes, name="mine")


async def validate_tasks(farm: FakeFarm, *tasks: Task, parallel: int = 2) -> dict[ValidationKind, ValidationResult]:
    return {
        validation.kind: validation
        async for validation in validate_all(farm, make_jobs(tasks), shape=SHAPE, parallel=parallel)
    }


async def test_a_good_evaluator_is_proved_in_three_ways() -> None:
    farm = FakeFarm(programs={"typed": typed})
    validations = await validate_tasks(farm, task())
    assert {kind: validation.reward for kind, validation in validations.items()} == {
        ValidationKind.ORACLE: 1.0,
        ValidationKind.NOOP: 0.0,
        ValidationKind.NEAR_MISS: 0.0,
    }
    assert all(validation.passed for validation in validations.values())
    assert validations[ValidationKind.ORACLE].steps == 2, "one move, and DONE that the script leaves out"
    assert all(lease.released for lease in farm.leases)


async def test_a_scorer_that_was_asked_for_judges_and_makes_another_proof() -> None:
    farm = FakeFarm(programs={"typed": typed})
    asked, by_default = (make_jobs([task()], scorer=scorer)[0] for scorer in ("osworld", None))
    (validation,) = [validation async for validation in validate_all(farm, [asked], shape=SHAPE, parallel=1)]
    assert validation.reward is None, "the osworld one cannot reach a scripted desktop, our own gives it 1"
    assert asked.definition != by_default.definition
    assert by_default.definition == ValidationJob(task(), by_default.kind).definition


@pytest.mark.parametrize(("expected", "wrong_one"), [("", ValidationKind.NOOP), ("wrong", ValidationKind.NEAR_MISS)])
async def test_an_evaluator_that_rewards_the_wrong_play_is_caught(expected: str, wrong_one: ValidationKind) -> None:
    validations = await validate_tasks(FakeFarm(programs={"typed": typed}), task(expected, id="mine/words/x"))
    assert not validations[wrong_one].passed
    assert "scored 1" in str(validations[wrong_one].cause)
    assert not validations[ValidationKind.ORACLE].passed


async def test_an_evaluator_that_fails_is_no_verdict_and_no_proof() -> None:
    validations = await validate_tasks(
        FakeFarm(programs={"typed": typed}), task(evaluator={"func": "no_such"}, config=[])
    )
    assert all(validation.reward is None and not validation.passed for validation in validations.values())


async def test_a_desktop_that_dies_is_a_failed_proof_with_its_cause() -> None:
    def die(desktop: FakeDesktop, events: list[InputEvent]) -> None:
        desktop.kill(FaultOwner.HOST, "host_lost")

    farm = FakeFarm(programs={"typed": typed}, on_events=die)
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        validation = await validate_job(env, ValidationJob(task(), ValidationKind.NEAR_MISS))
    assert validation.reward is None
    assert "host_lost" in str(validation.cause)
    assert validation.attempts == 3
    assert validation.as_dict()["passed"] is False


async def test_a_script_that_gets_stuck_is_a_failed_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dart_envs.tasks.model.TARGET_TIMEOUT_S", 0.0)
    stuck = task(oracle=[{"do": "click", "target": {"name": "Absent"}}])
    async with AsyncDesktopEnv(FakeFarm(programs={"typed": typed}), shape=SHAPE) as env:
        validation = await validate_job(env, ValidationJob(stuck, ValidationKind.ORACLE))
    assert "stuck at move 0: no element 'Absent'" in str(validation.cause)


async def test_a_setup_that_fails_is_tried_for_one_play_and_is_the_result_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    async def prepare(self: Task, desktop: FakeDesktop) -> None:
        tried.append(self.id)
        await asyncio.sleep(0.05)
        raise SetupError("Setup step 2 (place_window) failed: no window 'Rechnung'", failed_step=2)

    monkeypatch.setattr(Task, "prepare", prepare)
    validations = await validate_tasks(FakeFarm(programs={"typed": typed}), task())
    assert len(tried) == 2, "two desktops for the first play, none for the others"
    assert {str(validation.cause) for validation in validations.values()} == {
        "SetupError: Setup step 2 (place_window) failed: no window 'Rechnung'"
    }
    assert sorted(validation.setup_s > 0.09 for validation in validations.values()) == [False, False, True]
    assert all(validation.episode_s == 0.0 for validation in validations.values()), "the time is the setup's"
    assert not any(validation.passed for validation in validations.values())


async def test_a_farm_without_desktops_ends_the_check() -> None:
    farm = FakeFarm(programs={"typed": typed})

    async def refuse(*_args: object, **_how: object) -> None:
        raise FarmError("No desktop is free.", code="no_capacity")

    farm.lease = refuse  # type: ignore[assignment, method-assign]
    with pytest.raises(FarmError, match="No desktop is free"):
        await validate_tasks(farm, task())


async def test_a_fault_of_the_farm_is_tried_again_and_told() -> None:
    killed = []

    def die_once(desktop: FakeDesktop, events: list[InputEvent]) -> None:
        if not killed:
            killed.append(desktop)
            desktop.kill(FaultOwner.HOST, "host_lost")

    farm = FakeFarm(programs={"typed": typed}, on_events=die_once)
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        validation = await validate_job(env, ValidationJob(task(), ValidationKind.ORACLE))
    assert (validation.passed, validation.attempts) == (True, 2)


async def fill(records: ValidationRecords, jobs: list[ValidationJob]) -> int:
    todo = records.pending(jobs, SHAPE)
    async for validation in validate_all(FakeFarm(programs={"typed": typed}), todo, shape=SHAPE, parallel=2):
        records.add(validation, SHAPE)
    return len(todo)


async def test_a_book_of_proofs_goes_on_where_it_stopped(tmp_path: Path) -> None:
    jobs = make_jobs([task(), task("wrong")], repeats=2)
    first = ValidationRecords(tmp_path)
    assert await fill(first, jobs[:5]) == 5
    with (tmp_path / "validations.jsonl").open("a") as file:
        file.write('{"cut": "sho')
    second = ValidationRecords(tmp_path)
    assert await fill(second, jobs) == 7
    record = ValidationRecords(tmp_path).summary([(job, SHAPE) for job in jobs])
    assert (record["validations_expected"], record["passed"], record["sessions"]) == (12, 8, 2)
    assert {(one["kind"], one["reward"]) for one in record["failed"]} == {("oracle", 0.0), ("near_miss", 1.0)}
    assert record["repeats_agree"] is True
    assert record["by_family"]["mine/words"]["failing"] == {"oracle": 2, "near_miss": 2}
    assert record["wall_s"] >= record["session_s"] == 0, "the session that only looks has done nothing"
    assert "8 of 12 validations hold" in to_text(record)
    assert await fill(ValidationRecords(tmp_path), jobs) == 4, "what failed is tried again, what holds is not"


async def test_what_was_proved_of_another_definition_or_screen_is_proved_again(tmp_path: Path) -> None:
    jobs = make_jobs([task()])
    await fill(ValidationRecords(tmp_path), jobs)
    changed = make_jobs([task(oracle=[{"do": "type", "text": "right"}, {"do": "done"}])])
    records = ValidationRecords(tmp_path)
    assert len(records.pending(changed, SHAPE)) == 3
    assert len(records.pending(jobs, DesktopShape(resolution=(800, 600)))) == 3
    assert not records.pending(jobs, SHAPE)


def test_repeats_that_differ_are_told(tmp_path: Path) -> None:
    records, jobs = ValidationRecords(tmp_path), make_jobs([task()], repeats=2)[:2]
    for job, reward in zip(jobs, (1.0, 0.0), strict=True):
        records.add(
            ValidationResult(job.task.id, "words", job.kind, reward, 1, 0.0, 0.0, None, job.repeat, 1, job.definition),
            SHAPE,
        )
    record = records.summary([(job, SHAPE) for job in jobs])
    assert record["repeats_agree"] is False
    assert "DIFFERENT" in to_text(record)


def test_the_time_of_this_session_is_told_apart_from_all(tmp_path: Path) -> None:
    (job, *_) = make_jobs([task()])
    for elapsed_s in (83.0, 5.0):
        clock = VirtualNow()
        records = ValidationRecords(tmp_path, clock=clock)
        clock.now_s += elapsed_s
        records.add(
            ValidationResult(job.task.id, "words", job.kind, 1.0, 1, 0.0, 0.0, None, 0, 1, job.definition), SHAPE
        )
        said = to_text(records.summary([(job, SHAPE)]))
        assert ("in 83 s." if elapsed_s == 83.0 else "in 5 s (88 s over all sessions).") in said


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "validations.jsonl").write_text('{"task_id": "x"}\n')
    with pytest.raises(ValueError, match="line 1 is not a validation"):
        ValidationRecords(tmp_path)
