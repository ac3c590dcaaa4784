"""`dart-train data`: every step has a reason, nothing needed is deleted, exports say what was stored, redaction leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from data_manager_harness import SPANS, DataManagerHarness, FakeTaskCatalog
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from dart_agent.data_client.fake_trajectories import fake_image, fake_trajectory
from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.payloads import TrajectoryPayload, stream_payloads
from dart_agent.data_client.wire import BatchFailure, BatchReport, ParkRequest, StepReference, StepUse, StoreStepRequest
from dart_agent.errors import StoreError
from dart_agent.rollouts.episode_state import EpisodeState
from dart_agent.types import Purpose, RewardKind, StepRecord
from dart_train.config import Recipe, RecipeError, load_recipe
from dart_train.curation.group_filter import UninformativeReason
from dart_train.curation.staleness import WithheldReason
from dart_train.data_commands import pool_import
from dart_train.data_commands.commands import app
from dart_train.data_commands.garbage import DAY_S, GRACE_S, ImageRetention, collect_garbage
from dart_train.data_commands.listing import FATES
from dart_train.data_commands.portable import import_trajectories, read_portable
from dart_train.data_commands.provenance import REASONS
from dart_train.data_manager.batches import DISPLACED_REASON, NO_LOGPROBS, NO_STEPS, QUARANTINED
from dart_train.data_manager.store.models import StepTable, TrajectoryTable
from dart_train.data_manager.store.steps import read_steps
from dart_train.data_manager.store.trajectories import TrajectoryStore
from dart_train.imitation.demonstrations import DemonstrationsUnusableError
from dart_train.imitation.stored import read_successes
from dart_train.run.components import database_location
from dart_train.run.paths import RunPaths
from dart_train.run.state import RunState, save_resolved_recipe
from dart_train.trainer.trainer import LOW_ENTROPY_REASON, LOW_ENTROPY_TOKENS_REASON

ROOT = Path(__file__).parents[4]
DEMO = ROOT / "dart_train" / "recipes" / "demo.toml"
SECRET = "hunter2-secret"


class RecordedRun:
    """A run folder: one group trained on, one dropped, one whose trajectory types a secret and waits."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)
        self.paths.make()
        save_resolved_recipe(load_recipe(DEMO, ("run.name='recorded'",)), self.paths)
        self.harness = DataManagerHarness(root, batch={"min_groups": 1, "max_groups": 1, "max_staleness": 2})
        self.harness.phase()
        self.harness.group([0.0] * 4)
        items = [self.harness.must_acquire() for _ in range(4)]
        for item, reward in zip(items, (1.0, 0.0, 0.0, None), strict=True):
            self.harness.report(item, reward, spans=SPANS)
        batch = self.harness.must_batch(3)
        uses = [
            StepUse(
                group_id=row.group_id, rollout_id=row.rollout_id, index=row.step.index, advantage=1.25, entropy=0.5,
                reason="low_entropy" if row.step.index else None, trained=None if row.step.index else [(3, 4)],
            )
            for row in batch.rows
        ]  # fmt: skip
        self.harness.manager.batch_done(batch.batch_id, BatchReport(version=4, steps=uses))
        self.trained, self.masked = items[0].rollout_id, items[3].rollout_id
        item = self.harness.must_acquire()
        trajectory, images = fake_trajectory(item, steps=1, image=fake_image(99))
        for image in images.values():
            self.harness.images.put(image)
        step = replace(
            trajectory.steps_S[0], text=f'type("{SECRET}")', action={"type": "type", "text": SECRET, "x": 3, "y": 4}
        )
        info = {
            "instruction": f"Type {SECRET} into the box",
            "outcome": {"parts": [{"cause": f"the box holds {SECRET}", SECRET: 0}]},
        }
        self.typed = item.rollout_id
        self.harness.manager.report(TrajectoryPayload.from_value(replace(trajectory, steps_S=(step,), info=info)))

    def run(self, *arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, [arguments[0], str(self.paths.root), *arguments[1:]])
        assert result.exit_code == code, result.output + repr(result.exception)
        return result.output


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[RecordedRun]:
    made = RecordedRun(tmp_path / "recorded")
    yield made
    made.harness.store.close()


