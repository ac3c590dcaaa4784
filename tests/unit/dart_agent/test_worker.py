"""The rollout worker: what is claimed is reported or given back, and no desktop waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dart_agent.errors import (
    ConfigError,
    ContextExceededError,
    PolicyUnavailableError,
    RequestRejected,
    StoreError,
    StoreRefusedError,
)
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.rollouts.episode import ObservedStep
from dart_agent.rollouts.episode_report import AbandonedEpisode, format_episode, record_abandoned
from dart_agent.rollouts.limits import FamilyLimits
from dart_agent.rollouts.rejected import PROMPT_ADVICE
from dart_agent.rollouts.worker import RolloutWorker
from dart_agent.rollouts.worker_config import load_worker_config
from dart_agent.types import Completion, Policy, PolicyRequest, StopReason, Trajectory, WorkItem
from dart_envs.errors import FarmError
from dart_envs.types import EndReason, RgbImage
from tests.unit.dart_agent.fakes import FakeClock, FakeWorkSource, ScriptedEnv, ScriptedPolicy, completion, item, task

CLICK = "Action: click(start_box='(10,20)')"
DONE = "Action: finished(content='')"


def worker(
    source: FakeWorkSource,
    envs: list[ScriptedEnv],
    policy: Callable[[], Policy],
    *,
    max_steps: int | None = 5,
    on_solved_step: Callable[[str, ObservedStep], Awaitable[None]] | None = None,
    rejected: Path | None = None,
    family_limits: Mapping[str, FamilyLimits] | None = None,
    on_abandoned: Callable[[AbandonedEpisode], None] | None = None,
) -> RolloutWorker:
    waiting = list(envs)
    return RolloutWorker(
        "rollout-0",
        source,
        desktops=len(envs),
        make_env=lambda: waiting.pop(0),
        make_policy=lambda task, env: policy(),
        builder=PromptBuilder(preset("tiny")),
        load_task=lambda task_id: task(max_steps),
        clock=FakeClock(),
        on_solved_step=on_solved_step,
        rejected=rejected,
        family_limits=family_limits,
        on_abandoned=on_abandoned,
    )


async def run_until_empty(running: RolloutWorker, source: FakeWorkSource) -> None:
    loop = asyncio.create_task(running.run())
    await asyncio.wait({loop, asyncio.create_task(source.all_back.wait())}, return_when=asyncio.FIRST_COMPLETED)
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


async def test_all_claimed_work_is_reported_and_desktops_are_given_back() -> None:
    source = FakeWorkSource([item(f"roll_{index}") for index in range(7)])
    envs = [ScriptedEnv(), ScriptedEnv()]
    await run_until_empty(worker(source, envs, lambda: ScriptedPolicy([CLICK, DONE])), source)
    ended = {trajectory.rollout_id for trajectory, _ in source.reported} | {rollout for rollout, _ in source.abandoned}
    assert ended == {f"roll_{index}" for index in range(7)}
    assert [trajectory.reward for trajectory, _ in source.reported] == [1.0] * len(source.reported)
    assert all(env.closed for env in envs)


async def test_what_was_done_in_an_abandoned_episode_is_told(tmp_path: Path) -> None:
    told: list[AbandonedEpisode] = []
    source = FakeWorkSource([item("roll_0"), item("roll_1")])
    answers: list[list[str | Exception]] = [[CLICK, CLICK, PolicyUnavailableError("no worker")], [CLICK, DONE]]
    running = worker(source, [ScriptedEnv()], lambda: ScriptedPolicy(answers.pop(0)), on_abandoned=told.append)
    await run_until_empty(running, source)
    assert [(each.item.rollout_id, each.progress.steps, each.progress.tokens) for each in told] == [("roll_0", 2, 4)]
    record_abandoned(tmp_path / "metrics.jsonl", FakeClock(), told[0])
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["kind"], line["steps"], line["phase"]) == ("abandoned", 2, "train")
    assert line["cause"] == "policy: no worker"


async def test_a_family_has_limits_of_its_own() -> None:
    limits = {
        "short": FamilyLimits(max_steps=2),
        "brief": FamilyLimits(max_tokens=5),
        "long": FamilyLimits(max_steps=99),
    }
    families = ("short", "brief", "long", "other")
    source = FakeWorkSource([replace(item(family), task_id=f"toy/{family}/0000") for family in families])
    envs = [ScriptedEnv()]
    await run_until_empty(worker(source, envs, lambda: ScriptedPolicy([CLICK] * 5), family_limits=limits), source)
    played = {trajectory.rollout_id: trajectory for trajectory, _ in source.reported}
    assert {family: (played[family].stop, len(played[family].steps_S)) for family in families} == {
        "short": (StopReason.MAX_STEPS, 2),
        "brief": (StopReason.MAX_TOKENS, 3),
        "long": (StopReason.MAX_STEPS, 5),
        "other": (StopReason.MAX_STEPS, 5),
    }


@pytest.mark.parametrize(("stated", "limit", "steps"), [(None, 30, 30), (4, 30, 4), (30, 4, 4), (None, 4, 4)])
async def test_a_task_lowers_the_step_limit_where_it_states_one(stated: int | None, limit: int, steps: int) -> None:
    """A file in OSWorld's form states none: the limit of the run holds, and not the default of `Task.max_steps`."""
    source = FakeWorkSource([item("roll_0", max_steps=limit)])
    running = worker(source, [ScriptedEnv()], lambda: ScriptedPolicy([CLICK] * 30), max_steps=stated)
    await run_until_empty(running, source)
    ((trajectory, _),) = source.reported
    assert (trajectory.stop, len(trajectory.steps_S)) == (StopReason.MAX_STEPS, steps)


