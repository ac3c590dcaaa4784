"""What the report of a run tells, gathered from a real store; and `dart-train report` on runs in every state."""

from __future__ import annotations

import asyncio
import base64
import html
import io
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from PIL import Image
from run_harness import PICTURE, STAGES, FakeLauncher, RunHarness, SimulatedCrash, untrained_then_trained
from test_masked_episodes import stats
from typer.testing import CliRunner

from dart_agent.data_client.fake_trajectories import fake_trajectory
from dart_agent.data_client.wire import MaskedEpisodes, PhaseStatus
from dart_agent.metrics_file import append_metrics
from dart_agent.types import Purpose, WorkItem
from dart_envs.types import EndReason
from dart_train.cli import app
from dart_train.config import Recipe
from dart_train.model.init_model import init_model
from dart_train.report.build import build_report, masked_rows
from dart_train.report.examples import embed_image
from dart_train.report.learning_signal import describe_learning_signal
from dart_train.report.page import RunReport, write_report
from dart_train.run import components, orchestrator, progress
from dart_train.run.lock import run_lock
from dart_train.run.orchestrator import RunFailed
from dart_train.run.phases import report_phases
from dart_train.run.state import RunState
from dart_train.trainer.checkpoint import CheckpointStore


def report_on(run_dir: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["report", str(run_dir), *options])


def refusal(result: Result) -> str:
    """The one sentence of a refusal."""
    assert result.exit_code == 2, result.output
    (sentence,) = result.stderr.strip().splitlines()
    return sentence


async def report_of(harness: RunHarness) -> RunReport:
    async with harness.launcher() as run:
        return await build_report(run.client, harness.recipe, harness.paths, run.state, report_phases(run.state))


async def test_the_story_of_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    rewards = (0.1, 0.2, 0.3, 0.4, 0.5, 0.1)
    for version, reward in enumerate(rewards, start=1):
        append_metrics(
            harness.paths.metrics,
            {
                "kind": "update",
                "version": version,
                "reward_mean": 0.5,
                "rollout_reward": reward,
                "rollout_reward/press_nth": 1.0,
            },
        )
    append_metrics(
        harness.paths.metrics,
        {"kind": "warmup", "images": 8, "loss": 2.0, "grounding_accuracy": 0.5, "elapsed_s": 1.0},
    )
    with harness.paths.metrics.open("a") as torn:
        torn.write('{"kind": "upd')
    await harness.run()
    report = await report_of(harness)
    assert report.name == "small"
    assert report.conclusion.startswith("The policy learned: success 0.0 % → 100.0 % on 6 validation episodes")
    assert report.paired_evaluation is not None
    assert set(report.paired_evaluation.families) == {"press_nth", "tick_nth"}
    assert report.baselines == {"random policy": 0.0, "blank screenshot": 0.0}
    assert tuple(report.stages_s) == STAGES
    assert report.counts["trajectories stored"] == 4 + 6 + 6 + 2 + 2
    assert report.counts["policy version at the end"] == 2
    assert [(row.family, row.episodes, row.masked) for row in report.masked] == [("all families", 16, 0)]
    charts = {chart.title: {curve.label: curve for curve in chart.curves} for chart in report.charts}
    rewarded = charts["Reward of training rollouts"]
    assert set(rewarded) == {"all, mean of 5 updates", "press_nth, mean of 5 updates"}
    mean = rewarded["all, mean of 5 updates"]
    assert mean.x == [5.0, 6.0], "a mean of fewer updates is no mean of 5"
    assert mean.y == pytest.approx([0.3, 0.3])
    assert mean.points == list(enumerate(rewards, start=1)), "what was measured is drawn, too"
    assert list(charts["Warm start"]["loss"].y) == [2.0]
    page = (harness.paths.report / "index.html").read_text()
    assert "mean of 5 updates" in page
    assert [example.title for example in report.examples] == ["Success · press_nth", "Success · tick_nth"]
    assert report.examples_note == "No episode of the evaluation after training failed."
    assert {example.reward for example in report.examples} == {1.0}
    assert all(len(example.steps_S) == 2 and example.instruction for example in report.examples)