def test_every_step_says_why_it_was_trained_on_or_not(recorded: RecordedRun) -> None:
    told = json.loads(recorded.run("show", recorded.trained[-8:], "--json"))
    first, second = told["steps"]
    assert told["fate"] == "trained"
    assert first["verdict"][0].startswith("trained in update 4 (batch_")
    assert first["verdict"][0].endswith("advantage +1.25, staleness 0)")
    assert second["verdict"][0].endswith("low_entropy: its mean token entropy is among the lowest of its group")
    assert first["version_spans"] == [[0, 0, 2], [3, 2, 4]]
    assert first["uses"][0]["trainable"] == [[3, 4]], "token selection left one of those within the staleness limit"
    assert second["uses"][0]["trainable"] == [[2, 4]], "the older tokens are beyond the staleness limit"
    shown = recorded.run("show", recorded.masked)
    assert "no reward, farm_fault, 2 steps\nmasked: masked, because it has no reward: farm_fault (fake fault)" in shown
    assert "reward 1 by evaluator, done" in recorded.run("show", recorded.trained)
    assert told["reward_source"] == "evaluator"
    fates = {row["fate"] for row in json.loads(recorded.run("ls", "--json"))}
    assert fates == {"trained", "dropped", "masked", "waiting"}
    dropped = json.loads(recorded.run("ls", "--json", "--fate", "dropped"))
    assert len(dropped) == 4
    assert dropped[0]["why"].startswith("its group was dropped: all_failed: every rollout")
    assert recorded.run("ls", "--min-reward", "1").count("\n") == 3
    assert "there is no trajectory" in recorded.run("show", "nope", code=2)


def test_every_reason_has_words() -> None:
    """Reasons of steps and of groups, each from where it is decided."""
    reasons = {*get_args(WithheldReason), *get_args(UninformativeReason)}
    reasons |= {DISPLACED_REASON, QUARANTINED, NO_LOGPROBS, NO_STEPS, LOW_ENTROPY_REASON, LOW_ENTROPY_TOKENS_REASON}
    assert reasons == set(REASONS)
    page = (ROOT / "docs" / "trajectory-data.md").read_text(encoding="utf-8")
    assert [reason for reason in sorted(reasons) if f"`{reason}`" not in page] == []


def test_solved_rollouts_are_imitated_as_they_were_sampled(recorded: RecordedRun, tmp_path: Path) -> None:
    folder = recorded.paths.root
    with (
        recorded.harness.store.begin() as session
    ):  # the fakes' answers are no actions; now those of second steps alone
        session.execute(update(StepTable).where(StepTable.index == 0).values(parse_error=None))
    with read_successes((folder,), 9) as (episodes, places):
        assert [(each.name, [step.index for step in each.steps]) for each in episodes] == [
            (f"recorded/{recorded.typed}", [0]),
            (f"recorded/{recorded.trained}", [0]),
        ]
        for step in (step for each in episodes for step in each.steps):
            assert step.prompt_ids_P
            assert step.token_ids_T
            assert not places[0].missing(step.image_sha256)
    with read_successes((folder, folder), 1) as (once, _):
        assert len(once) == len({each.task_id for each in once}), "of a task one, over all runs"
    recorded.harness.store.close()
    with pytest.raises(DemonstrationsUnusableError, match="has no stored rollouts"), read_successes((tmp_path,), 1):
        pass


def test_a_demonstration_may_only_be_imitated(recorded: RecordedRun) -> None:
    harness = recorded.harness
    harness.manager.stop_phase("train")
    harness.phase("demos", purpose=Purpose.DEMO, endless=False)
    harness.report(harness.must_acquire())
    (demonstration,) = json.loads(recorded.run("ls", "--json", "--fate", "demo"))
    assert demonstration["why"] == "a demonstration: it may only be imitated, because it has no log-probs"