async def test_only_steps_of_demonstrations_that_succeeded_are_kept() -> None:
    kept: list[int] = []

    async def keep(task_id: str, step: ObservedStep) -> None:
        kept.append(step.index)

    for env, steps in ((ScriptedEnv(), [0, 1]), (ScriptedEnv(goal=(1, 1)), [])):
        kept.clear()
        source = FakeWorkSource([item("roll")])
        await run_until_empty(worker(source, [env], lambda: ScriptedPolicy([CLICK, DONE]), on_solved_step=keep), source)
        assert kept == steps


async def test_a_slow_episode_holds_up_no_other_desktop() -> None:
    release = asyncio.Event()

    class Slow:
        async def complete(self, request: PolicyRequest) -> Completion:
            if request.request_id.startswith("roll_0."):
                await release.wait()
            return completion(DONE)

    source = FakeWorkSource([item(f"roll_{index}") for index in range(6)])
    running = asyncio.create_task(worker(source, [ScriptedEnv(), ScriptedEnv()], Slow).run())
    await source.empty.wait()
    assert {trajectory.rollout_id for trajectory, _ in source.reported} == {f"roll_{index}" for index in range(1, 6)}
    release.set()
    await source.all_back.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_is_not_needed_any_more_stops_at_its_next_step() -> None:
    source = FakeWorkSource([replace(item("roll_0"), assignment="a"), replace(item("roll_1"), assignment="b")])
    asked: list[str] = []

    class Told(ScriptedPolicy):
        async def complete(self, request: PolicyRequest) -> Completion:
            asked.append(request.request_id)
            running.stop(["a", "of an episode that has ended"])
            return await super().complete(request)

    running = worker(source, [ScriptedEnv()], lambda: Told([CLICK, CLICK, DONE]))
    await run_until_empty(running, source)
    assert asked == ["roll_0.0", "roll_1.0", "roll_1.1", "roll_1.2"]
    assert source.abandoned == [("roll_0", "it is not needed any more")]
    assert [trajectory.rollout_id for trajectory, _ in source.reported] == ["roll_1"]


class HangingPolicy:
    """Never answers."""

    async def complete(self, request: PolicyRequest) -> Completion:
        await asyncio.Event().wait()
        raise AssertionError("never reached")


