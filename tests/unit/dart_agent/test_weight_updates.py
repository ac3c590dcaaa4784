"""The order in which workers take new weights, decided without any worker."""

from __future__ import annotations

import random

import pytest

from dart_agent.inference.decisions.weight_updates import (
    AbandonVersion,
    PauseWorker,
    ResumeWorker,
    StageWeights,
    SwapWeights,
    UpdateCommand,
    UpdateMode,
    UpdatePlanner,
    UpdateRefused,
    UpdateSettings,
    VersionHeld,
    VersionPublished,
    WeightsId,
    WorkerLost,
    WorkerPaused,
    WorkerReported,
    WorkerStaged,
    WorkerStands,
    WorkerUpdated,
)

V0, V1, V2 = (WeightsId(number, f"sha256:{number}") for number in range(3))


def planner_of(*names: str, **settings: object) -> UpdatePlanner:
    planner = UpdatePlanner(UpdateSettings(**settings))  # type: ignore[arg-type]
    for name in names:
        assert planner.apply(WorkerReported(name, V0)) == ()
    return planner


def test_all_workers_stage_at_once_and_swap_one_at_a_time() -> None:
    planner = planner_of("a", "b", "c")
    assert planner.apply(VersionPublished(V1)) == tuple(StageWeights(name, V1) for name in "abc")
    assert planner.apply(WorkerStaged("b", V1)) == (SwapWeights("b", V1, pause=True),)
    assert planner.apply(WorkerStaged("a", V1)) == ()
    assert planner.updating == ("b",)
    assert planner.apply(WorkerUpdated("b", V1)) == (SwapWeights("a", V1, pause=True),)
    assert planner.apply(WorkerUpdated("a", V1)) == ()
    assert planner.outdated == ("c",)
    assert planner.apply(WorkerStaged("c", V1)) == (SwapWeights("c", V1, pause=True),)
    assert planner.apply(WorkerUpdated("c", V1)) == ()
    assert planner.outdated == planner.updating == ()


def test_several_may_swap_together_but_one_always_serves() -> None:
    planner = planner_of("a", "b", "c", max_updating=8)
    planner.apply(VersionPublished(V1))
    for name in "abc":
        planner.apply(WorkerStaged(name, V1))
    assert planner.updating == ("a", "b")
    alone = planner_of("a", max_updating=8)
    alone.apply(VersionPublished(V1))
    assert alone.apply(WorkerStaged("a", V1)) == (SwapWeights("a", V1, pause=True),)


def test_a_worker_that_restarted_unnoticed_is_brought_to_the_target_when_it_reports() -> None:
    """Nothing said that it was lost: it only reports other weights than it had."""
    planner = planner_of("a", "b")
    planner.apply(VersionPublished(V1))
    for name in "ab":
        planner.apply(WorkerStaged(name, V1))
        planner.apply(WorkerUpdated(name, V1))
    assert planner.apply(WorkerReported("a", V1)) == ()
    assert planner.apply(WorkerReported("a", V0)) == (StageWeights("a", V1),)


def test_a_worker_that_came_up_during_a_roll_takes_the_new_version() -> None:
    planner = planner_of("a", "b")
    planner.apply(VersionPublished(V1))
    planner.apply(WorkerStaged("a", V1))
    assert planner.apply(WorkerLost("a")) == ()
    assert planner.updating == ()
    assert planner.apply(WorkerReported("a", V0)) == (StageWeights("a", V1),)


def test_a_newer_version_replaces_one_that_is_only_staged() -> None:
    planner = planner_of("a", "b")
    planner.apply(VersionPublished(V1))
    planner.apply(WorkerStaged("a", V1))
    planner.apply(WorkerStaged("b", V1))
    assert planner.apply(VersionPublished(V2)) == (StageWeights("b", V2),)
    assert planner.apply(WorkerUpdated("a", V1)) == (StageWeights("a", V2),)
    assert planner.apply(WorkerStaged("b", V2)) == (SwapWeights("b", V2, pause=True),)


