"""What every vLLM process loads before it builds an engine (entry point `vllm.general_plugins`).

Role: `register()` ties the process to its worker's life, mends broken torch extras and vLLM's handling of cached images, and makes old
class names, the weight backend `dart_file` and the classes of models with an action head known. Rule: idempotent, cheap, and harmless in a
vLLM that is not ours. Non-goals: settings of an engine (`dart_agent.inference.engine.server`).
"""

from __future__ import annotations

from dart_agent.inference.compat import keep_cached_images, patch_torch_extras, register_legacy_processors
from dart_agent.inference.engine.arguments import FILE_BACKEND
from dart_agent.inference.process_group import exit_with_leader

_MODELS = "dart_agent.grounding.serving.vllm_models"
POINTING_MODELS = {
    "Qwen2VLForConditionalGenerationWithPointer": f"{_MODELS}:PointingQwen2VL",
    "Qwen2_5_VLForConditionalGenerationWithPointer": f"{_MODELS}:PointingQwen25VL",
    "Qwen3VLForConditionalGenerationWithPointer": f"{_MODELS}:PointingQwen3VL",
}
"""By the name in config.json: the class, which vLLM imports when a model needs it."""


def register() -> None:
    """Called by vLLM in the server, engine and worker processes."""
    exit_with_leader()
    patch_torch_extras()
    register_legacy_processors()
    keep_cached_images()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if FILE_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            FILE_BACKEND, "dart_agent.inference.engine.weight_transfer", "FileWeightEngine"
        )
    from vllm.model_executor.models.registry import ModelRegistry

    for name, place in POINTING_MODELS.items():
        if name not in ModelRegistry.models:
            ModelRegistry.register_model(name, place)
