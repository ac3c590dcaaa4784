"""Every wait of a run ends: with what it waited for, or with one sentence that says why it did not come."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from killable_run import RECIPE, KillableRun
from rich.console import Console

from dart_agent.data_client.wire import PhaseStatus
from dart_agent.metrics_file import append_metrics
from dart_agent.types import Purpose
from dart_train.config import Recipe
from dart_train.report.learning_signal import describe_learning_signal, since_start
from dart_train.run import components
from dart_train.run.components import MetricsTail
from dart_train.run.decisions.supervision import describe_end
from dart_train.run.launcher import ComponentFailed, ComponentSpec
from dart_train.run.orchestrator import Run, RunFailed
from dart_train.run.paths import RunPaths
from dart_train.run.progress import Progress
from dart_train.run.state import RunState
from dart_train.run.waiting import Waits
from dart_train.simulation.components.processes import TaskProcess
from dart_train.simulation.components.virtual_time import VirtualClock, run_in_virtual_time


async def hang(process: TaskProcess, spec: ComponentSpec) -> int:
    """A component that lives and does nothing."""
    await asyncio.Event().wait()
    return 0


async def end_at_once(process: TaskProcess, spec: ComponentSpec) -> int:
    return 0


def end_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **parts: Any) -> tuple[str, float]:
    """How a run with some components replaced fails, and when, in minutes."""

    async def body(clock: VirtualClock) -> tuple[str, float]:
        run = KillableRun(tmp_path, monkeypatch, clock)
        for name, part in parts.items():
            monkeypatch.setattr(run, name, part)
        with pytest.raises((RunFailed, ComponentFailed)) as failure:
            await run.run()
        return str(failure.value), clock.monotonic() / 60

    return run_in_virtual_time(body)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (
            "rollouts",
            "demo: no episode has ended for 30 minutes (0 of 2 are done, 0 in progress, 2 queued; last fault: None)",
        ),
        ("inference", "the inference workers did not come to version 0 within 30 minutes (policy-0 does not answer)"),
        ("trainer", "trainer made no progress for 30 minutes (the mean of"),
        ("warm_start", "warm-start made no progress for 30 minutes"),
        ("init_model", "init-model made no progress for 30 minutes"),
    ],
)
def test_a_component_that_hangs_ends_the_run_with_the_reason(
    part: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message, minutes = end_of_a_run(tmp_path, monkeypatch, **{part: hang})
    assert message.startswith(sentence)
    assert message.endswith("look into the logs; where it may take longer, raise limits.stall_minutes")
    assert 30 < minutes < 60


def test_inference_workers_that_start_are_not_told_as_a_missing_file() -> None:
    shown: list[str] = []
    answers = iter([FileNotFoundError(2, "No such file or directory"), [0]])

    async def served_versions() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def body(clock: VirtualClock) -> None:
        progress: Any = SimpleNamespace(update=lambda text, news: shown.append(text))
        nothing: Any = None
        await Waits(nothing, nothing, progress, nothing, clock, limit_s=60, poll_s=1).for_version(0, served_versions)

    run_in_virtual_time(body)
    assert shown == ["waiting for the inference workers (their processes are starting)"]


def test_the_progress_of_a_component_is_its_newest_line_of_the_kinds_that_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path, "warmup", "reading")
    assert tail.newest() is None
    append_metrics(path, {"kind": "reading", "pages": 64, "loss": 5.0, "reading_accuracy": 0.25, "elapsed_s": 1.0})
    append_metrics(path, {"kind": "update", "version": 1})
    assert tail.newest() == "pages 64, loss 5, reading_accuracy 0.25"
    append_metrics(path, {"kind": "warmup", "images": 32, "loss": 2.0, "grounding_accuracy": 0.5})
    assert tail.newest() == "images 32, loss 2, grounding_accuracy 0.5"
    assert tail.newest() is None


def test_a_line_of_a_log_that_says_why_one_waits_holds_back_no_update() -> None:
    async def body(clock: VirtualClock) -> str:
        progress = Progress(Console(file=io.StringIO(), highlight=False), clock)
        with progress.stage("train"):
            for second in range(40):
                progress.update(f"no update for {second} s")
                if second in (18, 20, 35):
                    progress.update(f"version {second}", news=True)
                await clock.sleep(1.0)
        return cast(io.StringIO, progress.console.file).getvalue()

    printed = run_in_virtual_time(body)
    assert re.findall(r"train: (.*)", printed) == [
        "no update for 0 s",
        "no update for 15 s",
        "version 18",
        "no update for 30 s",
        "version 35",
        "done in 40 s",
    ]


def test_every_update_of_a_resumed_run_is_in_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train steps come later than the first line that says why there is none."""
    printed = []

    async def body(clock: VirtualClock) -> None:
        for updates in (2, 6):
            run = KillableRun(
                tmp_path, monkeypatch, clock, train={"updates": updates, "groups_per_batch": 1, "max_minutes": 600}
            )
            run.train_step_s = 200.0
            await run.run()
            printed.append(run.printed.getvalue())

    run_in_virtual_time(body)
    assert "goes on" not in printed[0]
    assert "train: goes on after update 2, version 2" in printed[1]
    shown = [int(number) for number in re.findall(r"train: version \d+, update (\d+)", printed[1])]
    assert shown == [3, 4, 5, 6]