async def test_workers_that_failed_again_and_again_are_an_incident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    shares = {"step_s": 20.0, "publish_s": 0.0, "wait_s": 80.0}
    worked = {"policy-0": {"serving": 50.0, "updating": 10.0, "down": 40.0}}
    append_metrics(harness.paths.metrics, {"kind": "update", "version": 1, "time_s": 1000.0, "tokens": 9, **shares})
    append_metrics(harness.paths.metrics, {"kind": "workers", "time_s": 1000.0, "window_s": 100.0, "workers": worked})
    await harness.run()
    (incident,) = (await report_of(harness)).incidents
    assert incident.startswith("During training inference workers had failed and were not back yet for 40 % of their")
    assert incident in html.unescape((harness.paths.report / "index.html").read_text())


async def test_two_successes_and_two_failures_are_shown_with_their_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    rewards = itertools.cycle((1.0, 0.0, 0.0))
    harness.reward = lambda item: next(rewards)
    harness.action = {"type": "click", "x": 400, "y": 200}
    await harness.run()
    report = await report_of(harness)
    assert [example.reward for example in report.examples] == [1.0, 1.0, 0.0, 0.0]
    assert report.examples_note == ""
    page = (harness.paths.report / "index.html").read_text()
    for example in report.examples:
        assert example.instruction in html.unescape(page)
        assert [step.action for step in example.steps_S] == ["click(x=400, y=200)"] * 2
    assert "://" not in re.sub(r"http://(www.w3.org|purl.org|creativecommons.org)", "", page), "it loads nothing"


async def test_a_missing_screenshot_is_said_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    await harness.run()
    for path in harness.paths.images.rglob("*.png"):
        path.unlink()
    report = await report_of(harness)
    assert [step.image_uri for example in report.examples for step in example.steps_S] == [None] * 4
    assert "the screenshot is missing" in write_report(report, harness.paths.report).read_text()


async def test_a_run_without_any_recorded_metric_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    await harness.run()
    page = (harness.paths.report / "index.html").read_text()
    assert "so the throughput is not known" in page
    assert "so the utilisation is not known" in page
    assert "so there are no curves" in page


async def test_masked_episodes_are_one_row_per_family_and_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RunHarness(tmp_path, monkeypatch, eval={"episodes": 6, "baseline_episodes": 2})

    def one_fault(item: WorkItem) -> float | None:
        first = item.phase == "eval-before" and item.task_id.startswith("basics/tick_nth/") and not faults
        return None if first and not faults.append(item) else untrained_then_trained(item)

    faults: list[WorkItem] = []
    harness.reward = one_fault
    await harness.run()
    rows = [(row.family, row.cause, row.masked, row.versions) for row in (await report_of(harness)).masked]
    assert rows == [("all families", "", 1, "version 0"), ("tick_nth", "farm_fault", 1, "version 0")]


def test_many_versions_are_folded_into_one_range() -> None:
    unmasked = stats({version: (100, 0) for version in range(200)}, a=(20_000, 0))
    assert [row.family for row in masked_rows(unmasked)] == ["all families"]
    versions = {version: (100, 1 if 3 <= version <= 17 else 0) for version in range(200)}
    some = stats(versions, a=(20_000, 15)).model_copy(
        update={
            "masked_episodes": [
                MaskedEpisodes(family="a", end=EndReason.FARM_FAULT, episodes=15, first_version=3, last_version=17)
            ]
        }
    )
    rows = [(row.family, row.cause, row.episodes, row.masked, row.percent, row.versions) for row in masked_rows(some)]
    assert rows == [
        ("all families", "", 20_000, 15, 0.07, "versions 3 to 17"),
        ("a", "farm_fault", 20_000, 15, 0.07, "versions 3 to 17"),
    ]