async def test_what_runs_when_the_worker_is_stopped_is_given_back() -> None:
    source = FakeWorkSource([item("roll_0"), item("roll_1")])
    env = ScriptedEnv()
    running = asyncio.create_task(worker(source, [env], HangingPolicy).run())
    await env.started.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert source.abandoned == [("roll_0", "the worker is stopping")]
    assert source.used_attempts == [], "the rollout is not to blame"
    assert env.closed


async def test_an_episode_that_cannot_begin_is_given_back_with_its_cause_and_the_next_is_played() -> None:
    env = ScriptedEnv(reset_error=FarmError("no desktop is free.", code="no_capacity"))
    source = FakeWorkSource([item("roll_0")])
    await run_until_empty(worker(source, [env], lambda: ScriptedPolicy([])), source)
    assert source.abandoned == [("roll_0", "FarmError: no desktop is free.")]
    assert source.used_attempts == ["roll_0"]
    assert not source.reported


async def test_a_report_under_way_is_finished_before_the_worker_ends() -> None:
    reporting, go = asyncio.Event(), asyncio.Event()

    class SlowReports(FakeWorkSource):
        async def report(self, trajectory: Trajectory, images: Mapping[str, RgbImage]) -> None:
            reporting.set()
            await go.wait()
            await super().report(trajectory, images)

    source = SlowReports([item("roll_0")])
    loop = asyncio.create_task(worker(source, [ScriptedEnv()], lambda: ScriptedPolicy([CLICK, DONE])).run())
    await reporting.wait()
    loop.cancel()
    done, _ = await asyncio.wait({loop}, timeout=0.1)
    assert not done, "who opened the source closes it when the worker has ended"
    go.set()
    await asyncio.gather(loop, return_exceptions=True)
    assert [trajectory.rollout_id for trajectory, _ in source.reported] == ["roll_0"]


class SlowSource(FakeWorkSource):
    """Takes rollouts back after a minute of virtual time, as while the data manager starts again; `lost`: never."""

    def __init__(self, items: list[WorkItem], clock: FakeClock, *, lost: bool = False) -> None:
        super().__init__(items)
        self.clock = clock
        self.lost = lost

    async def abandon(self, item: WorkItem, cause: str, *, uses_attempt: bool = True) -> None:
        if self.lost:
            await asyncio.Event().wait()
        for _ in range(6):
            await self.clock.sleep(10.0)
        await super().abandon(item, cause, uses_attempt=uses_attempt)


class OnceBrokenEnv(ScriptedEnv):
    """Cannot begin its first episode."""

    failed = False

    async def reset(self, *args: Any, **options: Any) -> Any:
        if not self.failed:
            self.failed = True
            raise FarmError("no desktop is free.", code="no_capacity")
        return await super().reset(*args, **options)


async def test_giving_back_may_take_as_long_as_the_data_manager_needs() -> None:
    clock = FakeClock()
    source = SlowSource([item("roll_0"), item("roll_1")], clock)
    running = worker(source, [OnceBrokenEnv()], lambda: ScriptedPolicy([CLICK, DONE]))
    running._clock = clock
    await run_until_empty(running, source)
    assert source.abandoned == [("roll_0", "FarmError: no desktop is free.")]
    assert [trajectory.rollout_id for trajectory, _ in source.reported] == ["roll_1"]


async def test_a_worker_that_is_stopped_does_not_wait_for_a_data_manager_that_is_away() -> None:
    clock = FakeClock()
    source = SlowSource([item("roll_0")], clock, lost=True)
    env = ScriptedEnv()
    running = worker(source, [env], HangingPolicy)
    running._clock = clock
    loop = asyncio.create_task(running.run())
    await env.started.wait()
    loop.cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(loop, return_exceptions=True)
    assert env.closed


async def test_a_defect_ends_the_worker_and_gives_the_work_back() -> None:
    source = FakeWorkSource([item("roll_0")])
    with pytest.raises(IndexError):
        await worker(source, [ScriptedEnv()], lambda: ScriptedPolicy([])).run()
    assert source.abandoned[0][0] == "roll_0"


