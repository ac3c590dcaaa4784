"""Predictions of `dart-train plan` against real models and files, and proposals that mend what does not fit."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from trainer_harness import batch_of, config_of, tiny_model
from typer.testing import CliRunner

from dart_agent.data_client.image_store import ImageStore
from dart_agent.grounding.head import ActionHead
from dart_train.cli import app
from dart_train.config import Recipe, RecipeError, load_recipe
from dart_train.grounding.config import OFFSET_PARTS
from dart_train.model.adapters import LoraSettings, attach_adapter
from dart_train.model.layouts import LAYOUTS, build, count_parameters, layout_config
from dart_train.plan import command as plan_command
from dart_train.plan.forecast import DiskForecast, TimeForecast, forecast_disk, forecast_time
from dart_train.plan.host import (
    IMAGE_CACHES,
    USUAL_DESKTOP_BYTES,
    HostResources,
    host_memory,
    loading_memory,
    rollback_memory,
)
from dart_train.plan.latencies import Assumptions, passes, recipe_models, version_bytes
from dart_train.plan.memory import (
    GIB,
    EngineMemory,
    engine_memory,
    trained_parameters,
    trainer_memory,
)
from dart_train.plan.policy_size import PolicySize, read_policy_size
from dart_train.plan.verdict import find_problems, time_notes, time_problems, trainer_room
from dart_train.trainer.trainer import Trainer

RECIPES = Path(__file__).resolve().parents[4] / "dart_train" / "recipes"
LARGE = HostResources(gpu_bytes=80 * GIB, memory_bytes=2000 * GIB, disk_bytes=2000 * GIB)
NO_DISK = DiskForecast(0, 0, 0, 0.0, 0)


def _planned(name: str) -> tuple[Recipe, PolicySize, EngineMemory]:
    recipe = recipe_of(name)
    size = read_policy_size(recipe)
    return recipe, size, engine_memory(recipe, size, 80 * GIB)


def recipe_of(name: str, *overrides: str) -> Recipe:
    return load_recipe(RECIPES / f"{name}.toml", overrides)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recipe, PolicySize]:
    """A small checkpoint on disk, a recipe on it, and its size."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("plan")
    directory, _ = tiny_model(root)
    recipe = recipe_of(
        "qwen3-vl-8b-1gpu",
        f'model.path="{directory}"',
        "model.max_pixels=none",
        "train.lora_rank=none",
        "inference.publish=model",
    )
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"dtype": "float32", "device": "cpu"})})
    return directory, recipe, read_policy_size(recipe)


@pytest.mark.parametrize(
    ("layout", "total"),
    [
        ("qwen2-vl-2b", 2_208_985_600),
        ("qwen2-vl-7b", 8_291_375_616),
        ("qwen2.5-vl-3b", 3_754_622_976),
        ("qwen2.5-vl-7b", 8_292_166_656),
        ("qwen3-vl-8b", 8_767_123_696),
    ],
)
def test_published_layouts_have_their_published_numbers_of_parameters(layout: str, total: int) -> None:
    assert count_parameters(layout_config(layout)).total == total


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_counts_are_those_of_a_model_that_is_there(layout: str) -> None:
    loaded = build(layout, "cpu", tiny=True)
    counts = count_parameters(layout_config(layout, tiny=True))
    assert counts.total == sum(parameter.numel() for parameter in loaded.model.parameters())
    adapted = attach_adapter(loaded, LoraSettings(rank=4))
    trained = sum(parameter.numel() for parameter in adapted.model.parameters() if parameter.requires_grad)
    assert sum(4 * (rows + columns) for rows, columns in counts.linear) == trained


def test_weights_gradients_and_optimizer_are_those_of_a_real_trainer(
    tiny: tuple[Path, Recipe, PolicySize], tmp_path: Path
) -> None:
    directory, recipe, size = tiny
    images = ImageStore(tmp_path / "images")
    trainer = Trainer(config_of(tmp_path, directory), images)
    trainer.setup(str(directory), 0, None)
    _, loaded = tiny_model(tmp_path / "again")
    trainer.step(batch_of(loaded, images))
    tensors = trainer._policy.tensors()
    weights = sum(value.nbytes for name, value in tensors.items() if name.startswith("model."))
    moments = sum(value.nbytes for name, value in tensors.items() if "exp_avg" in name)
    predicted = trainer_memory(recipe, size)
    assert (predicted.trained_weights, predicted.gradients, predicted.optimizer) == (weights, weights, moments)
    assert predicted.frozen_weights == 0