def test_what_is_quarantined_is_listed_with_its_cause(recorded: RecordedRun) -> None:
    harness = recorded.harness
    for _ in range(3):
        harness.report(harness.must_acquire(), 0.0)
    batch = harness.must_batch(2)
    cause = "the gradient of update 5 has the norm 1e+04, above train.max_grad_norm = 100"
    harness.manager.batch_failed(batch.batch_id, BatchFailure(cause=cause))
    listed = json.loads(recorded.run("ls", "--json", "--fate", "quarantined"))
    assert {row["rollout_id"] for row in listed} == {row.rollout_id for row in batch.rows}
    assert listed[-1]["why"] == f"2 of 2 steps are never trained on: {cause}"
    shown = recorded.run("show", listed[-1]["rollout_id"])
    assert f"quarantined: 2 of 2 steps are never trained on: {cause}" in shown
    assert shown.count(f"    quarantined: {cause}") == 2


def test_the_innocent_of_a_failed_batch_wait_again_until_their_group_is_dropped(recorded: RecordedRun) -> None:
    harness = recorded.harness
    for _ in range(3):
        harness.report(harness.must_acquire(), 0.0)
    batch = harness.must_batch(1)
    culprit = StepReference(rollout_id=batch.rows[0].rollout_id, index=batch.rows[0].step.index)
    harness.manager.batch_failed(batch.batch_id, BatchFailure(cause="an image is damaged", culprits=[culprit]))
    innocent = {row.rollout_id for row in batch.rows} - {culprit.rollout_id}
    failed = f"not trained on: {batch.batch_id} was failed (an image is damaged)"

    def listed(fate: str, group: str) -> None:
        rows = {row["rollout_id"]: row["why"] for row in json.loads(recorded.run("ls", "--json", "--fate", fate))}
        assert {rows.get(rollout_id) for rollout_id in innocent} == {f"{group}; {failed}"}
        for step in json.loads(recorded.run("show", min(innocent), "--json"))["steps"]:
            assert step["verdict"] == [failed, group]

    listed("waiting", "its group waits for the trainer")
    assert harness.batch(9) is None
    listed("dropped", f"its group was dropped: stale: {REASONS['stale']}")
    assert len(json.loads(recorded.run("ls", "--json", "--fate", "quarantined"))) == 1


def test_garbage_is_only_what_no_step_needs(recorded: RecordedRun) -> None:
    harness = recorded.harness
    orphan = harness.images.put(fake_image(12345))
    now_s = next(blob.modified_s for blob in harness.images.list_blobs() if blob.sha256 == orphan)
    stored = {blob.sha256 for blob in harness.images.list_blobs()}

    def collect(at_s: float, retention: ImageRetention = ImageRetention(), *, dry_run: bool = False) -> int:
        with harness.store.begin() as session:
            return collect_garbage(session, harness.images, retention, at_s, dry_run=dry_run).deleted

    assert collect(now_s + GRACE_S / 2) == 0
    later_s = now_s + 2 * GRACE_S
    assert collect(later_s, dry_run=True) == 1
    assert collect(later_s) == 1
    assert harness.images.missing(stored) == [orphan]
    parked = harness.must_acquire("w9")
    trajectory, images = fake_trajectory(parked, image=fake_image(777))
    for image in images.values():
        harness.images.put(image)
    state = EpisodeState(worker="w9", process="p", started_at_s=0, elapsed_s=1, reset_s=0)
    harness.manager.store_step(
        StoreStepRequest(
            rollout_id=parked.rollout_id,
            assignment=parked.assignment,
            step=stream_payloads(trajectory.steps_S)[0],
            state=state,
        )
    )
    harness.manager.park(ParkRequest(rollout_id=parked.rollout_id, assignment=parked.assignment, state=state))
    every = ImageRetention(keep_days=1, keep_successes=False, keep_demonstrations=False)
    gone = collect(later_s + 9 * DAY_S, every)
    assert gone > 0
    kept = {blob.sha256 for blob in harness.images.list_blobs()}
    assert set(images) <= kept, "a parked rollout keeps its images"
    with harness.store.begin() as session:
        waiting = harness.manager.saved_episode(parked.rollout_id)
        assert waiting.state is not None
        del session
    assert collect(later_s + 9 * DAY_S, every) == 0, "what is left is needed"


