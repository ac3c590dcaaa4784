"""SIGKILL and SIGTERM of every component at random moments: the run ends by itself, with the same number of updates."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from killable_run import KillableRun
from sqlalchemy import select
from sqlalchemy.orm import Session

from dart_train.curation.lineage import lost_versions
from dart_train.data_manager import queries
from dart_train.data_manager.store.database import open_engine
from dart_train.data_manager.store.models import (
    BatchMemberTable,
    BatchTable,
    EventTable,
    GroupTable,
    RolloutTable,
    StepTable,
    TrajectoryTable,
)
from dart_train.model.weights import PolicyVersionStore, TrainingOrigin
from dart_train.run.state import RunState
from dart_train.simulation.components.virtual_time import VirtualClock, run_in_virtual_time
from dart_train.trainer.checkpoint import CheckpointStore

SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20))]
UPDATES = 4
COMPONENTS = ("data-manager", "rollout-oracle", "rollout-vllm", "inference", "trainer", "warm-start", "init-model")


async def kill_at_random(run: KillableRun, random: Random) -> None:
    """Each component once or twice, by either signal, at moments that the seed chooses."""
    left = Counter({name: random.choice((1, 2)) for name in COMPONENTS})
    left["warm-start"] = left["init-model"] = 1
    while True:
        await run.clock.sleep(random.uniform(5, 40))
        names = [name for name, process in run.live.items() if process.returncode is None and left[name]]
        if names:
            name = random.choice(names)
            left[name] -= 1
            run.ends[name] += 1
            process = run.live[name]
            random.choice((process.terminate, process.kill_group))()


def check_what_was_trained(session: Session) -> None:
    """No step twice, and no token of weights that were no ancestors of those that were trained."""
    identities = queries.version_identities(session)
    trained: Counter[tuple[str, int]] = Counter()
    for batch in session.scalars(select(BatchTable).where(BatchTable.state == "done")):
        lost = lost_versions(
            [each for each in identities if each.number <= batch.trainer_version], batch.trainer_digest
        )
        query = select(BatchMemberTable).where(BatchMemberTable.batch_id == batch.batch_id)
        for member in session.scalars(query.where(BatchMemberTable.reason.is_(None))):
            trained[(member.rollout_id, member.index)] += 1
            step = session.get(StepTable, (member.rollout_id, member.index))
            assert step is not None
            assert not {span[0] for span in step.version_spans} & lost
    assert set(trained.values()) == {1}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_whose_components_are_killed_ends_with_the_same_number_of_updates(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(clock: VirtualClock) -> KillableRun:
        run = KillableRun(
            tmp_path,
            monkeypatch,
            clock,
            seed,
            train={"updates": UPDATES, "groups_per_batch": 1, "checkpoint_every": 1 + seed % 2, "max_minutes": 600},
        )
        killer = asyncio.create_task(kill_at_random(run, Random(seed)))
        try:
            assert await run.run() is not None
        finally:
            killer.cancel()
        return run

    run = run_in_virtual_time(body)
    assert run.ends.total() >= 4, "too few were killed for the seed to say anything"
    assert CheckpointStore(run.paths.checkpoints, keep=1).updates() == UPDATES
    store = PolicyVersionStore(run.paths.weights, keep=4)
    assert TrainingOrigin.read(store.path(store.versions()[-1])).updates == UPDATES
    assert set(RunState.load(run.paths.state).stages_s) >= {"demos", "warm-start", "eval-before", "train", "eval-after"}
    engine = open_engine(run.paths.database, read_only=True)
    with Session(engine) as session:
        check_what_was_trained(session)
        stored = Counter(session.scalars(select(TrajectoryTable.rollout_id)))
        done = session.scalars(select(RolloutTable.rollout_id).where(RolloutTable.state == "done")).all()
        assert Counter(done) == stored, "each finished rollout is stored exactly once"
    engine.dispose()


def test_a_lost_future_in_the_middle_of_training_is_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def kill_after_version(run: KillableRun, version: int) -> None:
        async with run.client() as client:
            while (latest := await client.latest_version()) is None or latest.version < version:
                await run.clock.sleep(1)
            while run.served != version:
                await run.clock.sleep(1)
            await run.clock.sleep(20)  # some episodes are sampled from it
        run.live["trainer"].kill_group()

    async def body(clock: VirtualClock) -> KillableRun:
        train = {"updates": 8, "groups_per_batch": 1, "checkpoint_every": 4, "max_minutes": 600}
        run = KillableRun(tmp_path, monkeypatch, clock, train=train)
        run.train_step_s = 60.0
        killer = asyncio.create_task(kill_after_version(run, 6))
        assert await run.run() is not None
        await killer
        return run

    run = run_in_virtual_time(body)
    assert CheckpointStore(run.paths.checkpoints, keep=1).updates() == 8
    engine = open_engine(run.paths.database, read_only=True)
    with Session(engine) as session:
        (event,) = session.scalars(select(EventTable).where(EventTable.kind == "versions_lost"))
        assert 6 in event.data["lost"]
        sampled = {span[0] for spans in session.scalars(select(StepTable.version_spans)) for span in spans}
        assert sampled & set(event.data["lost"]), "no episode was sampled from the lost versions"
        check_what_was_trained(session)
        assert session.scalars(select(BatchMemberTable).where(BatchMemberTable.reason == "lost_future")).all() or (
            session.scalars(select(GroupTable).where(GroupTable.reason == "lost_future")).all()
        )
    engine.dispose()


def test_the_same_seed_kills_at_the_same_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(clock: VirtualClock, folder: Path) -> tuple[Counter[str], float]:
        run = KillableRun(folder, monkeypatch, clock, 3)
        killer = asyncio.create_task(kill_at_random(run, Random(3)))
        await clock.sleep(120)
        killer.cancel()
        return run.ends, clock.monotonic()

    first, second = (run_in_virtual_time(lambda clock, name=name: body(clock, tmp_path / name)) for name in ("a", "b"))
    assert first == second
