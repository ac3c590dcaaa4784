"""Claims, lapses, phases: no rollout is lost, none is counted twice."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from data_manager_harness import SPLITS, DataManagerHarness
from sqlalchemy import select
from sqlalchemy.orm import Session

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import TaskSelection
from dart_agent.errors import StoreError
from dart_agent.types import Purpose
from dart_train.data_manager.execution import CommandExecutor
from dart_train.data_manager.store.models import TrajectoryTable
from dart_train.scheduling.commands import Command

EVAL = {
    "purpose": Purpose.EVAL,
    "select": TaskSelection(suite="s", split="test"),
    "endless": False,
    "rollouts_per_task": 2,
}


def test_a_repeated_claim_request_gets_the_same_rollout(harness: DataManagerHarness) -> None:
    harness.phase()
    first = harness.acquire(request="request-a")
    assert harness.acquire(request="request-a") == first
    assert harness.acquire(request="request-b") != first


def test_endless_phase_hands_out_whole_groups(harness: DataManagerHarness) -> None:
    harness.phase()
    groups = Counter(harness.must_acquire().group_id for _ in range(8))
    assert sorted(groups.values()) == [4, 4]


def test_groups_that_are_filled_together_take_turns(tmp_path: Path) -> None:
    harness = DataManagerHarness(tmp_path, scheduling={"parallel_groups": 3}, batch={"min_groups": 4, "max_groups": 4})
    harness.phase()
    first = [harness.must_acquire().group_id for _ in range(3)]
    assert len(set(first)) == 3
    assert [harness.must_acquire().group_id for _ in range(6)] == first * 2
    harness.store.close()


def test_every_task_comes_before_any_comes_twice(harness: DataManagerHarness) -> None:
    harness.phase(rollouts_per_task=2, select=TaskSelection(suite="s", split="train", families=["tick"]))
    tasks = []
    for _ in range(24):
        item = harness.must_acquire()
        tasks.append(item.task_id)
        harness.report(item, 0.0)
    assert sorted(tasks[:12]) == sorted([task for task in SPLITS if "tick" in task and SPLITS[task] == "train"] * 2)
    assert sorted(tasks[12:]) == sorted(tasks[:12])


def test_a_lapsed_claim_is_handed_out_again_and_heartbeats_prevent_it(harness: DataManagerHarness) -> None:
    harness.phase()
    lost, held = harness.must_acquire("dead"), harness.must_acquire("alive")
    harness.now_s += harness.config.assignment_timeout_s - 1
    assert harness.manager.heartbeat("alive").count == 1
    harness.now_s += 2
    assert harness.must_acquire().rollout_id == lost.rollout_id
    assert harness.must_acquire().rollout_id not in {lost.rollout_id, held.rollout_id}


def test_the_first_report_of_a_handed_back_rollout_counts(harness: DataManagerHarness) -> None:
    harness.phase(**EVAL)
    item = harness.must_acquire("slow")
    harness.now_s += harness.config.assignment_timeout_s + 1
    assert harness.must_acquire("fast").rollout_id == item.rollout_id
    assert harness.report(item, 0.0)
    assert not harness.report(item, 1.0)
    assert [result.reward for result in harness.manager.results("train")] == [0.0]


def test_a_gone_worker_gives_back_only_its_own(harness: DataManagerHarness) -> None:
    harness.phase()
    mine, other = harness.must_acquire("w1"), harness.must_acquire("w2")
    assert harness.manager.release("w1") == 1
    again = harness.must_acquire("w3")
    assert again.rollout_id == mine.rollout_id != other.rollout_id
    assert harness.manager.release(None) == 2


def test_an_evaluation_is_done_when_every_item_has_a_verdict(harness: DataManagerHarness) -> None:
    harness.phase("eval", **EVAL)
    items = [harness.must_acquire() for _ in range(8)]
    assert harness.acquire() is None
    for item in items[:-1]:
        harness.report(item, 1.0)
    harness.report(items[-1], None)
    view = harness.manager.phase("eval")
    assert (view.state, view.total, view.done, view.masked, view.queued) == ("active", 8, 7, 1, 1)
    retry = harness.must_acquire()
    assert retry.rollout_id != items[-1].rollout_id
    assert retry.task_id == items[-1].task_id
    harness.report(retry, 0.0)
    view = harness.manager.phase("eval")
    assert (view.state, view.done, view.mean_reward) == ("done", 8, 7 / 8)
    results = harness.manager.results("eval")
    assert sorted((r.task_id, r.repeat) for r in results) == sorted(
        (t, k) for t in SPLITS if SPLITS[t] == "test" for k in (0, 1)
    )


def test_an_item_that_never_gets_a_verdict_fails_after_its_attempts(harness: DataManagerHarness) -> None:
    harness.phase(
        "eval", **(EVAL | {"task_ids": ["s/tick/8"], "select": None, "rollouts_per_task": 1, "max_attempts": 3})
    )
    harness.report(harness.must_acquire(), None)
    for _ in range(4):
        harness.abandon(harness.must_acquire(), "the worker is stopping", uses_attempt=False)
    harness.abandon(harness.must_acquire())
    harness.report(harness.must_acquire(), None)
    assert harness.acquire() is None
    view = harness.manager.phase("eval")
    assert (view.state, view.done, view.failed) == ("done", 0, 1)


def test_what_is_given_back_twice_is_not_taken_from_who_has_it_now(harness: DataManagerHarness) -> None:
    harness.phase()
    first = harness.must_acquire("w1")
    assert harness.abandon(first) == 1
    second = harness.must_acquire("w1")  # another slot of the same worker
    assert second.rollout_id == first.rollout_id
    assert harness.abandon(first) == 0, "the client repeats what it got no answer to"
    assert harness.must_acquire("w1").rollout_id != second.rollout_id
    harness.restart()
    assert harness.abandon(first) == 0
    assert harness.abandon(second) == 1


def test_workers_are_told_to_stop_what_a_closed_group_leaves_running(tmp_path: Path) -> None:
    harness = DataManagerHarness(tmp_path, scheduling={"over_provision": 1.5, "partial_rollouts": False})
    harness.phase()
    items = [harness.must_acquire() for _ in range(6)]
    for item, reward in zip(items[:4], (1.0, 0.0, 0.0, 0.0), strict=True):
        assert harness.manager.heartbeat("w1").stopping == []
        harness.report(item, reward)
    harness.restart()
    harness.manager.heartbeat("w1")
    surplus = [item.assignment for item in items[4:]]
    assert sorted(harness.manager.heartbeat("w1").stopping) == sorted(surplus)
    for item in items[4:]:
        harness.abandon(item, "it is not needed any more", uses_attempt=False)
    assert harness.manager.heartbeat("w1").stopping == []
    assert harness.manager.phase("train").queued == 0, "they are cancelled"
    harness.store.close()


def test_evaluation_goes_before_endless_training(harness: DataManagerHarness) -> None:
    harness.phase("train")
    harness.phase("eval", **EVAL)
    assert {harness.must_acquire().phase for _ in range(8)} == {"eval"}
    assert harness.must_acquire().phase == "train"


def test_a_stopped_phase_hands_out_nothing_and_still_stores_what_ran(harness: DataManagerHarness) -> None:
    harness.phase()
    running = harness.must_acquire()
    assert harness.manager.stop_phase("train").state == "stopped"
    assert harness.acquire() is None
    assert harness.report(running)
    assert harness.manager.stop_phase("train").done == 1


def test_phases_are_idempotent_by_name_and_refuse_other_content(harness: DataManagerHarness) -> None:
    harness.phase("eval", **EVAL)
    harness.phase("eval", **EVAL)
    with pytest.raises(StoreError, match="another specification"):
        harness.phase("eval", **(EVAL | {"max_steps": 3}))
    with pytest.raises(StoreError, match="no phase 'nope'"):
        harness.manager.phase("nope")


@pytest.mark.parametrize("split", ["test", "validation"])
def test_training_on_held_out_tasks_is_refused(harness: DataManagerHarness, split: str) -> None:
    with pytest.raises(StoreError, match=f"{split} split"):
        harness.phase(select=TaskSelection(suite="s", split=split))  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="split"):
        harness.phase("demo", purpose=Purpose.DEMO, endless=False, select=None, task_ids=["s/tick/9"])


def test_reports_need_their_images(harness: DataManagerHarness) -> None:
    harness.phase()
    item = harness.must_acquire()
    harness.images = ImageStore(harness.root / "elsewhere")
    with pytest.raises(StoreError, match="not stored"):
        harness.report(item)


def test_a_restart_forgets_nothing(harness: DataManagerHarness) -> None:
    harness.phase()
    claimed = harness.must_acquire()
    harness.report(harness.must_acquire(), 0.0)
    before = harness.manager.stats()
    harness.restart()
    assert harness.manager.stats() == before
    assert harness.report(claimed)
    assert harness.manager.stats().trajectories == 2


def test_a_restart_goes_on_with_the_same_decisions(harness: DataManagerHarness) -> None:
    harness.phase("eval", **EVAL)
    harness.phase()
    for number in range(11):
        item = harness.must_acquire("w1" if number % 2 else "w2")
        if number % 3:
            harness.report(item, None if number == 4 else float(number % 2), version=number // 4)
    harness.manager.release("w2")

    def seen() -> dict[str, Any]:
        with harness.manager._scheduler.transaction() as session:
            state = harness.manager._scheduler.state(session)
        return {
            "rollouts": {
                name: (
                    each.state,
                    each.attempt,
                    each.repeat,
                    each.group.group_id,
                    each.worker and each.worker.worker_id,
                )
                for name, each in state.rollouts.items()
            },
            "groups": {
                name: (each.state, each.rewards, each.spans, each.queued, set(each.unfinished), each.target, each.led)
                for name, each in state.groups.items()
            },
            "phases": {
                name: (each.state, +each.counts, each.unfinished, each.groups_opened, each.nfilling, each.open_groups)
                for name, each in state.phases.items()
            },
            "active": [phase.plan.name for phase in state.active],
            "counts": (state.open_training_groups, state.training_rollouts, state.running_training, len(state.ready)),
            "requests": {request: each.rollout_id for request, each in state.requests.items()},
            "outcomes": {
                name: (list(each.rewards), list(each.success_lengths))
                for name, each in (*state.outcomes.families.items(), *state.outcomes.tasks.items())
                if each.rewards
            },
        }

    before = seen()
    assert len(before["rollouts"]) > 5
    harness.restart()
    assert seen() == before


@pytest.mark.parametrize(
    ("rule", "evidence"), [("learnability", "task"), ("learnability", "family"), ("uniform", "task")]
)
def test_a_phase_that_goes_on_with_training_chooses_tasks_as_after_a_restart(
    tmp_path: Path, rule: str, evidence: str
) -> None:
    harness = DataManagerHarness(
        tmp_path,
        batch={"min_groups": 2, "max_groups": 2, "max_ready_groups": 99},
        curation={"evidence": evidence, "task_sampler": {"rule": rule}},
    )
    harness.phase()
    for number in range(5):
        harness.group([1.0] * 4 if number % 2 else [0.0] * 4)
    harness.manager.stop_phase("train")
    harness.phase("train-2")
    harness.group([1.0] * 4)

    def seen() -> tuple[Any, ...]:
        with harness.manager._scheduler.transaction() as session:
            state = harness.manager._scheduler.state(session)
        phase = state.phases["train-2"]
        assert phase.sampler is not None
        draw = phase.sampler._draw
        return phase.groups_opened, +state.groups_by_task, +phase.sampler._runs, draw and draw.weights

    before = seen()
    assert (before[0], before[1].total(), before[2]) == (1, 6, before[1])
    harness.restart()
    assert seen() == before
    harness.store.close()


def test_what_was_decided_and_not_committed_never_happened(
    harness: DataManagerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.phase()
    item = harness.must_acquire()
    for _ in range(3):
        harness.report(harness.must_acquire(), 0.0)
    before = harness.manager.stats()

    def fail(self: CommandExecutor, session: Session, commands: Sequence[Command]) -> None:
        execute(self, session, commands)
        raise OSError("the disk is full")

    execute = CommandExecutor.execute
    with monkeypatch.context() as patched:
        patched.setattr(CommandExecutor, "execute", fail)
        for attempt in (lambda: harness.report(item, 1.0), harness.acquire, lambda: harness.manager.release(None)):
            with pytest.raises(OSError, match="full"):
                attempt()
    assert harness.manager.stats() == before
    assert harness.report(item, 1.0)
    assert harness.state_of(item.group_id) == ("ready", None)
    assert not harness.report(item, 1.0), "stored once"


def test_a_running_rollout_that_moved_to_another_group_is_stored_there(tmp_path: Path) -> None:
    harness = DataManagerHarness(tmp_path, batch={"min_groups": 2, "max_groups": 2, "max_staleness": 2})
    harness.phase()
    items = [harness.must_acquire() for _ in range(4)]
    harness.report(items[0], 1.0, version=0)
    harness.report(items[1], 0.0, version=0)
    for _ in range(2):
        harness.group([1.0, 0.0, 0.0, 0.0], version=2)
    batch = harness.must_batch(2)
    assert items[0].group_id in {group.group_id for group in batch.groups}, "closed before it became stale"

    def opened() -> int:
        with harness.manager._scheduler.transaction() as session:
            return harness.manager._scheduler.state(session).phases["train"].groups_opened

    live = opened()
    harness.restart()
    assert opened() == live == 4
    assert harness.report(items[2], 1.0, version=2)
    with harness.store.begin() as session:
        stored = session.scalars(select(TrajectoryTable).where(TrajectoryTable.rollout_id == items[2].rollout_id)).one()
        assert stored.group_id != items[2].group_id
        assert stored.task_id == items[2].task_id
    with pytest.raises(StoreError, match="group_id"):
        harness.report(dataclasses.replace(items[3], group_id=batch.groups[1].group_id), 1.0)
    harness.store.close()


def test_rollout_and_length_budgets_follow_history(tmp_path: Path) -> None:
    harness = DataManagerHarness(
        tmp_path,
        curation={
            "rollout_budget": {"enabled": True, "threshold": 0.6},
            "length_budget": {"enabled": True, "margin_steps": 1, "min_successes": 4, "full_length_fraction": 0},
        },
    )
    harness.phase(select=None, task_ids=["s/tick/1"])
    harness.group([1.0] * 4, steps=3)
    items = [harness.must_acquire() for _ in range(3)]
    assert len({item.group_id for item in items[:2]}) == 1
    assert items[2].group_id != items[1].group_id
    assert {item.max_steps for item in items} == {4}
    harness.store.close()


def test_backpressure_opens_no_group_while_enough_wait(tmp_path: Path) -> None:
    harness = DataManagerHarness(tmp_path, batch={"min_groups": 2, "max_groups": 2, "max_ready_groups": 2})
    harness.phase()
    for _ in range(2):
        harness.group([1.0, 0.0, 0.0, 0.0])
    assert harness.acquire() is None
    assert harness.batch() is not None
    assert harness.acquire() is not None
    harness.store.close()


def test_while_work_is_held_there_are_neither_rollouts_nor_batches(harness: DataManagerHarness) -> None:
    harness.phase()
    harness.group([1.0, 0.0, 0.0, 0.0])
    harness.group([1.0, 0.0, 0.0, 0.0])
    running = harness.must_acquire()
    assert harness.manager.hold("the disk is full") == 0
    assert harness.acquire() is None
    reply = harness.manager.next_batch(0)
    assert (reply.batch, reply.training_active, reply.held) == (None, True, "the disk is full")
    assert harness.report(running), "what runs is stored"
    harness.manager.hold(None)
    assert harness.acquire() is not None
    assert harness.batch() is not None


def test_a_request_that_waits_gets_nothing_once_work_is_held(harness: DataManagerHarness) -> None:
    answered: list[str] = []
    harness.manager.on_answers = lambda answers: answered.extend(answers)
    assert harness.manager.assign("w1", "waiting", wait=True).item is None
    assert harness.manager.hold("the disk is full") == 1
    harness.phase()
    harness.manager.heartbeat("w1")
    assert answered == []
