"""The weights of the best evaluated versions outlive the newest ones, also over a restart of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dart_agent.data_client.wire import VersionRecord
from dart_train.evaluation.best_versions import BestVersions
from dart_train.model.weights import PolicyVersionStore


def publish(store: PolicyVersionStore, *versions: int) -> None:
    for version in versions:
        store.publish(version, lambda directory: (directory / "w").write_text("written") and None)


def record(store: PolicyVersionStore, version: int) -> VersionRecord:
    return VersionRecord(version=version, path=str(store.path(version)))


def line(version: int, lower: float | None) -> dict[str, float | int | None]:
    return {"version": version, "lower": lower}


def test_the_best_evaluated_versions_are_kept_beside_the_newest(tmp_path: Path) -> None:
    store = PolicyVersionStore(tmp_path, keep=2)
    with BestVersions(tmp_path, 2) as best:
        for version, lower in ((1, 0.3), (2, 0.5), (3, 0.1), (4, 0.5), (5, None)):
            publish(store, version)
            best.begin(record(store, version))
            best.rank(line(version, lower))
            best.end()
        publish(store, 6, 7)
        assert store.versions() == [2, 4, 6, 7], "of equal ones the earlier goes first, and both are among the best"
        publish(store, 8)
        assert store.versions() == [2, 4, 7, 8]
    publish(store, 9)
    assert store.versions() == [8, 9]


def test_a_version_is_kept_while_it_is_evaluated(tmp_path: Path) -> None:
    store = PolicyVersionStore(tmp_path, keep=1)
    publish(store, 1)
    with BestVersions(tmp_path, 0) as best:
        best.begin(record(store, 1))
        publish(store, 2, 3)
        assert store.versions() == [1, 3]
        best.end()
        publish(store, 4)
        assert store.versions() == [4]


def test_a_run_that_goes_on_holds_the_best_of_before(tmp_path: Path) -> None:
    store = PolicyVersionStore(tmp_path, keep=1)
    publish(store, 3)
    with BestVersions(tmp_path, 1, [line(1, 0.2), line(3, 0.4), line(2, 0.3)]) as best:
        publish(store, 4, 5)
        assert store.versions() == [3, 5]
        best.begin(record(store, 5))
        best.rank(line(5, 0.6))
        best.end()
        publish(store, 6)
        assert store.versions() == [5, 6]


def test_a_version_that_is_gone_is_evaluated_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with BestVersions(tmp_path, 1, [line(1, 0.2)]) as best:
        best.begin(VersionRecord(version=2, path=str(tmp_path / "v2")))
        best.rank(line(2, 0.4))
        best.end()
    assert "version 2 is evaluated and not kept" in caplog.text