async def test_examples_show_where_the_policy_clicked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch, desktops={"resolution": (640, 400)})
    harness.action = {"type": "click", "x": 400, "y": 200}
    await harness.run()
    page = (harness.paths.report / "index.html").read_text()
    shown = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))
        for text in re.findall(r"data:image/png;base64,([^\"]+)", page)
    ]
    assert len(shown) == 2 * 2
    for picture in shown:
        assert picture.shape == PICTURE.shape
        changed = np.argwhere((picture != PICTURE).any(axis=-1))
        assert changed.mean(axis=0).round().tolist() == [80, 160]  # rows are y
        assert np.abs(changed - [80, 160]).max() == 9
        assert picture[80, 160 + 8].tolist() == [255, 0, 0]
        assert (picture[78:83, 158:163] == PICTURE[78:83, 158:163]).all()


async def test_an_action_without_a_place_marks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    harness.action = {"type": "wait", "duration_s": 1.0}
    await harness.run()
    plain = embed_image(PICTURE)
    assert {step.image_uri for example in (await report_of(harness)).examples for step in example.steps_S} == {plain}


def test_a_finished_run_is_reported_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    asyncio.run(harness.run())
    (harness.paths.report / "result.json").unlink()
    result = report_on(harness.paths.root, "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["paired_evaluation"]["overall"]["gain_points"] == 100.0


@pytest.mark.parametrize("stage", ["demos", "eval-before", "eval-after"])
def test_an_interrupted_run_is_reported_as_far_as_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    with pytest.raises(SimulatedCrash):
        asyncio.run(harness.run(crashes_before_marking=stage))
    result = report_on(harness.paths.root)
    assert result.exit_code == 0, result.output
    page = harness.paths.report / "index.html"
    assert result.stdout == f"The run has no paired evaluation yet.\n{page}\n"
    assert "no paired evaluation yet" in page.read_text()


def test_a_run_that_is_going_on_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    asyncio.run(report_of(harness))
    with run_lock(harness.paths):
        assert "another dart-train is running" in refusal(report_on(harness.paths.root))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert "is not a run directory" in refusal(report_on(tmp_path / "nowhere"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("resolved.json", '{"format": 2, "recipe": {"run": {"name": "small"}, "robots": 3}}', "unknown key `robots`"),
        (
            "resolved.json",
            '{"format": 1, "recipe": {"train": {"micro_batch_rows": 4}}}',
            "an older version of DART; start a",
        ),
        ("resolved.json", '{"run": {"na', "is damaged"),
        ("resolved.json", '{"run": {"name": "small"}, "robots": 3}', "made by an older version of DART"),
        ("state.json", '{"format": 2, "stages_s": {}, "robots": 3}', "is damaged"),
        ("state.json", '{"sta', "is damaged"),
        ("state.json", '{"stages_s": {}, "incidents": []}', "made by an older version of DART"),
        ("state.json", '{"format": 3}', "made by a newer version of DART"),
    ],
)
def test_files_of_another_version_and_damaged_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: str, reason: str
) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    asyncio.run(report_of(harness))
    (harness.paths.root / file).write_text(content)
    assert reason in refusal(report_on(harness.paths.root))


def test_a_store_that_cannot_be_read_ends_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    asyncio.run(report_of(harness))
    for path in harness.paths.root.glob("data.db*"):
        path.unlink()
    harness.paths.database.write_text("not a database" * 100)
    restarted = components.python_module
    monkeypatch.setattr(components, "python_module", lambda *args, **more: restarted(*args, **more | {"restarts": 0}))
    result = report_on(harness.paths.root)
    assert result.exit_code == 1
    assert "the report cannot be written" in result.stderr
    assert "file is not a database" in result.stderr


def use_up_the_time(harness: RunHarness) -> None:
    """What a trainer notes whose minutes are over."""
    checkpoints = CheckpointStore(harness.paths.checkpoints, keep=1)
    checkpoints.save_trained_s(60 * harness.recipe.train.max_minutes)


def test_training_without_an_update_says_so_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)

    async def end_by_time(self: FakeLauncher) -> None:
        use_up_the_time(self.harness)

    monkeypatch.setattr(FakeLauncher, "trainer", end_by_time)
    asyncio.run(harness.run())
    result = json.loads((harness.paths.report / "result.json").read_text())
    assert result["conclusion"].startswith("Training made 0 updates: no episode has a reward")
    assert "training made 0 updates since this start: no episode has a reward" in harness.printed.getvalue()


