"""Checkpoints laid out as the published ones: found by path and by name, asked in their own prompts, trained, saved under their own names.

The weights are random and tiny; architectures, files and names are real (`published_checkpoints`).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published_checkpoints import FLAT, KINDS, PROMPTS, write_checkpoint
from trainer_harness import config_of, screen

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.payloads import StepPayload
from dart_agent.data_client.wire import Batch, BatchGroup, BatchMember, BatchRow
from dart_agent.errors import ConfigError
from dart_agent.inference.checkpoint_files import read_checkpoint_info, resolve_checkpoint
from dart_agent.inference.weights.adapters import check_adapter_matches, read_adapter
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.inference.weights.files import check_weights_match, read_header, tensor_shapes, weight_files
from dart_agent.prompts.builder import Prompt, PromptBuilder, preset
from dart_agent.prompts.chat_template import chat_template, render_chat
from dart_agent.types import FinishReason, SamplingParams, StepRecord, VersionSpan
from dart_envs.action_formats import ParsedAnswer
from dart_envs.action_formats.uitars import format_action, parse
from dart_envs.types import ActionType, Observation
from dart_train.model.adapters import LoraSettings, attach_adapter, merge_version
from dart_train.model.init_model import init_model
from dart_train.model.policy_model import LoadedModel, ModelNotFoundError, load_model, pixel_inputs
from dart_train.trainer.trainer import Trainer
from dart_train.warmup.packing import Packer
from dart_train.warmup.queries import Query

SCREEN_WH = (400, 256)
ANSWER = "Thought: the blue one\nAction: click(start_box='(120,80)')"


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_checkpoint(request.param, tmp_path_factory.mktemp("published") / request.param)


@pytest.fixture(scope="module")
def loaded(checkpoint: Path) -> LoadedModel:
    return load_model(checkpoint)


def prompt_of(checkpoint: Path, images: int = 3, steps: int = 4) -> Prompt:
    """The prompt after some steps of an episode, as the checkpoint's own preset words it."""
    builder = PromptBuilder(preset(read_checkpoint_info(checkpoint).prompt, images=images))
    history = builder.new_history()
    for step in range(steps):
        seen = Observation(screen(step, SCREEN_WH[1], SCREEN_WH[0]), "Click OK")
        history.add(builder.build(seen, history).images[-1], f"Thought: {step}\nAction: click(start_box='({step},9)')")
    return builder.build(Observation(screen(steps, SCREEN_WH[1], SCREEN_WH[0]), "Click OK"), history)


def prompt_ids(loaded: LoadedModel, prompt: Prompt) -> list[int]:
    """Token ids with each place holder expanded, by the checkpoint's own processor."""
    text = render_chat(loaded.processor, prompt.messages)
    ids: list[int] = loaded.processor(text=[text], images=list(prompt.images), return_tensors="pt")["input_ids"][
        0
    ].tolist()
    return ids


def batch_of(loaded: LoadedModel, checkpoint: Path, images: ImageStore, members: int = 2) -> Batch:
    """One group whose first member succeeds, one step with three pictures each."""
    rows = []
    for member in range(members):
        prompt = prompt_of(checkpoint, steps=2 + member)
        answer = loaded.tokenizer(f"{ANSWER}<|im_end|>", add_special_tokens=False).input_ids
        step = StepRecord(
            index=0,
            prompt_ids_P=tuple(prompt_ids(loaded, prompt)),
            token_ids_T=tuple(answer),
            logprobs_T=(-5.0,) * len(answer),
            version_spans=(VersionSpan(0, 0, len(answer)),),
            image_sha256=tuple(images.put(image) for image in prompt.images),
            image_hw=tuple(image.shape[:2] for image in prompt.images),
            text=ANSWER,
            action=None,
            parse_error=None,
            sampling=SamplingParams(),
            finish_reason=FinishReason.STOP,
            model_s=0.0,
            env_s=0.0,
        )
        rows.append(
            BatchRow(
                group_id="g", rollout_id=f"r{member}", step=StepPayload.from_value(step), trainable=[(0, len(answer))]
            )
        )
    scored = [
        BatchMember(rollout_id=row.rollout_id, reward=float(index == 0), steps=1, source="fresh")
        for index, row in enumerate(rows)
    ]
    group = BatchGroup(group_id="g", task_id="s/press/0", family="press", members=scored)
    return Batch(
        batch_id="b",
        trainer_version=0,
        groups=[group],
        rows=rows,
        staleness_mean=0.0,
        staleness_max=0,
        excluded_steps={},
    )


