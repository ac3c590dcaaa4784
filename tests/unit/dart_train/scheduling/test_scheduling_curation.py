"""What the curation makes of groups: sizes, lengths and tasks, per task."""

from __future__ import annotations

from collections import Counter

import pytest
from scheduling_harness import SchedulingHarness, only

from dart_train.scheduling.commands import OpenGroup
from dart_train.scheduling.entities import Group

BUDGETS = {
    "rollout_budget": {"enabled": True},
    "length_budget": {"enabled": True, "margin_steps": 0, "min_successes": 4, "full_length_fraction": 0},
}
SOLVED, UNKNOWN = "s/tick/0", "s/tick/1"


def next_group(harness: SchedulingHarness) -> Group:
    """The group of the next rollout."""
    return harness.state.groups[harness.must_ask().group_id]


@pytest.mark.parametrize(("evidence", "of_the_unknown"), [("task", (4, 10)), ("family", (2, 3))])
def test_size_and_length_follow_the_task_or_its_family(evidence: str, of_the_unknown: tuple[int, int]) -> None:
    harness = SchedulingHarness(curation={**BUDGETS, "evidence": evidence})
    harness.train(task_ids=(SOLVED,))
    harness.group((1.0, 1.0, 1.0, 1.0))
    again = next_group(harness)
    assert (again.task_id, again.target, again.max_steps) == (SOLVED, 2, 3)
    harness.train("more", task_ids=(UNKNOWN,), priority=1)
    unknown = next_group(harness)
    assert (unknown.task_id, unknown.target, unknown.max_steps) == (UNKNOWN, *of_the_unknown)


def groups_by_task(rule: str) -> dict[str, int]:
    harness = SchedulingHarness(curation={"task_sampler": {"rule": rule, "floor": 0.01}})
    harness.train(task_ids=("s/tick/0", "s/type/0"))
    played = Counter[str]()
    for _ in range(60):
        assigned = [harness.must_ask() for _ in range(4)]
        task_id = assigned[0].task_id
        played[task_id] += 1
        for each in assigned:
            harness.end(each.rollout_id, 1.0 if task_id == "s/tick/0" else float(played[task_id] % 2))
    counts = {"s/tick/0": 0, "s/type/0": 0}
    for command in only(harness.log, OpenGroup):
        counts[command.task_id] += 1
    return counts


def test_a_solved_task_gets_few_groups_where_learnability_decides() -> None:
    uniform, learnable = groups_by_task("uniform"), groups_by_task("learnability")
    assert uniform["s/tick/0"] == pytest.approx(30, abs=12)
    assert learnable["s/tick/0"] < learnable["s/type/0"] / 2
