"""Versions have an identity: a number never means two weights, and tokens of a lost future are not trained on."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from data_manager_harness import DataManagerHarness
from sqlalchemy import Engine, create_engine, select, text

from dart_agent.data_client.payloads import SamplingPayload
from dart_agent.data_client.wire import BatchReport, PhaseSpec, VersionRecord
from dart_agent.errors import StoreError
from dart_agent.types import Purpose, VersionSpan
from dart_train.curation.lineage import VersionIdentity, lost_versions
from dart_train.data_manager.store import database
from dart_train.data_manager.store.models import BatchMemberTable, EventTable

MIXED = [1.0, 0.0, 0.0, 0.0]


def publish(harness: DataManagerHarness, version: int, digest: str, parent: str | None) -> None:
    harness.manager.publish(VersionRecord(version=version, path=f"/weights/v{version}", digest=digest, parent=parent))


def lose_versions_two_and_three(harness: DataManagerHarness) -> None:
    """0 → 1 → 2 → 3 was published; then a trainer begins again from the weights of 1, as version 4."""
    for version, parent in ((0, None), (1, "d0"), (2, "d1"), (3, "d2")):
        publish(harness, version, f"d{version}", parent)
    publish(harness, 4, "d1", "d0")


def reasons(harness: DataManagerHarness) -> list[str | None]:
    with harness.store.begin() as session:
        return list(session.scalars(select(BatchMemberTable.reason)))


def test_a_number_never_means_two_weights(harness: DataManagerHarness) -> None:
    publish(harness, 1, "d1", "d0")
    publish(harness, 1, "d1", "d0")
    with pytest.raises(StoreError, match="version 1 is registered with other weights"):
        publish(harness, 1, "other", "d0")
    latest = harness.manager.latest().policy
    assert latest is not None
    assert (latest.digest, latest.parent) == ("d1", "d0")


def test_a_version_of_an_older_run_folder_gets_its_digest_later(harness: DataManagerHarness) -> None:
    harness.manager.publish(VersionRecord(version=0, path="/weights/v0"))
    publish(harness, 0, "d0", None)
    latest = harness.manager.latest().policy
    assert latest is not None
    assert latest.digest == "d0"


def test_tokens_of_a_lost_future_do_not_pass_the_gate(harness: DataManagerHarness) -> None:
    lose_versions_two_and_three(harness)
    harness.phase()
    lost = harness.group(MIXED, version=3)
    spans = (VersionSpan(3, 0, 2), VersionSpan(4, 2, 4))
    half = harness.group(MIXED, spans=spans)
    harness.group(MIXED, version=4)
    batch = harness.manager.next_batch(4, "d1").batch
    assert batch is not None
    assert {row.group_id: row.trainable for row in batch.rows}[half] == [(2, 4)]
    assert harness.state_of(lost) == ("dropped", "lost_future")
    assert batch.staleness_max == 0


def test_a_withheld_step_says_that_its_future_was_lost(harness: DataManagerHarness) -> None:
    lose_versions_two_and_three(harness)
    harness.phase()
    items = [harness.must_acquire() for _ in MIXED]
    for item, reward, version in zip(items, MIXED, [4, 2, 3, 4], strict=True):
        harness.report(item, reward, version=version)
    harness.group(MIXED, version=4)
    batch = harness.manager.next_batch(4, "d1").batch
    assert batch is not None
    assert batch.excluded_steps == {"lost_future": 4}
    assert sorted(str(reason) for reason in reasons(harness)) == ["None"] * 12 + ["lost_future"] * 4


def test_a_batch_that_was_issued_before_its_future_was_lost_is_formed_anew(harness: DataManagerHarness) -> None:
    for version, parent in ((0, None), (1, "d0"), (2, "d1")):
        publish(harness, version, f"d{version}", parent)
    harness.phase()
    lost = [harness.group(MIXED, version=2), harness.group(MIXED, version=1)]
    issued = harness.manager.next_batch(2, "d2").batch
    assert issued is not None
    assert harness.manager.next_batch(2, "d2").batch == issued, "the same weights get the same batch again"
    publish(harness, 3, "d1", "d0")
    assert harness.manager.next_batch(3, "d1").batch is None, "one group is left, and two make a batch"
    harness.group(MIXED, version=3)
    again = harness.manager.next_batch(3, "d1").batch
    assert again is not None
    assert lost[0] not in {group.group_id for group in again.groups}
    assert again.batch_id != issued.batch_id
    with pytest.raises(StoreError, match="was withdrawn"):
        harness.manager.batch_done(issued.batch_id, BatchReport(version=4))


def test_a_group_of_a_withdrawn_batch_that_is_stale_by_then_stays_dropped(harness: DataManagerHarness) -> None:
    for version, parent in ((0, None), (1, "d0"), (2, "d1")):
        publish(harness, version, f"d{version}", parent)
    harness.phase()
    old, young = harness.group(MIXED, version=0), harness.group(MIXED, version=2)
    issued = harness.manager.next_batch(2, "d2").batch
    assert issued is not None
    assert {group.group_id for group in issued.groups} == {old, young}
    publish(harness, 3, "d1", "d0")
    assert harness.manager.next_batch(3, "d1").batch is None, "one group is left, and two make a batch"
    assert harness.state_of(old) == ("dropped", "stale")
    assert harness.state_of(young) == ("ready", None)


def test_what_was_lost_is_recorded(harness: DataManagerHarness) -> None:
    lose_versions_two_and_three(harness)
    with harness.store.begin() as session:
        events = session.scalars(select(EventTable).where(EventTable.kind == "versions_lost")).all()
        assert [event.data for event in events] == [{"version": 4, "lost": [2, 3]}]


def test_a_pooled_success_of_a_lost_future_is_not_used(tmp_path: Path) -> None:
    harness = DataManagerHarness(
        tmp_path,
        batch={"min_groups": 1, "max_groups": 1, "max_staleness": 3},
        curation={"experience_pool": {"enabled": True, "max_age": 5}},
    )
    harness.phase(select=None, task_ids=["s/tick/1"])
    for version, parent in ((0, None), (1, "d0"), (2, "d1")):
        publish(harness, version, f"d{version}", parent)
    harness.group(MIXED, version=2)
    batch = harness.manager.next_batch(2, "d2").batch
    assert batch is not None
    harness.manager.batch_done(batch.batch_id, BatchReport(version=3))
    publish(harness, 4, "d1", "d0")
    hopeless = harness.group([0.0] * 4, version=4)
    assert harness.manager.next_batch(4, "d1").batch is None
    assert harness.state_of(hopeless) == ("dropped", "all_failed")
    harness.store.close()


def test_lineage_by_hand() -> None:
    def versions(*rows: tuple[int, str | None, str | None]) -> list[VersionIdentity]:
        return [VersionIdentity(*row) for row in rows]

    straight = versions((0, "a", None), (1, "b", "a"), (2, "c", "b"))
    assert lost_versions(straight, "c") == frozenset()
    assert lost_versions(straight, "b") == {2}
    assert lost_versions(straight, None) == lost_versions(straight, "unknown") == frozenset()
    unchanged = versions((0, "a", None), (1, "a", "a"), (2, "a", "a"))
    assert lost_versions(unchanged, "a") == frozenset(), "with learning rate 0 all versions are the same weights"
    old = versions((0, None, None), (1, None, None), (2, "c", None), (3, "d", "c"))
    assert lost_versions(old, "d") == frozenset()


def test_a_database_from_before_digests_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.db"
    with monkeypatch.context() as patched:
        upgrade = command.upgrade
        patched.setattr(command, "upgrade", lambda config, _: upgrade(config, "trajectories_0001"))
        before: Engine = create_engine(f"sqlite:///{path}")
        database.migrate(before)
        with before.begin() as connection:
            connection.execute(text("INSERT INTO versions (version, path, created_s) VALUES (3, '/weights/v3', 1.0)"))
        before.dispose()
    harness = DataManagerHarness(tmp_path)
    assert harness.manager.latest().policy == VersionRecord(version=3, path="/weights/v3")
    harness.store.close()


def test_the_version_of_an_active_evaluation_is_held_until_it_ends(harness: DataManagerHarness) -> None:
    manager = harness.manager
    publish(harness, 1, "d1", None)
    publish(harness, 2, "d2", "d1")
    harness.phase()
    assert manager.held().policy is None, "training takes any version"
    for version in (1, 2, 3):
        manager.start_phase(
            PhaseSpec(
                name=f"eval-{version}",
                purpose=Purpose.EVAL,
                task_ids=["s/tick/6"],
                sampling=SamplingPayload(version=version),
                max_steps=3,
            )
        )
    assert manager.held().policy is None, "version 3 was never published"
    manager.stop_phase("eval-3")
    held = manager.held().policy
    assert held is not None
    assert (held.version, held.path, held.digest) == (2, "/weights/v2", "d2")
    manager.stop_phase("eval-1")
    played = next(item for item in iter(harness.must_acquire, None) if item.phase == "eval-2")
    assert played.sampling.version == 2
    manager.stop_phase("eval-2")
    held = manager.held().policy
    assert held is not None
    assert held.version == 2, "an episode that is played goes on after its phase is stopped"
    harness.report(played)
    assert manager.held().policy is None
