"""A policy with an action head, as the trainer has it.

Role: `load_pointing_model` loads a directory in the layout of `dart_agent.grounding.model` as a `LoadedModel` whose parameters are those of
the backbone and of the head; the backbone may have an adapter. Rule: it is saved in the same layout, adapters merged, so that rollout
workers and `dart-agent ground` load every version.
Non-goals: log-probs (`dart_train.model.point_scores`), making a head (`dart_train.grounding`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_agent.grounding.model import HEAD_PREFIX, GroundingModel, head_weights, load_grounding_model
from dart_train.model.adapters import ADAPTER_FOLDER, AdaptedModel, LoraSettings, attach_adapter, load_adapter
from dart_train.model.policy_model import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class PointingModel(LoadedModel):
    """A model with its action head.

    Attributes:
        head: The head (`dart_agent.grounding.head.ActionHead`).
        system: System prompt of the head's questions.
        adapter: The adapter on the backbone, which is trained in its place; None: all weights are trained.
    """

    head: Any
    system: str
    adapter: AdaptedModel | None = None

    @property
    def grounding(self) -> GroundingModel:
        """The same modules as inference has them."""
        return GroundingModel(self.model, self.processor, self.head, self.system)

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """All parameters by the names that they have in files."""
        yield from self.model.named_parameters()
        for name, parameter in self.head.named_parameters():
            yield HEAD_PREFIX + name, parameter

    def complete_weights(self) -> dict[str, Tensor]:
        """See `LoadedModel.complete_weights`: those of the backbone, an adapter merged into them."""
        return LoadedModel.complete_weights(self) if self.adapter is None else self.adapter.merged_state()

    def save(self, out_dir: Path, weights: Mapping[str, Any] | None = None) -> None:
        """Write weights, head, configuration and processor, loadable by `load_pointing_model`.

        Args:
            out_dir: The directory.
            weights: See `LoadedModel.save`; those of the backbone.
        """
        if self.adapter is None:
            self.grounding.save(out_dir, weights)
            return
        self.grounding.save(out_dir, self.complete_weights() if weights is None else weights)
        self.adapter.save_adapter(out_dir / ADAPTER_FOLDER)

    def adapted(self, settings: LoraSettings) -> PointingModel:
        """Put an adapter on the backbone, and freeze everything of it else.

        Args:
            settings: Which adapter.

        Returns:
            This model with the adapter; the backbone's layers are wrapped in place.

        Raises:
            ConfigError: The language model has no linear layer of a given name.
        """
        return replace(self, adapter=attach_adapter(LoadedModel(self.model, self.processor), settings))

    def take_version(self, directory: Path) -> bool:
        """Take adapter and head from a published version of this model.

        Args:
            directory: Directory of the version.

        Returns:
            Whether the version holds an adapter.
        """
        assert self.adapter is not None, "a model without an adapter is loaded anew"
        if not load_adapter(self.adapter, directory):
            return False
        self.head.load_state_dict(head_weights(directory))
        return True


def load_pointing_model(name_or_path: str | Path, device: str = "cpu", *, bfloat16: bool = False) -> PointingModel:
    """Load a model with its head.

    Args:
        name_or_path: A model directory, or the name of a published checkpoint in the local Hugging Face cache.
        device: Name of the torch device.
        bfloat16: Whether the backbone's weights are bfloat16, as frozen ones may be, and not float32; the head's are float32.

    Returns:
        The model.

    Raises:
        ConfigError: There is no such model, or it has no action head.
    """
    found = load_grounding_model(name_or_path, device, bfloat16=bfloat16)
    return PointingModel(found.backbone, found.processor, found.head, found.system)
