"""What a run decides: it always ends, every failure has a cause, and nothing is started again more often than it may be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_train.run.decisions import disk, stages, supervision, waits
from dart_train.run.decisions.stages import (
    FinishRun,
    HoldPolicy,
    PlannedStage,
    ReleasePolicy,
    RunBegun,
    RunStage,
    StageDone,
)
from dart_train.run.decisions.supervision import (
    AwaitSpace,
    ComponentDone,
    ComponentLost,
    KillGroup,
    ProcessEnded,
    ProcessStarted,
    StartAgain,
    StopAsked,
    SupervisionState,
)
from dart_train.run.decisions.waits import (
    AskFault,
    CheckFaults,
    ComponentSeen,
    ComponentWait,
    CountEpisodes,
    DataManagerSeen,
    DataManagerWait,
    EndWait,
    EpisodesCounted,
    ExplainWait,
    FailWait,
    FaultTold,
    GiveAdvice,
    LookAgain,
    PhaseSeen,
    PhaseWait,
    RunPaused,
    ShowProgress,
    Stall,
    VersionsSeen,
    VersionWait,
    WaitExplained,
)

CODES = st.sampled_from([0, 1, 2, 3, -9, -15])
LIMIT_S = 60.0


# Supervision


@given(st.integers(0, 5), st.booleans(), st.lists(CODES, min_size=7, max_size=7))
def test_a_component_always_ends_within_its_restarts(limit: int, endless: bool, codes: list[int]) -> None:
    state = SupervisionState("part", limit, endless)
    started = 0
    for code in codes:
        commands = supervision.decide(state, ProcessEnded(code))
        assert commands[0] == KillGroup(), "nothing of its process group is left behind"
        last = commands[-1]
        if not isinstance(last, StartAgain):
            break
        started += 1
        assert supervision.decide(state, ProcessStarted()) == []
    assert started <= limit
    assert state.over
    if isinstance(last, ComponentLost):
        assert last.cause.startswith("part ")
        assert last.refused == (code == supervision.EXIT_REFUSED)
    else:
        assert (last, code, endless) == (ComponentDone(), 0, False)


def test_faults_that_are_hours_apart_do_not_add_up() -> None:
    state = SupervisionState("part", 2, endless=True)
    for lived_s in (1.0, 1.0, supervision.STEADY_S, 1.0, 4 * supervision.STEADY_S):
        assert supervision.decide(state, ProcessEnded(1, lived_s=lived_s)) == [KillGroup(), StartAgain(1)]
    assert isinstance(supervision.decide(state, ProcessEnded(1, lived_s=1.0))[-1], StartAgain)
    lost = supervision.decide(state, ProcessEnded(1, lived_s=1.0))[-1]
    assert isinstance(lost, ComponentLost)
    assert "2 times in a row" in lost.cause
    refusing = SupervisionState("part", 2, endless=True)
    refused = ProcessEnded(supervision.EXIT_REFUSED, lived_s=supervision.STEADY_S)
    assert isinstance(supervision.decide(refusing, refused)[-1], ComponentLost)


@given(st.booleans(), st.lists(CODES, max_size=3), CODES)
def test_what_was_stopped_is_never_started_again(endless: bool, before: list[int], code: int) -> None:
    state = SupervisionState("part", 10, endless)
    for each in before:
        supervision.decide(state, ProcessEnded(each))
    supervision.decide(state, StopAsked())
    assert supervision.decide(state, ProcessEnded(code)) == [ComponentDone()]


@pytest.mark.parametrize("code", [1, -9])
def test_an_end_while_the_disk_is_full_waits_for_space_and_uses_up_no_restart(code: int) -> None:
    state = SupervisionState("part", 0, endless=False)
    for _ in range(20):
        assert supervision.decide(state, ProcessEnded(code, disk_full=True)) == [
            KillGroup(),
            AwaitSpace(),
            StartAgain(code),
        ]
    assert state.restarts == 0
    assert supervision.decide(state, ProcessEnded(0, disk_full=True)) == [KillGroup(), ComponentDone()]


def test_a_process_that_starts_after_the_stop_is_ended() -> None:
    state = SupervisionState("part", 1, endless=True)
    assert supervision.decide(state, ProcessEnded(1)) == [KillGroup(), StartAgain(1)]
    supervision.decide(state, StopAsked())
    assert supervision.decide(state, ProcessStarted()) == [KillGroup()]


@pytest.mark.parametrize(
    ("code", "endless", "restarts", "max_restarts", "then"),
    [
        (0, False, 0, 0, "done"),
        (0, True, 0, 1, "restart"),
        (0, True, 1, 1, "fail"),
        (-15, False, 0, 1, "restart"),
        (3, False, 0, 1, "restart"),
        (2, True, 0, 5, "fail"),
    ],
)
def test_what_follows_an_end(code: int, endless: bool, restarts: int, max_restarts: int, then: str) -> None:
    assert supervision.after_end(code, endless=endless, restarts=restarts, max_restarts=max_restarts) == then


# Stages

PLANS = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([None, "vllm", "blank"])), unique_by=lambda item: item[0]
).map(lambda items: tuple(PlannedStage(name, policy) for name, policy in items))


@given(PLANS, st.sets(st.sampled_from("abcdefgh")))
def test_every_open_stage_runs_once_in_order_with_its_policy(plan: tuple[PlannedStage, ...], done: set[str]) -> None:
    state = stages.StagesState(plan, set(done))
    held, ran = None, []
    commands = stages.decide(state, RunBegun())
    while True:
        for command in commands:
            if isinstance(command, HoldPolicy):
                assert held is None, "two policies would share the desktops"
                held = command.kind
            elif isinstance(command, ReleasePolicy):
                assert held is not None
                held = None
            elif isinstance(command, RunStage):
                ran.append(PlannedStage(command.name, held))
        if commands[-1] == FinishRun():
            break
        commands = stages.decide(state, StageDone(ran[-1].name))
    assert ran == [stage for stage in plan if stage.name not in done]
    assert held is None, "nothing runs at the end"


def test_neighbours_share_a_policy() -> None:
    state = stages.StagesState((PlannedStage("a", "vllm"), PlannedStage("b", "vllm")))
    assert stages.decide(state, RunBegun()) == [HoldPolicy("vllm"), RunStage("a")]
    assert stages.decide(state, StageDone("a")) == [RunStage("b")]
    with pytest.raises(ValueError, match="b is running"):
        stages.decide(state, StageDone("a"))


# Waits


def phase_seen(now_s: float, done: int, *, active: bool = True) -> PhaseSeen:
    return PhaseSeen(now_s, active, done, 8, failed=0, masked=0, in_flight=1, queued=2, mean_reward=0.5)


@given(st.lists(st.tuples(st.floats(0.1, 50), st.integers(0, 2)), max_size=30))
def test_a_phase_without_progress_fails_with_its_cause_and_one_with_progress_does_not(
    steps: list[tuple[float, int]],
) -> None:
    state = PhaseWait("eval", Stall(LIMIT_S, 0.0))
    now_s, done, changed_s = 0.0, 0, 0.0
    seen = False
    for pause_s, more in steps:
        now_s, done = now_s + pause_s, done + more
        if more or not seen:
            changed_s, seen = now_s, True
        commands = waits.decide(state, phase_seen(now_s, done))
        assert commands[1] == CheckFaults(due=True)
        if now_s - changed_s > LIMIT_S:
            assert commands[-1] == AskFault()
            (failed,) = waits.decide(state, FaultTold("no disk"))
            assert isinstance(failed, FailWait)
            assert failed.cause.startswith("eval: no episode has ended for ")
            assert "last fault: no disk" in failed.cause
            return
        assert commands[-1] == LookAgain()
    assert waits.decide(state, phase_seen(now_s, done, active=False))[1:] == [CheckFaults(due=False), EndWait()]


@given(st.lists(st.floats(0.5, 40), min_size=1, max_size=60), st.booleans())
@settings(deadline=None)
def test_a_silent_component_ends_the_wait(pauses_s: list[float], explained: bool) -> None:
    state = ComponentWait("trainer", "update", Stall(LIMIT_S, 0.0), explained, 10.0, 30.0, line_s=0.0)
    now_s, first_s = 0.0, None
    for pause_s in pauses_s:
        now_s += pause_s
        first_s = now_s if first_s is None else first_s
        commands = waits.decide(state, ComponentSeen(now_s, ended=False, line=None))
        while commands[-1] == CountEpisodes():
            commands = waits.decide(state, EpisodesCounted(now_s, 0, ended=False))
        if now_s - first_s > LIMIT_S:
            if explained:
                assert commands[-1] == ExplainWait(None)
                commands = waits.decide(state, WaitExplained("all rewards are equal"))
            failed = commands[-1]
            assert isinstance(failed, FailWait)
            assert failed.cause.startswith("trainer made no progress for ")
            assert ("all rewards are equal" in failed.cause) is explained
            return
        assert commands[-1] == LookAgain()
    assert waits.decide(state, ComponentSeen(now_s, ended=True, line=None))[-1] in (EndWait(), CountEpisodes())


def test_episodes_that_end_are_progress_of_a_trainer_without_lines() -> None:
    state = ComponentWait("trainer", "update", Stall(LIMIT_S, 0.0), True, 10.0, 30.0, line_s=0.0)
    for number in range(10):
        now_s = 50.0 * number
        commands = waits.decide(state, ComponentSeen(now_s, ended=False, line=None))
        assert commands == [CheckFaults(due=True), ExplainWait(f"no update for {now_s:.0f} s: "), CountEpisodes()]
        assert waits.decide(state, EpisodesCounted(now_s, number, ended=False)) == [LookAgain()]
    assert waits.decide(state, EpisodesCounted(500.0, 10, ended=True)) == [EndWait()]


def test_a_line_is_shown_and_delays_the_explanation() -> None:
    state = ComponentWait("trainer", "update", Stall(LIMIT_S, 0.0), True, 10.0, 1000.0, line_s=0.0, looked_s=0.0)
    assert waits.decide(state, ComponentSeen(1.0, ended=False, line="version 1"))[1:] == [
        ShowProgress("version 1", news=True),
        LookAgain(),
    ]
    assert waits.decide(state, ComponentSeen(5.0, ended=False, line=None))[1:] == [LookAgain()]
    assert waits.decide(state, ComponentSeen(11.0, ended=False, line=None))[1] == ExplainWait("no update for 10 s: ")


def test_the_same_advice_is_given_once_in_a_stage() -> None:
    state = ComponentWait("trainer", "update", Stall(LIMIT_S, 0.0), True, 10.0, 1000.0, line_s=0.0, looked_s=0.0)
    answers = [
        waits.decide(state, WaitExplained(f"all {n} rewards are 0", "Give easier tasks.", "no update: "))
        for n in (4, 8)
    ]
    shown = [ShowProgress(f"no update: all {n} rewards are 0") for n in (4, 8)]
    assert answers == [[shown[0], GiveAdvice("all 4 rewards are 0. Give easier tasks.")], [shown[1]]]
    changed = waits.decide(state, WaitExplained("all 9 rewards are 1", "Give harder tasks.", "no update: "))
    assert changed[1:] == [GiveAdvice("all 9 rewards are 1. Give harder tasks.")]


def test_a_data_manager_that_starts_slowly_is_waited_for_and_one_that_never_answers_is_told() -> None:
    state = DataManagerWait("logs/data-manager.log", Stall(LIMIT_S, 0.0))
    first, second = (waits.decide(state, DataManagerSeen(at_s, answered=False)) for at_s in (0.0, 0.9 * LIMIT_S))
    assert first == [GiveAdvice("the data manager is still starting"), LookAgain()]
    assert second == [LookAgain()], "told once"
    (failed,) = waits.decide(state, DataManagerSeen(1.1 * LIMIT_S, answered=False))
    assert isinstance(failed, FailWait)
    assert "minutes of its start (log: logs/data-manager.log)" in failed.cause
    assert waits.decide(state, DataManagerSeen(1.2 * LIMIT_S, answered=True)) == [EndWait()]


def test_the_inference_workers_are_waited_for_until_all_serve_the_version() -> None:
    state = VersionWait(3, Stall(LIMIT_S, 0.0))
    mixed = VersionsSeen(0.0, frozenset({2, 3}), "they serve versions 2 to 3")
    assert waits.decide(state, mixed)[-1] == LookAgain()
    later = VersionsSeen(50.0, frozenset({1, 3}), "they serve versions 1 to 3")
    assert waits.decide(VersionWait(3, Stall(LIMIT_S, 0.0)), later)[-1] == LookAgain(), "one more worker has come"
    for at_s in range(5, 60, 5):  # a worker dies, begins again with the old version, and dies of the new one
        found = ("policy-0 does not answer", frozenset[int]()) if at_s % 2 else ("they serve version 2", frozenset({2}))
        assert waits.decide(state, VersionsSeen(float(at_s), found[1], found[0]))[-1] == LookAgain()
    failed = waits.decide(state, VersionsSeen(61.0, frozenset(), "policy-0 does not answer"))[-1]
    assert isinstance(failed, FailWait)
    assert "version 3 within 1 minutes (policy-0 does not answer)" in failed.cause
    assert waits.decide(state, VersionsSeen(123.0, frozenset({3}), "they serve version 3")) == [EndWait()]


def test_a_wait_takes_no_event_of_another() -> None:
    with pytest.raises(TypeError, match="FaultTold is no event of a VersionWait"):
        waits.decide(VersionWait(0, Stall(LIMIT_S, 0.0)), FaultTold(None))


def test_a_pause_is_no_wait() -> None:
    state = PhaseWait("train", Stall(LIMIT_S, 0.0))
    waits.decide(state, phase_seen(0.0, 1))
    assert waits.decide(state, RunPaused(10 * LIMIT_S)) == []
    assert LookAgain() in waits.decide(state, phase_seen(10.5 * LIMIT_S, 1))
    assert LookAgain() not in waits.decide(state, phase_seen(11.5 * LIMIT_S, 1))


# Disk


def test_a_run_pauses_below_the_bound_and_goes_on_with_clearly_more() -> None:
    state = disk.DiskState("/runs/r", 1.0)
    found = [
        disk.decide(state, disk.DiskSeen(60.0 * at, int(gib * disk.GIB)))
        for at, gib in enumerate((1.0, 0.5, 1.2, 1.25, 1.1))
    ]
    kinds = [[type(command).__name__ for command in commands] for commands in found]
    assert kinds == [[], ["TellDisk", "HoldWork"], ["HoldWork"], ["ReleaseWork", "TellDisk"], []]
    assert found[1][0] == disk.TellDisk(
        "paused: /runs/r has 0.50 GiB free, and below limits.pause_disk_gib = 1 no rollout and no train step begins: free some space; "
        "with 1.25 GiB the run goes on by itself"
    )
    assert found[3][1] == disk.TellDisk("/runs/r has 1.25 GiB free: the run goes on after 2 minutes")


def test_without_a_bound_a_run_never_pauses() -> None:
    assert disk.decide(disk.DiskState("/runs/r", 0.0), disk.DiskSeen(0.0, 0)) == []


def test_a_disk_with_space_that_cannot_be_written_pauses_until_it_can() -> None:
    state = disk.DiskState("/runs/r", 1.0)
    refused = [disk.WriteRefused(60.0 * at, 9 * disk.GIB, "Disk quota exceeded") for at in range(2)]
    told, held = disk.decide(state, refused[0])
    assert isinstance(told, disk.TellDisk)
    assert told.line.startswith(
        "paused: /runs/r cannot be written (Disk quota exceeded) although it has 9.00 GiB free: free some space"
    )
    assert held == disk.HoldWork(told.line)
    assert disk.decide(state, refused[1]) == disk.decide(state, disk.DiskSeen(90.0, 9 * disk.GIB)) == [], "told once"
    assert disk.decide(state, disk.WriteDone(120.0)) == [
        disk.ReleaseWork(),
        disk.TellDisk("/runs/r can be written: the run goes on after 2 minutes"),
    ]
    assert disk.decide(state, disk.WriteDone(130.0)) == []


def test_a_refused_write_on_a_full_disk_pauses_as_a_look_does() -> None:
    looked, wrote = disk.DiskState("/runs/r", 1.0), disk.DiskState("/runs/r", 1.0)
    expected = disk.decide(looked, disk.DiskSeen(0.0, 0))
    assert disk.decide(wrote, disk.WriteRefused(0.0, 0, "No space left on device")) == expected
    assert disk.decide(wrote, disk.WriteDone(5.0)) == [], "the disk is still nearly full"
    assert disk.decide(wrote, disk.DiskSeen(60.0, 2 * disk.GIB))[0] == disk.ReleaseWork()
