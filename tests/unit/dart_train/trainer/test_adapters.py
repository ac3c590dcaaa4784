"""LoRA adapters: what is trained, saved and merged, and the reference that needs no second copy."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora.layer import Linear
from pydantic import ValidationError
from safetensors.torch import load_file
from trainer_harness import config_of, step_of
from typer.testing import CliRunner

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import Batch, VersionRecord
from dart_agent.errors import ConfigError, WeightUpdateError
from dart_agent.inference.weights.adapters import check_adapter_matches, read_adapter
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.inference.weights.files import tensor_shapes
from dart_agent.inference.weights.reading import VersionReader
from dart_train.cli import app
from dart_train.config import Recipe
from dart_train.evaluation.export import export_version
from dart_train.evaluation.stored import StoredVersion
from dart_train.model.adapters import AdaptedModel, LoraSettings, attach_adapter, merge_version
from dart_train.model.fast_vision import optimize_vision
from dart_train.model.policy_model import LoadedModel, ModelLoader, load_model
from dart_train.model.policy_scorer import PolicyScorer
from dart_train.model.weights import cast_to_bfloat16
from dart_train.trainer.batches.rows import TrainRow
from dart_train.trainer.batches.segments import Segment
from dart_train.trainer.batches.tensors import BatchMaker
from dart_train.trainer.checkpoint import CheckpointStore
from dart_train.trainer.trainer import Trainer

LORA = {"rank": 4, "alpha": 8.0}


def trainer_on(
    root: Path, model_dir: Path, images: ImageStore, load: ModelLoader = load_model, **changes: Any
) -> Trainer:
    trainer = Trainer(config_of(root, model_dir, **({"lora": LORA} | changes)), images, load=load)
    trainer.setup(str(model_dir), 0, None)
    return trainer


def logprobs(model: Any, loaded: LoadedModel, images: ImageStore) -> torch.Tensor:
    """Of one recorded step, [T], with the vision methods of a trainer."""
    optimize_vision(model)
    row = TrainRow("r", "g", step_of(loaded, images, seed=7), ((0, 5),), 0.0)
    batch = BatchMaker(loaded.model, loaded.processor, images).make([Segment((row,))])
    with torch.no_grad():
        return PolicyScorer(model)(batch.tokens)[0]


@pytest.fixture(scope="module")
def trained(root: Path, model_dir: Path, images: ImageStore, batch: Batch) -> Trainer:
    trainer = trainer_on(root, model_dir, images)
    trainer.step(batch)
    trainer.step(batch)
    return trainer


def test_only_the_adapter_of_the_language_model_is_trained(trained: Trainer, model_dir: Path) -> None:
    parts = [name for name, part in trained._policy.loaded.model.named_parameters() if part.requires_grad]
    assert parts
    assert all("language_model" in name and "lora_" in name for name in parts)
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in parts} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
    }  # fmt: skip
    optimised = [part for group in trained._policy.optimizer.param_groups for part in group["params"]]
    assert len(optimised) == len(parts)
    before = load_model(model_dir).model.state_dict()
    after = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in trained._policy.loaded.model.state_dict().items()
        if ".lora_" not in name
    }
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_with_the_adapter_switched_off_the_model_is_the_reference_exactly(
    trained: Trainer, loaded: LoadedModel, images: ImageStore
) -> None:
    start = logprobs(loaded.model, loaded, images)
    with trained._policy.loaded.reference() as reference:
        assert torch.equal(logprobs(reference, loaded, images), start)
    assert not torch.equal(logprobs(trained._policy.loaded.model, loaded, images), start)
    assert all(part.requires_grad for part in trained._policy.trained().values())


def test_the_kl_term_takes_that_reference_and_no_second_model(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch
) -> None:
    loads: list[str] = []
    original = load_model

    def counted(path: Any, *rest: Any, **options: Any) -> LoadedModel:
        loads.append(str(path))
        return original(path, *rest, **options)

    loss = {"kl_coefficient": 0.5}
    ours = trainer_on(root, model_dir, images, counted, loss=loss)
    assert loads == [str(model_dir)]
    other = trainer_on(root, model_dir, images, counted, loss=loss, reference_model=f"{model_dir}/")
    assert len(loads) == 3
    for _ in range(2):
        mine, theirs = ours.step(batch).metrics, other.step(batch).metrics
        assert {name: value for name, value in mine.items() if name != "step_s"} == {
            name: value for name, value in theirs.items() if name != "step_s"
        }
    assert mine["kl_reference"] > 0


def test_the_merged_model_answers_as_the_adapter_does(
    trained: Trainer, loaded: LoadedModel, images: ImageStore, tmp_path: Path
) -> None:
    wanted = logprobs(trained._policy.loaded.model, loaded, images)
    trained.save(tmp_path / "merged")
    merged = load_model(tmp_path / "merged")
    assert torch.allclose(logprobs(merged.model, loaded, images), wanted, atol=1e-5, rtol=0)
    assert torch.equal(logprobs(trained._policy.loaded.model, loaded, images), wanted), "saving leaves the policy alone"
    again = PeftModel.from_pretrained(load_model(trained.config.start_model).model, tmp_path / "merged" / "adapter")
    assert torch.equal(logprobs(again.base_model.model, loaded, images), wanted), "PEFT reads it as it is published"


def test_merging_holds_one_product_at_a_time(trained: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of those of a 7B model would take twice the memory of its weights on the GPU."""
    made: list[weakref.ref[torch.Tensor]] = []
    most = 0
    compute = Linear.get_delta_weight

    def counted(layer: Linear, adapter: str) -> torch.Tensor:
        nonlocal most
        delta = compute(layer, adapter)
        made.append(weakref.ref(delta))
        most = max(most, sum(one() is not None for one in made))
        return delta

    monkeypatch.setattr(Linear, "get_delta_weight", counted)
    adapted = trained._policy.loaded
    assert isinstance(adapted, AdaptedModel)
    assert len(adapted.merged_state()) > len(made) > 2
    assert most <= 2, "the new one, and the one before until its name is bound again"


