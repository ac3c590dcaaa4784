"""A policy with an action head, as the trainer has it.

Role: `load_pointing_model` loads a directory in the layout of `dart_agent.grounding.model` as a `LoadedModel` whose parameters are those of
the backbone and of the head. Rule: it is saved in the same layout, so that rollout workers and `dart-agent ground` load every version.
Non-goals: log-probs (`dart_train.model.point_scores`), making a head (`dart_train.grounding`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_agent.grounding.model import HEAD_PREFIX, GroundingModel, load_grounding_model
from dart_train.model.policy_model import LoadedModel


@dataclass(frozen=True, slots=True)
class PointingModel(LoadedModel):
    """A model with its action head.

    Attributes:
        head: The head (`dart_agent.grounding.head.ActionHead`).
        system: System prompt of the head's questions.
    """

    head: Any
    system: str

    @property
    def grounding(self) -> GroundingModel:
        """The same modules as inference has them."""
        return GroundingModel(self.model, self.processor, self.head, self.system)

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """All parameters by the names that they have in files."""
        yield from self.model.named_parameters()
        for name, parameter in self.head.named_parameters():
            yield HEAD_PREFIX + name, parameter

    def save(self, out_dir: Path, weights: Mapping[str, Any] | None = None) -> None:
        """Write weights, head, configuration and processor, loadable by `load_pointing_model`.

        Args:
            out_dir: The directory.
            weights: See `LoadedModel.save`; those of the backbone.
        """
        self.grounding.save(out_dir, weights)


def load_pointing_model(name_or_path: str | Path, device: str = "cpu") -> PointingModel:
    """Load a model with its head.

    Args:
        name_or_path: A model directory, or the name of a published checkpoint in the local Hugging Face cache.
        device: Name of the torch device.

    Returns:
        The model, with float32 weights.

    Raises:
        ConfigError: There is no such model, or it has no action head.
    """
    found = load_grounding_model(name_or_path, device)
    return PointingModel(found.backbone, found.processor, found.head, found.system)
