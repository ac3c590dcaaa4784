"""The policy that a trainer trains, whole or as an adapter, and its reference model.

Role: load both as the configuration says, and write what is published. Rule: an adapter always has the run's own start model under it, also
where training goes on from a published version; what is frozen is loaded in the data type that it is computed in, so that loading takes no
more memory than training. Non-goals: train steps (`dart_train.trainer.trainer`), peft (`dart_train.model.adapters`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_agent.errors import ConfigError, WeightUpdateError
from dart_agent.grounding.model import HEAD_PREFIX
from dart_agent.inference.checkpoint_files import resolve_checkpoint
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.inference.weights.files import read_header, weight_files
from dart_train.model.adapters import AdaptedModel, attach_adapter, load_adapter
from dart_train.model.pointing_model import load_pointing_model
from dart_train.model.policy_model import LoadedModel, ModelLoader, load_model
from dart_train.model.weights import cast_to_bfloat16, in_bfloat16
from dart_train.trainer.config import PolicyTrainingSettings

if TYPE_CHECKING:
    from torch import Tensor

Reference = Callable[[], AbstractContextManager[Any]]
"""Gives the transformers model of the KL term for as long as the context lasts."""


def load_policy(
    config: PolicyTrainingSettings,
    start_model: str,
    device: str,
    *,
    bfloat16: bool = False,
    sharded: bool = False,
    load: ModelLoader = load_model,
) -> LoadedModel:
    """Load what is trained.

    Args:
        config: Settings of the training.
        start_model: The start model of the run, or a version of it that training goes on from.
        device: Name of the torch device.
        bfloat16: Whether forward passes run in bfloat16; the weights under an adapter are bfloat16 then. Trained weights are float32.
        sharded: Whether processes divide it (`dart_train.model.sharding`), where trained weights become float32; they are loaded as they
            are stored.
        load: Loads models that have no action head.

    Returns:
        The policy.

    Raises:
        ConfigError: An adapter is trained, and the version holds none; or an action head, and there is none.
    """
    if config.lora is None:
        half = sharded and is_stored_in_bfloat16(start_model)
        if config.pointer:
            return load_pointing_model(start_model, device, bfloat16=half)
        return load(start_model, device, bfloat16=half)
    adapted: LoadedModel
    if config.pointer:
        adapted = load_pointing_model(config.start_model, device, bfloat16=bfloat16).adapted(config.lora)
        take_version = adapted.take_version
    else:
        adapted = attach_adapter(load(config.start_model, device, bfloat16=bfloat16), config.lora)
        take_version = partial(load_adapter, adapted)
    if start_model != config.start_model and not take_version(Path(start_model)):
        raise ConfigError(
            f"{start_model} holds no adapter, and train.lora_rank is set: continue without it, or begin a new run from that model"
        )
    return adapted


def is_stored_in_bfloat16(name_or_path: str) -> bool:
    """Tell whether loading a model in bfloat16 loses no bit of it, but for an action head, which is float32 in any case.

    Args:
        name_or_path: Its directory or name.

    Returns:
        Whether all of its weights are bfloat16; False for a model that is not there.
    """
    try:
        files = weight_files(resolve_checkpoint(name_or_path))
        headers = [read_header(file)[0] for file in files]
    except (ConfigError, WeightUpdateError):  # what is not there is told where it is loaded
        return False
    backbone = (entry for header in headers for name, entry in header.items() if not name.startswith(HEAD_PREFIX))
    return all(entry["dtype"] == "BF16" for entry in backbone)


def open_reference(
    config: PolicyTrainingSettings,
    policy: LoadedModel,
    device: str,
    *,
    bfloat16: bool = False,
    load: ModelLoader = load_model,
) -> Reference:
    """Open the reference model of the KL term; an adapter's start model needs no second copy.

    Args:
        config: Settings of the training.
        policy: What is trained.
        device: Name of the torch device.
        bfloat16: Whether forward passes run in bfloat16; its weights are bfloat16 then.
        load: Loads the reference model.

    Returns:
        The reference model.
    """
    if isinstance(policy, AdaptedModel) and config.reference_model in (None, config.start_model):
        return policy.reference
    model = load(config.reference_model or config.start_model, device, bfloat16=bfloat16).model
    model.eval().requires_grad_(False)
    return lambda: nullcontext(model)


class PolicyWriter:
    """Writes what is published in the data type of versions: a complete model, or the adapter alone. An action head stays float32.

    Args:
        config: Settings of the training.
    """

    def __init__(self, config: PolicyTrainingSettings) -> None:
        self._config = config
        self._base_digest: str | None = None

    def save(self, policy: LoadedModel, directory: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the policy.

        Args:
            policy: What is trained.
            directory: An empty directory.
            weights: Its weights by name, where it holds only shards of them; None: those that it holds.
        """
        bfloat16 = self._config.publish_dtype == "bfloat16"
        if self._config.publish == "model" or not isinstance(policy, AdaptedModel):
            if bfloat16:
                weights = in_bfloat16(policy.complete_weights() if weights is None else weights)
            policy.save(directory, weights)
            return
        if self._base_digest is None:
            self._base_digest = weights_digest(resolve_checkpoint(self._config.start_model))
        policy.save_adapter(directory, self._base_digest)
        if bfloat16:
            cast_to_bfloat16(directory)