def test_an_interrupted_collection_is_run_again(recorded: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    images = recorded.harness.images
    needed = {blob.sha256 for blob in images.list_blobs()}
    for seed in range(500, 504):
        images.put(fake_image(seed))
    later_s = max(blob.modified_s for blob in images.list_blobs()) + 2 * GRACE_S
    delete = images.delete

    def die_at_the_third(sha256: str, unless_newer_than_s: float) -> bool:
        if len(list(images.list_blobs())) == len(needed) + 2:
            raise KeyboardInterrupt
        return delete(sha256, unless_newer_than_s)

    monkeypatch.setattr(images, "delete", die_at_the_third)
    with pytest.raises(KeyboardInterrupt), recorded.harness.store.begin() as session:
        collect_garbage(session, images, ImageRetention(), later_s, dry_run=False)
    monkeypatch.undo()
    with recorded.harness.store.begin() as session:
        report = collect_garbage(session, images, ImageRetention(), later_s, dry_run=False)
    assert report.deleted == 2
    assert {blob.sha256 for blob in images.list_blobs()} == needed


def test_a_blob_that_is_put_again_during_a_collection_stays(recorded: RecordedRun) -> None:
    images = ImageStore(recorded.harness.root / "images")
    orphan = images.put(fake_image(600))
    written_s = images.path(orphan).stat().st_mtime
    os.utime(images.path(orphan), (written_s + 9 * GRACE_S, written_s + 9 * GRACE_S))
    assert not images.delete(orphan, written_s + GRACE_S)
    assert images.missing([orphan]) == []


def test_a_successful_or_issued_trajectory_keeps_its_images(recorded: RecordedRun) -> None:
    harness = recorded.harness
    items = [harness.must_acquire() for _ in range(3)]
    for item, reward in zip(items, (0.0, 1.0, 0.0), strict=True):
        harness.report(item, reward, version=4)
    issued = harness.must_batch(4)
    later_s = harness.now_s + 1e10
    with harness.store.begin() as session:
        report = collect_garbage(session, harness.images, ImageRetention(keep_days=1), later_s, dry_run=False)
        assert report.deleted > 0
    for row in issued.rows:
        assert harness.images.missing(row.step.image_sha256) == []
    batch = harness.must_batch(4)
    assert batch == issued


def test_an_atif_document_has_ids_log_probs_actions_and_provenance(recorded: RecordedRun, tmp_path: Path) -> None:
    out = tmp_path / "atif"
    assert json.loads(recorded.run("export", str(out), "--format", "atif")) == {"trajectories": 9}
    document = json.loads((out / f"{recorded.trained}.json").read_text())
    assert document["schema_version"] == "ATIF-v1.7"
    assert [step["step_id"] for step in document["steps"]] == [1, 2, 3]
    assert [step["source"] for step in document["steps"]] == ["user", "agent", "agent"]
    second = document["steps"][1]
    assert len(second["metrics"]["completion_token_ids"]) == len(second["metrics"]["logprobs"]) == 4
    assert second["extra"]["version_spans"] == [[0, 0, 2], [3, 2, 4]]
    assert second["extra"]["provenance"][0].startswith("trained in update 4")
    for step in document["steps"]:
        calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        for result in step.get("observation", {"results": []})["results"]:
            assert result.get("source_call_id") in (calls or {None})
            assert (out / result["content"][0]["source"]["path"]).is_file()
    assert "is not an empty folder" in recorded.run("export", str(out), code=2)


@pytest.mark.parametrize("command", [("ls",), ("export", "FOLDER"), ("export", "FOLDER", "--format", "atif")])
def test_a_fate_that_does_not_exist_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Before the run is opened, and before a folder is made."""
    out = tmp_path / "out"
    arguments = [str(out) if argument == "FOLDER" else argument for argument in command[1:]]
    result = CliRunner().invoke(app, [command[0], str(tmp_path), *arguments, "--fate", "trainde"])
    assert result.exit_code == 2
    assert result.stderr == f"dart-train: --fate trainde is not one of {', '.join(FATES)}\n"
    assert not out.exists()


def test_a_dataset_reads_back_what_was_stored(recorded: RecordedRun, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `data` is not installed")
    out = tmp_path / "hf"
    counts = json.loads(recorded.run("export", str(out)))
    assert counts["trajectories"] == 9
    steps = {(row["rollout_id"], row["index"]): row for row in parquet.read_table(out / "steps.parquet").to_pylist()}
    first = steps[recorded.trained, 0]
    assert (first["trained"], first["updates"], first["advantage"], first["entropy"]) == (True, [4], 1.25, 0.5)
    assert first["version_spans"][1] == {"version": 3, "start": 2, "end": 4, "kept_kv": False}
    assert not steps[recorded.trained, 1]["trained"]
    images = parquet.read_table(out / "images.parquet")
    assert json.loads(images.schema.metadata[b"huggingface"])["info"]["features"]["image"] == {"_type": "Image"}
    hashes = {row["sha256"] for row in images.to_pylist()}
    assert {sha256 for row in steps.values() for sha256 in row["image_sha256"]} == hashes
    assert "config_name: steps" in (out / "README.md").read_text()


@pytest.mark.parametrize("form", ["hf", "atif", "page"])
def test_redaction_leaves_no_typed_text_and_no_pixels(recorded: RecordedRun, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"

    def write(folder: Path, *options: str) -> bytes:
        if form == "page":
            recorded.run("view", recorded.typed, "--out", str(folder / "page.html"), *options)
        else:
            recorded.run("export", str(folder), "--format", form, *options)
        content = b""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                content += _plain(path)
        return content

    if form == "hf":
        pytest.importorskip("pyarrow", reason="the extra `data` is not installed")
    assert SECRET.encode() in write(tmp_path / "open")
    content = write(out, "--redact-text", "--redact-screens")
    assert SECRET.encode() not in content
    assert b"PNG" not in content
    assert b"data:image" not in content
    assert b"[redacted]" in content


def _plain(path: Path) -> bytes:
    """What a file says, decompressed."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return repr(pq.read_table(path).to_pylist()).encode()
    return path.read_bytes()


def test_the_page_shows_tokens_advantage_and_reasons(recorded: RecordedRun, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    recorded.run("view", recorded.trained, "--out", str(file))
    page = file.read_text()
    assert page.count("<article") == 2
    assert page.count("<i class=") == 8
    assert "Trained in update 4" in page
    assert "+1.250" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_successes_of_another_run_enter_the_pool_once_and_count_in_no_rate(
    recorded: RecordedRun, tmp_path: Path
) -> None:
    exported = tmp_path / "other-run"
    recorded.run("export", str(exported), "--format", "portable", "--fate", "trained")
    assert next(read_portable(exported)).rollout_id == recorded.trained
    settings: dict[str, Any] = {
        "batch": {"min_groups": 1, "max_groups": 1, "max_staleness": 1},
        "curation": {"experience_pool": {"enabled": True, "max_age": 5}},
    }
    other = DataManagerHarness(tmp_path / "other", **settings)
    for count in (1, 0):
        imported, left_out = import_trajectories(other.store, other.images, exported, "other-run")
        assert imported == count
        assert left_out["not successful"] == 2
    assert left_out["imported before"] == 1
    judged, why = import_trajectories(other.store, other.images, exported, "x", reward_source=RewardKind.JUDGE)
    assert (judged, why["rewarded by evaluator"]) == (0, 1)
    other.restart()
    task_id = next(read_portable(exported)).task_id
    other.phase(select=None, task_ids=[task_id])
    hopeless = other.group([0.0] * 4, version=2)
    batch = other.must_batch(2)
    assert batch.groups[0].group_id == hopeless
    assert [member.source for member in batch.groups[0].members].count("pool") == 1
    stats = other.manager.stats()
    assert (stats.trajectories, stats.success_rate, stats.dropped_groups) == (4, {"tick": 0.0}, {})
    assert stats.curation == {"group_size_mean": 4, "max_steps_mean": 10, "pool_uses": 1}
    other.store.close()


def test_a_recipe_fills_the_pool_of_a_new_run_once(
    recorded: RecordedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = tmp_path / "Other run"
    recorded.run("export", str(exported), "--format", "portable", "--fate", "trained")
    keys = ("run.name='next'", "curation.experience_pool=true", f"curation.pool_import=[{json.dumps(str(exported))}]")
    recipe, paths, told = load_recipe(DEMO, keys), RunPaths(tmp_path / "next"), list[str]()
    paths.make()
    monkeypatch.setattr(pool_import, "SuiteCatalog", lambda _: FakeTaskCatalog())
    pool_import.import_pool(recipe, paths, RunState(), told.append)
    assert told == [f"experience pool: 1 successes of {exported}; left out: 2 not successful"]
    pool_import.import_pool(recipe, paths, RunState(), told.append)  # the state was not written: the host stopped
    shutil.rmtree(exported)
    state = RunState.load(paths.state)
    pool_import.import_pool(recipe, paths, state, told.append)
    assert (len(told), state.pool_imported) == (2, True)
    with open_run_of(recipe, paths) as session:
        assert session.scalar(select(func.count()).select_from(TrajectoryTable)) == 1


def test_a_success_that_the_model_of_the_run_cannot_read_is_left_out_of_its_pool(
    recorded: RecordedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = tmp_path / "other"
    recorded.run("export", str(exported), "--format", "portable", "--fate", "trained")
    (success,) = [row for row in read_portable(exported) if row.reward == 1]
    image = fake_image(5, height=32, width=64)
    sha256 = ImageStore(exported / "images").put(image)
    first, *_ = read_trajectory_steps(recorded, success.rollout_id)
    lines = []
    for number, pads in enumerate((2, 1)):
        prompt = (1, *([7] * pads), 2, number)
        step = replace(first, prompt_ids_P=prompt, image_sha256=(sha256,), image_hw=((32, 64),))
        rows = {"rollout_id": f"roll-{number}", "steps": stream_payloads([step]), "n_steps": 1}
        lines.append(success.model_copy(update=rows).model_dump_json() + "\n")
    (exported / "trajectories.jsonl").write_text("".join(lines))
    model = tmp_path / "model"
    model.mkdir()
    vision = {"patch_size": 16, "spatial_merge_size": 2}
    config = {"model_type": "qwen3_vl", "image_token_id": 7, "vision_config": vision}
    (model / "config.json").write_text(json.dumps(config))
    (model / "preprocessor_config.json").write_text("{}")
    keys = ("run.name='next'", "curation.experience_pool=true", f"curation.pool_import=[{json.dumps(str(exported))}]")
    recipe, told = load_recipe(DEMO, keys), list[str]()
    monkeypatch.setattr(pool_import, "SuiteCatalog", lambda _: FakeTaskCatalog())
    for name, start, imported in (("known", model, 1), ("unknown", tmp_path / "nowhere", 2)):
        paths = RunPaths(tmp_path / name)
        paths.make()
        monkeypatch.setattr(pool_import, "start_model", lambda *_, start=start: start)
        pool_import.import_pool(recipe, paths, RunState(), told.append)
        with open_run_of(recipe, paths) as session:
            assert session.scalar(select(func.count()).select_from(TrajectoryTable)) == imported
    assert told == [
        f"experience pool: 1 successes of {exported}; left out: 1 made for another model or image size",
        f"experience pool: 2 successes of {exported}",
    ]


def read_trajectory_steps(recorded: RecordedRun, rollout_id: str) -> tuple[StepRecord, ...]:
    """The steps of a recorded rollout."""
    with recorded.harness.store.begin() as session:
        return read_steps(session, rollout_id)


def test_a_pool_that_nothing_can_use_is_refused(
    recorded: RecordedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("run.name='next'", "curation.experience_pool=true", f"curation.pool_import=[{json.dumps(str(tmp_path))}]")
    recipe, paths = load_recipe(DEMO, keys), RunPaths(tmp_path / "next")
    paths.make()
    with pytest.raises(RecipeError, match=r"curation\.pool_import: .* has no trajectories\.jsonl"):
        pool_import.import_pool(recipe, paths, RunState(), print)
    recorded.run("export", str(tmp_path / "export"), "--format", "portable", "--fate", "trained")
    recipe = load_recipe(DEMO, (*keys[:2], f"curation.pool_import=[{json.dumps(str(tmp_path / 'export'))}]"))
    with pytest.raises(RecipeError, match="can complete a group of this run"):  # the demo's suite has no such tasks
        pool_import.import_pool(recipe, paths, RunState(), print)
    with pytest.raises(RecipeError, match="set experience_pool = true"):
        load_recipe(DEMO, keys[2:])


@contextmanager
def open_run_of(recipe: Recipe, paths: RunPaths) -> Iterator[Session]:
    """The database of a run that was not begun."""
    store = TrajectoryStore.open(database_location(recipe, paths), FakeTaskCatalog().split_of)
    try:
        with store.begin() as session:
            yield session
    finally:
        store.close()


def test_a_source_whose_name_cannot_be_a_phase_is_refused_before_it_is_read(
    recorded: RecordedRun, tmp_path: Path
) -> None:
    for name in ("My run", "x" * 58):
        with pytest.raises(StoreError, match=rf"the source cannot be called '{name.lower()}'.*--name"):
            import_trajectories(recorded.harness.store, recorded.harness.images, tmp_path / "nowhere", name.lower())
    recorded.harness.store.close()
    assert "--name" in recorded.run("import", str(tmp_path / "My run"), code=2)


def test_damaged_imports_are_named(recorded: RecordedRun, tmp_path: Path) -> None:
    exported = tmp_path / "export"
    recorded.run("export", str(exported), "--format", "portable", "--fate", "trained")
    harness = DataManagerHarness(tmp_path / "other")
    for blob in ImageStore(exported / "images").list_blobs():
        ImageStore(exported / "images").path(blob.sha256).write_bytes(b"no image")
    assert import_trajectories(harness.store, harness.images, exported, "x")[1]["an image is missing or damaged"] == 1
    (exported / "trajectories.jsonl").write_text("{}\n")
    with pytest.raises(Exception, match="line 1 is damaged"):
        import_trajectories(harness.store, harness.images, exported, "x")
    with pytest.raises(Exception, match=r"has no trajectories\.jsonl"):
        import_trajectories(harness.store, harness.images, tmp_path, "x")
    harness.store.close()


def test_only_train_tasks_are_imported(recorded: RecordedRun, tmp_path: Path) -> None:
    exported = tmp_path / "export"
    recorded.run("export", str(exported), "--format", "portable", "--fate", "trained")
    line = json.loads((exported / "trajectories.jsonl").read_text().splitlines()[0])
    (exported / "trajectories.jsonl").write_text(json.dumps(line | {"task_id": "s/tick/9"}) + "\n")
    assert FakeTaskCatalog().split_of("s/tick/9") == "test"
    harness = DataManagerHarness(tmp_path / "other")
    imported, left_out = import_trajectories(harness.store, harness.images, exported, "x")
    assert imported == 0
    assert any("test split" in reason for reason in left_out)
    assert Purpose.TRAIN.value == "train"
    harness.store.close()