def test_without_a_warm_start_no_demonstration_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    init_model("tiny", model, 0)
    harness = RunHarness(
        tmp_path, monkeypatch, warmup={"enabled": False, "imitated_demos_per_family": 2}, model={"path": str(model)}
    )
    asyncio.run(harness.run())
    assert harness.starts["rollout-oracle"] == 0
    assert "demos" not in json.loads(harness.paths.state.read_text())["stages_s"]


@pytest.mark.parametrize(("images", "told"), [(2368, True), (24_000, False)])
def test_a_warm_start_that_ran_out_of_time_is_told(
    images: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RunHarness(tmp_path, monkeypatch, warmup={"images": 24_000, "imitated_demos_per_family": 2})
    warm_start = FakeLauncher.warm_start

    async def report(self: FakeLauncher) -> None:
        for seen in (1600, images):
            append_metrics(
                harness.paths.metrics,
                {"kind": "warmup", "images": seen, "loss": 4.0, "grounding_accuracy": 0.01, "elapsed_s": seen},
            )
        await warm_start(self)

    monkeypatch.setattr(FakeLauncher, "warm_start", report)
    asyncio.run(harness.run())
    assert (f"{images} of 24000 images in the 10 minutes of warmup.max_minutes" in harness.printed.getvalue()) is told


def test_demonstrations_that_all_fail_stop_the_run_and_are_not_marked_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    harness.reward = lambda item: 0.5
    with pytest.raises(RunFailed, match=r"no demonstration succeeded.*dart-agent rollout basics/press_nth"):
        asyncio.run(harness.run())
    assert not RunState.load(harness.paths.state).stages_s


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ([], r"no episode has a reward \(3 are masked"),
        ([0.0, 0.0], r"all 2 rewards are 0\. A group"),
        ([1.0, 1.0], r"all 2 rewards are 1\. .*harder tasks"),
        ([1.0, 0.0], r"the mean of 2 rewards is 0\.50\."),
    ],
)
def test_the_advice_follows_the_rewards_and_names_settings_that_exist(rewards: list[float], said: str) -> None:
    mean = sum(rewards) / len(rewards) if rewards else None
    signal = describe_learning_signal(
        PhaseStatus(
            name="train",
            purpose=Purpose.TRAIN,
            state="stopped",
            total=None,
            done=len(rewards),
            failed=0,
            masked=3,
            in_flight=0,
            queued=0,
            mean_reward=mean,
            families={},
        )
    )
    text = str(signal)
    assert re.match(said, text)
    fields = Recipe.model_fields
    for section, key in re.findall(r"\b([a-z]+)\.([a-z_]+)\b", text):
        assert key in fields[section].annotation.model_fields  # type: ignore[union-attr]


async def test_training_without_an_update_names_the_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)

    async def wait_for_episodes(self: FakeLauncher) -> None:
        while (await self.client.phase("train")).done < 4:  # noqa: ASYNC110 - the data manager has no event for it
            await asyncio.sleep(0.01)
        use_up_the_time(harness)

    async def play_everything(self: FakeLauncher) -> None:
        while True:
            item = await self.client.acquire("fake worker")
            if item is None:
                await asyncio.sleep(0.01)
                continue
            trajectory, images = fake_trajectory(item, reward=harness.reward(item), image=PICTURE)
            await self.client.report(trajectory, images)

    monkeypatch.setattr(FakeLauncher, "trainer", wait_for_episodes)
    monkeypatch.setattr(FakeLauncher, "rollouts", play_everything)
    await harness.run()
    said = r"0 updates(?: since this start)?: all \d+ rewards are 0\. A group of episodes trains the policy only if .* Give more"
    assert re.search(said, json.loads((harness.paths.report / "result.json").read_text())["conclusion"])
    assert re.search(said, harness.printed.getvalue())


