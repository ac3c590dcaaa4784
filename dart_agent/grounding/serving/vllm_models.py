"""vLLM's Qwen-VL classes with an action head, as a directory with a head names them.

Role: out-of-tree model classes that `dart_agent.inference.engine.vllm_plugin` registers by name. Rule: everything of the backbone is
vLLM's; the head is a submodule under the name that its tensors have in the files, so that vLLM's loader and a weight update fill it, in
float32. The states that logits are computed of are shown to `on_states` before. Logits are computed outside of CUDA graphs, so that the
graphs stay as they are. Non-goals: which request a state belongs to (`dart_agent.grounding.serving.worker`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from vllm.model_executor.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration
from vllm.model_executor.models.qwen2_vl import Qwen2VLForConditionalGeneration
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration

from dart_agent.grounding.head import ActionHead
from dart_agent.grounding.model import SETTINGS_KEY


class PointingVllmModel:
    """What the head adds to a backbone's class.

    Attributes:
        multi_patch_pointer_head: The head.
        on_states: Called with the states [R, D] of the rows whose logits are computed.
        on_load: Called before other weights are loaded.
    """

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        config = vllm_config.model_config.hf_config
        settings = getattr(config, SETTINGS_KEY, None) or {}
        head = ActionHead(config.get_text_config().hidden_size, int(settings.get("offset_parts", 1)))
        self.multi_patch_pointer_head = head.float().eval()
        self.on_states: Callable[[Tensor], None] | None = None
        self.on_load: Callable[[], None] | None = None

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """The backbone's logits; the states are shown before."""
        if self.on_states is not None:
            self.on_states(hidden_states)
        logits: Tensor | None = super().compute_logits(hidden_states)  # type: ignore[misc]
        return logits

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load backbone and head."""
        if self.on_load is not None:
            self.on_load()
        names: set[str] = super().load_weights(weights)  # type: ignore[misc]
        return names


class PointingQwen2VL(PointingVllmModel, Qwen2VLForConditionalGeneration):  # type: ignore[misc]
    """Qwen2-VL with a head."""


class PointingQwen25VL(PointingVllmModel, Qwen2_5_VLForConditionalGeneration):  # type: ignore[misc]
    """Qwen2.5-VL with a head."""


class PointingQwen3VL(PointingVllmModel, Qwen3VLForConditionalGeneration):  # type: ignore[misc]
    """Qwen3-VL with a head."""