def test_a_published_version_has_the_predicted_size(tiny: tuple[Path, Recipe, PolicySize]) -> None:
    directory, recipe, size = tiny
    as_trained = recipe.model_copy(
        update={"inference": recipe.inference.model_copy(update={"transfer_dtype": "as_trained"})}
    )
    files = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    assert version_bytes(as_trained, size) == pytest.approx(files, rel=0.02)


def test_a_gpu_that_is_shared_has_less_room() -> None:
    shared, own = recipe_of("qwen3-vl-8b-1gpu"), recipe_of("qwen3-vl-8b-8gpu")
    assert (trainer_room(shared, LARGE), trainer_room(own, LARGE)) == (40 * GIB, 80 * GIB)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*gpu.toml")), ids=lambda path: path.stem)
def test_a_shipped_recipe_fits_gpus_of_80_gib(path: Path) -> None:
    recipe = load_recipe(path)
    size = read_policy_size(recipe)
    assert find_problems(recipe, size, engine_memory(recipe, size, LARGE.gpu_bytes), NO_DISK, LARGE) == []


@pytest.mark.parametrize(
    ("name", "overrides", "gpu_gib"),
    [
        ("ui-tars-1.5-7b-8gpu", ("train.gradient_checkpointing=false",), 80),
        ("ui-tars-1.5-7b-8gpu", (), 32),
        ("ui-tars-1.5-7b-8gpu", ("train.processes=1", "train.devices=[4]"), 80),
        ("qwen3-vl-8b-4gpu", ("train.micro_batch_tokens=128000",), 80),
    ],
)
def test_every_change_that_is_proposed_for_the_trainer_mends_it(
    name: str, overrides: tuple[str, ...], gpu_gib: int
) -> None:
    recipe = recipe_of(name, *overrides)
    size, host = read_policy_size(recipe), replace(LARGE, gpu_bytes=gpu_gib * GIB)
    engine = engine_memory(recipe, size, 80 * GIB)
    (problem,) = find_problems(recipe, size, engine, NO_DISK, host)
    assert problem.startswith("trainer: a process takes about")
    proposals = [
        dict(re.findall(r"train\.(\w+) = (\w+)", each)) for each in problem.partition("set ")[2].split("; or ")
    ]
    assert proposals
    for proposal in proposals:
        changes = {
            key: value == "true" if value in ("true", "false") else int(value) for key, value in proposal.items()
        }
        mended = recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})
        assert find_problems(mended, size, engine, NO_DISK, host) == []


def test_engine_context_disk_and_desktops_that_do_not_fit_are_told() -> None:
    recipe = recipe_of("ui-tars-1.5-7b-8gpu", "inference.max_model_len=12000")
    size = read_policy_size(recipe)
    small = engine_memory(recipe, size, 18 * GIB)
    host = replace(LARGE, memory_bytes=20 * GIB, disk_bytes=GIB)
    disk = DiskForecast(checkpoints=GIB, versions=GIB, images=0, steps=0.0, being_written=GIB)
    told = find_problems(recipe, size, small, disk, host)
    assert [each.partition(":")[0] for each in told] == ["context", "inference", "host memory", "disk", "desktops"]
    assert "set inference.tensor_parallel = 2" in told[1]
    assert "set desktops.count = 10" in told[4]


def test_each_process_of_an_adapter_holds_the_whole_policy() -> None:
    alone = recipe_of("ui-tars-1.5-7b-1gpu")
    several = recipe_of("ui-tars-1.5-7b-1gpu", "train.processes=4", "train.devices=[0, 1, 2, 3]")
    size = read_policy_size(alone)
    assert trainer_memory(several, size) == trainer_memory(alone, size)
    assert loading_memory(several, size) == 4 * loading_memory(alone, size)