def test_the_report_of_a_killed_run_has_the_incident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    with pytest.raises(SimulatedCrash):
        asyncio.run(harness.run(crashes_before_marking="train"))
    killed = RunState.load(harness.paths.state).held_by_launcher(harness.paths.state)
    killed.__enter__()  # never left, as by SIGKILL
    assert report_on(harness.paths.root).exit_code == 0
    (incident,) = json.loads((harness.paths.report / "result.json").read_text())["incidents"]
    assert "ended without stopping the run" in incident
    assert RunState.load(harness.paths.state).incidents == [incident]


async def test_a_long_wait_between_updates_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    monkeypatch.setattr(orchestrator, "WAIT_NOTICE_S", 0.0)
    monkeypatch.setattr(progress, "LOG_INTERVAL_S", 0.0)

    async def one_update_and_a_wait(self: FakeLauncher) -> None:
        append_metrics(harness.paths.metrics, {"kind": "update", "version": 1, "time_s": 1.0})
        async with asyncio.timeout(20):
            while said not in harness.printed.getvalue().partition("train: version 1")[2]:  # noqa: ASYNC110 - printed by another task
                await asyncio.sleep(0.01)
        use_up_the_time(harness)

    said = "no update for 0 s: no episode has ended yet"
    monkeypatch.setattr(FakeLauncher, "trainer", one_update_and_a_wait)
    await harness.run()
    assert said in harness.printed.getvalue().partition("train: version 1")[2]


async def test_curves_of_a_warm_start_are_those_of_its_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RunHarness(tmp_path, monkeypatch)
    for elapsed_s, pages in enumerate((32, 64, 96, 32, 64, 96)):
        # Screens of held-out tasks need not have a text that is taught: then there is no accuracy.
        accuracy = None if elapsed_s == 5 else 0.5
        line = {"kind": "reading", "pages": pages, "reading_accuracy": accuracy, "elapsed_s": elapsed_s}
        append_metrics(harness.paths.metrics, line)
    for images, loss, elapsed_s in ((8, 3.0, 5.0), (8, 2.0, 4.0), (16, 1.0, 8.0), (16, 0.9, 9.0)):
        line = {"kind": "warmup", "images": images, "loss": loss, "grounding_accuracy": 0.5, "elapsed_s": elapsed_s}
        append_metrics(harness.paths.metrics, line)
    await harness.run()
    charts = {chart.title: chart.curves[0] for chart in (await report_of(harness)).charts}
    assert charts["Reading"].x == [32.0, 64.0]
    assert (charts["Warm start"].x, charts["Warm start"].y) == ([8.0, 16.0, 16.0], [2.0, 1.0, 0.9])


async def test_a_run_that_trains_nothing_is_evaluated_once_and_trains_on_when_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = RunHarness(
        tmp_path, monkeypatch, train={"updates": 0}, eval={"episodes": 6, "baseline_episodes": 2, "test_episodes": 4}
    )
    rewards = itertools.cycle((1.0, 0.0, 0.0))
    harness.reward = lambda item: 1.0 if item.purpose is Purpose.DEMO else next(rewards)
    assert await harness.run() is None
    report = await report_of(harness)
    assert tuple(report.stages_s) == ("demos", "warm-start", "eval-before", "test", "baselines")
    assert report.conclusion == (
        "The run trains nothing (train.updates = 0): the policy succeeds in 33.3 % of 6 validation episodes "
        "(95 % interval 9.7 to 70.0 %)."
    )
    assert [(row.name, row.episodes) for row in report.untrained] == [
        ("trained families", 6),
        ("press_nth", 3),
        ("tick_nth", 3),
    ]
    assert len(report.examples) == 4
    assert report.examples_note == ""
    page = (harness.paths.report / "index.html").read_text()
    assert "Trajectories of the evaluation, with" in page
    harness.recipe = harness.recipe.model_copy(update={"train": harness.recipe.train.model_copy(update={"updates": 2})})
    harness.reward = untrained_then_trained
    assert await harness.run() is not None
    report = await report_of(harness)
    assert report.paired_evaluation is not None
    assert not report.untrained
    assert report.paired_evaluation.overall.after_percent == 100.0
    assert report.test_number == 2, "the test before training was of another policy"
