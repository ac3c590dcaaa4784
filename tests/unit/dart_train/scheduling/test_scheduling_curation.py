"""What the curation makes of groups: sizes, lengths and tasks, per task."""

from __future__ import annotations

from collections import Counter

import pytest
from scheduling_harness import TASKS, SchedulingHarness, only

from dart_train.scheduling.commands import CloseGroup, OpenGroup
from dart_train.scheduling.entities import Group
from dart_train.scheduling.events import PhaseStopped

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


@pytest.mark.parametrize("evidence", ["task", "family"])
def test_a_phase_that_goes_on_with_training_weighs_tasks_as_the_one_before(evidence: str) -> None:
    harness = SchedulingHarness(curation={"evidence": evidence, "task_sampler": {"rule": "learnability"}})
    harness.train()
    for number in range(6):
        harness.group((1.0,) * 4 if number % 2 else (0.0,) * 4)
    harness.do(PhaseStopped(0.0, "train"))
    harness.train("train-2")
    before, after = (harness.state.phases[name].sampler for name in ("train", "train-2"))
    assert before is not None
    assert after is not None
    assert before._draw is not None
    assert after._draw is not None
    assert len(set(after._draw.weights)) > 1
    assert after._draw.weights == before._draw.weights


@pytest.mark.parametrize("seed", range(6))
def test_tasks_take_turns_over_all_training_phases(seed: int) -> None:
    tasks = TASKS[:3]
    harness = SchedulingHarness(seed=seed)
    harness.train(task_ids=tasks)
    opened = [next_group(harness).task_id]
    harness.evaluate()
    harness.train("train-2", task_ids=tasks, priority=2)
    opened.append(next_group(harness).task_id)
    harness.do(PhaseStopped(0.0, "train-2"))
    harness.do(PhaseStopped(0.0, "eval"))
    for _ in range(3):
        harness.must_ask()
    opened.append(next_group(harness).task_id)
    assert sorted(opened) == sorted(tasks)


def test_a_family_that_can_teach_gets_more_groups_where_no_task_is_run_twice() -> None:
    harness = SchedulingHarness(
        curation={"evidence": "family", "task_sampler": {"rule": "learnability", "floor": 0.01}}
    )
    harness.train(task_ids=tuple(f"s/{family}/{number}" for family in ("tick", "type") for number in range(200)))
    opened = Counter[str]()
    for _ in range(100):
        assigned = [harness.must_ask() for _ in range(4)]
        solved = assigned[0].task_id.startswith("s/tick/")
        opened[assigned[0].task_id] += 1
        for number, each in enumerate(assigned):
            harness.end(each.rollout_id, 1.0 if solved else float(number % 2))
        harness.batch(), harness.update(harness.state.trainer_version + 1)
    assert max(opened.values()) == 1, "the tasks of a family take turns"
    ticks = sum(count for task_id, count in opened.items() if task_id.startswith("s/tick/"))
    assert ticks < 30


def test_a_failed_group_is_ready_only_where_its_task_has_a_stored_success() -> None:
    harness = SchedulingHarness(curation={"experience_pool": {"enabled": True}})
    harness.train(task_ids=(SOLVED, UNKNOWN))
    harness.pool.add(SOLVED)
    failed = {}
    for _ in range(2):
        opened = [harness.must_ask() for _ in range(4)]
        failed[opened[0].task_id] = opened[0].group_id
        for each in opened:
            harness.end(each.rollout_id, 0.0)
    assert {each.group_id: (each.state, each.reason) for each in only(harness.log, CloseGroup)} == {
        failed[SOLVED]: ("ready", None),
        failed[UNKNOWN]: ("dropped", "all_failed"),
    }
    assert harness.state.ready[failed[SOLVED]].rescued
    assert harness.state.open_training_groups == 0


def test_hopeless_groups_stop_no_desktop() -> None:
    batch = {"min_groups": 2, "max_groups": 2, "max_staleness": 2, "max_ready_groups": 3}
    harness = SchedulingHarness(batch=batch, curation={"experience_pool": {"enabled": True}})
    harness.train()
    for _ in range(20):
        harness.group((0.0,) * 4)
    assert not harness.state.ready
    assert harness.state.measures.useful_fraction < 0.5, "they count as groups that cannot train"