async def test_the_smaller_of_both_step_budgets_holds() -> None:
    source = FakeWorkSource([item("roll_0", max_steps=2)])
    await run_until_empty(worker(source, [ScriptedEnv()], lambda: ScriptedPolicy([CLICK] * 5)), source)
    ((trajectory, _),) = source.reported
    assert (trajectory.end, len(trajectory.steps_S)) == (EndReason.MAX_STEPS, 2)


async def test_an_episode_in_one_line() -> None:
    lines: list[str] = []
    source = FakeWorkSource([item("roll_0")])
    running = worker(source, [ScriptedEnv()], lambda: ScriptedPolicy([CLICK, "hm", DONE]))
    running._on_episode = lambda played: lines.append(format_episode(played.episode))
    await run_until_empty(running, source)
    assert lines[0].startswith(" 1.00 toy/click/0000 done, 3 steps in ")
    assert lines[0].endswith("click, ?, done")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"policy": "vllm", "socket": "/s", "images": "/i"}', "addresses"),
        ('{"policy": "random", "socket": "/s", "images": "/i", "screens": "/x"}', "oracle only"),
        ('{"policy": "random", "socket": "/s", "images": "/i", "desktop": 3}', "`desktop`"),
        ('{"policy": "random", "socket": "/s", "images": "/i", "desktops": 0}', "`desktops`"),
    ],
)
def test_mistakes_in_the_configuration_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "worker.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_worker_config(path)


class RefusingSource(FakeWorkSource):
    """Refuses the reports of some rollouts for what they are."""

    def __init__(self, items: list[WorkItem], refused: set[str]) -> None:
        super().__init__(items)
        self.refused = refused

    async def report(self, trajectory: Trajectory, images: Mapping[str, RgbImage]) -> None:
        if trajectory.rollout_id in self.refused:
            raise StoreRefusedError("a log-prob is not finite")
        await super().report(trajectory, images)


async def test_a_refused_report_costs_one_trajectory_and_not_the_worker(tmp_path: Path) -> None:
    source = RefusingSource([item(f"roll_{index}") for index in range(4)], {"roll_1"})
    running = worker(source, [ScriptedEnv()], lambda: ScriptedPolicy([CLICK, DONE]), rejected=tmp_path / "rejected")
    await run_until_empty(running, source)
    assert [trajectory.rollout_id for trajectory, _ in source.reported] == ["roll_0", "roll_2", "roll_3"]
    assert source.abandoned == [("roll_1", "the report was refused: a log-prob is not finite")]
    (kept,) = (tmp_path / "rejected").iterdir()
    content = json.loads(kept.read_text())
    assert (kept.name, content["cause"]) == ("roll_1.json", "a log-prob is not finite")
    assert content["trajectory"]["steps_S"][0]["text"] == CLICK


async def test_a_worker_whose_reports_are_all_refused_ends() -> None:
    names = [f"roll_{index}" for index in range(9)]
    source = RefusingSource([item(name) for name in names], set(names))
    with pytest.raises(StoreError, match="5 rollouts in a row were refused"):
        await worker(source, [ScriptedEnv()], lambda: ScriptedPolicy([CLICK, DONE])).run()


async def test_a_policy_that_is_away_gives_the_rollout_back_with_its_cause() -> None:
    source = FakeWorkSource([item("roll_0"), item("roll_1")])
    policies = [ScriptedPolicy([CLICK, PolicyUnavailableError("no worker came up")]), ScriptedPolicy([CLICK, DONE])]
    await run_until_empty(worker(source, [ScriptedEnv()], lambda: policies.pop(0)), source)
    assert source.abandoned == [("roll_0", "policy: no worker came up")]
    assert source.used_attempts == []
    assert [trajectory.rollout_id for trajectory, _ in source.reported] == ["roll_1"]