def test_other_weights_of_the_same_number_are_taken_too() -> None:
    planner = planner_of("a")
    planner.apply(VersionPublished(V1))
    planner.apply(WorkerStaged("a", V1))
    planner.apply(WorkerUpdated("a", V1))
    other = WeightsId(1, "sha256:other")
    assert planner.apply(VersionPublished(other)) == (StageWeights("a", other),)
    assert planner_of("a").apply(VersionPublished(WeightsId(0))) == (), "an unknown digest is no other digest"


def test_a_version_that_workers_do_not_survive_is_abandoned_with_the_reason() -> None:
    """A load that fails in the engine ends the process, which starts well with the old version and is asked again."""
    planner = planner_of("a", max_refusals=2)
    planner.apply(VersionPublished(V1))
    reason = "loading version 1 failed half-way: out of memory"
    assert planner.apply(WorkerStaged("a", V1)) == (SwapWeights("a", V1, pause=True),)
    assert planner.apply(WorkerLost("a", reason)) == ()
    assert planner.apply(WorkerReported("a", V0)) == (StageWeights("a", V1),)
    assert planner.apply(WorkerLost("a")) == (), "one that is lost while it serves says nothing of the version"
    assert planner.apply(WorkerReported("a", V0)) == (StageWeights("a", V1),)
    planner.apply(WorkerStaged("a", V1))
    assert planner.apply(WorkerLost("a", reason)) == (AbandonVersion(V1, reason),)
    assert planner.apply(WorkerReported("a", V0)) == ()


def test_a_refusal_is_asked_again_with_the_next_report_and_then_abandoned() -> None:
    planner = planner_of("a", max_refusals=2)
    planner.apply(VersionPublished(V1))
    assert planner.apply(UpdateRefused("a", V1, "no such file")) == ()
    assert planner.apply(WorkerReported("a", V0)) == (StageWeights("a", V1),)
    assert planner.apply(UpdateRefused("a", V1, "no such file")) == (AbandonVersion(V1, "no such file"),)
    assert planner.apply(WorkerReported("a", V0)) == ()
    assert planner.apply(VersionPublished(V1)) == ()
    assert planner.apply(VersionPublished(V2)) == (StageWeights("a", V2),)


def test_one_read_error_that_meets_every_worker_abandons_no_version() -> None:
    planner = planner_of("a", "b", "c", "d")
    planner.apply(VersionPublished(V1))
    for attempt in range(2):
        for name in "abcd":
            assert planner.apply(UpdateRefused(name, V1, "stale file handle")) == (), f"{name}, attempt {attempt}"
            assert planner.apply(WorkerReported(name, V0)) == (StageWeights(name, V1),)
    assert planner.apply(UpdateRefused("a", V1, "cut off")) == (AbandonVersion(V1, "cut off"),), "its third refusal"
    for name in "bcd":
        assert planner.apply(UpdateRefused(name, V1, "cut off")) == (), "it is abandoned already"
        assert planner.apply(WorkerReported(name, V0)) == ()


def test_engines_that_are_lost_with_a_version_are_counted_together() -> None:
    """Each of them has to start again: a version that no engine survives is not tried on all of them again and again."""
    planner = planner_of("a", "b", "c")
    planner.apply(VersionPublished(V1))
    commands: list[UpdateCommand] = []
    for name in "abc":
        planner.apply(WorkerStaged(name, V1))
        commands += planner.apply(WorkerLost(name, "out of memory"))
    assert commands == [AbandonVersion(V1, "out of memory")]


def test_after_an_abandoned_version_the_last_accepted_one_is_the_target() -> None:
    planner = planner_of("a", "b", max_refusals=1)
    planner.apply(VersionPublished(V1))
    planner.apply(WorkerStaged("a", V1))
    planner.apply(WorkerUpdated("a", V1))
    planner.apply(VersionPublished(V2))
    assert planner.apply(UpdateRefused("a", V2, "cut off")) == (AbandonVersion(V2, "cut off"), StageWeights("b", V1))
    assert planner.target == V1


def test_global_mode_swaps_only_when_everyone_stands_still() -> None:
    planner = planner_of("a", "b", mode=UpdateMode.GLOBAL)
    planner.apply(VersionPublished(V1))
    assert planner.apply(WorkerStaged("a", V1)) == ()
    assert planner.apply(WorkerStaged("b", V1)) == (PauseWorker("a"), PauseWorker("b"))
    assert planner.apply(WorkerPaused("b")) == ()
    assert planner.apply(WorkerPaused("a")) == (SwapWeights("a", V1, pause=False), SwapWeights("b", V1, pause=False))
    assert planner.apply(WorkerUpdated("a", V1)) == ()
    assert planner.apply(WorkerUpdated("b", V1)) == (ResumeWorker("a"), ResumeWorker("b"))
    assert planner.updating == ()