def test_a_worker_merges_a_published_adapter_to_the_same_weights(
    trained: Trainer, model_dir: Path, tmp_path: Path
) -> None:
    adapter, merged = tmp_path / "adapter", tmp_path / "merged"
    trained._policy.loaded.save_adapter(adapter, weights_digest(model_dir))
    trained.save(merged)
    check_adapter_matches(read_adapter(adapter), tensor_shapes(model_dir))
    wanted = load_file(merged / "model.safetensors")
    with VersionReader(adapter, model_dir, weights_digest(adapter)) as reader:
        found = dict(reader.tensors())
        reader.check()
    assert found.keys() == wanted.keys()
    assert max(float((found[name] - wanted[name]).abs().max()) for name in wanted) < 1e-6
    size = sum(file.stat().st_size for file in adapter.glob("*.safetensors"))
    assert size < (merged / "model.safetensors").stat().st_size / 3


def test_what_was_merged_is_compared_with_both_digests(trained: Trainer, model_dir: Path, tmp_path: Path) -> None:
    trained._policy.loaded.save_adapter(tmp_path / "a", weights_digest(model_dir))
    trained._policy.loaded.save_adapter(tmp_path / "b", "sha256:" + "0" * 64)
    published = weights_digest(tmp_path / "a")
    assert published != weights_digest(tmp_path / "b"), "the base belongs to the identity"
    for directory, digest, words in (
        ("a", "sha256:" + "1" * 64, "loaded from .*a has not"),
        ("b", weights_digest(tmp_path / "b"), "loaded from .*model has not"),
    ):
        with VersionReader(tmp_path / directory, model_dir, digest) as reader:
            assert len(dict(reader.tensors())) > 50
            with pytest.raises(WeightUpdateError, match=words):
                reader.check()
    config = tmp_path / "a/adapter_config.json"
    config.write_text(config.read_text().replace('"lora_alpha": 8', '"lora_alpha": 9'))
    assert weights_digest(tmp_path / "a") != published, "so does the scale"


