"""Evaluations of stored versions: chosen on validation, tested once, resumed, and never mixed with other versions."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from run_harness import RunHarness
from safetensors.numpy import save_file
from typer.testing import CliRunner

import dart_train
from dart_agent.data_client.wire import EpisodeResult
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.types import WorkItem
from dart_envs import tasks
from dart_envs.types import EndReason
from dart_train.cli import app
from dart_train.config import Recipe, RecipeError, load_recipe
from dart_train.evaluation import stored
from dart_train.evaluation.comparison import compare_seeds, format_gains, paired_gains
from dart_train.evaluation.export import export_version
from dart_train.evaluation.paired_evaluation import tango_interval
from dart_train.evaluation.results import (
    HELD_OUT,
    INFEASIBLE,
    TRAINED,
    StoredEvaluation,
    episodes_of,
    evaluations_on_test,
    format_table,
    result_rows,
)
from dart_train.evaluation.selection import choose_checkpoint, versions_that_played
from dart_train.evaluation.stored import (
    EvaluationRequest,
    StoredVersion,
    evaluate,
    evaluation_phase,
    evaluation_recipe,
    version_of_run,
)
from dart_train.exits import EXIT_WRONG_INPUT
from dart_train.model.weights import ORIGIN_FILE, TrainingOrigin
from dart_train.run import masked_episodes
from dart_train.run.orchestrator import Interrupted
from dart_train.run.paths import RunPaths

TEST = EvaluationRequest("test", 9)
DEMO = Path(dart_train.__file__).parent / "recipes" / "demo.toml"
LAST = 2


def episode(task: str, reward: float, version: tuple[int, int] = (3, 3)) -> EpisodeResult:
    return EpisodeResult(
        task_id=f"basics/{task}",
        family=task.split("/")[0],
        repeat=0,
        rollout_id="r",
        reward=reward,
        end=EndReason.DONE,
        steps=1,
        duration_s=1.0,
        version_min=version[0],
        version_max=version[1],
    )


async def finished_run(root: Path, monkeypatch: pytest.MonkeyPatch, **sections: Any) -> RunHarness:
    harness = RunHarness(root, monkeypatch, **sections)
    harness.version = lambda item: LAST if item.phase == "eval-after" else 0
    await harness.run()
    for name in ("tokenizer.json", "processor_config.json"):
        (harness.paths.warm_start_model / name).touch()  # no fake component reads them
    write_weights(harness.paths.warm_start_model, 0.0)
    # As the real one, which asks the farm on a loop of its own.
    monkeypatch.setattr(stored, "check_recipe", lambda recipe, paths: asyncio.run(asyncio.sleep(0)))
    return harness


async def evaluated(
    harness: RunHarness,
    monkeypatch: pytest.MonkeyPatch,
    request: EvaluationRequest,
    reward: Callable[[WorkItem], float | None] = lambda item: 1.0,
    choice: str = "best",
    compared_with: StoredVersion | None = None,
    recipe: Recipe | None = None,
) -> tuple[StoredEvaluation, RunHarness]:
    version = version_of_run(harness.paths, recipe or harness.recipe, choice)
    own = RunHarness(harness.paths.root, monkeypatch)
    own.recipe, own.paths = evaluation_recipe(version), RunPaths(version.folder / request.name(version.version))
    own.reward, own.version = reward, lambda item: version.version
    async with own.launcher() as run:
        return await evaluate(version, request, lambda *_: run, compared_with=compared_with), own


async def test_the_best_version_is_tested_with_held_out_families(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await finished_run(tmp_path, monkeypatch)
    result, _ = await evaluated(harness, monkeypatch, TEST, lambda item: float("press_nth" in item.task_id))
    assert (result.version, result.split, result.test_number) == (LAST, "test", 1)
    rows = {row.name: row for row in result.rows}
    held_out = {name for name, family in tasks.load_suite("basics").families.items() if family.held_out}
    assert held_out
    assert rows[HELD_OUT].success.value == 0
    assert rows["press_nth"].success.value == 1
    assert rows[TRAINED].episodes + rows[HELD_OUT].episodes == 9
    written = json.loads((harness.paths.evaluations / "test-v2-9x1-t0" / "result.json").read_text())
    assert written["rows"][0]["success"]["value"] == rows[TRAINED].success.value
    async with harness.launcher() as run:
        report, page = await run.write_report()
    assert report.evaluations[0]["test_number"] == 1
    assert "Version 2 on test" in page.read_text(encoding="utf-8")


async def test_families_of_another_recipe_are_held_out_where_the_run_was_not_trained_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await finished_run(tmp_path, monkeypatch)
    trained, *_ = harness.recipe.tasks.families
    other = harness.recipe.tasks.model_copy(update={"families": (trained, "delete_file")})
    recipe = harness.recipe.model_copy(update={"tasks": other})
    result, _ = await evaluated(harness, monkeypatch, EvaluationRequest("validation", 6), recipe=recipe)
    names = [row.name for row in result.rows]
    assert names == [TRAINED, trained, HELD_OUT, "delete_file"]


async def test_the_test_split_is_used_once_and_a_second_use_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await finished_run(tmp_path, monkeypatch)
    await evaluated(harness, monkeypatch, TEST)
    with pytest.raises(RecipeError, match=r"before \(test-v2-9x1-t0\)"):
        await evaluated(harness, monkeypatch, TEST, choice="1")
    assert evaluations_on_test(harness.paths.evaluations) == [("test-v2-9x1-t0",)]
    second, _ = await evaluated(harness, monkeypatch, EvaluationRequest("test", 9, repeat_test=True), choice="1")
    assert second.test_number == 2
    assert "number 2 on the test split" in format_table(second)


async def test_two_versions_that_are_compared_are_one_use_of_the_test_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await finished_run(tmp_path, monkeypatch)
    old, new = (version_of_run(harness.paths, harness.recipe, choice) for choice in ("0", "best"))
    before, _ = await evaluated(harness, monkeypatch, TEST, lambda item: 0.0, choice="0", compared_with=new)
    after, _ = await evaluated(
        harness, monkeypatch, TEST, lambda item: float("press_nth" in item.task_id), compared_with=old
    )
    assert (before.test_number, after.test_number) == (1, 1)
    assert evaluations_on_test(harness.paths.evaluations) == [("test-v0-9x1-t0", "test-v2-9x1-t0")]
    gains = paired_gains(before.as_dict(), after.as_dict())
    assert (gains["press_nth"].before_percent, gains["press_nth"].after_percent) == (0.0, 100.0)
    assert gains[HELD_OUT].gain_points == 0.0
    assert gains[TRAINED].episodes + gains[HELD_OUT].episodes == 9
    again, _ = await evaluated(harness, monkeypatch, TEST)
    assert again.test_number == 1, "the same episodes are no second look"
    with pytest.raises(RecipeError, match="before \\(test-v0-9x1-t0, test-v2-9x1-t0\\)"):
        await evaluated(harness, monkeypatch, TEST, choice="1")


async def test_a_finished_evaluation_is_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = await finished_run(tmp_path, monkeypatch)
    first, _ = await evaluated(harness, monkeypatch, TEST)
    again, own = await evaluated(harness, monkeypatch, TEST, lambda item: 0.0)
    assert again == first
    assert own.starts.keys() == {"data-manager"}


async def test_repeats_give_pass_at_k_and_masked_items_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await finished_run(tmp_path, monkeypatch)
    request = EvaluationRequest("validation", 4, samples=4, temperature=1.0)
    lost = tasks.load_suite("basics").tasks("validation", ["press_nth"])[0]
    played: Counter[str] = Counter()
    monkeypatch.setattr(masked_episodes, "MAX_MASKED_FRACTION", 1.0)

    def reward(item: WorkItem) -> float | None:
        played[item.task_id] += 1
        return None if item.task_id == lost else float(played[item.task_id] == 4)

    result, _ = await evaluated(harness, monkeypatch, request, reward)
    assert result.missing == 4
    assert result.test_number is None
    everything = result.rows[0]
    assert everything.pass_at_k[4].value == 1.0
    assert everything.pass_at_k[2].value == pytest.approx(0.5)
    assert everything.pass_at_k[4].count == 3


async def test_an_interrupted_test_that_begins_anew_with_other_settings_is_another_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise Interrupted("SIGINT")

    harness = await finished_run(tmp_path, monkeypatch)
    version = version_of_run(harness.paths, harness.recipe, "best")
    with pytest.raises(Interrupted):
        await evaluate(version, TEST, interrupted)
    shorter = harness.recipe.rollout.model_copy(update={"max_tokens": harness.recipe.rollout.max_tokens - 1})
    other = replace(version, recipe=harness.recipe.model_copy(update={"rollout": shorter}))
    with pytest.raises(RecipeError, match=r"before \(test-v2-9x1-t0\)"):
        await evaluate(other, TEST, interrupted)
    with pytest.raises(Interrupted):
        await evaluate(other, replace(TEST, repeat_test=True), interrupted)
    result, _ = await evaluated(harness, monkeypatch, TEST, recipe=other.recipe)
    assert result.test_number == 2


async def test_a_version_that_is_gone_is_refused_with_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await finished_run(tmp_path, monkeypatch)
    with pytest.raises(RecipeError, match="no version 7 any more; it has 0, 1, 2"):
        version_of_run(harness.paths, harness.recipe, "7")
    with pytest.raises(RecipeError, match="neither a number nor best"):
        version_of_run(harness.paths, harness.recipe, "newest")


async def test_a_test_of_the_run_itself_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = await finished_run(tmp_path, monkeypatch, eval={"episodes": 6, "test_episodes": 9})
    with pytest.raises(RecipeError, match="before \\(by the run itself\\)"):
        await evaluated(harness, monkeypatch, TEST)
    second, _ = await evaluated(harness, monkeypatch, EvaluationRequest("test", 9, repeat_test=True))
    assert second.test_number == 2


def test_the_choice_is_by_the_lower_end_and_ties_go_to_the_earlier_version() -> None:
    many = {str(task): [float(task < 80)] for task in range(100)}
    few = {str(task): [1.0] for task in range(5)}
    chosen = choose_checkpoint({7: many, 3: many, 9: few})
    assert chosen is not None
    assert chosen.version == 3
    assert chosen.candidates[9].value == 1.0
    assert choose_checkpoint({1: {}}) is None


def test_a_version_that_played_some_of_the_tasks_is_no_candidate() -> None:
    """Those that it was lucky to get may be the easy ones; several episodes of a task are one task."""
    episodes = [*((7, f"t{number}") for number in range(6)), (8, "t6"), (8, "t7"), (8, "t7"), (9, "t0")]
    assert versions_that_played(episodes, 8) == {7}
    assert versions_that_played(episodes, 9) == set()


def test_infeasible_tasks_and_other_versions_are_in_no_rate() -> None:
    results = [
        episode("a/0001", 1.0),
        episode("a/0002", 0.0),
        episode("a/0003", 1.0),
        episode("a/0004", 0.0, (2, 3)),
        episode("h/0001", 1.0),
    ]
    own = episodes_of(results, 3)
    assert own == [*results[:3], results[4]]
    rows = result_rows(own, trained_families=["a"], infeasible=["basics/a/0003"])
    found = {row.name: (row.episodes, row.success.value) for row in rows}
    assert found == {TRAINED: (2, 0.5), "a": (2, 0.5), HELD_OUT: (1, 1.0), "h": (1, 1.0), INFEASIBLE: (1, 1.0)}


def test_an_evaluation_asks_for_nothing_that_only_training_needs(tmp_path: Path) -> None:
    training = {
        "train.sft_coefficient": 0.5,
        "curation.experience_pool": True,
        "curation.pool_import": [str(tmp_path / "gone")],
        "limits.min_free_disk_gib": 300.0,
        "limits.pause_disk_gib": 130.0,
    }
    recipe = load_recipe(DEMO, tuple(f"{key}={json.dumps(value)}" for key, value in training.items()))
    found = evaluation_recipe(StoredVersion("m", recipe, tmp_path, tmp_path, "tiny"))
    assert (found.train.sft_coefficient, found.curation.pool_import) == (0.0, ())
    assert found.limits.min_free_disk_gib == found.limits.pause_disk_gib == 1.0


def test_repeats_of_a_greedy_policy_and_too_many_tasks_are_refused() -> None:
    recipe = Recipe.model_validate({"run": {"name": "r"}, "tasks": {"families": ["press_nth"]}, "model": {"path": "m"}})
    with pytest.raises(RecipeError, match="--temperature 1"):
        evaluation_phase(recipe, EvaluationRequest("validation", 4, samples=2))
    with pytest.raises(RecipeError, match="split validation: only"):
        evaluation_phase(recipe, EvaluationRequest("validation", 100_000))


def result_of(source: str, success: float, **conditions: Any) -> dict[str, Any]:
    rows = [{"name": TRAINED, "success": {"value": success}}]
    return {"source": source, "version": 1, "split": "test", "conditions": {"max_steps": 3} | conditions, "rows": rows}


def test_seeds_are_averaged_only_under_equal_conditions() -> None:
    (row,) = compare_seeds([result_of("a", 0.5), result_of("b", 0.7), result_of("c", 0.6)])
    assert (row["mean"], row["lower"], row["upper"]) == pytest.approx((0.6, 0.6 - 0.24841, 0.6 + 0.24841), abs=1e-4)
    with pytest.raises(RecipeError, match="max_steps 9 and 3"):
        compare_seeds([result_of("a", 0.5), result_of("b", 0.7, max_steps=9)])
    with pytest.raises(RecipeError, match="of one run or of the same weights"):
        compare_seeds([result_of("a", 0.5), result_of("a", 0.7)])


def test_versions_of_one_run_and_equal_weights_are_no_seeds() -> None:
    with pytest.raises(RecipeError, match="of one run or of the same weights"):
        compare_seeds([result_of("a", 0.5), result_of("a", 0.7) | {"version": 2}])
    same = {"digest": "sha256:1"}
    with pytest.raises(RecipeError, match="of one run or of the same weights"):
        compare_seeds([result_of("a", 0.5) | same, result_of("b", 0.5) | same])


def test_an_interval_over_seeds_ends_at_0_and_1() -> None:
    (row,) = compare_seeds([result_of("a", 0.9), result_of("b", 0.2)])
    assert (row["lower"], row["upper"]) == (0.0, 1.0)


def solved(by_task: dict[str, float], **conditions: Any) -> dict[str, Any]:
    found = result_of("a", 0.5, **conditions)
    found["rows"][0]["solved_by_task"] = by_task
    return found


def test_two_results_are_paired_by_the_tasks_that_both_have() -> None:
    before, after = {f"t{n}": float(n < 4) for n in range(20)}, {f"t{n}": float(n < 14) for n in range(1, 21)}
    gains = paired_gains(solved(before), solved(after))
    assert gains[TRAINED].episodes == 19
    assert gains[TRAINED].gain_points == pytest.approx(100 * 10 / 19)
    assert gains[TRAINED].gain_lower_points is not None
    assert gains[TRAINED].gain_lower_points == pytest.approx(100 * tango_interval(10, 0, 19)[0])
    assert "+52.6" in format_gains(gains)
    assert paired_gains(solved(before), solved({"other": 1.0})) == {}
    with pytest.raises(RecipeError, match="max_steps 9 and 3"):
        paired_gains(solved(before), solved(after, max_steps=9))
    with pytest.raises(RecipeError, match="does not say which tasks were solved: evaluate it again"):
        paired_gains(result_of("a", 0.5), solved(after))


def test_results_are_paired_by_a_command(tmp_path: Path) -> None:
    for name, share in (("before", 0.0), ("after", 1.0)):
        (tmp_path / name).write_text(json.dumps(solved({f"t{n}": share for n in range(9)})), encoding="utf-8")
    arguments = ["compare", "--paired", str(tmp_path / "before"), str(tmp_path / "after")]
    told = CliRunner().invoke(app, [*arguments, "--json", str(tmp_path / "gains.json")])
    assert told.exit_code == 0
    assert "+100.0" in told.stdout
    written = json.loads((tmp_path / "gains.json").read_text(encoding="utf-8"))
    assert written["gains"][TRAINED]["after_percent"] == 100.0
    refused = CliRunner().invoke(app, arguments[:-1])
    assert refused.exit_code == EXIT_WRONG_INPUT
    assert "give BEFORE and AFTER" in refused.stderr
    for command in (arguments, ["eval", str(tmp_path)]):
        nowhere = CliRunner().invoke(app, [*command, "--json", str(tmp_path / "none" / "gains.json")])
        assert nowhere.exit_code == EXIT_WRONG_INPUT
        assert "--json: " in nowhere.stderr


def test_commands_refuse_wrong_input_in_one_sentence(tmp_path: Path) -> None:
    for arguments, fix in (
        (["eval", str(tmp_path), "--recipe", str(DEMO), "--against", "0"], "give a run folder"),
        (["eval", str(tmp_path)], "give --recipe"),
        (["compare", str(tmp_path / "x.json")], "give its result.json"),
    ):
        ended = CliRunner().invoke(app, arguments)
        assert ended.exit_code == EXIT_WRONG_INPUT
        (sentence,) = ended.stderr.strip().splitlines()
        assert fix in sentence


def write_hub_checkpoint(cache: Path, name: str) -> Path:
    """A complete checkpoint, without weights, as `hf download NAME` leaves it in the cache."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc", encoding="utf-8")
    config = {
        "model_type": "qwen3_vl",
        "vision_config": {"patch_size": 16, "spatial_merge_size": 2},
        "image_token_id": 5,
    }
    (snapshot / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (snapshot / "preprocessor_config.json").write_text("{}", encoding="utf-8")
    (snapshot / "tokenizer.json").touch()
    write_weights(snapshot, 0.0)
    return snapshot


def write_weights(model: Path, value: float) -> None:
    save_file({"weight": np.full(2, value, np.float32)}, model / "model.safetensors")


def test_a_model_is_a_folder_or_a_name_in_the_hugging_face_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = write_hub_checkpoint(tmp_path / "cache", "Org/Some-VL")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(snapshot)
    seen: list[stored.StoredVersion] = []

    async def evaluate_nothing(version: StoredVersion, *_: object, **__: object) -> StoredEvaluation:
        seen.append(version)
        raise RecipeError("no desktops in this test")

    monkeypatch.setattr(stored, "evaluate", evaluate_nothing)
    for model in ("Org/Some-VL", "link"):
        ended = CliRunner().invoke(app, ["eval", model, "--recipe", str(DEMO)])
        assert ended.exit_code == EXIT_WRONG_INPUT
        assert "no desktops in this test" in ended.stderr
    by_name, by_folder = seen
    assert (by_name.source, by_folder.source) == ("Org/Some-VL", str(snapshot))
    assert by_name.start == by_folder.start == snapshot
    assert by_name.folder.name.startswith("Some-VL-")
    assert by_name.folder != by_folder.folder
    assert by_name.digest == by_folder.digest == weights_digest(snapshot)
    write_weights(snapshot, 1.0)
    CliRunner().invoke(app, ["eval", "Org/Some-VL", "--recipe", str(DEMO)])
    assert seen[-1].start == snapshot
    assert seen[-1].folder != by_name.folder, "other weights at the same place are another model"
    missing = CliRunner().invoke(app, ["eval", "Org/Other-VL", "--recipe", str(DEMO)])
    assert missing.exit_code == EXIT_WRONG_INPUT
    assert "`hf download Org/Other-VL`" in missing.stderr


async def test_a_version_is_exported_with_its_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = await finished_run(tmp_path, monkeypatch)
    await evaluated(harness, monkeypatch, TEST, lambda item: float("press_nth" in item.task_id))
    version = version_of_run(harness.paths, harness.recipe, "best")
    assert version.record is not None
    weights = Path(version.record.path)
    (weights / "README.md").write_text("---\ntags: [dart]\n---\n\n# r, policy version 2\n", encoding="utf-8")
    TrainingOrigin(updates=2).write(weights)
    out = tmp_path / "exported"
    assert [each["split"] for each in export_version(version, out)] == ["test"]
    assert {*os.listdir(weights)} - {*os.listdir(out)} == {ORIGIN_FILE}, "the model begins as one of another run"
    card = (out / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\ntags: [dart]\n---\n\n# r, policy version 2\n\n## Evaluation\n")
    assert "| validation | in the run itself, which chooses by it | | 100.0 %" in card
    assert "| test | press_nth | 3 | 100.0 % (" in card
    assert "| use 1 of the test split |" in card
    with pytest.raises(RecipeError, match="is not empty"):
        export_version(version, out)
    other = version_of_run(harness.paths, harness.recipe, "1")
    assert export_version(other, tmp_path / "other") == []
    assert "have not been evaluated" in (tmp_path / "other" / "README.md").read_text(encoding="utf-8")


def test_the_command_export_refuses_what_is_no_run(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["export", str(tmp_path), str(tmp_path / "out")])
    assert shown.exit_code == EXIT_WRONG_INPUT
    assert "is not a run directory" in shown.stderr
