"""Claims, lapses, phases: no rollout is lost, none is counted twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from dm_bench import SPLITS, Bench

from dart_agent.errors import StoreError
from dart_agent.store.wire import TaskSelection
from dart_agent.types import Purpose

EVAL = {
    "purpose": Purpose.EVAL,
    "select": TaskSelection(suite="s", split="test"),
    "endless": False,
    "rollouts_per_task": 2,
}


def test_a_repeated_claim_request_gets_the_same_rollout(bench: Bench) -> None:
    bench.phase()
    first = bench.claim(request="request-a")
    assert bench.claim(request="request-a") == first
    assert bench.claim(request="request-b") != first


def test_endless_phase_hands_out_whole_groups(bench: Bench) -> None:
    bench.phase()
    groups = Counter(bench.must_claim().group_id for _ in range(8))
    assert sorted(groups.values()) == [4, 4]


def test_workers_get_groups_of_their_own_before_they_share(tmp_path: Path) -> None:
    bench = Bench(tmp_path, parallel_groups=3)
    bench.phase()
    first = [bench.must_claim().group_id for _ in range(3)]
    assert len(set(first)) == 3
    then = [bench.must_claim().group_id for _ in range(9)]
    assert Counter(first + then) == dict.fromkeys(first, 4)
    assert bench.must_claim().group_id not in first
    bench.store.close()


def test_every_task_comes_before_any_comes_twice(bench: Bench) -> None:
    bench.phase(rollouts_per_task=2, select=TaskSelection(suite="s", split="train", families=["tick"]))
    tasks = [bench.must_claim().task_id for _ in range(24)]
    assert sorted(tasks[:12]) == sorted([task for task in SPLITS if "tick" in task and SPLITS[task] == "train"] * 2)
    assert sorted(tasks[12:]) == sorted(tasks[:12])


def test_a_lapsed_claim_is_handed_out_again_and_heartbeats_prevent_it(bench: Bench) -> None:
    bench.phase()
    lost, held = bench.must_claim("dead"), bench.must_claim("alive")
    bench.now_s += bench.config.claim_timeout_s - 1
    assert bench.manager.heartbeat("alive") == 1
    bench.now_s += 2
    assert bench.must_claim().rollout_id == lost.rollout_id
    assert bench.must_claim().rollout_id not in {lost.rollout_id, held.rollout_id}


def test_the_first_report_of_a_handed_back_rollout_counts(bench: Bench) -> None:
    bench.phase(**EVAL)
    item = bench.must_claim("slow")
    bench.now_s += bench.config.claim_timeout_s + 1
    assert bench.must_claim("fast").rollout_id == item.rollout_id
    assert bench.report(item, 0.0)
    assert not bench.report(item, 1.0)
    assert [result.reward for result in bench.manager.results("train")] == [0.0]


def test_a_gone_worker_gives_back_only_its_own(bench: Bench) -> None:
    bench.phase()
    mine, other = bench.must_claim("w1"), bench.must_claim("w2")
    assert bench.manager.release("w1") == 1
    again = bench.must_claim("w3")
    assert again.rollout_id == mine.rollout_id != other.rollout_id
    assert bench.manager.release(None) == 2


def test_an_evaluation_is_done_when_every_item_has_a_verdict(bench: Bench) -> None:
    bench.phase("eval", **EVAL)
    items = [bench.must_claim() for _ in range(8)]
    assert bench.claim() is None
    for item in items[:-1]:
        bench.report(item, 1.0)
    bench.report(items[-1], None)
    view = bench.manager.phase("eval")
    assert (view.state, view.total, view.done, view.masked, view.queued) == ("active", 8, 7, 1, 1)
    retry = bench.must_claim()
    assert retry.rollout_id != items[-1].rollout_id
    assert retry.task_id == items[-1].task_id
    bench.report(retry, 0.0)
    view = bench.manager.phase("eval")
    assert (view.state, view.done, view.mean_reward) == ("done", 8, 7 / 8)
    results = bench.manager.results("eval")
    assert sorted((r.task_id, r.repeat) for r in results) == sorted(
        (t, k) for t in SPLITS if SPLITS[t] == "test" for k in (0, 1)
    )


def test_an_item_that_never_gets_a_verdict_fails_after_its_attempts(bench: Bench) -> None:
    bench.phase(
        "eval", **(EVAL | {"task_ids": ["s/tick/8"], "select": None, "rollouts_per_task": 1, "max_attempts": 3})
    )
    bench.report(bench.must_claim(), None)
    bench.manager.abandon(bench.must_claim().rollout_id, "no desktop")
    bench.report(bench.must_claim(), None)
    assert bench.claim() is None
    view = bench.manager.phase("eval")
    assert (view.state, view.done, view.failed) == ("done", 0, 1)


def test_evaluation_goes_before_endless_training(bench: Bench) -> None:
    bench.phase("train")
    bench.phase("eval", **EVAL)
    assert {bench.must_claim().phase for _ in range(8)} == {"eval"}
    assert bench.must_claim().phase == "train"


def test_a_stopped_phase_hands_out_nothing_and_still_stores_what_ran(bench: Bench) -> None:
    bench.phase()
    running = bench.must_claim()
    assert bench.manager.stop_phase("train").state == "stopped"
    assert bench.claim() is None
    assert bench.report(running)
    assert bench.manager.stop_phase("train").done == 1


def test_phases_are_idempotent_by_name_and_refuse_other_content(bench: Bench) -> None:
    bench.phase("eval", **EVAL)
    bench.phase("eval", **EVAL)
    with pytest.raises(StoreError, match="another specification"):
        bench.phase("eval", **(EVAL | {"max_steps": 3}))
    with pytest.raises(StoreError, match="no phase 'nope'"):
        bench.manager.phase("nope")


@pytest.mark.parametrize("split", ["test", "validation"])
def test_training_on_held_out_tasks_is_refused(bench: Bench, split: str) -> None:
    with pytest.raises(StoreError, match=f"{split} split"):
        bench.phase(select=TaskSelection(suite="s", split=split))  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="split"):
        bench.phase("demo", purpose=Purpose.DEMO, endless=False, select=None, task_ids=["s/tick/9"])


def test_reports_need_their_images(bench: Bench) -> None:
    bench.phase()
    item = bench.must_claim()
    bench.images = type(bench.images)(bench.root / "elsewhere")
    with pytest.raises(StoreError, match="not stored"):
        bench.report(item)


def test_a_restart_forgets_nothing(bench: Bench) -> None:
    bench.phase()
    claimed = bench.must_claim()
    bench.report(bench.must_claim(), 0.0)
    before = bench.manager.stats()
    bench.restart()
    assert bench.manager.stats() == before
    assert bench.report(claimed)
    assert bench.manager.stats().trajectories == 2


def test_rollout_and_length_budgets_follow_history(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path,
        curation={
            "rollout_budget": {"enabled": True, "threshold": 0.6},
            "length_budget": {"enabled": True, "margin": 1, "min_successes": 4},
        },
    )
    bench.phase(select=TaskSelection(suite="s", split="train", families=["tick"]))
    bench.group([1.0] * 4, steps=3)
    items = [bench.must_claim() for _ in range(3)]
    assert len({item.group_id for item in items[:2]}) == 1
    assert items[2].group_id != items[1].group_id
    assert {item.max_steps for item in items} == {4}
    bench.store.close()


def test_pace_opens_no_group_while_enough_wait(tmp_path: Path) -> None:
    bench = Bench(tmp_path, batch={"min_groups": 2, "max_groups": 2, "max_ready_groups": 2})
    bench.phase()
    for _ in range(2):
        bench.group([1.0, 0.0, 0.0, 0.0])
    assert bench.claim() is None
    assert bench.batch() is not None
    assert bench.claim() is not None
    bench.store.close()
