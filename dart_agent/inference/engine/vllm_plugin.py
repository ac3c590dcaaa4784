"""What every vLLM process loads before it builds an engine (entry point `vllm.general_plugins`).

Role: `register()` ties the process to its worker's life, mends broken torch extras, and makes old class names and the weight backend
`dart_file` known. Rule: idempotent, cheap, and harmless in a vLLM that is not ours. Non-goals: settings of an engine
(`dart_agent.inference.engine.server`).
"""

from __future__ import annotations

from dart_agent.inference.compat import patch_torch_extras, register_legacy_processors
from dart_agent.inference.engine.arguments import FILE_BACKEND
from dart_agent.inference.process_group import exit_with_leader


def register() -> None:
    """Called by vLLM in the server, engine and worker processes."""
    exit_with_leader()
    patch_torch_extras()
    register_legacy_processors()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if FILE_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            FILE_BACKEND, "dart_agent.inference.engine.weight_transfer", "FileWeightEngine"
        )
