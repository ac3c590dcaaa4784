"""A worker that is stopped while it takes an unfinished rollout up costs no step: nothing was performed in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_dm_partial_rollouts import Scene, SpellingPolicy, check_whole, end, scene

__all__ = ["scene"]


def hang_once(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, *, after: bool = False) -> asyncio.Event:
    """The next call never returns, before or after it did what it does; set once it is reached."""
    reached, real = asyncio.Event(), getattr(owner, method)

    async def hang(*args: Any, **options: Any) -> Any:
        hangs = not reached.is_set()
        answer = None if hangs and not after else await real(*args, **options)
        if hangs:
            reached.set()
            await asyncio.Event().wait()
        return answer

    monkeypatch.setattr(owner, method, hang)
    return reached


async def check_continued(scene: Scene, version: int = 5) -> None:
    assert scene.rollout() == ("parked", 1)
    assert len(scene.stored()) == 3
    scene.start("w3", SpellingPolicy(version=version))
    trajectory = await scene.finished()
    check_whole(scene, trajectory)
    assert [step.version_spans[0].version for step in trajectory.steps_S] == [3, 3, 3, version, version, version]
    assert scene.events("rollout_restarted") == scene.events("rollout_requeued") == []


@pytest.mark.parametrize("keep_lease", [False, True])
@pytest.mark.parametrize("hangs_in", ["saved_episode", "resume"])
async def test_a_worker_that_is_stopped_while_it_waits_for_a_desktop_parks_the_rollout_as_it_was(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, hangs_in: str, keep_lease: bool
) -> None:
    await scene.parked_after(3, keep_lease=keep_lease)
    if hangs_in == "saved_episode":
        reached = hang_once(monkeypatch, scene.client, "saved_episode")
    else:
        reached = hang_once(monkeypatch, scene.farm, "attach" if keep_lease else "lease")
    waiting = scene.start("w2", SpellingPolicy(version=4), keep_lease=keep_lease)
    await reached.wait()
    await end(waiting)
    await check_continued(scene)


async def test_a_worker_that_is_stopped_while_a_snapshot_is_restored_gives_the_desktop_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.parked_after(3)
    resets: list[asyncio.Event] = []

    def hang_in_the_first_reset(lease: Any) -> None:
        if not resets:
            resets.append(hang_once(monkeypatch, lease, "reset"))

    scene.farm.on_lease = hang_in_the_first_reset
    waiting = scene.start("w2", SpellingPolicy(version=4))
    await scene.until(lambda: any(reached.is_set() for reached in resets))
    await end(waiting)
    assert scene.farm.leases[-1].released
    await check_continued(scene)


@pytest.mark.parametrize("after", [False, True])
async def test_a_kept_lease_stays_where_its_worker_is_stopped_before_it_says_that_it_has_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    await scene.parked_after(3, keep_lease=True)
    reached = hang_once(monkeypatch, scene.client, "resume", after=after)
    waiting = scene.start("w2", SpellingPolicy(version=4), keep_lease=True)
    await reached.wait()
    await end(waiting)
    assert not scene.farm.leases[-1].released
    await check_continued(scene)


async def test_what_a_lost_worker_did_stays_unknown_where_its_successor_is_stopped(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = SpellingPolicy(stop_at=2)
    scene.start("w1", policy)
    await policy.reached.wait()
    await scene.until(lambda: len(scene.stored()) == 2)
    await scene.client.release_worker("w1")
    reached = hang_once(monkeypatch, scene.client, "saved_episode")
    waiting = scene.start("w2", SpellingPolicy())
    await reached.wait()
    await end(waiting)
    assert scene.rollout() == ("parked", 1)
    scene.start("w3", SpellingPolicy())
    check_whole(scene, await scene.finished())
    (restart,) = scene.events("rollout_restarted")
    assert restart["cause"].startswith("worker w1 was lost")


async def test_a_rollout_whose_steps_were_dropped_is_given_back(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.parked_after(3)
    scene.farm.states.clear()
    reached = hang_once(monkeypatch, scene.client, "restart", after=True)
    waiting = scene.start("w2", SpellingPolicy(version=4))
    await reached.wait()
    await end(waiting)
    assert scene.rollout() == ("queued", 1)
    assert scene.stored() == []