def test_processes_that_load_whole_models_need_host_memory() -> None:
    recipe = recipe_of("ui-tars-1.5-7b-8gpu")
    size = read_policy_size(recipe)
    of_one = size.parameters.total * 2 + 4 * size.parameters.embeddings + 4 * GIB
    assert loading_memory(recipe, size) == 6 * of_one
    engine = engine_memory(recipe, size, 80 * GIB)
    (problem,) = find_problems(recipe, size, engine, NO_DISK, replace(LARGE, memory_bytes=6 * of_one - 1))
    assert problem.startswith("host memory: the 6 processes of the trainer")
    alone = recipe_of("ui-tars-1.5-7b-1gpu")
    assert loading_memory(alone, read_policy_size(alone)) == 4 * GIB


def test_parts_that_fit_alone_may_not_fit_together() -> None:
    recipe = recipe_of("ui-tars-1.5-7b-8gpu")
    size, engine = read_policy_size(recipe), EngineMemory(GIB, GIB, GIB, GIB, 10**6)
    memory = host_memory(recipe, size, engine, LARGE)
    assert memory.trainer == loading_memory(recipe, size)
    assert memory.inference == recipe.inference.workers * IMAGE_CACHES * 4 * GIB, "of 5 screenshots for 32 requests"
    assert memory.desktops == 40 * USUAL_DESKTOP_BYTES
    exact = replace(LARGE, memory_bytes=memory.total)
    assert find_problems(recipe, size, engine, NO_DISK, exact) == []
    less = replace(LARGE, memory_bytes=memory.total - 1)
    (problem,) = find_problems(recipe, size, engine, NO_DISK, less)
    assert problem.startswith(
        "host memory: trainer (141.0 GiB), inference workers (16.0) and desktops (20.0) take about 177 GiB together"
    )
    assert problem.endswith("desktops.count, or set desktops.farm to a farm on another host")
    elsewhere = recipe_of("ui-tars-1.5-7b-8gpu", 'desktops.farm="http://127.0.0.1:1"')
    assert find_problems(elsewhere, size, engine, NO_DISK, less) == []


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*gpu.toml")), ids=lambda path: path.stem)
def test_recipes_ask_for_what_they_take(path: Path) -> None:
    """A dry run compares these limits with the host: the memory of all parts together, and what a run leaves on the disk."""
    recipe = load_recipe(path)
    size = read_policy_size(recipe)
    engine = engine_memory(recipe, size, 80 * GIB)
    assert host_memory(recipe, size, engine, LARGE).total <= recipe.limits.min_free_memory_gib * GIB
    time = forecast_time(recipe, size, engine, Assumptions())
    disk = forecast_disk(recipe, size, time, Assumptions())
    taken = disk.needed(recipe.limits.pause_disk_gib * GIB)
    assert taken <= recipe.limits.min_free_disk_gib * GIB


def test_an_action_head_is_counted(tiny: tuple[Path, Recipe, PolicySize]) -> None:
    _, recipe, size = tiny
    sharded = recipe_of(
        "ui-tars-1.5-7b-4gpu", "model.pointer=true", "train.kl_coefficient=0", "eval.baseline_episodes=0"
    )
    whole = read_policy_size(sharded)
    head = ActionHead(3584, OFFSET_PARTS)
    assert whole.head == sum(parameter.numel() for parameter in head.parameters())
    plain = replace(whole, head=0)
    with_head, without = trainer_memory(sharded, whole), trainer_memory(sharded, plain)
    assert with_head.optimizer - without.optimizer == 8 * whole.head, "each process has the whole head"
    assert version_bytes(sharded, whole) - version_bytes(sharded, plain) == 4 * whole.head, "it stays float32"
    assert size.head == 0
    assert recipe.trainer_shards == 1


def test_log_probs_before_several_updates_are_a_pass_per_epoch() -> None:
    def count(*changes: str) -> float:
        entropies = ("curation.high_entropy_step_fraction=1.0", "curation.high_entropy_token_fraction=1.0")
        return passes(recipe_of("ui-tars-1.5-7b-4gpu", *entropies, *changes))

    once = count()
    assert count("train.minibatches=2") - once == 1
    trained = count("train.epochs=2") - once - 2
    assert trained in (3, 4), "forward, backward, and activations that are computed again"
    assert count("curation.high_entropy_step_fraction=0.8") - once == 1