class RefusingPolicy:
    """Refuses the requests of rollouts that `refused` names; the others are done at once, or once `go` is set."""

    def __init__(self, error: Exception, refused: str = "", go: asyncio.Event | None = None) -> None:
        self.error = error
        self.refused = refused
        self.go = go

    async def complete(self, request: PolicyRequest) -> Completion:
        if request.request_id.startswith(self.refused):
            raise self.error
        if self.go is not None:
            await self.go.wait()
        return completion(DONE)


TOO_LONG = ContextExceededError(990, 64, 1024)
UNAUTHORISED = RequestRejected("the endpoint refused the key (401)")


def items(count: int, *, tasks: int = 1, name: str = "roll") -> list[WorkItem]:
    return [replace(item(f"{name}_{number}"), task_id=f"toy/{name}/{number % tasks}") for number in range(count)]


@pytest.mark.parametrize(("count", "tasks", "refused"), [(9, 3, 3), (25, 1, 20)])
@pytest.mark.parametrize(
    ("error", "ends", "sentence"),
    [
        (
            TOO_LONG,
            ConfigError,
            r"no first prompt fits \(REFUSED in a row.*990 tokens .* raise inference.max_model_len",
        ),
        (UNAUTHORISED, PolicyUnavailableError, r"refuses every request \(REFUSED in a row, of .* tasks\).* \(401\)"),
    ],
)
async def test_a_worker_whose_requests_are_all_refused_ends_with_the_cause(
    error: Exception,
    ends: type[Exception],
    sentence: str,
    count: int,
    tasks: int,
    refused: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = FakeWorkSource(items(count, tasks=tasks))
    running = worker(source, [ScriptedEnv()], lambda: RefusingPolicy(error))
    with pytest.raises(ends, match=sentence.replace("REFUSED", str(refused))):
        await running.run()
    assert len(source.abandoned) == refused == caplog.text.count(str(error))
    assert running._clock.monotonic() >= refused - 1, "a desktop is prepared at most every second"


@pytest.mark.parametrize("error", [TOO_LONG, UNAUTHORISED], ids=["too_long", "unauthorised"])
async def test_refusals_end_no_worker_while_another_request_is_being_answered(error: Exception) -> None:
    go = asyncio.Event()

    class Slow(RefusingPolicy):
        async def complete(self, request: PolicyRequest) -> Completion:
            if request.request_id.startswith("done"):
                go.set()
            return await super().complete(request)

    source = FakeWorkSource([item("slow"), *items(25, tasks=5, name="long"), item("done")])
    running = worker(source, [ScriptedEnv(), ScriptedEnv()], lambda: Slow(error, "long", go))
    loop = asyncio.create_task(running.run())
    await asyncio.wait({loop, asyncio.create_task(source.all_back.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert not loop.done()
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    assert {trajectory.rollout_id for trajectory, _ in source.reported} == {"slow", "done"}
    assert len(source.abandoned) == 25


async def test_once_a_first_prompt_fitted_others_that_do_not_end_no_worker() -> None:
    source = FakeWorkSource([item("done"), *items(25, tasks=5, name="long"), item("done_too")])
    await run_until_empty(worker(source, [ScriptedEnv()], lambda: RefusingPolicy(TOO_LONG, "long")), source)
    assert [trajectory.rollout_id for trajectory, _ in source.reported] == ["done", "done_too"]
    assert source.abandoned[0] == ("long_0", f"configuration: {TOO_LONG}; {PROMPT_ADVICE}")


async def test_one_task_whose_first_prompt_is_too_long_does_not_end_the_others() -> None:
    source = FakeWorkSource([item("roll_0"), item("roll_1"), item("roll_2")])
    policies = [
        ScriptedPolicy([CLICK, DONE]),
        ScriptedPolicy([ContextExceededError(990, 64, 1024)]),
        ScriptedPolicy([DONE]),
    ]
    await run_until_empty(worker(source, [ScriptedEnv()], lambda: policies.pop(0)), source)
    assert [trajectory.rollout_id for trajectory, _ in source.reported] == ["roll_0", "roll_2"]
    assert [rollout for rollout, _ in source.abandoned] == ["roll_1"]
