"""A policy that points loads the versions that are published while it acts."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest

from dart_agent.component_process import run_together
from dart_agent.data_client.wire import VersionRecord
from dart_agent.errors import ConfigError
from dart_agent.grounding.acting.following import FollowingPolicy, read_served_versions
from dart_agent.inference.weights.leases import make_leasable, try_remove
from dart_agent.types import Completion, FinishReason, PolicyRequest, SamplingParams, VersionSpan

REQUEST = PolicyRequest((), (np.zeros((4, 4, 3), np.uint8),), SamplingParams(), "r")


class FakeVersion:
    """Says which version it is, once it may answer."""

    def __init__(self, model: str, version: int) -> None:
        if not Path(model).is_dir():
            raise ConfigError(f"{model} is no model")
        self.version = version
        self.may_answer = asyncio.Event()
        self.removable = try_remove(Path(model)) if version else None

    async def complete(self, request: PolicyRequest) -> Completion:
        await self.may_answer.wait()
        return Completion("", (1,), (2,), (0.0,), (VersionSpan(self.version, 0, 1),), FinishReason.STOP)


class FakeVersions:
    """What is published, and what was loaded of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.loaded: list[FakeVersion] = []
        self.newest: VersionRecord | None = None

    def publish(self, version: int) -> Path:
        path = self.root / f"v{version}"
        path.mkdir()
        make_leasable(path)
        self.newest = VersionRecord(version=version, path=str(path))
        return path

    def load(self, model: str, version: int) -> FakeVersion:
        self.loaded.append(FakeVersion(model, version))
        return self.loaded[-1]

    async def latest(self) -> VersionRecord | None:
        return self.newest


@pytest.fixture
def versions(tmp_path: Path) -> FakeVersions:
    return FakeVersions(tmp_path)


async def test_what_has_begun_ends_with_the_weights_that_it_began_with(versions: FakeVersions, tmp_path: Path) -> None:
    served = tmp_path / "served" / "rollout.json"
    served.parent.mkdir()
    with pytest.raises(FileNotFoundError):
        read_served_versions(served.parent)
    policy = FollowingPolicy(versions.load, str(versions.publish(0)), served=served)
    await policy.catch_up(versions.latest)
    assert read_served_versions(served.parent) == [0]
    begun = asyncio.create_task(policy.complete(REQUEST))
    await asyncio.sleep(0)
    versions.publish(1)
    await policy.catch_up(versions.latest)
    assert read_served_versions(served.parent) == [1]
    for each in versions.loaded:
        each.may_answer.set()
    assert (await begun).version_spans == (VersionSpan(0, 0, 1),)
    assert (await policy.complete(REQUEST)).version_spans == (VersionSpan(1, 0, 1),)
    assert versions.loaded[1].removable is False, "a version is not removed while it is read"
    await policy.catch_up(versions.latest)
    assert len(versions.loaded) == 2, "a version is loaded once"


async def test_a_version_that_is_gone_is_passed_over(versions: FakeVersions) -> None:
    policy = FollowingPolicy(versions.load, str(versions.publish(0)))
    shutil.rmtree(versions.publish(1))
    await policy.catch_up(versions.latest)
    assert policy.version == 0
    versions.publish(2)
    await policy.catch_up(versions.latest)
    assert policy.version == 2


async def test_what_cannot_be_loaded_ends_the_worker(versions: FakeVersions) -> None:
    policy = FollowingPolicy(versions.load, str(versions.publish(0)))
    versions.newest = VersionRecord(version=1, path=str(versions.publish(1)))

    def broken(model: str, version: int) -> FakeVersion:
        raise ConfigError(f"{model} is damaged")

    policy._load = broken
    stopped = asyncio.Event()

    async def play() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with pytest.raises(ConfigError, match="is damaged"):
        await run_together(play(), policy.follow(versions.latest))
    assert stopped.is_set(), "the episodes end with it"