@pytest.mark.parametrize("lost_after", ["staged", "paused", "swapping"])
def test_a_worker_that_is_lost_does_not_hold_the_others_at_the_barrier(lost_after: str) -> None:
    planner = planner_of("a", "b", mode=UpdateMode.GLOBAL)
    planner.apply(VersionPublished(V1))
    planner.apply(WorkerStaged("a", V1))
    if lost_after == "staged":
        assert planner.apply(WorkerLost("b")) == (PauseWorker("a"),)
        return
    planner.apply(WorkerStaged("b", V1))
    planner.apply(WorkerPaused("a"))
    if lost_after == "paused":
        assert planner.apply(WorkerLost("b")) == (SwapWeights("a", V1, pause=False),)
        return
    planner.apply(WorkerPaused("b"))
    planner.apply(WorkerUpdated("a", V1))
    assert planner.apply(WorkerLost("b")) == (ResumeWorker("a"),)


def test_a_worker_that_stands_still_for_no_update_is_resumed() -> None:
    planner = planner_of("a", "b", mode=UpdateMode.GLOBAL)
    planner.apply(VersionPublished(V1))
    planner.apply(WorkerStaged("a", V1))
    planner.apply(WorkerStaged("b", V1))
    assert planner.apply(WorkerStands("a")) == (), "it is being paused"
    planner.apply(WorkerPaused("a"))
    assert planner.apply(WorkerStands("a")) == (), "it waits for the other"
    planner.apply(WorkerLost("a"))
    assert planner.apply(WorkerStands("a")) == (ResumeWorker("a", confirm=True),)
    assert planner.apply(WorkerReported("a", V0)) == (StageWeights("a", V1),)
    assert planner.apply(WorkerStands("a")) == (ResumeWorker("a", confirm=True),), "a command to pause came late"


@pytest.mark.parametrize("mode", list(UpdateMode))
@pytest.mark.parametrize("holding", ["", "d"])
@pytest.mark.parametrize("seed", range(15))
def test_whatever_happens_everyone_ends_with_its_version_and_no_one_stands_still(
    mode: UpdateMode, seed: int, holding: str
) -> None:
    """Workers in memory that are slow, refuse now and then, and restart with old weights, noticed or not; versions are held and let go."""
    chance = random.Random(seed)
    planner = UpdatePlanner(UpdateSettings(mode=mode, max_updating=2, max_refusals=10**6), holding)
    serves = dict.fromkeys("abcd", V0)
    paused: set[str] = set()
    work: dict[str, list[UpdateCommand]] = {name: [] for name in serves}

    def carry_out(commands: tuple[UpdateCommand, ...]) -> None:
        for command in commands:
            assert not isinstance(command, AbandonVersion)
            work[command.worker].append(command)
        standing = len(planner.updating)
        if mode is UpdateMode.PER_WORKER:
            assert standing <= 2

    def answer(command: UpdateCommand) -> tuple[UpdateCommand, ...]:
        assert not isinstance(command, AbandonVersion)
        name = command.worker
        if isinstance(command, StageWeights):
            if chance.random() < 0.1:
                return planner.apply(UpdateRefused(name, command.weights, "busy disk"))
            return planner.apply(WorkerStaged(name, command.weights))
        if isinstance(command, PauseWorker):
            paused.add(name)
            return planner.apply(WorkerPaused(name))
        if isinstance(command, ResumeWorker):
            paused.discard(name)
            return ()
        assert command.pause or name in paused
        if chance.random() < 0.1:
            serves[name] = V0
            paused.discard(name)
            return (*planner.apply(WorkerLost(name)), *planner.apply(WorkerReported(name, V0)))
        serves[name] = command.weights
        return planner.apply(WorkerUpdated(name, command.weights))

    published = 0
    for name in serves:
        carry_out(planner.apply(WorkerReported(name, V0)))
    for _ in range(400):
        what = chance.random()
        if what < 0.05:
            published += 1
            carry_out(planner.apply(VersionPublished(WeightsId(published, f"sha256:{published}"))))
        elif holding and what < 0.08:
            held = chance.choice([None, *(WeightsId(number, f"sha256:{number}") for number in range(published + 1))])
            carry_out(planner.apply(VersionHeld(held)))
        elif what < 0.1:
            name = chance.choice([name for name in serves if name not in planner.updating] or ["a"])
            if name not in planner.updating:
                serves[name] = V0
                carry_out(planner.apply(WorkerReported(name, V0)))
        elif what < 0.2:
            name = chance.choice("abcd")
            carry_out(planner.apply(WorkerReported(name, serves[name])))
        else:
            name = chance.choice("abcd")
            if work[name]:
                carry_out(answer(work[name].pop(0)))
    for _ in range(500):
        while any(work.values()):
            for commands in work.values():
                if commands:
                    carry_out(answer(commands.pop(0)))
        for name in serves:
            carry_out(planner.apply(WorkerReported(name, serves[name])))
        if not any(work.values()):
            break
    newest = WeightsId(published, f"sha256:{published}")
    assert serves == {name: planner.held if name in holding and planner.held else newest for name in serves}
    assert planner.updating == ()
    assert not paused


