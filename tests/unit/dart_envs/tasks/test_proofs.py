from __future__ import annotations

from typing import Any

import pytest

from dart_envs.core import AsyncDesktopEnv
from dart_envs.errors import FarmError
from dart_envs.fake import FakeFarm, ScriptedDesktop
from dart_envs.tasks import Task, parse_task
from dart_envs.tasks.proof import Kind, Proof, prove, prove_all
from dart_server.wire import DesktopShape, ExecReply, FaultOwner, InputEvent

SHAPE = DesktopShape(resolution=(640, 400))


def typed(desktop: ScriptedDesktop, _args: list[str], _stdin: str) -> ExecReply:
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


async def proofs_of(farm: FakeFarm, *tasks: Task, parallel: int = 2) -> dict[Kind, Proof]:
    return {proof.kind: proof async for proof in prove_all(farm, tasks, shape=SHAPE, parallel=parallel)}


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
    def die(desktop: ScriptedDesktop, events: list[InputEvent]) -> None:
        desktop.kill(FaultOwner.HOST, "host_lost")

    farm = FakeFarm(programs={"typed": typed}, on_events=die)
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        proof = await prove(env, task(), Kind.NEAR_MISS)
    assert proof.reward is None
    assert "host_lost" in str(proof.cause)
    assert proof.as_dict()["holds"] is False


async def test_a_script_that_gets_stuck_is_a_failed_proof() -> None:
    stuck = task(oracle=[{"do": "click", "target": {"name": "Absent"}}])
    async with AsyncDesktopEnv(FakeFarm(programs={"typed": typed}), shape=SHAPE) as env:
        proof = await prove(env, stuck, Kind.ORACLE)
    assert "stuck at move 0: no element 'Absent'" in str(proof.cause)


async def test_a_farm_without_desktops_ends_the_check() -> None:
    farm = FakeFarm(programs={"typed": typed})

    async def refuse(*_args: object, **_how: object) -> None:
        raise FarmError("No desktop is free.", code="no_capacity")

    farm.lease = refuse  # type: ignore[assignment, method-assign]
    with pytest.raises(FarmError, match="No desktop is free"):
        await proofs_of(farm, task())
