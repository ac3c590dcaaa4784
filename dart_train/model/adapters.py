"""Low-rank adapters (LoRA) on a policy's language model, made and trained with peft.

Role: `attach_adapter(loaded, settings)` gives a model of which only the adapter is trained; it is saved merged, as a complete model, or
alone, in PEFT's layout. Rule: the base weights never change, so the adapter switched off is the start model bit for bit and serves as the
reference of a KL term without a second copy; merging makes new tensors and leaves those that are trained alone. No dropout: the ratio of
old and new policy must be 1 before the first step. Source: LoRA, arXiv 2106.09685, W + (alpha / rank) B A. Non-goals: adapters on the
vision tower, several adapters, applying an adapter in an inference worker (`dart_agent.inference.weights.adapters`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dart_agent.errors import ConfigError
from dart_agent.inference.weights.adapters import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    BASE_DIGEST_KEY,
    check_adapter_matches,
    merged_tensors,
    read_adapter,
)
from dart_agent.inference.weights.digest import check_digest
from dart_agent.inference.weights.files import read_metadata, tensor_shapes, weight_files
from dart_agent.strict_model import StrictModel
from dart_train.model.policy_model import LoadedModel
from dart_train.model.weights import write_directory_atomically

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER_FOLDER = "adapter"
"""Where the adapter lies in a directory of merged weights, so that training can go on from there."""
_BASE_LAYER = ".base_layer."
_ADAPTER_PART = re.compile(r"\.lora_[A-Z]")


class LoraSettings(StrictModel):
    """Which adapter is trained.

    Attributes:
        rank: Rank of the product that is added to a weight.
        alpha: The product is scaled by alpha / rank; None: twice the rank.
        targets: Names of the linear layers of the language model that get an adapter, such as `q_proj`; None: all of them.
    """

    rank: int = Field(default=16, ge=1, le=512)
    alpha: float | None = Field(default=None, gt=0)
    targets: tuple[str, ...] | None = Field(default=None, min_length=1)

    @property
    def scale(self) -> float:
        """What the product is multiplied by."""
        return (2 * self.rank if self.alpha is None else self.alpha) / self.rank


@dataclass(frozen=True, slots=True)
class AdaptedModel(LoadedModel):
    """A model with an adapter; only the adapter is trained, and only the adapter is its state.

    Attributes:
        peft: The `peft.PeftModel` around `model`.
    """

    peft: Any

    def state(self) -> dict[str, Any]:
        """The adapter's tensors by PEFT's names."""
        from peft import get_peft_model_state_dict

        state: dict[str, Any] = get_peft_model_state_dict(self.peft, save_embedding_layers=False)
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Take the adapter's tensors from a state.

        Args:
            state: As `state` gave it, of the same settings.

        Raises:
            ValueError: The state is of a whole model, or of another adapter.
        """
        from peft import set_peft_model_state_dict

        own = {name: tensor.shape for name, tensor in self.state().items()}
        if {name: tensor.shape for name, tensor in state.items()} != own:
            raise ValueError(
                "the saved state is not one of this adapter: continue with the train.lora_* settings that it was made with, "
                "or begin a new run"
            )
        set_peft_model_state_dict(self.peft, state)

    @contextmanager
    def reference(self) -> Iterator[Any]:
        """The start model, for as long as the context lasts: the adapter is switched off.

        Yields:
            The transformers model.
        """
        with self.peft.disable_adapter():
            yield self.model

    def complete_weights(self) -> dict[str, Tensor]:
        """See `LoadedModel.complete_weights`: the adapter merged into the weights."""
        return self.merged_state()

    def save(self, out_dir: Path, weights: Mapping[str, Any] | None = None) -> None:
        """Write a complete model with the adapter merged into its weights, and the adapter itself in the folder `adapter`.

        Args:
            out_dir: The directory.
            weights: The merged weights; None: `complete_weights`.
        """
        self.model.save_pretrained(out_dir, state_dict=self.complete_weights() if weights is None else weights)
        self.processor.save_pretrained(out_dir)
        self.save_adapter(out_dir / ADAPTER_FOLDER)

    def save_adapter(self, out_dir: Path, base_digest: str | None = None) -> None:
        """Write the adapter alone: `adapter_model.safetensors` and `adapter_config.json`, as peft and vLLM read them.

        Args:
            out_dir: The directory.
            base_digest: Digest of the weights that it belongs to, kept in the file's metadata; None: it is not named.
        """
        from safetensors.torch import save_file

        self.peft.save_pretrained(out_dir, save_embedding_layers=False)
        (out_dir / "README.md").unlink(missing_ok=True)
        if base_digest is not None:
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state().items()}
            save_file(tensors, out_dir / ADAPTER_WEIGHTS, metadata={"format": "pt", BASE_DIGEST_KEY: base_digest})

    def merged_state(self, *, rounded: bool = True) -> dict[str, Tensor]:
        """Compute W + (alpha / rank) B A for every adapted weight.

        Args:
            rounded: Whether a sum has the data type of W and not that of the adapter, float32, which W may not hold.

        Returns:
            Tensors by the names that the model has without an adapter: sums in the memory of the host, so that its device holds one of them
            at a time; weights without an adapter are not copied.
        """
        import torch

        adapted = {
            f"{name}.weight": module
            for name, module in self.model.named_modules()
            if hasattr(module, "get_delta_weight")
        }
        merged = {}
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                if _ADAPTER_PART.search(name):
                    continue
                plain = name.replace(_BASE_LAYER, ".")
                if plain == name or plain not in adapted:
                    merged[plain] = tensor
                    continue
                delta = adapted[plain].get_delta_weight(self.peft.active_adapter)
                total = tensor.to(delta.dtype) + delta
                merged[plain] = (total.to(tensor.dtype) if rounded else total).cpu()
        return merged


