"""What a run cannot work with is said before anything starts: the farm's own doctor is asked, and a farm that is there is looked at."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from served_farm import free_port, served_farm

from dart_envs import tasks
from dart_train.config import Recipe, RecipeError
from dart_train.run import farm
from dart_train.run.paths import RunPaths
from dart_train.run.preflight import check_recipe
from dart_train.run.state import RunState

BASICS = tasks.load_suite("basics")


def recipe(**sections: Any) -> Recipe:
    values: dict[str, Any] = {
        "run": {"name": "r"},
        "desktops": {"provider": "sim"},
        "tasks": {"families": ["press_nth", "tick_nth"]},
        "model": {"preset": "tiny"},
        "limits": {"min_free_disk_gib": 0, "min_free_memory_gib": 0},
    }
    return Recipe.model_validate(values | sections)


def complaints(checked: Recipe, folder: Path) -> list[str]:
    """The sentences of the preflight; none where the recipe passes."""
    try:
        check_recipe(checked, RunPaths(folder / "r"))
    except RecipeError as error:
        return str(error).splitlines()
    return []


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory of its own (short: it holds sockets), and a home without images."""
    with tempfile.TemporaryDirectory(prefix="dart-") as folder:
        monkeypatch.setenv("DART_RUNTIME_DIR", folder)
        monkeypatch.setenv("DART_HOME", f"{folder}/home")
        monkeypatch.delenv("DART_FARM_URL", raising=False)
        for name in ("DART_PROVIDER", "DART_MAX_DESKTOPS"):
            monkeypatch.delenv(name, raising=False)
        yield Path(folder)


def test_a_recipe_that_fits_passes_and_starts_no_farm(place: Path, tmp_path: Path) -> None:
    assert complaints(recipe(), tmp_path) == []
    assert not (place / "farm.sock").exists()


def test_packages_for_tracking_are_missed_before_anything_starts(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("tensorboard", "wandb") else found(name)
    )
    assert complaints(recipe(), tmp_path) == []
    told = complaints(recipe(tracking={"tensorboard": True, "wandb": "online"}), tmp_path)
    assert [re.search(r"package (\w+) is not installed: pip install .*\[\1\]", each) is not None for each in told] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("sections", "key", "largest"),
    [
        (
            {"demos": {"per_family": 100_000}},
            "demos.per_family",
            min(len(BASICS.tasks("train", [name])) for name in ("press_nth", "tick_nth")),
        ),
        ({"eval": {"episodes": 100_000}}, "eval.episodes", len(BASICS.tasks("validation", ["press_nth", "tick_nth"]))),
        (
            {"eval": {"baseline_episodes": 100_000}},
            "eval.baseline_episodes",
            len(BASICS.tasks("validation", ["press_nth", "tick_nth"])),
        ),
    ],
)
def test_counts_must_fit_the_splits(
    place: Path, tmp_path: Path, sections: dict[str, Any], key: str, largest: int
) -> None:
    (sentence,) = complaints(recipe(**sections), tmp_path)
    assert sentence.startswith(f"{key}: 100000 are asked for")
    assert sentence.endswith(f"give at most {largest}")
    section, name = key.split(".")
    assert complaints(recipe(**{section: {name: largest}}), tmp_path) == []


def test_families_must_be_there_to_train_on_and_named_once(tmp_path: Path) -> None:
    (held_out,) = complaints(recipe(tasks={"families": ["press_nth", "pick_day"]}), tmp_path)
    assert "pick_day is for tests only" in held_out
    (twice,) = complaints(recipe(tasks={"families": ["press_nth", "press_nth"]}), tmp_path)
    assert "named twice" in twice


def test_a_host_without_an_image_is_refused_with_the_farms_own_cure(place: Path, tmp_path: Path) -> None:
    found = complaints(recipe(desktops={"provider": "runc"}), tmp_path)
    assert [line for line in found if line.startswith("images: no desktop image is installed") and "make setup" in line]


