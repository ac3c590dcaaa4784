"""A vision-language model with an action head, in GUI-Actor's published layout.

Role: `attach_head` gives a backbone of the Qwen-VL families the pointer tokens and a new head; `load_grounding_model` and
`GroundingModel.save` read and write a directory as the published checkpoints have it: the backbone's weights under their usual names, the
head's under `multi_patch_pointer_head.`, the ids of the pointer tokens in config.json. Rule: what the layout lacks (parts of cells, the
system prompt) is in config.json under `dart_grounding`; a directory without it is one of GUI-Actor's and gets the prompt of its family.
Non-goals: the forward pass (`dart_agent.grounding.forward`), training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_agent.errors import ConfigError
from dart_agent.grounding.answers import ADDED_TOKENS, POINTER_END, POINTER_PAD, POINTER_START
from dart_agent.inference.checkpoint_files import resolve_checkpoint
from dart_agent.inference.compat import patch_torch_extras, register_legacy_processors

if TYPE_CHECKING:
    from torch import Tensor

    from dart_agent.grounding.head import ActionHead

HEAD_PREFIX = "multi_patch_pointer_head."
SETTINGS_KEY = "dart_grounding"
HEAD_FILE = "model-pointer-head.safetensors"
"""The head's file in a directory whose weights are in several files."""
_SINGLE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
ARCHITECTURES: Mapping[str, str] = {
    "qwen2_vl": "Qwen2VLForConditionalGenerationWithPointer",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGenerationWithPointer",
    "qwen3_vl": "Qwen3VLForConditionalGenerationWithPointer",
}
"""By model type: what config.json calls the class; Qwen3-VL's continues the published names."""
_PUBLISHED_SYSTEM: Mapping[str, str] = {
    "qwen2_vl": (
        "You are a GUI agent. You are given a task and a screenshot of the screen. You need to perform a series of pyautogui actions to "
        "complete the task."
    ),
    "qwen2_5_vl": (
        "You are a GUI agent. Given a screenshot of the current GUI and a human instruction, your task is to locate the screen element "
        "that corresponds to the instruction. You should output a PyAutoGUI action that performs a click on the correct position. To "
        "indicate the click location, we will use some special tokens, which is used to refer to a visual patch later. For example, you "
        "can output: pyautogui.click(<your_special_token_here>)."
    ),
}
"""What the published checkpoints of a family were trained with."""


