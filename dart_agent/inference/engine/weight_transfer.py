"""Weights from a directory into a live vLLM engine: the weight-transfer backend `dart_file`.

Role: runs inside vLLM's worker process, on CPU and CUDA builds; reads the safetensors that the trainer published (names as in the Hugging
Face checkpoint) and loads them into the model. Rule: the load is bracketed by vLLM's layerwise reload. Linear layers are packed for their
kernels and their plain parameters are gone, so loading into the live model would fail half-way. A tied output embedding is in no file and
that reload passes it by: it is packed again here. The digest is of the bytes that were loaded. Non-goals: checking the files
(`weights.files`), pausing requests and numbering versions (`server`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from dart_agent.errors import WeightUpdateError
from dart_agent.inference.weights.digest import TensorDigests
from dart_agent.inference.weights.files import weight_files


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
        with TensorDigests() as digests:
            with torch.device(self.device):
                initialize_layerwise_reload(self.model)
                self.model.load_weights(_tensors(directory, None if update_info.digest is None else digests))
                finalize_layerwise_reload(self.model, self.model_config)
                _pack_tied_output(self.model)
            if update_info.digest is not None and digests.result() != update_info.digest:
                raise WeightUpdateError(f"what was loaded from {directory} has not the digest that was published")

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


def _tensors(directory: Path, digests: TensorDigests | None) -> Iterator[tuple[str, Any]]:
    """The tensors of a directory by name; their digests are computed in threads while they are loaded."""
    for file in weight_files(directory):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                tensor = tensors.get_tensor(name)
                if digests is not None:
                    head = tensors.get_slice(name)
                    content = memoryview(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
                    digests.add(name, head.get_dtype(), head.get_shape(), content)
                yield name, tensor