# Finding


def test_a_name_in_the_local_cache_is_found_and_loads(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--Org--Some-VL"
    snapshot = repository / "snapshots" / "0123abc"
    shutil.copytree(checkpoint, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    assert resolve_checkpoint("Org/Some-VL") == snapshot
    assert type(load_model("Org/Some-VL").model) is type(load_model(checkpoint).model)
    (snapshot / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(
        ConfigError, match=r"model-00002-of-00002\.safetensors is missing: run `hf download Org/Some-VL`"
    ):
        resolve_checkpoint("Org/Some-VL")


@pytest.mark.parametrize("name", ["models/foo", "Org/Some-VL", "not a name/at all"])
def test_what_is_neither_a_folder_nor_cached_is_refused_without_a_network(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"neither a folder {name} nor .* `hf download {name}`"):
        resolve_checkpoint(name)


@pytest.mark.parametrize("path", ["./nothing", "/nowhere/model", "~/no-such-model", "a/b/c", "model"])
def test_a_path_that_is_not_there_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        resolve_checkpoint(path)
    with pytest.raises(ModelNotFoundError, match="there is no folder"):
        load_model(path)


def test_the_home_directory_is_expanded(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    assert resolve_checkpoint(f"~/{checkpoint.name}") == checkpoint


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "preprocessor_config.json"])
def test_a_folder_that_is_no_model_names_what_is_missing(checkpoint: Path, name: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns(name, "vocab.json"))
    with pytest.raises(ConfigError, match=rf"no complete model, .*{name}.* is missing"):
        resolve_checkpoint(copy)


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 16\n"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "preprocessor_config.json"])
def test_a_pointer_of_git_lfs_is_no_file_of_a_model(checkpoint: Path, name: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    for damaged in (name, "model-00002-of-00002.safetensors"):
        whole = (copy / damaged).read_bytes()
        (copy / damaged).write_bytes(LFS_POINTER)
        with pytest.raises(ConfigError, match=rf"{damaged} is a pointer of Git LFS: .* `git lfs pull`"):
            resolve_checkpoint(copy)
        with pytest.raises(ModelNotFoundError, match="git lfs pull"):
            load_model(copy)
        (copy / damaged).write_bytes(whole)
    assert resolve_checkpoint(copy) == copy


def test_weights_that_are_cut_off_are_named(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--Org--Some-VL"
    snapshot = repository / "snapshots" / "0123abc"
    shutil.copytree(checkpoint, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    weights = snapshot / "model-00002-of-00002.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(ConfigError, match=r"it should have \d+ bytes .*: get the file again"):
        resolve_checkpoint(snapshot)
    with pytest.raises(ConfigError, match=r"model-00002.* bytes .*: run `hf download Org/Some-VL --force-download`"):
        resolve_checkpoint("Org/Some-VL")
    weights.write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match="not a complete safetensors file"):
        load_model(snapshot)


def test_weights_that_safetensors_cannot_read_are_no_model(checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    header = b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}'
    (copy / "model-00002-of-00002.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(ModelNotFoundError, match="cannot load a vision-language model"):
        load_model(copy)


# What the files say


def test_the_prompt_is_chosen_by_architecture(checkpoint: Path, tmp_path: Path) -> None:
    assert read_checkpoint_info(checkpoint).prompt == PROMPTS[checkpoint.name]
    made_here = load_model(init_model("tiny", tmp_path / "tiny"))
    made_here.save(tmp_path / "saved")
    assert read_checkpoint_info(tmp_path / "tiny").prompt == read_checkpoint_info(tmp_path / "saved").prompt == "tiny"


def test_another_architecture_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"model_type": "llava"}))
    with pytest.raises(ConfigError, match=r"type 'llava': give a Qwen2-VL"):
        read_checkpoint_info(copy)


def test_picture_tokens_are_those_that_the_processor_makes(
    checkpoint: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    loaded.save(tmp_path / "saved")
    for directory in (checkpoint, tmp_path / "saved"):
        facts = read_checkpoint_info(directory)
        builder = PromptBuilder(preset(facts.prompt))
        for wh in (SCREEN_WH, (640, 400), (1000, 700)):
            picture = builder.model_image(np.zeros((wh[1], wh[0], 3), np.uint8))
            _, grid = pixel_inputs(loaded.processor, [picture])
            assert facts.count_image_tokens(builder.spec, wh) == int(grid[0].prod()) // 4


def test_a_picture_that_the_processor_would_resize_again_is_refused(checkpoint: Path) -> None:
    facts = read_checkpoint_info(checkpoint)
    with pytest.raises(ConfigError, match="choose another resolution or prompt"):
        facts.count_image_tokens(preset(facts.prompt), (50, 40))
    other = preset("uitars" if facts.prompt == "qwen" else "qwen")
    with pytest.raises(ConfigError, match=f"takes multiples of {facts.image_token_px}"):
        facts.count_image_tokens(other, (1280, 720))


# Prompts and answers


def test_several_pictures_stand_where_the_layout_puts_them(checkpoint: Path, loaded: LoadedModel) -> None:
    prompt = prompt_of(checkpoint)
    text = render_chat(loaded.processor, prompt.messages)
    turns = [turn.partition("\n")[::2] for turn in text.split("<|im_start|>")[1:]]
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    pictures = [(role, body.count(picture)) for role, body in turns]
    if checkpoint.name in FLAT:
        past = [("user", 1), ("assistant", 0)]
        assert pictures == [
            ("system", 0),
            ("user", 0),
            *[("assistant", 0)] * 2,
            *past,
            *past,
            ("user", 1),
            ("assistant", 0),
        ]
        unit = {"qwen2_vl": "from 0 to 1000", "qwen2_5_vl": "pixels of the picture"}[checkpoint.name]
        assert unit in turns[1][1]
    else:
        assert pictures == [("system", 0), ("user", 3), ("assistant", 0)]
        assert "from 0 to 1000" in turns[0][1]
        assert turns[1][1].startswith(picture * 3)
    assert text.count("Click OK") == 1
    assert text.endswith("<|im_start|>assistant\n")
    tokens = read_checkpoint_info(checkpoint).count_image_tokens(
        preset(read_checkpoint_info(checkpoint).prompt), SCREEN_WH
    )
    assert prompt_ids(loaded, prompt).count(loaded.model.config.image_token_id) == 3 * tokens


@pytest.mark.parametrize("marks", [("", ""), ("<|box_start|>", "<|box_end|>")])
def test_answers_become_canonical_actions(checkpoint: Path, loaded: LoadedModel, marks: tuple[str, str]) -> None:
    """What the model writes, through its own tokens, in pixels of its picture or thousandths, becomes pixels of the screen."""
    points = prompt_of(checkpoint).points
    width, height = (392, 252) if checkpoint.name == "qwen2_5_vl" else (1000, 1000)
    assert points.coordinate_wh == (width, height)
    start, end = (f"'{marks[0]}({x},{y}){marks[1]}'" for x, y in ((width * 3 // 4, height // 2), (0, height)))
    text = f"Thought: move it\nAction: drag(start_box={start}, end_box={end})"
    ids = loaded.tokenizer(f"{text}<|im_end|>", add_special_tokens=False).input_ids
    parsed = parse(loaded.tokenizer.decode(ids, skip_special_tokens=True), points)
    assert isinstance(parsed, ParsedAnswer)
    assert parsed.thought == "move it"
    assert parsed.action == parse(text, points).action  # type: ignore[union-attr]
    assert (parsed.action.type, parsed.action.x2, parsed.action.y2) == (ActionType.DRAG, 0, 255)
    assert abs((parsed.action.x or 0) - 300) <= 1
    assert abs((parsed.action.y or 0) - 128) <= 1
    assert parse(format_action(parsed.action, points, thought="move it"), points) == parsed


def test_a_checkpoint_without_a_template_is_refused(loaded: LoadedModel) -> None:
    class Bare:
        chat_template = None

        class tokenizer:
            chat_template: Any = None

    with pytest.raises(ValueError, match="has no chat template"):
        chat_template(Bare())
    assert "<|image_pad|>" in chat_template(loaded.processor)


# Training


def test_weights_are_those_of_the_files_in_float32(checkpoint: Path, loaded: LoadedModel) -> None:
    from safetensors import safe_open

    parameters = dict(loaded.model.named_parameters())
    assert {parameter.dtype for parameter in parameters.values()} == {torch.float32}
    compared = 0
    for file in checkpoint.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                twins = [
                    found
                    for found in parameters
                    if found.endswith(name.removeprefix("model.").removeprefix("language_model."))
                ]
                stored = tensors.get_tensor(name).float()
                assert name == "lm_head.weight" or any(torch.equal(parameters[twin], stored) for twin in twins), name
                compared += 1
    assert compared >= len(parameters)


def test_a_round_trains_every_part_and_saves_what_a_worker_takes(
    checkpoint: Path, loaded: LoadedModel, tmp_path: Path
) -> None:
    images = ImageStore(tmp_path / "images")
    trainer = Trainer(config_of(tmp_path, checkpoint, optimizer={"learning_rate": 1e-3}), images)
    trainer.setup(str(checkpoint), 0, None)
    done = trainer.step(batch_of(loaded, checkpoint, images))
    assert done.version == 1
    assert np.isfinite(done.metrics["loss"])
    assert done.metrics["grad_norm"] > 0
    before, after = dict(loaded.model.named_parameters()), dict(trainer._policy.loaded.model.named_parameters())
    still = {name for name in before if torch.equal(before[name], after[name])}
    assert not still, f"these parameters got no gradient: {sorted(still)}"
    trainer.save(tmp_path / "v1")
    tied = bool(loaded.model.config.tie_word_embeddings)
    assert tied is (checkpoint.name == "qwen3_vl")
    check_weights_match(tmp_path / "v1", tensor_shapes(checkpoint), tied=tied)
    again = load_model(tmp_path / "v1")
    assert all(torch.equal(after[name], value) for name, value in again.model.named_parameters())
    assert chat_template(again.processor) == chat_template(loaded.processor)


def test_an_adapter_is_merged_under_the_names_of_the_files(checkpoint: Path, tmp_path: Path) -> None:
    adapted = attach_adapter(load_model(checkpoint), LoraSettings(rank=2))
    assert not any("visual" in name for name in adapted.state())
    generator = torch.Generator().manual_seed(3)
    adapted.load_state(
        {name: 0.1 * torch.randn(part.shape, generator=generator) for name, part in adapted.state().items()}
    )
    adapted.save_adapter(tmp_path / "adapter", weights_digest(checkpoint))
    adapted.save(tmp_path / "saved")
    check_adapter_matches(read_adapter(tmp_path / "adapter"), tensor_shapes(checkpoint))
    merge_version(tmp_path / "adapter", checkpoint, tmp_path / "merged")
    assert tensor_shapes(tmp_path / "merged") == tensor_shapes(checkpoint)
    check_weights_match(tmp_path / "saved", tensor_shapes(checkpoint), tied=read_checkpoint_info(checkpoint).tied)
    start, wanted = load_model(checkpoint).model.state_dict(), adapted.merged_state()
    changed = {name for name, tensor in wanted.items() if not torch.equal(tensor, start[name])}
    assert len(changed) == len(read_adapter(tmp_path / "adapter").pairs)
    halves = {entry["dtype"] for file in weight_files(checkpoint) for entry in read_header(file)[0].values()} != {"F32"}
    for place, error in (("saved", 1e-6), ("merged", 1e-2 if halves else 1e-6)):
        found = load_model(tmp_path / place).model.state_dict()
        assert max(float((found[name] - wanted[name]).abs().max()) for name in wanted) < error


def test_the_warm_start_packs_only_prompts_that_begin_with_the_picture(checkpoint: Path, loaded: LoadedModel) -> None:
    builder = PromptBuilder(preset(read_checkpoint_info(checkpoint).prompt, images=1))
    picture = builder.model_image(screen(0, SCREEN_WH[1], SCREEN_WH[0]))
    _, grid = pixel_inputs(loaded.processor, [picture])
    packer = Packer(loaded.model, loaded.processor, builder, tuple(grid[0].tolist()))
    query = Query("Press OK.", (), ANSWER, None)
    if checkpoint.name in FLAT:
        with pytest.raises(ValueError, match=r"set warmup\.enabled = false"):
            packer.pack([[query]])
        return
    prompt = builder.build(Observation(screen(0, SCREEN_WH[1], SCREEN_WH[0]), "Press OK."), builder.new_history())
    wanted = prompt_ids(loaded, prompt) + packer.answer_ids(query)
    assert packer.pack([[query]]).input_ids_BT[0].tolist() == wanted
