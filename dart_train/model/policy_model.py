"""Load a vision-language policy and score tokens with it.

Role: `load_model(name_or_path)` returns model and processor of a directory or of a published checkpoint (Qwen2.5-VL, UI-TARS-1.5,
Qwen3-VL); `token_logprobs(model, batch)` returns what a policy-gradient loss needs.
Rule: the module knows nothing of tasks, rewards or files other than those of the model. Non-goals: generating text (vLLM does).
Axes: see `dart_train.types`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dart_agent.errors import ConfigError
from dart_agent.inference.checkpoint_files import resolve_checkpoint
from dart_agent.inference.compat import patch_torch_extras, register_legacy_processors
from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_train.types import TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

    from dart_envs.types import RgbImage


class ModelNotFoundError(ValueError):
    """The model path or name cannot be loaded; the message says what was looked for."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with float32 weights, and its processor.

    Attributes:
        model: A transformers model.
        processor: It turns text and images into tensors of the model.
    """

    model: Any
    processor: Any

    @property
    def tokenizer(self) -> Any:
        """The processor's tokenizer."""
        return self.processor.tokenizer

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """All parameters by name."""
        yield from self.model.named_parameters()

    def complete_weights(self) -> dict[str, Tensor]:
        """The weights of the complete model by name, as `save` writes them."""
        found: dict[str, Tensor] = self.model.state_dict()
        return found

    def save(self, out_dir: Path, weights: Mapping[str, Any] | None = None) -> None:
        """Write weights, configuration and processor, loadable by `load_model` and by vLLM.

        Args:
            out_dir: The directory.
            weights: Weights of `model` by name, where it holds only shards of them; None: those that it holds.
        """
        self.model.save_pretrained(out_dir, state_dict=weights)
        self.processor.save_pretrained(out_dir)


class ModelLoader(Protocol):
    """Makes a model from its name: `load_model`, or what makes one without files."""

    def __call__(self, name_or_path: str, device: str, *, bfloat16: bool = False) -> LoadedModel:
        """Make the model.

        Args:
            name_or_path: Its name or directory.
            device: Name of the torch device.
            bfloat16: Whether its weights are bfloat16, as frozen ones may be, and not float32.

        Returns:
            The model and its processor.
        """
        ...


def load_model(name_or_path: str | Path, device: str = "cpu", *, bfloat16: bool = False) -> LoadedModel:
    """Load a model.

    Args:
        name_or_path: A model directory, or the name of a published checkpoint in the local Hugging Face cache.
        device: Name of the torch device.
        bfloat16: Whether its weights are bfloat16, as frozen ones may be, and not float32.

    Returns:
        The model and its processor.

    Raises:
        ModelNotFoundError: Nothing loadable is there.
    """
    try:
        directory = resolve_checkpoint(name_or_path)
    except ConfigError as error:
        raise ModelNotFoundError(str(error)) from None
    patch_torch_extras()
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForImageTextToText, AutoProcessor

    register_legacy_processors()
    try:
        dtype = torch.bfloat16 if bfloat16 else torch.float32
        model = AutoModelForImageTextToText.from_pretrained(directory, dtype=dtype)
        processor = AutoProcessor.from_pretrained(directory)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelNotFoundError(f"cannot load a vision-language model from {name_or_path}: {error}") from error
    return LoadedModel(model=model.to(device), processor=processor)


def pixel_inputs(processor: Any, images: Sequence[RgbImage]) -> tuple[Tensor, Tensor]:
    """Convert images to the patches of a model.

    Args:
        processor: The processor of the model.
        images: Model-input images, uint8 [H, W, 3] each.

    Returns:
        `pixel_values` and `image_grid_thw` as in `dart_train.types.TokenBatch`.
    """
    features = processor.image_processor(images=list(images), return_tensors="pt")
    return features["pixel_values"], features["image_grid_thw"]


def token_logprobs(model: Any, batch: TokenBatch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Compute log-probability and entropy of each response token.

    Entry [b, t] belongs to token t given all tokens before it, under softmax(logits / temperature) over the tokens that the engine may
    sample (`dart_agent.prompts.suppressed_tokens`). Only response positions are projected to the vocabulary, so a long prompt costs no
    logits.

    Args:
        model: A transformers model.
        batch: The tokens.
        temperature: The temperature at which the responses were sampled.

    Returns:
        Log-probs and entropies in nats, at least float32, [B, T]; 0 where `response_mask_BT` is 0.

    Raises:
        ValueError: A response starts at the first token.
    """
    import torch

    from dart_train.model.token_scores import score_tokens

    mask_BT = batch.response_mask_BT.bool()
    if bool(mask_BT[:, 0].any()):
        raise ValueError("a response cannot start at the first token: nothing predicts it")
    hidden_BTD = model.model(
        input_ids=batch.input_ids_BT,
        attention_mask=batch.attention_mask_BT,
        pixel_values=batch.pixel_values,
        image_grid_thw=batch.image_grid_thw,
        mm_token_type_ids=(batch.input_ids_BT == model.config.image_token_id).to(torch.int32),
        use_cache=False,
    ).last_hidden_state
    predicts_BT = mask_BT[:, 1:]
    targets_M = batch.input_ids_BT[:, 1:][predicts_BT]
    temperatures_M = torch.full(targets_M.shape, temperature)
    chosen_M, entropy_M = score_tokens(
        hidden_BTD[:, :-1][predicts_BT],
        model.lm_head.weight,
        targets_M,
        temperatures_M,
        suppressed_token_ids(model.config),
    )
    empty_BT = torch.zeros_like(mask_BT, dtype=chosen_M.dtype)
    return empty_BT.masked_scatter(mask_BT, chosen_M), empty_BT.masked_scatter(mask_BT, entropy_M)
