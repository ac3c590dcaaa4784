"""The policy of a recipe: the checkpoint's directory and prompt reach every component, and what does not suit it is told before a run.

The checkpoints are random and tiny, their files as published (`published_checkpoints`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from published_checkpoints import KINDS, PROMPTS, write_checkpoint
from pydantic import ValidationError

from dart_agent import cli
from dart_agent.errors import ConfigError
from dart_agent.inference.checkpoint_files import read_checkpoint_info
from dart_agent.inference.config import load_inference_config
from dart_agent.inference.decisions.weight_updates import UpdateMode, UpdateSettings
from dart_agent.inference.engine.arguments import engine_arguments
from dart_agent.prompts.builder import preset
from dart_agent.rollouts.local import RolloutPlan
from dart_agent.rollouts.worker_config import STOP_TIMEOUT_S, load_worker_config
from dart_train.config import Recipe, load_recipe
from dart_train.config.loading import bundled_recipes
from dart_train.data_manager.__main__ import placeholders_of
from dart_train.data_manager.store.step_checks import ImagePlaceholders
from dart_train.run import components, recipe_policy, training_components
from dart_train.run.paths import RunPaths
from dart_train.trainer.config import read_trainer_config


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_checkpoint(request.param, tmp_path_factory.mktemp("published") / request.param)


def recipe_of(path: str | Path, **sections: dict[str, Any]) -> Recipe:
    values: dict[str, dict[str, Any]] = {
        "run": {"name": "r"},
        "tasks": {"families": ["press_nth"]},
        "model": {"path": str(path)},
        "warmup": {"enabled": False},
        "inference": {"max_model_len": 2048},
    }
    return Recipe.model_validate({key: values.get(key, {}) | sections.get(key, {}) for key in {*values, *sections}})


def test_a_played_checkpoint_is_served_for_its_own_prompts(checkpoint: Path) -> None:
    own = cli._prompt(None, str(checkpoint))
    plan = RolloutPlan(tasks=(), policy="vllm", prompt=own, resolution=(1280, 720))
    settings = cli._settings_for(plan, str(checkpoint), cli.Dtype.AUTO)
    tokens = {"qwen2": 45 * 25, "uitars": 45 * 25, "qwen": 40 * 22}[own]
    assert settings.max_images == preset(own).images
    assert settings.max_model_len == max(2048, settings.max_images * tokens + cli.PROMPT_TEXT_TOKENS + plan.max_tokens)
    assert cli._prompt("tiny", str(checkpoint)) == cli._prompt(None, None) == "tiny"


def test_what_a_malformed_response_leads_to_is_a_setting_of_the_recipe(checkpoint: Path, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.make()
    chosen = {"on_parse_error": "retry", "parse_retries": 3}
    for section, wanted in ((chosen, ("retry", 3)), ({}, ("no_action", 2))):
        (spec,) = components.rollout_workers(recipe_of(checkpoint, rollout=section), paths, "vllm")
        settings = load_worker_config(Path(spec.argv[-1])).episode_settings
        assert (settings.on_parse_error, settings.parse_retries) == wanted


def test_an_adapter_is_a_setting_of_the_recipe(checkpoint: Path, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.make()
    chosen = {"lora_rank": 4, "lora_alpha": 6, "lora_targets": ["q_proj"]}
    recipe = recipe_of(checkpoint, train=chosen, inference={"publish": "adapter"})
    config = read_trainer_config(Path(training_components.trainer(recipe, paths).argv[-1]))
    assert config.lora is not None
    assert (config.lora.rank, config.lora.scale, config.lora.targets) == (4, 1.5, ("q_proj",))
    assert config.publish == "adapter"
    assert recipe_of(checkpoint).train.lora is None
    with pytest.raises(ValueError, match="set lora_rank with them"):
        recipe_of(checkpoint, train={"lora_alpha": 2})
    with pytest.raises(ValueError, match=r"needs a LoRA adapter: set train\.lora_rank"):
        recipe_of(checkpoint, inference={"publish": "adapter"})


def test_a_large_checkpoint_does_not_get_the_defaults_of_the_demo(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = (
        "rollout.max_tokens, train.learning_rate, train.gradient_checkpointing, inference.dtype, inference.kv_cache_mib"
    )
    assert not [each for each in recipe_policy.problems(recipe_of(checkpoint)) if named in each]
    monkeypatch.setattr(recipe_policy, "tensor_shapes", lambda _: {"a.weight": (4_000, 1_000_000), "b.weight": (7,)})
    (told,) = (each for each in recipe_policy.problems(recipe_of(checkpoint)) if "small model of the demo" in each)
    assert told.startswith(f"{named}: these have defaults")
    assert "has 4.0 billion parameters: give them, or begin the recipe with extends" in told
    adapter = recipe_policy._default_problems(recipe_of(checkpoint, train={"lora_rank": 8}), checkpoint)
    assert "train.learning_rate" not in adapter[0]
    for name in bundled_recipes():
        recipe = load_recipe(Path(name))
        assert recipe.model.path is None or recipe_policy._default_problems(recipe, checkpoint) == [], name


def test_a_prompt_brings_its_number_of_pictures(checkpoint: Path) -> None:
    for model, images in (
        ({"prompt": "qwen3-vl"}, 5),
        ({"prompt": "qwen3-vl", "history_images": 2}, 2),
        ({"prompt": "qwen"}, 1),
        ({}, {"qwen2_vl": 5, "qwen2_5_vl": 5, "qwen3_vl": 1}[checkpoint.name]),
        ({"history": {"policy": "window", "keep": 3}}, 3),
    ):
        assert recipe_policy.images_per_prompt(recipe_of(checkpoint, model=model)) == images
        assert recipe_policy.image_limit(recipe_of(checkpoint, model=model)) == images
    with pytest.raises(ValueError, match="no prompt 'qwen4'"):
        recipe_of(checkpoint, model={"prompt": "qwen4"})


def test_the_worker_takes_the_images_of_retries_too(checkpoint: Path, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.make()
    retry = {"on_parse_error": "retry", "parse_retries": 3}
    for history, rollout, images in (
        ({"policy": "full"}, {}, 6),
        ({"policy": "full"}, retry, 24),
        ({"policy": "window", "keep": 9}, {}, 6),
        ({"policy": "window", "keep": 9}, retry, 10),
        ({"policy": "screens", "keep": 3}, retry, 3),
    ):
        tasks = {"families": ["press_nth"], "max_steps": 6}
        recipe = recipe_of(checkpoint, model={"history": history}, tasks=tasks, rollout=rollout)
        config = json.loads(Path(components.inference(recipe, paths).argv[-1]).read_text())
        assert config["worker"]["max_images"] == images
        assert recipe_policy.images_per_prompt(recipe) == min(images, 6), "what must fit into the context"


def test_a_recipe_takes_the_prompt_of_its_checkpoint_or_its_own(checkpoint: Path, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.make()
    own = PROMPTS[checkpoint.name]
    for section, wanted in (({}, own), ({"prompt": "tiny"}, "tiny")):
        (spec,) = components.rollout_workers(recipe_of(checkpoint, model=section), paths, "vllm")
        assert load_worker_config(Path(spec.argv[-1])).prompt == wanted
    assert (
        recipe_policy.recipe_prompt(
            recipe_of(checkpoint, model={"path": None, "preset": "tiny"}, warmup={"enabled": True})
        )
        == "tiny"
    )


def test_several_workers_share_the_desktops_under_names_of_their_own(checkpoint: Path, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.make()
    recipe = recipe_of(
        checkpoint,
        desktops={"count": 8, "workers": 3},
        rollout={"max_episode_tokens": 300, "loop_repeats": 4, "partial": True},
        model={"history": {"policy": "window", "keep": 2}},
        tasks={
            "families": ["press_nth"],
            "max_steps": 9,
            "limits": {"press_nth": {"max_steps": 4, "max_episode_s": 7}},
        },
    )
    specs = components.rollout_workers(recipe, paths, "vllm")
    assert all(spec.stop_grace_s > STOP_TIMEOUT_S for spec in specs), "SIGKILL would lose what is being parked"
    configs = [load_worker_config(Path(spec.argv[-1])) for spec in specs]
    assert [config.name for config in configs] == ["rollout-vllm-0", "rollout-vllm-1", "rollout-vllm-2"]
    assert [config.desktops for config in configs] == [2, 3, 3]
    assert configs[0].partial.enabled
    assert (configs[0].limits.max_tokens, configs[0].limits.loop_repeats) == (300, 4)
    own = configs[0].family_limits["press_nth"]
    assert (own.max_steps, own.wall_clock_s, own.max_tokens, own.loop_repeats) == (4, 7, 300, 4)
    inference = json.loads(Path(components.inference(recipe, paths).argv[-1]).read_text())
    assert inference["worker"]["max_images"] == 3
    (oracle, *_) = components.rollout_workers(recipe, paths, "oracle")
    assert load_worker_config(Path(oracle.argv[-1])).limits.loop_repeats is None
    of_oracle = load_worker_config(Path(oracle.argv[-1])).family_limits["press_nth"]
    assert (of_oracle.max_steps, of_oracle.max_tokens) == (4, None), "demonstrations have no more steps than the policy"
    for limits, words in (
        ({"press_two": {}}, "tasks.limits names 'press_two', which is not in tasks.families"),
        ({"press_nth": {"max_steps": 4}}, "more than tasks.max_steps = 3"),
    ):
        with pytest.raises(ValueError, match=words):
            recipe_of(checkpoint, tasks={"families": ["press_nth"], "limits": limits})
    with pytest.raises(ValueError, match="4 rollout workers cannot share 3 desktops"):
        recipe_of(checkpoint, desktops={"count": 3, "workers": 4})


def test_the_data_manager_learns_how_prompts_stand_for_images(checkpoint: Path, tmp_path: Path) -> None:
    info = read_checkpoint_info(checkpoint)
    look_up = placeholders_of(tmp_path / "made-later")
    assert look_up() is None
    (tmp_path / "made-later").symlink_to(checkpoint)
    assert look_up() == ImagePlaceholders(info.image_token_id, info.image_token_px)
    assert placeholders_of(None)() is None


def test_every_component_gets_the_directory_behind_a_path(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    paths = RunPaths(tmp_path / "r")
    paths.make()
    recipe = recipe_of(f"~/{checkpoint.name}")
    trainer = json.loads(Path(training_components.trainer(recipe, paths).argv[-1]).read_text())
    inference = json.loads(Path(components.inference(recipe, paths).argv[-1]).read_text())
    warm = recipe_of(f"~/{checkpoint.name}", warmup={"enabled": True}, model={"prompt": "qwen"})
    warmup = json.loads(Path(training_components.warm_start(warm, paths).argv[-1]).read_text())
    assert trainer["start_model"] == inference["worker"]["model"] == warmup["start_model"] == str(checkpoint)


def test_device_and_format_reach_trainer_and_warm_start(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.make()
    tiny = {"model": {"path": None, "preset": "tiny"}, "warmup": {"enabled": True}}

    def written(train: dict[str, Any]) -> list[Any]:
        recipe = recipe_of("", **tiny, train=train)
        trainer = json.loads(Path(training_components.trainer(recipe, paths).argv[-1]).read_text())
        warmup = json.loads(Path(training_components.warm_start(recipe, paths).argv[-1]).read_text())
        return [trainer[key] for key in ("device", "dtype", "micro_batch_tokens")] + [
            warmup["device"],
            warmup["dtype"],
        ]

    assert written({}) == ["auto", "auto", 8192, "auto", "auto"]
    chosen = {"device": "cpu", "dtype": "float32", "micro_batch_tokens": 2}
    assert written(chosen) == ["cpu", "float32", 2, "cpu", "float32"]


def test_the_pixels_of_a_recipe_bound_the_pictures_of_rollouts_and_of_the_warm_start(
    checkpoint: Path, tmp_path: Path
) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.make()
    sizes = []
    for section in ({"max_pixels": 200 * 32 * 32}, {}):
        recipe = recipe_of(checkpoint, model=section)
        (spec,) = components.rollout_workers(recipe, paths, "vllm")
        warmup = json.loads(Path(training_components.warm_start(recipe, paths).argv[-1]).read_text())
        assert (warmup["min_pixels"], warmup["max_pixels"]) == (None, section.get("max_pixels"))
        sizes.append(load_worker_config(Path(spec.argv[-1])).prompt_spec.picture_wh((1920, 1080)))
    assert sizes[0][0] * sizes[0][1] <= 200 * 32 * 32 < sizes[1][0] * sizes[1][1]
    (problem,) = recipe_policy.problems(recipe_of(checkpoint, model={"max_pixels": 100}))
    assert "max_pixels" in problem
    assert "has no picture of" in problem


def test_the_trainer_sees_the_gpus_that_the_recipe_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    paths = RunPaths(tmp_path / "r")
    paths.make()
    tiny = {"model": {"path": None, "preset": "tiny"}, "warmup": {"enabled": True}}
    named = training_components.trainer(recipe_of("", **tiny, train={"processes": 2, "devices": [6, 4]}), paths)
    assert named.env["CUDA_VISIBLE_DEVICES"] == "6,4"
    both = recipe_of("", **tiny, train={"processes": 2, "devices": [6, 4]})
    assert training_components.warm_start(both, paths).env["CUDA_VISIBLE_DEVICES"] == "6,4"
    assert "CUDA_VISIBLE_DEVICES" not in training_components.trainer(recipe_of("", **tiny), paths).env
    assert "CUDA_VISIBLE_DEVICES" not in training_components.warm_start(recipe_of("", **tiny), paths).env
    with pytest.raises(ValidationError, match=r"warmup.processes is 2, and train.devices names 1"):
        recipe_of("", model=tiny["model"], warmup={"enabled": True, "processes": 2}, train={"devices": [6]})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    shared = training_components.trainer(recipe_of("", **tiny, train={"processes": 2, "devices": [3, 1]}), paths)
    assert shared.env["CUDA_VISIBLE_DEVICES"] == "7,5"
    with pytest.raises(ConfigError, match=r"names GPU 4, but CUDA_VISIBLE_DEVICES=4,5,6,7 shows 4 "):
        training_components.trainer(recipe_of("", **tiny, train={"devices": [4]}), paths)


def test_several_training_processes_are_started_by_torchrun(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.make()
    tiny = {"model": {"path": None, "preset": "tiny"}, "warmup": {"enabled": True}}
    one, four = (training_components.trainer(recipe_of("", **tiny, train={"processes": n}), paths).argv for n in (1, 4))
    assert one[1:3] == ("-m", "dart_train.trainer")
    assert four == (
        one[0], "-m", "dart_train.trainer.torchrun", "--standalone", "--nproc-per-node", "4", *one[1:],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("train", "inference", "told"),
    [
        (
            {},
            {},
            "inference.devices, train.devices: 2 inference workers and the trainer would share GPU 0, because no GPU is named for them: "
            "name the GPUs of both in inference.devices and train.devices (3 where none is shared)",
        ),
        ({"devices": [1]}, {}, "inference.devices: 2 inference workers would share GPU 0"),
        ({}, {"workers": 1}, "inference.devices, train.devices: an inference worker and the trainer would share GPU 0"),
        ({"processes": 2}, {"devices": [1, 2]}, "train.devices: an inference worker and the trainer would share GPU 1"),
        ({"devices": [1]}, {"workers": 1}, None),
        ({}, {"devices": [1, 2]}, None),
        ({"devices": [0]}, {"workers": 1, "devices": [0], "gpu_memory_fraction": 0.5}, None),
        ({"device": "auto"}, {}, None),
    ],
)
def test_processes_that_share_a_gpu_because_none_is_named_are_told(
    train: dict[str, Any], inference: dict[str, Any], told: str | None
) -> None:
    recipe = recipe_of("some/model", train={"device": "cuda", **train}, inference=inference)
    found = [each for each in recipe_policy.problems(recipe) if "would share" in each]
    assert len(found) == (told is not None)
    assert told is None or found[0].startswith(told)


@pytest.mark.parametrize(
    ("train", "inference", "problem"),
    [
        ({"devices": [1, 2], "processes": 2}, {}, r"train\.devices: there is no GPU 2 on this host, which has 2"),
        (
            {"processes": 4},
            {},
            r"train\.processes: each of the 4 processes needs a GPU of its own, and this host has 2",
        ),
        ({}, {"devices": [4], "workers": 1}, r"inference\.devices: there is no GPU 4"),
        ({"processes": 2, "devices": [0, 1]}, {"devices": [0], "workers": 1, "gpu_memory_fraction": 0.5}, None),
    ],
)
def test_gpus_that_are_not_there_are_named_before_anything_starts(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    train: dict[str, Any],
    inference: dict[str, Any],
    problem: str | None,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    chosen = recipe_of(checkpoint, train={"device": "cuda", **train}, inference={"max_model_len": 2048, **inference})
    found = recipe_policy.fine_tuning_problems(chosen)
    assert len(found) == (problem is not None)
    assert problem is None or re.match(problem, found[0])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    narrowed = recipe_policy.fine_tuning_problems(chosen)
    assert [each for each in narrowed if "there is no GPU" in each] == [
        each.replace("on this host, which has 2", "among the 2 of CUDA_VISIBLE_DEVICES=6,7")
        for each in found
        if "there is no GPU" in each
    ]


def test_a_reference_and_layers_that_are_not_there_are_named_before_anything_starts(checkpoint: Path) -> None:
    (missing,) = recipe_policy.problems(
        recipe_of(checkpoint, train={"reference_model": "/no/such/model", "kl_coefficient": 0.1})
    )
    assert missing.startswith("train.reference_model: ")
    (misspelt,) = recipe_policy.problems(recipe_of(checkpoint, train={"lora_rank": 4, "lora_targets": ["qproj"]}))
    assert re.match(
        r"train\.lora_targets names qproj, but .* are down_proj, gate_proj, k_proj, o_proj, q_proj", misspelt
    )
    both = {"lora_rank": 4, "lora_targets": ["q_proj", "down_proj"]}
    assert recipe_policy.problems(recipe_of(checkpoint, train=both)) == []


def test_demonstrations_of_ones_own_need_no_warm_start(checkpoint: Path, tmp_path: Path) -> None:
    own = {"path": str(tmp_path)}
    imitating = recipe_of(checkpoint, demos=own, train={"sft_coefficient": 0.1})
    paths = RunPaths(tmp_path / "r")
    assert training_components.demonstrations(imitating, paths) == (tmp_path,)
    with pytest.raises(ValueError, match=r"a run collects its own for a warm start only: set demos\.path"):
        recipe_of(checkpoint, train={"sft_coefficient": 0.1})
    warm = recipe_of("", model={"path": None, "preset": "tiny"}, warmup={"enabled": True}, demos=own)
    assert training_components.demonstrations(warm, paths) == (tmp_path, paths.screens)


def test_a_recipe_that_suits_the_checkpoint_has_no_problems(checkpoint: Path) -> None:
    assert recipe_policy.problems(recipe_of(checkpoint)) == []


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"model": {"path": "models/foo"}}, r"^model\.path: there is neither a folder models/foo nor"),
        (
            {"inference": {"max_model_len": 128}},
            r"^inference\.max_model_len: .* take \d+ tokens, 128 are allowed: ",
        ),
        (
            {"desktops": {"resolution": [200, 150]}, "model": {"prompt": "tiny"}},
            r"^desktops\.resolution: the prompt tiny shows",
        ),
        ({"warmup": {"enabled": True}, "model": {"prompt": "uitars"}}, r"^warmup\.enabled: .*: set it to false"),
        pytest.param(
            {"train": {"device": "cuda"}},
            r"^train\.device: torch finds no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this host has one"),
        ),
    ],
)
def test_a_recipe_that_does_not_suit_it_is_told_in_one_sentence(
    checkpoint: Path,
    sections: dict[str, dict[str, Any]],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    found = [
        problem for problem in recipe_policy.problems(recipe_of(checkpoint, **sections)) if re.search(sentence, problem)
    ]
    assert len(found) == 1


def test_gpu_settings_of_a_recipe_reach_the_engine_of_each_worker(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.make()
    section = {
        "devices": [0, 1, 2, 3],
        "tensor_parallel": 2,
        "gpu_memory_fraction": 0.9,
        "kv_cache_mib": "auto",
        "dtype": "bfloat16",
        "quantization": "fp8_per_channel",
        "max_num_seqs": 64,
        "eager": False,
        "kv_after_update": "keep",
        "update_mode": "global",
        "max_updating": 2,
        "metrics_port": 0,
        "start_timeout_s": 900,
    }
    recipe = recipe_of(
        "",
        model={"path": None, "preset": "tiny"},
        warmup={"enabled": True},
        rollout={"scheduling": "rollout-global"},
        inference=section,
    )
    config = load_inference_config(Path(components.inference(recipe, paths).argv[-1]))
    assert config.updates.to_settings() == UpdateSettings(UpdateMode.GLOBAL, 2)
    assert config.metrics_port == 0
    workers = config.worker_settings()
    assert [worker.device_ids for worker in workers] == ["0,1", "2,3"]
    assert workers[0].kv_after_update == "keep"
    assert [worker.start_limit_s for worker in workers] == [900.0, 900.0]
    assert workers[0].image_pixels == 256 * 160, "of the picture in a prompt, not of the screen"
    arguments = engine_arguments(workers[0], tmp_path, 1)
    assert "kv_cache_memory_bytes" not in arguments
    wanted = {
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.9,
        "dtype": "bfloat16",
        "quantization": "fp8_per_channel",
        "max_num_seqs": 64,
        "enforce_eager": False,
    }
    assert {name: arguments[name] for name in wanted} == wanted