def test_the_copy_that_several_optimiser_steps_keep_needs_host_memory() -> None:
    recipe = recipe_of("ui-tars-1.5-7b-4gpu", "train.minibatches=2")
    size = read_policy_size(recipe)
    assert rollback_memory(recipe_of("ui-tars-1.5-7b-4gpu"), size) == 0
    copied = rollback_memory(recipe, size)
    assert copied == pytest.approx(12 * trained_parameters(recipe, size), rel=1e-6), "over all processes"
    engine = engine_memory(recipe, size, 80 * GIB)
    host = replace(LARGE, memory_bytes=copied - 1)
    told = [each for each in find_problems(recipe, size, engine, NO_DISK, host) if "train.minibatches = 1" in each]
    assert len(told) == 1


def test_quantised_matrices_take_a_byte_per_weight_and_are_proposed_where_a_worker_does_not_fit() -> None:
    plain = recipe_of("ui-tars-1.5-7b-8gpu")
    quantised = recipe_of("ui-tars-1.5-7b-8gpu", "inference.quantization=fp8_per_channel")
    size = read_policy_size(plain)
    before, after = (engine_memory(recipe, size, 18 * GIB) for recipe in (plain, quantised))
    in_matrices = sum(rows * columns for rows, columns in size.parameters.linear)
    assert in_matrices > 0.75 * size.parameters.total
    assert before.weights - after.weights == in_matrices
    host = replace(LARGE, gpu_bytes=18 * GIB)
    (problem,) = (each for each in find_problems(plain, size, before, NO_DISK, host) if each.startswith("inference"))
    assert 'set inference.quantization = "fp8_per_channel"' in problem
    assert not [each for each in find_problems(quantised, size, after, NO_DISK, host) if each.startswith("inference")]
    uncorrected = recipe_of("ui-tars-1.5-7b-8gpu", "train.correction=none")
    (problem,) = (e for e in find_problems(uncorrected, size, before, NO_DISK, host) if e.startswith("inference"))
    assert "quantization" not in problem, "what a recipe refuses is not proposed"


def test_a_train_step_costs_the_passes_that_the_recipe_asks_for() -> None:
    whole, adapter = recipe_of("ui-tars-1.5-7b-8gpu"), recipe_of("ui-tars-1.5-7b-1gpu")
    # forward 1, backward 2 (1 for an adapter), recomputed 1, entropies of the step filter 1, reference 1
    assert (passes(whole), passes(adapter)) == (6, 5)
    assert passes(recipe_of("ui-tars-1.5-7b-8gpu", "train.kl_coefficient=0", "train.gradient_checkpointing=false")) == 4
    steps = ("curation.preset=none", "train.kl_coefficient=0")
    assert passes(recipe_of("ui-tars-1.5-7b-8gpu", *steps)) == 4
    assert passes(recipe_of("ui-tars-1.5-7b-8gpu", *steps, "curation.high_entropy_token_fraction=0.2")) == 5


def test_a_faster_gpu_shortens_the_run_and_the_disk_follows_the_steps() -> None:
    recipe = recipe_of("ui-tars-1.5-7b-8gpu")
    size = read_policy_size(recipe)
    engine = engine_memory(recipe, size, 80 * GIB)
    slow, fast = (forecast_time(recipe, size, engine, Assumptions(tflops=tflops)) for tflops in (500.0, 2000.0))
    assert slow.bottleneck == "trainer"
    assert fast.hours < slow.hours
    assert fast.update_s < slow.update_s / 2
    disk = forecast_disk(
        recipe, size, TimeForecast(1, 1, 2.0, 10.0, 0, 0, 0, "", ""), Assumptions(image_bytes_per_pixel=1.0)
    )
    assert disk.steps == 10 * 60 * 2
    assert disk.images == 1200 * 1932 * 1092
    assert disk.checkpoints == 2 * 12 * trained_parameters(recipe, size)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*gpu.toml")), ids=lambda path: path.stem)
def test_a_shipped_recipe_waits_for_its_updates_and_pauses_before_a_version_fills_the_disk(path: Path) -> None:
    recipe = load_recipe(path)
    size = read_policy_size(recipe)
    time = forecast_time(recipe, size, engine_memory(recipe, size, 80 * GIB), Assumptions())
    assert time_problems(recipe, time) == []
    disk = forecast_disk(recipe, size, time, Assumptions())
    assert disk.being_written + version_bytes(recipe, size) <= recipe.limits.pause_disk_gib * GIB
    assert recipe.limits.pause_disk_gib <= recipe.limits.min_free_disk_gib