@dataclass(frozen=True, slots=True)
class GroundingModel:
    """A backbone, its processor and its head.

    Attributes:
        backbone: A transformers model of images and text.
        processor: It turns text and images into tensors.
        head: The action head, in float32.
        system: System prompt; "": none of ours.
    """

    backbone: Any
    processor: Any
    head: ActionHead
    system: str = ""

    @property
    def tokenizer(self) -> Any:
        """The processor's tokenizer."""
        return self.processor.tokenizer

    @property
    def pad_id(self) -> int:
        """The token whose state points."""
        return int(self.backbone.config.pointer_pad_token_id)

    @property
    def device(self) -> Any:
        """The torch device of the head."""
        return self.head.layer_norm.weight.device

    def save(self, directory: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the published layout.

        Args:
            directory: The directory; weights that it holds are replaced.
            weights: The backbone's weights, where they are not those that it has (merged adapters).
        """
        setattr(self.backbone.config, SETTINGS_KEY, {"offset_parts": self.head.offset_parts, "system": self.system})
        self.backbone.save_pretrained(directory, state_dict=weights)
        self.processor.save_pretrained(directory)
        path = directory / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config["architectures"] = [ARCHITECTURES[config["model_type"]]]
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        state = {
            HEAD_PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in self.head.state_dict().items()
        }
        _add_weights(directory, state)


def attach_head(
    backbone: Any, processor: Any, *, offset_parts: int = 1, system: str = "", seed: int = 0
) -> GroundingModel:
    """Give a backbone the pointer tokens and a new head.

    The rows of new tokens in both embeddings are the means of the rows there were (GUI-Actor's initialisation).

    Args:
        backbone: A transformers model; its vocabulary is resized to that of the tokenizer.
        processor: Its processor; its tokenizer gets the new tokens.
        offset_parts: Parts per side of a cell for offsets; 1: none.
        system: System prompt of all questions.
        seed: Seed of the head's weights.

    Returns:
        The model.

    Raises:
        ConfigError: The backbone is of another family.
    """
    import torch

    from dart_agent.grounding.head import ActionHead

    kind = backbone.config.model_type
    if kind not in ARCHITECTURES:
        raise ConfigError(f"an action head is for {', '.join(ARCHITECTURES)}, not for a model of the type {kind}")
    tokenizer = processor.tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": list(ADDED_TOKENS)}, replace_extra_special_tokens=False)
    _resize(backbone, tokenizer)
    for name, token in (("start", POINTER_START), ("end", POINTER_END), ("pad", POINTER_PAD)):
        setattr(backbone.config, f"pointer_{name}_token_id", tokenizer.convert_tokens_to_ids(token))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = ActionHead(backbone.config.text_config.hidden_size, offset_parts)
    return GroundingModel(backbone, processor, head.to(backbone.device), system)


def load_grounding_model(name_or_path: str | Path, device: str = "cpu", *, bfloat16: bool = False) -> GroundingModel:
    """Load a model with its head.

    Args:
        name_or_path: A directory, or the name of a published checkpoint in the local Hugging Face cache.
        device: Name of the torch device.
        bfloat16: Whether the backbone's weights are bfloat16 and not float32.

    Returns:
        The model in evaluation mode; the head's weights are float32.

    Raises:
        ConfigError: There is no such model, or it has no action head.
    """
    directory = resolve_checkpoint(name_or_path)
    config = check_head(directory)
    weights = head_weights(directory)
    patch_torch_extras()
    import torch
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

    from dart_agent.grounding.head import ActionHead

    register_legacy_processors()
    settings = head_settings(config)
    try:
        _expect_head(AutoModelForImageTextToText, AutoConfig.from_pretrained(directory))
        dtype = torch.bfloat16 if bfloat16 else torch.float32
        backbone = AutoModelForImageTextToText.from_pretrained(directory, dtype=dtype)
        processor = AutoProcessor.from_pretrained(directory)
        head = ActionHead(backbone.config.text_config.hidden_size, int(settings.get("offset_parts", 1)))
        head.load_state_dict(weights)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"cannot load a model with an action head from {name_or_path}: {error}") from error
    return GroundingModel(backbone.to(device).eval(), processor, head.to(device).eval(), str(settings["system"]))


def check_head(directory: Path) -> dict[str, Any]:
    """Check that a model has an action head, by its configuration alone.

    Args:
        directory: Directory of the model.

    Returns:
        Its configuration.

    Raises:
        ConfigError: It has none.
    """
    config = _read_config(directory)
    if not _tells_of_head(config):
        raise ConfigError(
            f"{directory} has no action head: train one with `python -m dart_train.grounding`, or take a checkpoint of GUI-Actor"
        )
    return config


def has_head(directory: Path) -> bool:
    """Whether a directory holds a model with an action head.

    Args:
        directory: The directory, with its config.json.

    Returns:
        What config.json says.
    """
    return _tells_of_head(_read_config(directory))


def _read_config(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return config


def _tells_of_head(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") in ARCHITECTURES and "pointer_pad_token_id" in config


def head_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What config.json says about the head, or what is true of a published checkpoint, which says nothing.

    Args:
        config: The content of config.json.

    Returns:
        The system prompt as `system`; `offset_parts` where cells have parts.
    """
    return config.get(SETTINGS_KEY) or {"system": _PUBLISHED_SYSTEM.get(config["model_type"], "")}


def _expect_head(auto: Any, config: Any) -> None:
    """Let transformers not warn of the head's weights beside the backbone's."""
    backbone_type = auto._model_mapping[type(config)]
    known = set(backbone_type._keys_to_ignore_on_load_unexpected or ())
    backbone_type._keys_to_ignore_on_load_unexpected = sorted(known | {rf"^{HEAD_PREFIX[:-1]}\."})


def _resize(backbone: Any, tokenizer: Any) -> None:
    import torch

    before = backbone.get_input_embeddings().weight.shape[0]
    known = min(before, len(tokenizer) - len(ADDED_TOKENS))
    backbone.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    new = sorted(tokenizer.convert_tokens_to_ids(token) for token in ADDED_TOKENS)
    with torch.no_grad():
        for embedding in (backbone.get_input_embeddings(), backbone.get_output_embeddings()):
            embedding.weight[new] = embedding.weight[:known].mean(dim=0)


def head_weights(directory: Path) -> dict[str, Tensor]:
    """Read the weights of the head of a saved model.

    Args:
        directory: The directory.

    Returns:
        Its weights in float32, by the names that they have in it.

    Raises:
        ConfigError: The files hold no head, or one of them is damaged.
    """
    from safetensors import SafetensorError, safe_open

    index = directory / _INDEX
    names = (
        sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if index.is_file()
        else [_SINGLE_FILE]
    )
    found: dict[str, Tensor] = {}
    for name in names:
        try:
            with safe_open(directory / name, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - the handle is no mapping
                    if key.startswith(HEAD_PREFIX):
                        found[key.removeprefix(HEAD_PREFIX)] = file.get_tensor(key).float()
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"the weights {directory / name} cannot be read ({error}): get the file again") from error
    if not found:
        raise ConfigError(
            f"the weights in {directory} have no action head ({HEAD_PREFIX}*): the checkpoint is incomplete"
        )
    return found


def _add_weights(directory: Path, state: Mapping[str, Tensor]) -> None:
    """Put the head's tensors beside the backbone's."""
    from safetensors.torch import load_file, save_file

    index = directory / _INDEX
    if not index.is_file():
        weights = load_file(directory / _SINGLE_FILE) | dict(state)
        save_file(weights, directory / _SINGLE_FILE, metadata={"format": "pt"})
        return
    save_file(dict(state), directory / HEAD_FILE, metadata={"format": "pt"})
    content = json.loads(index.read_text(encoding="utf-8"))
    content["weight_map"] |= dict.fromkeys(state, HEAD_FILE)
    sizes = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    content["metadata"]["total_size"] = content["metadata"].get("total_size", 0) + sizes
    index.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
