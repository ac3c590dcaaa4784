"""Claims, lapses, phases: no rollout is lost, none is counted twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from data_manager_harness import SPLITS, DataManagerHarness

from dart_agent.data_client.wire import TaskSelection
from dart_agent.errors import StoreError
from dart_agent.types import Purpose

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


def test_workers_get_groups_of_their_own_before_they_share(tmp_path: Path) -> None:
    harness = DataManagerHarness(tmp_path, parallel_groups=3)
    harness.phase()
    first = [harness.must_acquire().group_id for _ in range(3)]
    assert len(set(first)) == 3
    then = [harness.must_acquire().group_id for _ in range(9)]
    assert Counter(first + then) == dict.fromkeys(first, 4)
    assert harness.must_acquire().group_id not in first
    harness.store.close()


def test_every_task_comes_before_any_comes_twice(harness: DataManagerHarness) -> None:
    harness.phase(rollouts_per_task=2, select=TaskSelection(suite="s", split="train", families=["tick"]))
    tasks = [harness.must_acquire().task_id for _ in range(24)]
    assert sorted(tasks[:12]) == sorted([task for task in SPLITS if "tick" in task and SPLITS[task] == "train"] * 2)
    assert sorted(tasks[12:]) == sorted(tasks[:12])


def test_a_lapsed_claim_is_handed_out_again_and_heartbeats_prevent_it(harness: DataManagerHarness) -> None:
    harness.phase()
    lost, held = harness.must_acquire("dead"), harness.must_acquire("alive")
    harness.now_s += harness.config.assignment_timeout_s - 1
    assert harness.manager.heartbeat("alive") == 1
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
    harness.manager.abandon(harness.must_acquire().rollout_id, "no desktop")
    harness.report(harness.must_acquire(), None)
    assert harness.acquire() is None
    view = harness.manager.phase("eval")
    assert (view.state, view.done, view.failed) == ("done", 0, 1)


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
    harness.images = type(harness.images)(harness.root / "elsewhere")
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


def test_rollout_and_length_budgets_follow_history(tmp_path: Path) -> None:
    harness = DataManagerHarness(
        tmp_path,
        curation={
            "rollout_budget": {"enabled": True, "threshold": 0.6},
            "length_budget": {"enabled": True, "margin_steps": 1, "min_successes": 4},
        },
    )
    harness.phase(select=TaskSelection(suite="s", split="train", families=["tick"]))
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