def test_a_resumed_training_waits_for_its_workers_and_counts_its_own_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = []

    async def body(clock: VirtualClock) -> None:
        for updates in (2, 3):
            run = KillableRun(
                tmp_path, monkeypatch, clock, train={"updates": updates, "groups_per_batch": 1, "max_minutes": 600}
            )
            run.train_step_s = 200.0
            if updates == 3:
                ready_s = clock.monotonic() + 100.0

                async def served_versions(
                    *what: Any, ready_s: float = ready_s, ask: Any = run.served_versions
                ) -> list[int]:
                    if clock.monotonic() < ready_s:
                        raise FileNotFoundError
                    return list(await ask(*what))

                async def late(process: TaskProcess, spec: ComponentSpec, play: Any = run.rollouts) -> int:
                    await clock.sleep(100.0)
                    return int(await play(process, spec))

                monkeypatch.setattr(components, "served_versions", served_versions)
                monkeypatch.setattr(run, "rollouts", late)
            await run.run()
            printed.append(run.printed.getvalue())

    run_in_virtual_time(body)
    first, second = (re.findall(r"train: no update for \d+ s: (.*)", each) for each in printed)
    assert second[0] == "waiting for the inference workers (their processes are starting)"
    counts = [[int(count) for told in said for count in re.findall(r"(\d+) rewards", told)] for said in (first, second)]
    assert counts[1][0] < counts[0][-1], "those of the first start are not counted"


def test_the_reward_since_a_start_leaves_out_what_was_before() -> None:
    start = PhaseStatus(
        name="train", purpose=Purpose.TRAIN, state="active", total=None, done=4, failed=0, masked=1, in_flight=2, queued=0,
        mean_reward=0.5, families={},
    )  # fmt: skip
    view = start.model_copy(update={"done": 7, "mean_reward": 5 / 7, "masked": 3})
    found = since_start(view, start)
    assert (found.done, found.masked, found.mean_reward) == (3, 2, 1.0)
    assert describe_learning_signal(found).seen == "all 3 rewards are 1"
    assert since_start(start, start).mean_reward is None


def test_a_trainer_that_ends_early_does_not_finish_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message, _ = end_of_a_run(tmp_path, monkeypatch, trainer=end_at_once)
    assert message.startswith("the trainer ended after 0 of 4 updates and 0.0 of 25 minutes: see why in")

    async def go_on(clock: VirtualClock) -> KillableRun:
        run = KillableRun(tmp_path, monkeypatch, clock)
        assert "train" not in RunState.load(run.paths.state).stages_s
        assert await run.run() is not None
        return run

    run = run_in_virtual_time(go_on)
    assert "train" in RunState.load(run.paths.state).stages_s


def test_an_endless_component_that_keeps_ending_in_order_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message, _ = end_of_a_run(tmp_path, monkeypatch, inference=end_at_once)
    assert message.startswith(
        "inference ended with exit code 0, although it should run until it is stopped, and was started again 2 times in a row before"
    )


def test_an_end_is_told() -> None:
    assert describe_end(-15) == "was ended by SIGTERM"
    assert describe_end(3) == "ended with exit code 3"


def test_the_time_of_a_stage_is_that_of_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(clock: VirtualClock) -> list[RunState]:
        states = []
        stop_s = 60.0
        for raises in (True, False):
            state = RunState.load(tmp_path / "state.json")
            run = Run(
                Recipe.model_validate(RECIPE),
                RunPaths(tmp_path),
                state,
                Progress(Console(file=io.StringIO())),
                clock=clock,
            )

            async def work(raises: bool = raises) -> None:
                await clock.sleep(stop_s)
                if raises:
                    raise RunFailed("interrupted")

            with contextlib.suppress(RunFailed), state.held_by_launcher(run.paths.state):
                await run._stage("train", work)
            states.append(RunState.load(run.paths.state))
        return states

    first, second = run_in_virtual_time(body)
    assert (first.stages_s, first.unfinished_s) == ({}, {"train": 60.0})
    assert (second.stages_s, second.unfinished_s) == ({"train": 120.0}, {})