def test_too_little_room_for_snapshots_is_refused(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DART_SNAPSHOT_QUOTA_BYTES", str(2**60))
    found = complaints(recipe(desktops={"provider": "runc"}), tmp_path)
    assert [line for line in found if line.startswith("snapshot space:") and "DART_SNAPSHOT_QUOTA_BYTES" in line]


def test_a_wrong_setting_of_the_farm_is_refused(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DART_MAX_DESKTOPS", "many")
    (sentence,) = complaints(recipe(), tmp_path)
    assert "DART_MAX_DESKTOPS" in sentence
    assert "Traceback" not in sentence


def test_the_recipes_own_image_must_be_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current = place / "home" / "images" / "office" / "current"
    current.mkdir(parents=True)
    (current / "manifest.json").write_text(json.dumps({"digest": "d"}))
    monkeypatch.setattr(farm, "_host_problems", lambda recipe: [])
    (sentence,) = farm.problems(recipe(desktops={"provider": "runc"}))
    assert sentence.startswith("desktops.image: basic is not installed (there is office)")
    assert farm.problems(recipe(desktops={"provider": "runc", "image": "office"})) == []


def test_a_farm_that_runs_is_looked_at(place: Path) -> None:
    with served_farm(place, provider="sim", max_desktops=4):
        (runs_sim,) = farm.problems(recipe(desktops={"provider": "runc"}))
        assert "the farm runs sim desktops, the recipe asks for runc" in runs_sim
        (too_small,) = farm.problems(recipe(desktops={"provider": "sim", "count": 5}))
        assert "at most 4 desktops, the recipe asks for 5" in too_small
        assert farm.problems(recipe()) == []


def test_a_farm_of_this_user_on_a_port_is_named(place: Path) -> None:
    with served_farm(place, provider="sim", port=free_port()):
        (sentence,) = farm.problems(recipe())
    assert "set DART_FARM_URL and DART_API_KEY to use it, or stop it with dart-farm stop" in sentence


def test_a_farm_elsewhere_must_answer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DART_FARM_URL", f"unix://{place}/nobody.sock")
    (sentence,) = farm.problems(recipe())
    assert sentence.startswith("DART_FARM_URL: ")


async def test_the_recipe_names_a_farm_elsewhere_and_the_environment_goes_first(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = recipe(desktops={"provider": "sim", "farm": f"unix://{place}/farm.sock"})
    absent = recipe(desktops={"provider": "sim", "farm": f"unix://{place}/nobody.sock"})
    monkeypatch.delenv("DART_FARM_URL", raising=False)
    (sentence,) = await asyncio.to_thread(farm.problems, absent)
    assert sentence.startswith("desktops.farm: ")
    with served_farm(place, provider="sim", max_desktops=4):
        assert await asyncio.to_thread(farm.problems, named) == []
        monkeypatch.setenv("DART_FARM_URL", f"unix://{place}/farm.sock")
        assert await asyncio.to_thread(farm.problems, absent) == []
        monkeypatch.delenv("DART_FARM_URL")
        async with farm.farm_session(named, lambda _: None):
            assert os.environ["DART_FARM_URL"] == named.desktops.farm
        assert "DART_FARM_URL" not in os.environ


def test_a_socket_that_a_killed_farm_left_is_no_farm(place: Path) -> None:
    (place / "farm.sock").touch()
    assert farm.problems(recipe()) == []


async def test_an_embedded_farm_is_stopped_at_the_end_also_where_a_killed_one_left_its_socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(place / "farm.sock"))
    notes: list[str] = []
    async with farm.farm_session(recipe(), notes.append):
        assert await farm._running_farm() is not None
    assert await farm._running_farm() is None
    assert "found running" not in notes[0]


def test_a_suite_of_another_image_is_refused_with_the_fix(place: Path, tmp_path: Path) -> None:
    (sentence,) = complaints(recipe(tasks={"suite": "office", "families": ["calc_enter"]}), tmp_path)
    assert "office is made for the image desktop, and desktops.image is basic" in sentence
    assert 'set desktops.image = "desktop"' in sentence


def test_a_warm_start_needs_names_of_the_suite(place: Path, tmp_path: Path) -> None:
    desktops = {"provider": "sim", "image": "desktop"}
    office = {"suite": "office", "families": ["calc_enter"]}
    (sentence,) = complaints(recipe(tasks=office, desktops=desktops), tmp_path)
    assert sentence.startswith("warmup.enabled: the suite office has no names for the elements of a screen")


def test_a_folder_of_demonstrations_must_be_there(place: Path, tmp_path: Path) -> None:
    asked = recipe(demos={"path": str(tmp_path / "none")}, train={"sft_coefficient": 0.1})
    assert any(sentence.startswith("demos.path: there is no folder") for sentence in complaints(asked, tmp_path))
    (tmp_path / "none").mkdir()
    assert not any(sentence.startswith("demos.path") for sentence in complaints(asked, tmp_path))


def test_a_run_that_goes_on_needs_no_more_space_than_it_pauses_at(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = recipe(limits={"min_free_disk_gib": 40, "pause_disk_gib": 2, "min_free_memory_gib": 0})
    monkeypatch.setattr(
        "shutil.disk_usage", lambda _: SimpleNamespace(total=100 * 2**30, used=97 * 2**30, free=3 * 2**30)
    )
    assert any(
        "asks for 40: free some space or lower limits.min_free_disk_gib" in one for one in complaints(asked, tmp_path)
    )
    (tmp_path / "r").mkdir()
    state = RunState()
    state.stages_s["demos"] = 1.0
    state.save(RunPaths(tmp_path / "r").state)
    assert not any("GiB free" in one for one in complaints(asked, tmp_path))