def test_an_update_that_a_run_would_not_wait_for_is_told_with_the_minutes_to_give() -> None:
    time = TimeForecast(2399.0, 1.5, 53.3, 10.0, 0, 0, 0, "", "")
    for minutes, fix in ((30, 80), (79, 80), (80, None)):
        found = time_problems(recipe_of("ui-tars-1.5-7b-1gpu", f"limits.stall_minutes={minutes}"), time)
        assert [f"set limits.stall_minutes = {fix}, or" in each for each in found] == [True] * (fix is not None)
    recipe = recipe_of("ui-tars-1.5-7b-1gpu")
    (note,) = time_notes(recipe, time)
    assert note.startswith(
        "time: 80 updates take about 3200 minutes, and train.max_minutes = 1440 ends training after about 36"
    )
    assert time_notes(recipe, replace(time, update_s=600.0, updates_per_hour=3.4)) == []
    assert time_notes(recipe, replace(time, update_s=1200.0, updates_per_hour=0.0)) != []


def test_the_command_tells_of_updates_that_take_too_long(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    command = ["plan", str(RECIPES / "ui-tars-1.5-7b-1gpu.toml"), "--tflops", "312", "--json", str(file)]
    told = CliRunner().invoke(app, [*command, "--runs-dir", str(tmp_path), "--set", "limits.stall_minutes=30"])
    assert told.exit_code == 1
    assert "Does not fit: time: a train step takes about" in told.output
    assert "Note: time: 80 updates take about" in told.output
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert [each.partition(":")[0] for each in figures["notes"]] == ["time"]


def test_a_recipe_without_the_base_of_its_gpus_is_told_to_name_them(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        'extends = ["bases/ui-tars-1.5-7b.toml", "bases/office.toml"]\n[run]\nname = "own"\n'
    )
    told = CliRunner().invoke(app, ["plan", str(tmp_path / "own.toml"), "--runs-dir", str(tmp_path)])
    assert told.exit_code == 1
    assert "Does not fit: inference.devices, train.devices: 2 inference workers and the trainer" in told.output


def test_episodes_are_as_long_as_the_step_limit_of_the_recipe_allows() -> None:
    """Episodes of 12 steps would all be cut at three: equal rewards, and hardly an update."""
    size = read_policy_size(recipe_of("demo"))
    for limit, median in ((3, 1.2), (30, 12.0), (100, 12.0)):
        recipe = recipe_of("demo", f"tasks.max_steps={limit}")
        engine = engine_memory(recipe, size, 8 * GIB, on_cpu=True)
        assert recipe_models(recipe, size, engine, Assumptions(gpu_gib=None)).episode.median_steps == pytest.approx(
            median
        )


def test_a_preset_is_planned_with_its_own_sizes(tmp_path: Path) -> None:
    recipe = recipe_of("demo")
    size = read_policy_size(recipe)
    _, loaded = tiny_model(tmp_path)
    assert size.parameters.total == sum(each.numel() for each in loaded.model.parameters())
    assert (size.source, size.images, size.image_tokens) == ("the preset tiny", 1, 40)
    small = find_problems(recipe, size, engine_memory(recipe, size, 80 * GIB), NO_DISK, LARGE)
    assert small == [], "its prompts have no rules, so they fit into its short context"
    result = CliRunner().invoke(app, ["plan", str(RECIPES / "demo.toml"), "--runs-dir", str(tmp_path)])
    assert f"{size.parameters.total / 1e6:.2f} million parameters (the preset tiny)" in result.output


def test_the_key_value_cache_is_what_the_share_leaves() -> None:
    recipe = recipe_of("ui-tars-1.5-7b-8gpu")
    size = read_policy_size(recipe)
    assert size.kv_bytes_per_token == 2 * 28 * 2 * 4 * 128
    engine = engine_memory(recipe, size, 80 * GIB)
    assert engine.share == engine.weights + engine.reserved + engine.kv_cache
    assert engine.kv_tokens == engine.kv_cache // size.kv_bytes_per_token
    assert isinstance(engine, EngineMemory)


def test_a_policy_whose_size_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="layouts that are known without files"):
        read_policy_size(recipe_of("ui-tars-1.5-7b-8gpu", 'model.path="Somebody/Else-7B"'))


