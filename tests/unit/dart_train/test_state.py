"""A run directory belongs to one recipe and one launcher at a time, and remembers what is done."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from dart_envs.clock import SYSTEM_CLOCK
from dart_train.cli import app
from dart_train.config import DataSection, Recipe, RecipeError
from dart_train.data_manager.store import database
from dart_train.run import preflight
from dart_train.run.lock import run_lock
from dart_train.run.paths import RunPaths
from dart_train.run.run_folder import EXECUTION, check_run_folder, open_run_directory
from dart_train.run.state import RunState, load_resolved_recipe
from dart_train.trainer.checkpoint import CheckpointStore


def recipe(
    *,
    train: dict[str, object] | None = None,
    limits: dict[str, object] | None = None,
    eval: dict[str, object] | None = None,
    **run: object,
) -> Recipe:
    return Recipe.model_validate(
        {
            "run": {"name": "r", **run},
            "tasks": {"families": ["press_nth"]},
            "model": {"preset": "tiny"},
            "train": train or {},
            "limits": limits or {},
            "eval": eval or {},
        }
    )


def finish(paths: RunPaths, *stages: str, **settings: dict[str, object]) -> None:
    """A run folder in which some stages are finished."""
    state = open_run_directory(recipe(**settings), paths)  # type: ignore[arg-type]
    state.stages_s.update(dict.fromkeys(stages, 1.0))
    state.save(paths.state)


def test_the_same_recipe_continues(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    state = open_run_directory(recipe(), paths)
    state.stages_s["demos"] = 3.0
    state.save(paths.state)
    assert open_run_directory(recipe(), paths).stages_s == {"demos": 3.0}


def test_another_recipe_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    finish(paths, "demos")
    with pytest.raises(RecipeError, match=r"run.seed 0 \(now 1\): .* start a new run with --name"):
        open_run_directory(recipe(seed=1), paths)


def test_a_recipe_can_be_corrected_while_no_stage_is_finished(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    open_run_directory(recipe(), paths)
    for left in (paths.database, paths.root / "data.db-wal", paths.metrics, paths.screens / "0.json"):
        left.parent.mkdir(exist_ok=True)
        left.write_text("of the earlier settings")
    (paths.logs / "demos.log").write_text("why it failed")
    state = open_run_directory(recipe(seed=1), paths)
    assert state == RunState()
    assert sorted(path.name for path in paths.root.rglob("*") if path.is_file()) == [
        "demos.log",
        "resolved.json",
        "run-id",
        "state.json",
    ]
    finish(paths, "demos", seed=1)


def test_an_unfinished_first_stage_goes_on_with_other_desktops_limits_and_more_updates(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    open_run_directory(recipe(), paths)
    paths.database.write_text("episodes")
    before = recipe()
    other = before.model_copy(
        update={
            "desktops": before.desktops.model_copy(update={"count": before.desktops.count + 1}),
            "limits": before.limits.model_copy(update={"pause_disk_gib": 9.0}),
            "train": before.train.model_copy(update={"updates": before.train.updates + 1}),
        }
    )
    open_run_directory(other, paths)
    assert paths.database.read_text() == "episodes"
    assert load_resolved_recipe(paths).desktops.count == other.desktops.count
    open_run_directory(other.model_copy(update={"run": other.run.model_copy(update={"seed": 1})}), paths)
    assert not paths.database.exists()


def test_an_unfinished_run_cannot_be_pointed_at_the_database_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(name: str | None) -> Recipe:
        url = None if name is None else f"postgresql://u@h/{name}"
        return recipe().model_copy(update={"data": DataSection(database_url=url)})

    removed: list[str] = []
    monkeypatch.setattr(database, "holds_results", lambda url: url.endswith("/other"))
    monkeypatch.setattr(database, "remove_results", removed.append)
    for before in (None, "own"):
        paths = RunPaths(tmp_path / str(before))
        open_run_directory(at(before), paths)
        with pytest.raises(RecipeError, match=r"h/other holds another run: give each run a database of its own"):
            open_run_directory(at("other"), paths)
        open_run_directory(at("new"), paths)
    assert removed == ["postgresql://u@h/own"], "only what was this run's"


def test_what_changes_no_result_may_change(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    finish(paths, "demos")
    assert open_run_directory(recipe(limits={"min_free_disk_gib": 1}), paths).stages_s == {"demos": 1.0}


def test_how_much_memory_is_used_may_change_and_what_is_learned_may_not(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    finish(paths, "demos")
    smaller = {"micro_batch_tokens": 1024, "gradient_checkpointing": True, "processes": 2, "checkpoint_every": 3}
    assert open_run_directory(recipe(train=smaller), paths).stages_s == {"demos": 1.0}
    with pytest.raises(RecipeError, match=r"train\.learning_rate"):
        open_run_directory(recipe(train=smaller | {"learning_rate": 1e-5}), paths)


def test_settings_of_the_execution_are_those_of_a_recipe() -> None:
    plain = recipe().model_dump()
    assert [name for name in EXECUTION if name.partition(".")[2] not in plain[name.partition(".")[0]]] == []


def test_a_finished_run_is_extended_by_more_updates(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    finish(paths, "demos", "train", "eval-after", train={"updates": 2})
    longer = recipe(train={"updates": 4})
    state = open_run_directory(longer, paths)
    assert state.stages_s == {"demos": 1.0}
    assert [state.phase_name(name) for name in ("train", "eval-after", "eval-before")] == [
        "train-2",
        "eval-after-2",
        "eval-before",
    ]
    assert open_run_directory(longer, paths) == state, "the same command again begins nothing anew"
    with pytest.raises(RecipeError, match=r"train.updates 4 \(now 1\).*can be raised"):
        check_run_folder(recipe(train={"updates": 1}), paths)


def test_an_extension_evaluates_anew_what_the_policy_of_before_had_begun(tmp_path: Path) -> None:
    """The evaluation after training was interrupted: its phase has episodes of a policy that is trained on now."""
    paths = RunPaths(tmp_path / "r")
    finish(paths, "demos", "train", train={"updates": 2})
    state = RunState.load(paths.state)
    state.unfinished_s["eval-after"] = 60.0
    state.save(paths.state)
    state = open_run_directory(recipe(train={"updates": 4}), paths)
    assert state.phase_name("eval-after") == "eval-after-2"
    assert state.unfinished_s == {"train": 1.0}


def test_a_test_that_has_begun_keeps_its_number_of_episodes(tmp_path: Path) -> None:
    """What began it may have been killed, so that the files do not tell; a run without a test may still get one."""
    paths = RunPaths(tmp_path / "r")
    finish(paths, "demos", "train", train={"updates": 2}, eval={"test_episodes": 8})
    open_run_directory(recipe(train={"updates": 2}, eval={"test_episodes": 9}), paths)
    finish(paths, "demos", "train", "eval-after", train={"updates": 2}, eval={"test_episodes": 9})
    for other in (0, 8):
        with pytest.raises(RecipeError, match=r"has begun with 9 episodes: keep that number.* --split test --tasks N"):
            check_run_folder(recipe(train={"updates": 2}, eval={"test_episodes": other}), paths)
    check_run_folder(recipe(train={"updates": 3}, eval={"test_episodes": 8}), paths)
    untested = RunPaths(tmp_path / "s")
    finish(untested, "demos", "train", "eval-after", train={"updates": 2}, eval={"test_episodes": 0})
    check_run_folder(recipe(train={"updates": 2}, eval={"test_episodes": 8}), untested)


def test_the_command_for_another_test_has_only_options_that_exist(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    finish(paths, "demos", "train", "eval-after", train={"updates": 2}, eval={"test_episodes": 9})
    with pytest.raises(RecipeError) as caught:
        check_run_folder(recipe(train={"updates": 2}, eval={"test_episodes": 8}), paths)
    _, _, told = str(caught.value).partition("use dart-train ")
    name, *arguments = told.replace(" N ", " 8 ").split()
    context = get_group(app).commands[name].make_context(name, arguments)
    assert (context.params["episodes"], context.params["again"]) == (8, True)


def test_a_process_that_is_killed_loses_no_time_of_those_before_it(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state = RunState(unfinished_s={"train": 60.0})
    with state.timed_stage("train", SYSTEM_CLOCK):
        state.save(path)  # as a restart of a component does
    assert RunState.load(path).unfinished_s == {"train": 60.0}
    assert (list(state.stages_s), state.unfinished_s) == (["train"], {})


def test_an_extension_that_another_limit_would_stop_is_refused_with_the_fix(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    finish(paths, "demos", "train", train={"updates": 2, "max_minutes": 10})
    CheckpointStore(paths.checkpoints, keep=1).save_trained_s(720.0)
    (paths.checkpoints / "update00000002").mkdir()
    with pytest.raises(
        RecipeError, match=r"has trained for 12\.0 minutes, and 10 are allowed: raise train.max_minutes, too"
    ):
        check_run_folder(recipe(train={"updates": 4, "max_minutes": 10}), paths)
    with pytest.raises(RecipeError, match=r"has made 2 updates, and 2 are allowed: raise train.updates, too"):
        check_run_folder(recipe(train={"updates": 2, "max_minutes": 20}), paths)
    check_run_folder(recipe(train={"updates": 4, "max_minutes": 20}), paths)


OLD_FILES = [
    ("state.json", {"stages_s": {"demos": 3.0}, "incidents": []}),
    ("resolved.json", {"run": {"name": "r", "seed": 0}, "warmup": {"procedure_share": 0.5}}),
    ("resolved.json", {"format": 1, "recipe": {"train": {"micro_batch_rows": 4}}}),
]
"""What `dart-train run` wrote before the files had a format number, or with settings that are gone."""


@pytest.mark.parametrize(("name", "content"), OLD_FILES)
def test_a_run_folder_of_an_older_version_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: dict[str, object]
) -> None:
    paths = RunPaths(tmp_path / "r")
    open_run_directory(recipe(), paths)
    (paths.root / name).write_text(json.dumps(content))
    with pytest.raises(RecipeError) as refusal:
        open_run_directory(recipe(), paths)
    assert str(refusal.value) == (
        f"{paths.root}: this run folder was made by an older version of DART; start a new run with --name, or delete it"
    )


def test_an_old_run_folder_is_refused_by_the_command_before_anything_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_check(*_: object) -> None:
        pytest.fail("the host was checked first")

    monkeypatch.setattr(preflight, "check_recipe", no_check)
    folder = tmp_path / "runs" / "r"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps(OLD_FILES[0][1]))
    (tmp_path / "r.toml").write_text('[run]\nname = "x"\n[tasks]\nfamilies = ["press_nth"]\n[model]\npreset = "tiny"\n')
    arguments = ["run", str(tmp_path / "r.toml"), "--name", "r", "--runs-dir", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    (sentence,) = result.stderr.strip().splitlines()
    assert "made by an older version of DART; start a new run with --name, or delete it" in sentence


def test_a_second_launcher_is_refused(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    with run_lock(paths), pytest.raises(RecipeError, match="another dart-train"), run_lock(paths):
        pass


def test_a_new_run_has_done_nothing(tmp_path: Path) -> None:
    assert RunState.load(tmp_path / "state.json") == RunState()


def test_the_page_of_directories_names_everything_in_a_run_directory(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    values = (getattr(paths, name) for name, member in vars(RunPaths).items() if isinstance(member, property))
    entries = {value.relative_to(tmp_path).parts[0] for value in values if str(value).startswith(f"{tmp_path}/")}
    text = (Path(__file__).resolve().parents[3] / "docs" / "directories.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## Run directory")
    told = {
        word.partition("/")[0] for word in re.split(r"[\s;,]+", section) if re.match(r"[a-z-]+(/|\.\w+$|-id$)", word)
    }
    assert entries == told - {"runs", "index.html", "result.json"}


def test_a_killed_launcher_is_an_incident_of_the_next_one(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    killed = open_run_directory(recipe(), paths).held_by_launcher(paths.state)
    killed.__enter__()  # never left, as by SIGKILL
    state = open_run_directory(recipe(), paths)
    with state.held_by_launcher(paths.state):
        assert len(state.incidents) == 1
        assert f"process {os.getpid()}) ended without stopping" in state.incidents[0]
    after = open_run_directory(recipe(), paths)
    with after.held_by_launcher(paths.state):
        assert after.incidents == state.incidents


def test_a_dry_run_names_the_settings_that_differ_from_the_run_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "check_recipe", lambda *_: None)
    finish(RunPaths(tmp_path / "runs" / "r"), "demos")
    file = tmp_path / "r.toml"
    file.write_text('[run]\nname = "r"\nseed = 7\n[tasks]\nfamilies = ["press_nth"]\n[model]\npreset = "tiny"\n')
    result = CliRunner().invoke(app, ["run", str(file), "--dry-run", "--runs-dir", str(tmp_path / "runs")])
    assert result.exit_code == 2
    assert "other settings, run.seed 0 (now 7):" in result.stderr
