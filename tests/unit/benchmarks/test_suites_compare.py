"""Evaluations at once and one after the other, compared on scripted desktops."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.environments.bench_suites import compare
from dart_envs.tasks import Family, Suite, TaskDraft
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.testing.fake_farm import FakeFarm
from dart_server.wire import ExecReply


def draw(_rng: Random) -> TaskDraft:
    return TaskDraft(
        instruction="Type right.",
        config=[],
        evaluator={
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": ["typed"]},
            "expected": {"type": "rule", "rules": {"expected": "right"}},
        },
        oracle=[{"do": "type", "text": "right"}, {"do": "done"}],
        near_miss=[{"do": "done"}],
    )


@pytest.mark.parametrize("flaky", [False, True])
async def test_verdicts_are_compared(flaky: bool) -> None:
    calls: list[str] = []

    def typed(desktop: FakeDesktop, _args: list[str], _stdin: str) -> ExecReply:
        calls.append(desktop.state.typed)
        return ExecReply(returncode=0, stdout="" if flaky and len(calls) == 7 else desktop.state.typed, stderr="")

    toys = Suite.from_families("toys", [Family("words", "none", "Type.", 3, draw)])
    farm = FakeFarm(programs={"typed": typed})
    figures = await compare(farm, toys, 3)
    assert figures["equal"] is not flaky
    assert (figures["forks"], len(figures["rewards"]), len(calls)) == (3, 6, 12)
    assert all(lease.released for lease in farm.leases)
