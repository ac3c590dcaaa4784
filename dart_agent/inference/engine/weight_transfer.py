"""Weights from a directory into a live vLLM engine: the weight-transfer backend `dart_file`.

Role: runs inside vLLM's worker process, on CPU and CUDA builds; reads the safetensors that the trainer published (names as in the Hugging
Face checkpoint) and loads them into the model. A published adapter is merged, while it is read, into the checkpoint that the engine was
started with. Rule: the load is bracketed by vLLM's layerwise reload. Linear layers are packed for their kernels and their plain parameters
are gone, so loading into the live model would fail half-way. A tied output embedding is in no file and that reload passes it by: it is
packed again here. Biases that the engine keeps in float32 are rounded as at its start. Non-goals: reading and hashing (`weights.reading`),
pausing requests and numbering versions (`server`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from dart_agent.inference.weights.reading import VersionReader


@dataclass
class FileInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing to agree on: the files carry everything."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """`path`: directory that holds `*.safetensors`, complete and never changed again. `digest`: what they must have, None: anything."""

    path: str
    digest: str | None = None


class FileWeightEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):  # type: ignore[misc]
    """Loads one published directory per update."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Nothing to connect to."""

    def start_weight_update(self) -> None:
        """The bracket opens in `receive_weights`."""

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Load the files, bracketed, and compare what was loaded with the digest.

        Whoever calls checks them before (`weights.files.check_weights_match`, `weights.digest.check_digest`): a failure here is final.
        """
        directory = Path(update_info.path)
        with VersionReader(directory, Path(self.model_config.model), update_info.digest) as reader:
            with torch.device(self.device):
                initialize_layerwise_reload(self.model)
                self.model.load_weights(reader.tensors())
                finalize_layerwise_reload(self.model, self.model_config)
                _pack_tied_output(self.model)
                _round_biases(self.model)
            reader.check()

    def finish_weight_update(self) -> None:
        """The bracket is closed already."""

    def shutdown(self) -> None:
        """Nothing is held between updates."""


def _pack_tied_output(model: Any) -> None:
    """On CPUs the output embedding computes with a packed copy of its weight; make it one of the new weight where that is shared."""
    embeddings = [layer for layer in model.modules() if isinstance(layer, VocabParallelEmbedding)]
    shared = {layer.weight.data_ptr() for layer in embeddings if not isinstance(layer, ParallelLMHead)}
    for layer in embeddings:
        if isinstance(layer, ParallelLMHead) and layer.weight.data_ptr() in shared:
            layer.quant_method.process_weights_after_loading(layer)


def _round_biases(model: Any) -> None:
    """Round biases to the data type of their layer where the engine keeps them in float32.

    A CPU with AMX adds biases in float32. The engine converts them after they were loaded in the layer's data type, and the reload loads
    into the converted ones, so that they would keep digits that a start drops.
    """
    for layer in model.modules():
        bias = getattr(layer, "bias", None)
        if isinstance(layer, LinearBase) and bias is not None and bias.dtype != layer.params_dtype:
            bias.data.copy_(bias.data.to(layer.params_dtype))
