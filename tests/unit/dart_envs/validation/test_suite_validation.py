from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import FarmError
from dart_envs.tasks import Task, parse_task
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.testing.fake_farm import FakeFarm
from dart_envs.validation.records import ValidationRecords, to_text
from dart_envs.validation.suites import Job, Kind, ValidationResult, jobs_of, prove, validate_all
from dart_server.wire import DesktopShape, ExecReply, FaultOwner, InputEvent

SHAPE = DesktopShape(resolution=(640, 400))


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


async def proofs_of(farm: FakeFarm, *tasks: Task, parallel: int = 2) -> dict[Kind, ValidationResult]:
    return {proof.kind: proof async for proof in validate_all(farm, jobs_of(tasks), shape=SHAPE, parallel=parallel)}


async def test_a_good_evaluator_is_proved_in_three_ways() -> None:
    farm = FakeFarm(programs={"typed": typed})
    proofs = await proofs_of(farm, task())
    assert {kind: proof.reward for kind, proof in proofs.items()} == {
        Kind.ORACLE: 1.0,
        Kind.NOTHING: 0.0,
        Kind.NEAR_MISS: 0.0,
    }
    assert all(proof.holds for proof in proofs.values())
    assert proofs[Kind.ORACLE].steps == 2, "one move, and DONE that the script leaves out"
    assert all(lease.released for lease in farm.leases)


async def test_a_scorer_that_was_asked_for_judges_and_makes_another_proof() -> None:
    farm = FakeFarm(programs={"typed": typed})
    asked, by_default = (jobs_of([task()], scorer=scorer)[0] for scorer in ("osworld", None))
    (proof,) = [proof async for proof in validate_all(farm, [asked], shape=SHAPE, parallel=1)]
    assert proof.reward is None, "the osworld one cannot reach a scripted desktop, our own gives it 1"
    assert asked.definition != by_default.definition
    assert by_default.definition == Job(task(), by_default.kind).definition


@pytest.mark.parametrize(("expected", "wrong_one"), [("", Kind.NOTHING), ("wrong", Kind.NEAR_MISS)])
async def test_an_evaluator_that_rewards_the_wrong_play_is_caught(expected: str, wrong_one: Kind) -> None:
    proofs = await proofs_of(FakeFarm(programs={"typed": typed}), task(expected, id="mine/words/x"))
    assert not proofs[wrong_one].holds
    assert "scored 1" in str(proofs[wrong_one].cause)
    assert not proofs[Kind.ORACLE].holds


async def test_an_evaluator_that_fails_is_no_verdict_and_no_proof() -> None:
    proofs = await proofs_of(FakeFarm(programs={"typed": typed}), task(evaluator={"func": "no_such"}, config=[]))
    assert all(proof.reward is None and not proof.holds for proof in proofs.values())


async def test_a_desktop_that_dies_is_a_failed_proof_with_its_cause() -> None:
    def die(desktop: FakeDesktop, events: list[InputEvent]) -> None:
        desktop.kill(FaultOwner.HOST, "host_lost")

    farm = FakeFarm(programs={"typed": typed}, on_events=die)
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        proof = await prove(env, Job(task(), Kind.NEAR_MISS))
    assert proof.reward is None
    assert "host_lost" in str(proof.cause)
    assert proof.attempts == 3
    assert proof.as_dict()["holds"] is False


async def test_a_script_that_gets_stuck_is_a_failed_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dart_envs.tasks.model.TARGET_TIMEOUT_S", 0.0)
    stuck = task(oracle=[{"do": "click", "target": {"name": "Absent"}}])
    async with AsyncDesktopEnv(FakeFarm(programs={"typed": typed}), shape=SHAPE) as env:
        proof = await prove(env, Job(stuck, Kind.ORACLE))
    assert "stuck at move 0: no element 'Absent'" in str(proof.cause)


async def test_a_farm_without_desktops_ends_the_check() -> None:
    farm = FakeFarm(programs={"typed": typed})

    async def refuse(*_args: object, **_how: object) -> None:
        raise FarmError("No desktop is free.", code="no_capacity")

    farm.lease = refuse  # type: ignore[assignment, method-assign]
    with pytest.raises(FarmError, match="No desktop is free"):
        await proofs_of(farm, task())


async def test_a_fault_of_the_farm_is_tried_again_and_told() -> None:
    killed = []

    def die_once(desktop: FakeDesktop, events: list[InputEvent]) -> None:
        if not killed:
            killed.append(desktop)
            desktop.kill(FaultOwner.HOST, "host_lost")

    farm = FakeFarm(programs={"typed": typed}, on_events=die_once)
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        proof = await prove(env, Job(task(), Kind.ORACLE))
    assert (proof.holds, proof.attempts) == (True, 2)


async def fill(book: ValidationRecords, jobs: list[Job]) -> int:
    todo = book.todo(jobs, SHAPE)
    async for proof in validate_all(FakeFarm(programs={"typed": typed}), todo, shape=SHAPE, parallel=2):
        book.add(proof, SHAPE)
    return len(todo)


async def test_a_book_of_proofs_goes_on_where_it_stopped(tmp_path: Path) -> None:
    jobs = jobs_of([task(), task("wrong")], repeats=2)
    first = ValidationRecords(tmp_path)
    assert await fill(first, jobs[:5]) == 5
    with (tmp_path / "proofs.jsonl").open("a") as file:
        file.write('{"cut": "sho')
    second = ValidationRecords(tmp_path)
    assert await fill(second, jobs) == 7
    record = ValidationRecords(tmp_path).record([(job, SHAPE) for job in jobs])
    assert (record["proofs_wanted"], record["hold"], record["sessions"]) == (12, 8, 2)
    assert {(one["kind"], one["reward"]) for one in record["failed"]} == {("oracle", 0.0), ("near_miss", 1.0)}
    assert record["repeats_same"] is True
    assert record["by_family"]["mine/words"]["failing"] == {"oracle": 2, "near_miss": 2}
    assert record["wall_s"] >= 0
    assert "8 of 12 proofs hold" in to_text(record)
    assert await fill(ValidationRecords(tmp_path), jobs) == 4, "what failed is tried again, what holds is not"


async def test_what_was_proved_of_another_definition_or_screen_is_proved_again(tmp_path: Path) -> None:
    jobs = jobs_of([task()])
    await fill(ValidationRecords(tmp_path), jobs)
    changed = jobs_of([task(oracle=[{"do": "type", "text": "right"}, {"do": "done"}])])
    book = ValidationRecords(tmp_path)
    assert len(book.todo(changed, SHAPE)) == 3
    assert len(book.todo(jobs, DesktopShape(resolution=(800, 600)))) == 3
    assert not book.todo(jobs, SHAPE)


def test_repeats_that_differ_are_told(tmp_path: Path) -> None:
    book, jobs = ValidationRecords(tmp_path), jobs_of([task()], repeats=2)[:2]
    for job, reward in zip(jobs, (1.0, 0.0), strict=True):
        book.add(
            ValidationResult(job.task.id, "words", job.kind, reward, 1, 0.0, 0.0, None, job.repeat, 1, job.definition),
            SHAPE,
        )
    record = book.record([(job, SHAPE) for job in jobs])
    assert record["repeats_same"] is False
    assert "DIFFERENT" in to_text(record)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "proofs.jsonl").write_text('{"task_id": "x"}\n')
    with pytest.raises(ValueError, match="line 1 is not a proof"):
        ValidationRecords(tmp_path)
