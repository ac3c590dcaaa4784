"""The experience pool in the data manager: what completes failed groups, how often, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from data_manager_harness import DataManagerHarness
from sqlalchemy import select

from dart_agent.data_client.image_location import open_images
from dart_agent.data_client.image_store import BlobStorage
from dart_agent.data_client.wire import Batch, BatchFailure, BatchReport
from dart_train.curation.experience_pool import ExperiencePoolSettings
from dart_train.data_commands.provenance import read_provenance
from dart_train.data_manager.pool import choose_success
from dart_train.data_manager.store.models import StepTable, TrajectoryTable

FAILED = [0.0] * 4


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[DataManagerHarness] = []

    def build(groups: int = 1, images: BlobStorage | None = None, **pool: Any) -> DataManagerHarness:
        harness = DataManagerHarness(
            tmp_path,
            images,
            batch={"min_groups": groups, "max_groups": groups, "max_staleness": 1},
            curation={"experience_pool": {"enabled": True, "max_age": 50, **pool}},
        )
        harness.phase(select=None, task_ids=["s/tick/1"])
        made.append(harness)
        return harness

    yield build
    for harness in made:
        harness.store.close()


def trained(harness: DataManagerHarness, version: int) -> Batch:
    batch = harness.must_batch(version)
    harness.manager.batch_done(batch.batch_id, BatchReport(version=version + 1))
    return batch


def why(harness: DataManagerHarness, rollout_id: str) -> str:
    """What became of a trajectory, as `dart-train data show` tells it."""
    with harness.store.begin() as session:
        row = session.scalars(select(TrajectoryTable).where(TrajectoryTable.rollout_id == rollout_id)).one()
        return read_provenance(session, row).why


def pooled(batch: Batch) -> list[str]:
    return [member.rollout_id for group in batch.groups for member in group.members if member.source == "pool"]


def test_a_success_completes_a_limited_number_of_groups(make: Any) -> None:
    harness = make(max_uses=2)
    harness.group([1.0, 0.0, 0.0, 0.0])
    success = next(member.rollout_id for member in trained(harness, 0).groups[0].members if member.reward == 1)
    for version in (1, 2):
        harness.group(FAILED, version=version)
        assert pooled(trained(harness, version)) == [success]
        updates = ", ".join(str(update) for update in range(1, version + 2))
        assert why(harness, success) == f"2 of 2 steps in update {updates}", "each step counts once"
    assert harness.manager.stats().curation["pool_uses"] == 2
    harness.restart()
    assert harness.manager.stats().curation["pool_uses"] == 2
    late = harness.group(FAILED, version=3)
    assert harness.batch(3) is None
    assert harness.state_of(late) == ("dropped", "all_failed")


def test_a_group_that_no_success_can_complete_waits_for_no_batch(make: Any) -> None:
    harness = make(max_uses=1)
    hopeless = harness.group(FAILED)
    assert harness.state_of(hopeless) == ("dropped", "all_failed")
    harness.group([1.0, 0.0, 0.0, 0.0])
    trained(harness, 0)
    hopeful = harness.group(FAILED, version=1)
    assert harness.state_of(hopeful) == ("ready", None)
    harness.restart()
    trained(harness, 1)
    used_up = harness.group(FAILED, version=2)
    assert harness.state_of(used_up) == ("dropped", "all_failed")


def test_a_pool_that_is_off_is_not_read(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = make()
    with harness.store.begin() as session:
        monkeypatch.setattr(session, "execute", lambda *_: pytest.fail("the pool was read"))
        off = ExperiencePoolSettings(enabled=False)
        assert (
            choose_success(
                session,
                harness.images,
                "s/tick/1",
                off,
                success_at=1.0,
                version=1,
                lost=(),
                batch_groups=(),
                pooled=(),
            )
            is None
        )


def test_partial_credit_is_no_success_of_the_pool(make: Any) -> None:
    harness = make()
    harness.group([0.5, 0.0, 0.0, 0.0])
    trained(harness, 0)
    hopeless = harness.group([0.25] * 4, version=1)
    assert harness.batch(1) is None
    assert harness.state_of(hopeless) == ("dropped", "all_failed")


def test_what_the_curation_did_is_told(make: Any) -> None:
    harness = make()
    harness.group([1.0, 0.0, 0.0, 0.0])
    trained(harness, 0)
    harness.group(FAILED, version=1)
    trained(harness, 1)
    stats = harness.manager.stats()
    assert stats.curation == {"group_size_mean": 4, "max_steps_mean": 10, "pool_uses": 1}
    assert stats.pass_at_k == {1: 1 / 8, 2: 1 / 4, 4: 1 / 2, 8: 1}


def test_a_batch_that_failed_is_no_use(make: Any) -> None:
    harness = make(max_uses=1)
    harness.group([1.0, 0.0, 0.0, 0.0])
    trained(harness, 0)
    harness.group(FAILED, version=1)
    batch = harness.must_batch(1)
    culprit = next(row for row in batch.rows if row.rollout_id not in pooled(batch))
    failure = {"cause": "not finite", "culprits": [{"rollout_id": culprit.rollout_id, "index": culprit.step.index}]}
    harness.manager.batch_failed(batch.batch_id, BatchFailure.model_validate(failure))
    assert pooled(trained(harness, 1)) == pooled(batch)


def test_a_success_that_is_quarantined_completes_no_group(make: Any) -> None:
    harness = make()
    harness.group([1.0, 0.0, 0.0, 0.0])
    batch = harness.must_batch(0)
    harness.manager.batch_failed(batch.batch_id, BatchFailure(cause="the gradient exploded"))
    assert harness.batch(0) is None
    late = harness.group(FAILED)
    assert harness.batch(0) is None
    assert harness.state_of(late) == ("dropped", "all_failed")


def images_of(harness: DataManagerHarness, rollout_id: str) -> list[str]:
    with harness.store.begin() as session:
        rows = session.scalars(select(StepTable.image_sha256_new).where(StepTable.rollout_id == rollout_id)).all()
    return list(dict.fromkeys(sha256 for hashes in rows for sha256 in hashes))


def delete_images(harness: DataManagerHarness, location: Path | str, rollout_id: str) -> None:
    """As `dart-train data gc --keep-days 0 --drop-successes` does: in another process, so through storage of its own."""
    elsewhere = open_images(location)
    for sha256 in images_of(harness, rollout_id):
        assert elsewhere.delete(sha256, inf)


@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_a_success_whose_images_were_deleted_completes_no_group(make: Any, tmp_path: Path, kind: str) -> None:
    location = tmp_path / "images" if kind == "directory" else f"memory://{uuid4().hex}"
    harness = make(images=open_images(location))
    older, newer = list[str](), list[str]()
    for version, successes in enumerate((older, newer)):
        harness.group([1.0, 0.0, 0.0, 0.0], version=version)
        members = trained(harness, version).groups[0].members
        successes += [member.rollout_id for member in members if member.reward == 1]
    harness.group(FAILED, version=2)
    delete_images(harness, location, newer[0])
    assert pooled(trained(harness, 2)) == older, "the newest one that can be trained on"
    delete_images(harness, location, older[0])
    hopeless = harness.group(FAILED, version=3)
    assert harness.batch(3) is None
    assert harness.state_of(hopeless) == ("dropped", "all_failed")
    known = harness.group(FAILED, version=3)
    assert harness.state_of(known) == ("dropped", "all_failed"), "it waits for no batch"


def test_only_the_images_of_the_chosen_success_are_checked_again(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    harness: DataManagerHarness = make()
    for version in range(2):
        harness.group([1.0, 0.0, 0.0, 0.0], version=version)
        trained(harness, version)
    checked: list[list[str]] = []
    find_missing = harness.images.missing

    def missing(hashes: Iterable[str], *, recheck: bool = False) -> list[str]:
        each = list(dict.fromkeys(hashes))
        if recheck:
            checked.append(each)
        return find_missing(each, recheck=recheck)

    monkeypatch.setattr(harness.images, "missing", missing)
    harness.group(FAILED, version=2)
    assert checked == [], "a batch decides"
    chosen = pooled(trained(harness, 2))
    assert checked == [images_of(harness, chosen[0])]


def test_a_success_is_in_a_batch_once_fresh_or_pooled(make: Any) -> None:
    harness = make(groups=2, max_uses=None)
    harness.group([1.0, 0.0, 0.0, 0.0])
    harness.group(FAILED)
    assert harness.batch(0) is None, "the only success is in this batch already"
    harness.group([1.0, 0.0, 0.0, 0.0])
    trained(harness, 0)
    harness.group(FAILED, version=1)
    harness.group(FAILED, version=1)
    pool = pooled(trained(harness, 1))
    assert len(pool) == len(set(pool)) == 2