def attach_adapter(loaded: LoadedModel, settings: LoraSettings) -> AdaptedModel:
    """Put an adapter that changes nothing yet (B = 0) on a model, and freeze everything else.

    Args:
        loaded: The model; its layers are wrapped in place.
        settings: Which adapter.

    Returns:
        The adapted model.

    Raises:
        ConfigError: The language model has no linear layer of a given name.
    """
    from peft import LoraConfig, get_peft_model

    names = _language_layers(loaded.model)
    known = {name.rpartition(".")[2] for name in names}
    unknown = sorted(set(settings.targets or ()) - known)
    if unknown:
        raise ConfigError(
            f"train.lora_targets names {', '.join(unknown)}, but the linear layers of this language model are {', '.join(sorted(known))}"
        )
    chosen = [name for name in names if settings.targets is None or name.rpartition(".")[2] in settings.targets]
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.scale * settings.rank,
        target_modules="|".join(re.escape(name) for name in chosen),
        lora_dropout=0.0,
        bias="none",
    )
    wrapped = get_peft_model(loaded.model, config)
    return AdaptedModel(model=loaded.model, processor=loaded.processor, peft=wrapped)


def load_adapter(adapted: AdaptedModel, directory: Path) -> bool:
    """Take the adapter from a published version, merged or alone.

    Args:
        adapted: The model on the base that the version was made from.
        directory: Directory of the version.

    Returns:
        Whether the version holds an adapter.
    """
    from safetensors.torch import load_file

    for place in (directory, directory / ADAPTER_FOLDER):
        if (place / ADAPTER_CONFIG).is_file():
            adapted.load_state(load_file(place / ADAPTER_WEIGHTS))
            return True
    return False


def merge_version(directory: Path, base: Path, out_dir: Path) -> None:
    """Write a published adapter as a complete model: the files of its base, with the adapter merged into the weights.

    Args:
        directory: Directory of the adapter.
        base: Directory of the model that it belongs to.
        out_dir: The directory to make; it must not exist, or be empty.

    Raises:
        WeightUpdateError: The adapter is not one of that base, or a file is damaged.
    """
    from safetensors.torch import load_file, save_file

    adapter = read_adapter(directory)
    check_adapter_matches(adapter, tensor_shapes(base))
    check_digest(base, adapter.base_digest)
    parts = load_file(directory / ADAPTER_WEIGHTS)
    files = weight_files(base)

    def save(target: Path) -> None:
        shutil.copytree(base, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors", ".*"))
        for file in files:
            tensors = load_file(file)
            merged = merged_tensors(adapter, parts, tensors.items())
            cast = {name: tensor.to(tensors[name].dtype).contiguous() for name, tensor in merged}
            save_file(cast, target / file.name, metadata={"format": "pt"} | read_metadata(file))

    write_directory_atomically(out_dir, save)


def _language_layers(model: Any) -> list[str]:
    """Names of the linear layers of the language model's blocks; the vision tower and the output embedding are not among them."""
    import torch

    prefix = next(name for name, module in model.named_modules() if module is model.get_decoder())
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name.startswith(f"{prefix}.")
    ]
