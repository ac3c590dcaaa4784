"""Checkpoints as GUI-Actor publishes them: transformers 4.51's flat config.json and names of weights, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402

from dart_agent.grounding.forward import run_forward  # noqa: E402
from dart_agent.grounding.model import HEAD_PREFIX, GroundingModel, load_grounding_model  # noqa: E402
from dart_agent.grounding.packing import Question, pack  # noqa: E402
from tests.unit.dart_agent.grounding_models import screen, small_model  # noqa: E402

TEXT_KEYS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "hidden_act", "initializer_range"),
)
VISION_KEYS = {
    "qwen2_vl": ("depth", "embed_dim", "hidden_size", "mlp_ratio", "num_heads", "patch_size", "spatial_merge_size"),
    "qwen2_5_vl": (
        *("depth", "hidden_size", "intermediate_size", "num_heads", "out_hidden_size", "patch_size"),
        *("spatial_merge_size", "fullatt_block_indexes", "window_size", "tokens_per_second"),
    ),
}
CLASSES = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL"}
THETA = 500_000.0
"""Another one than any default, so that a rotation that is not read is seen."""


def old_name(name: str) -> str:
    """What transformers 4.51 calls a weight: the vision tower and the language model stand beside each other."""
    if name.startswith("model.visual."):
        return name.removeprefix("model.")
    return name.replace("model.language_model.", "model.")


def publish(model: GroundingModel, family: str, directory: Path, *, tied: bool) -> Path:
    """Write the files of a checkpoint by hand: the smaller ones tie their embeddings, the greater ones have several files."""
    directory.mkdir()
    config, text = model.backbone.config, model.backbone.config.text_config
    name = f"{CLASSES[family]}ForConditionalGenerationWithPointer"
    vision: dict[str, Any] = {key: getattr(config.vision_config, key) for key in VISION_KEYS[family]}
    vision |= {"in_chans": 3, "model_type": family, "spatial_patch_size": 14, "temporal_patch_size": 2}
    rope = {"mrope_section": list(text.rope_parameters["mrope_section"]), "rope_type": "default", "type": "default"}
    flat = {key: getattr(text, key) for key in TEXT_KEYS} | {
        "architectures": [name], "attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": text.eos_token_id,
        "image_token_id": config.image_token_id, "max_window_layers": 2, "model_type": family,
        "pointer_end_token_id": config.pointer_end_token_id, "pointer_pad_token_id": config.pointer_pad_token_id,
        "pointer_start_token_id": config.pointer_start_token_id, "rope_scaling": rope, "rope_theta": THETA,
        "sliding_window": 32768, "tie_word_embeddings": tied, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.3", "use_cache": True, "use_sliding_window": False,
        "video_token_id": config.video_token_id, "vision_config": vision,
        "vision_end_token_id": config.vision_end_token_id, "vision_start_token_id": config.vision_start_token_id,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(flat))
    weights = {old_name(key): tensor.clone() for key, tensor in model.backbone.state_dict().items()}
    weights |= {HEAD_PREFIX + key: tensor for key, tensor in model.head.state_dict().items()}
    assert {key.split(".")[0] for key in weights} == {"visual", "model", "lm_head", HEAD_PREFIX[:-1]}
    if tied:
        del weights["lm_head.weight"]
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    else:
        names = sorted(weights)
        shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for file, held in shards.items():
            save_file({key: weights[key] for key in held}, directory / file, metadata={"format": "pt"})
        index = {"metadata": {}, "weight_map": {key: file for file, held in shards.items() for key in held}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    model.tokenizer.save_pretrained(directory)
    size = model.processor.image_processor.size
    images = {
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": f"{CLASSES[family]}Processor",
        "min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"], "patch_size": 14, "merge_size": 2,
        "temporal_patch_size": 2, "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
        "resample": 3, "rescale_factor": 1 / 255,
    }  # fmt: skip
    (directory / "preprocessor_config.json").write_text(json.dumps(images))
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    template = {"chat_template": model.processor.chat_template}
    (directory / "chat_template.json").write_text(json.dumps(template))
    return directory


@pytest.mark.parametrize(("family", "tied"), [("qwen2_vl", True), ("qwen2_5_vl", False)])
def test_a_published_checkpoint_loads_with_every_weight(family: str, tied: bool, tmp_path: Path) -> None:
    model = small_model(family, tmp_path)
    backbone = model.backbone
    if tied:
        backbone.get_output_embeddings().weight = backbone.get_input_embeddings().weight
    saved = {key: tensor.clone() for key, tensor in backbone.state_dict().items()}
    assert "lm_head.weight" in saved
    again = load_grounding_model(publish(model, family, tmp_path / "published", tied=tied))
    loaded = again.backbone.state_dict()
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(tensor, loaded[key]) for key, tensor in saved.items())
    assert all(torch.equal(tensor, again.head.state_dict()[key]) for key, tensor in model.head.state_dict().items())
    assert again.head.offset is None
    assert again.backbone.config.text_config.rope_parameters["rope_theta"] == THETA
    assert again.system.startswith("You are a GUI agent.")
    assert again.pad_id == len(again.tokenizer) - 1


@pytest.mark.parametrize(("family", "tied"), [("qwen2_vl", True), ("qwen2_5_vl", False)])
def test_a_published_checkpoint_points_as_the_model_it_was_made_of(family: str, tied: bool, tmp_path: Path) -> None:
    model = small_model(family, tmp_path)
    published = load_grounding_model(publish(model, family, tmp_path / "published", tied=tied))
    # The same model in this project's layout, with the rotation and the prompt of the published one.
    model.backbone.config.text_config.rope_parameters["rope_theta"] = THETA
    ours = GroundingModel(model.backbone, model.processor, model.head, published.system)
    (tmp_path / "ours").mkdir()
    ours.save(tmp_path / "ours")
    question = [[Question.point("click the button Apple", targets=2)]]
    found = []
    for one in (published, load_grounding_model(tmp_path / "ours")):
        with torch.no_grad():
            found.append(run_forward(one, pack(one, [screen(168, 112)], question)).questions[0][0].logits_KM)
    assert found[0].shape == (2, 24)
    assert torch.allclose(*found, atol=1e-6)