def test_pixels_that_no_picture_has_are_refused_before_anything_is_counted() -> None:
    chosen = ["--set", "model.min_pixels=2000000", "--set", "model.max_pixels=1000000"]
    run = CliRunner().invoke(app, ["plan", str(RECIPES / "ui-tars-1.5-7b-1gpu.toml"), *chosen])
    assert run.exit_code == 2, run.output
    assert "model.min_pixels, model.max_pixels: " in run.output


def test_the_command_prints_tables_and_writes_all_figures(tmp_path: Path) -> None:
    command = ["plan", str(RECIPES / "qwen3-vl-8b-1gpu.toml"), "--gpu-gib", "24", "--json", str(tmp_path / "plan.json")]
    run = CliRunner().invoke(app, [*command, "--runs-dir", str(tmp_path)])
    assert run.exit_code == 1, run.output
    assert "8.77 billion parameters" in run.output
    assert "Does not fit: inference" in run.output
    figures = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert figures["trainer_bytes"]["total"] == sum(
        value for name, value in figures["trainer_bytes"].items() if name != "total"
    )
    assert figures["problems"]


def test_a_run_without_an_update_has_no_hours_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = replace(forecast_time(*_planned("ui-tars-1.5-7b-1gpu"), Assumptions()), hours=float("inf"))
    monkeypatch.setattr(plan_command, "forecast_time", lambda *_: never)
    file = tmp_path / "plan.json"
    CliRunner().invoke(app, ["plan", "ui-tars-1.5-7b-1gpu", "--runs-dir", str(tmp_path), "--json", str(file)])
    assert json.loads(file.read_text(encoding="utf-8"), parse_constant=pytest.fail)["time"]["hours"] is None


@pytest.mark.parametrize(
    ("gpu", "options", "place"),
    [
        (False, (), "GiB of host memory"),
        (False, ("--gpu-gib", "24"), "24 GiB of a GPU"),
        (True, (), "80 GiB of a GPU"),
    ],
)
def test_a_recipe_that_names_no_gpu_is_planned_for_what_the_host_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool, options: tuple[str, ...], place: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    file = tmp_path / "plan.json"
    command = ["plan", str(RECIPES / "demo.toml"), "--runs-dir", str(tmp_path), "--json", str(file), *options]
    if not gpu and not options:
        command += ["--tflops", "0.05"]
    told = CliRunner().invoke(app, command).output
    assert f"Trainer: one process, {place}" in re.sub(r"\d+ GiB of host", "GiB of host", told)
    assert ("of a GPU" in told) != ("of host memory" in told)
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert figures["assumptions"]["tflops"] == (989.0 if "GPU" in place else 0.05)
    weights, cache = figures["engine_bytes"]["weights"], figures["engine_bytes"]["kv_cache"]
    assert (figures["engine_bytes"]["share"] < weights + cache + 3 * GIB) == ("GPU" not in place)


def test_what_does_not_fit_on_the_cpu_is_told_without_gpus() -> None:
    recipe = recipe_of("demo", 'desktops.farm="http://127.0.0.1:1"')
    size = read_policy_size(recipe)

    def told(memory_gib: float, *, workers: int = 2) -> list[str]:
        asked = recipe.model_copy(update={"inference": recipe.inference.model_copy(update={"workers": workers})})
        host = HostResources(gpu_bytes=None, memory_bytes=int(memory_gib * GIB), disk_bytes=2000 * GIB)
        engine = engine_memory(asked, size, host.memory_bytes, on_cpu=True)
        return find_problems(asked, size, engine, NO_DISK, host)

    assert told(16) == []
    (trainer,), (together,) = told(1), told(7)
    assert trainer.startswith("trainer: a process takes about 3 GiB of host memory, and 1 GiB are there")
    assert "GPU" not in trainer
    assert "processes" not in trainer
    assert together.startswith(
        "host memory: trainer (3.4 GiB), inference workers (4.6) and desktops (0.0) take about 8 GiB"
    )
    assert together.endswith("lower inference.workers or train.micro_batch_tokens, or use a larger host")
    assert told(7, workers=1) == []