def test_the_command_writes_the_adapter_merged_into_its_model(
    trained: Trainer, model_dir: Path, loaded: LoadedModel, images: ImageStore, tmp_path: Path
) -> None:
    adapter, out = tmp_path / "adapter", tmp_path / "out"
    trained._policy.loaded.save_adapter(adapter, weights_digest(model_dir))
    split = tmp_path / "split"
    load_model(model_dir).model.save_pretrained(split, max_shard_size="1MB")
    assert len(list(split.glob("*.safetensors"))) > 2
    for file in model_dir.iterdir():
        if file.suffix != ".safetensors" and not (split / file.name).exists():
            shutil.copy(file, split)
    for base in (model_dir, split):
        shutil.rmtree(out, ignore_errors=True)
        done = CliRunner().invoke(app, ["merge-adapter", str(adapter), str(base), str(out)])
        assert done.exit_code == 0, done.output
        wanted = logprobs(trained._policy.loaded.model, loaded, images)
        assert torch.allclose(logprobs(load_model(out).model, loaded, images), wanted, atol=1e-5, rtol=0)
    trained._policy.loaded.save_adapter(adapter, "sha256:" + "0" * 64)
    refused = CliRunner().invoke(app, ["merge-adapter", str(adapter), str(model_dir), str(tmp_path / "no")])
    assert refused.exit_code == 2
    assert "published was sha256:0000" in refused.output
    assert not (tmp_path / "no").exists()