def holding_planner(**settings: object) -> UpdatePlanner:
    planner = UpdatePlanner(UpdateSettings(**settings), ["c"])  # type: ignore[arg-type]
    for name in "abc":
        planner.apply(WorkerReported(name, V1))
    planner.apply(VersionPublished(V1))
    return planner


@pytest.mark.parametrize("mode", list(UpdateMode))
def test_a_worker_that_holds_a_version_goes_on_when_the_evaluation_ends(mode: UpdateMode) -> None:
    planner = holding_planner(mode=mode)
    assert planner.apply(VersionHeld(V1)) == ()
    assert planner.apply(VersionPublished(V2)) == (StageWeights("a", V2), StageWeights("b", V2))
    assert planner.outdated == ("a", "b")
    assert planner.apply(VersionHeld(None)) == (StageWeights("c", V2),)
    assert planner.outdated == ("a", "b", "c")


def test_a_worker_takes_the_held_version_also_where_it_is_older_or_the_worker_comes_back() -> None:
    planner = holding_planner()
    assert planner.apply(VersionHeld(V0)) == (StageWeights("c", V0),)
    assert planner.apply(WorkerStaged("c", V0)) == (SwapWeights("c", V0, pause=True),)
    assert planner.apply(WorkerUpdated("c", V0)) == ()
    assert planner.outdated == ()
    planner.apply(WorkerLost("c"))
    assert planner.apply(WorkerReported("c", V1)) == (StageWeights("c", V0),)


def test_staged_weights_are_left_for_the_held_version() -> None:
    planner = holding_planner()
    planner.apply(VersionPublished(V2))
    planner.apply(WorkerStaged("a", V2))
    planner.apply(WorkerStaged("c", V2))
    assert planner.apply(VersionHeld(V1)) == (), "it serves it already"
    assert planner.apply(WorkerUpdated("a", V2)) == ()
    assert planner.outdated == ("b",)


def test_a_held_version_that_is_refused_again_and_again_is_left_and_ends_nothing() -> None:
    planner = holding_planner(max_refusals=2)
    planner.apply(VersionHeld(V0))
    assert planner.apply(UpdateRefused("c", V0, "it is gone")) == ()
    assert planner.apply(WorkerReported("c", V1)) == (StageWeights("c", V0),)
    assert planner.apply(UpdateRefused("c", V0, "it is gone")) == ()
    assert planner.apply(WorkerReported("c", V1)) == ()
    assert planner.apply(VersionHeld(V0)) == ()
    assert (planner.target, planner.held, planner.outdated) == (V1, None, ())


def test_a_refusal_that_comes_after_the_evaluation_ended_ends_nothing() -> None:
    planner = holding_planner(max_refusals=1)
    planner.apply(VersionHeld(V0))
    planner.apply(VersionHeld(None))
    assert planner.apply(UpdateRefused("c", V0, "it is gone")) == ()
    assert planner.target == V1