def test_an_adapter_is_exported_merged(trained: Trainer, model_dir: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "v1"
    trained._policy.loaded.save_adapter(adapter, weights_digest(model_dir))
    (adapter / "README.md").write_text("# r, policy version 1\n")
    recipe = Recipe.model_validate(
        {"run": {"name": "r"}, "tasks": {"families": ["press_nth"]}, "model": {"preset": "tiny"}}
    )
    record = VersionRecord(version=1, path=str(adapter))
    version = StoredVersion("runs/r", recipe, tmp_path / "evaluations", model_dir, "tiny", record)
    assert export_version(version, tmp_path / "out") == []
    merge_version(adapter, model_dir, tmp_path / "merged")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "merged"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert (tmp_path / "out" / "README.md").read_text().startswith("# r, policy version 1\n\n## Evaluation")
    load_model(tmp_path / "out")


def test_an_adapter_in_bfloat16_keeps_its_base(trained: Trainer, model_dir: Path, tmp_path: Path) -> None:
    trained._policy.loaded.save_adapter(tmp_path, weights_digest(model_dir))
    cast_to_bfloat16(tmp_path)
    assert read_adapter(tmp_path).base_digest == weights_digest(model_dir)
    assert {tensor.dtype for tensor in load_file(tmp_path / "adapter_model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize("entry", [{"use_dora": True}, {"rank_pattern": {"q_proj": 2}}, {"peft_type": "LOHA"}])
def test_other_adapters_are_refused_by_name(trained: Trainer, tmp_path: Path, entry: dict[str, Any]) -> None:
    trained._policy.loaded.save_adapter(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text()) | entry
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(WeightUpdateError, match=rf"no plain LoRA \({next(iter(entry))}\)"):
        read_adapter(tmp_path)


def test_an_adapter_of_another_model_is_refused(trained: Trainer, model_dir: Path, tmp_path: Path) -> None:
    trained._policy.loaded.save_adapter(tmp_path)
    adapter = read_adapter(tmp_path)
    shapes = tensor_shapes(model_dir)
    name = next(name for name in shapes if name.endswith("layers.0.mlp.up_proj.weight"))
    with pytest.raises(WeightUpdateError, match=r"layers\.0\.mlp\.up_proj has the shape \(3, 5\)"):
        check_adapter_matches(adapter, shapes | {name: (3, 5)})
    with pytest.raises(WeightUpdateError, match=r"no layer layers\.0\.mlp\.up_proj"):
        check_adapter_matches(adapter, {key: shape for key, shape in shapes.items() if key != name})


def test_resuming_an_adapter_is_exact(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, tmp_path: Path
) -> None:
    unbroken = trainer_on(root, model_dir, images)
    store = CheckpointStore(tmp_path, keep=2)
    store.save(unbroken.state(unbroken.step(batch), "b", 1.0))
    unbroken.step(batch)
    state = store.latest()
    assert state is not None
    assert state.directory is not None
    size = sum(file.stat().st_size for file in state.directory.iterdir())
    assert size < 0.5 * (model_dir / "model.safetensors").stat().st_size, "only the adapter is in the checkpoint"
    resumed = Trainer(config_of(root, model_dir, lora=LORA), images)
    resumed.setup(str(model_dir), 0, state)
    resumed.step(batch)
    left, right = unbroken._policy.loaded.state(), resumed._policy.loaded.state()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    other = Trainer(config_of(root, model_dir, lora={"rank": 2}), images)
    with pytest.raises(ConfigError, match=r"lacks .*lora_A.* continue with the settings that it was made with"):
        other.setup(str(model_dir), 0, state)


@pytest.mark.parametrize("publish", ["model", "adapter"])
def test_without_a_checkpoint_the_adapter_is_that_of_the_newest_version(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, tmp_path: Path, publish: str
) -> None:
    first = trainer_on(root, model_dir, images, publish=publish)
    first.step(batch)
    first.save(tmp_path)
    second = Trainer(config_of(root, model_dir, lora=LORA, publish=publish), images)
    second.setup(str(tmp_path), 1, None, 1)
    left, right = first._policy.loaded.state(), second._policy.loaded.state()
    assert all(torch.equal(left[name], right[name]) for name in left)
    whole = Trainer(config_of(root, model_dir), images)
    whole.setup(str(model_dir), 0, None)
    (tmp_path / "whole").mkdir()
    whole.save(tmp_path / "whole")
    with pytest.raises(ConfigError, match="holds no adapter"):
        second.setup(str(tmp_path / "whole"), 1, None, 1)


def test_settings_that_do_not_fit_are_one_sentence(model_dir: Path, root: Path) -> None:
    with pytest.raises(ConfigError, match=r"lora_targets names qkv, but .* are down_proj, gate_proj"):
        attach_adapter(load_model(model_dir), LoraSettings(targets=("q_proj", "qkv")))
    with pytest.raises(ValidationError, match="publish = 'adapter' needs `lora`"):
        config_of(root, model_dir, publish="adapter")
    assert (LoraSettings(rank=8).scale, LoraSettings(rank=8, alpha=4).scale) == (2.0, 0.5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_frozen_is_loaded_in_the_data_type_that_it_is_computed_in(
    root: Path, model_dir: Path, images: ImageStore, dtype: str
) -> None:
    loads: list[torch.dtype] = []

    def loading(*args: Any, **kwargs: Any) -> LoadedModel:
        found = load_model(*args, **kwargs)
        loads.append(next(found.model.parameters()).dtype)
        return found

    frozen = getattr(torch, dtype)
    adapted = trainer_on(root, model_dir, images, loading, dtype=dtype)
    assert loads == [frozen], "the base of an adapter"
    assert {value.dtype for value in adapted._policy.trained().values()} == {torch.float32}
    whole = trainer_on(root, model_dir, images, loading, dtype=dtype, lora=None, loss={"kl_coefficient": 0.1})
    assert loads[1:] == [torch.float32, frozen], "the whole policy, then its reference"
    assert {value.dtype for value in whole._policy.trained().values()} == {torch.float32}
