"""An engine that samples from other weights than the trainer has: `register`, loaded by vLLM's processes (`vllm.general_plugins`).

Role: adds noise to every published weight while it is loaded, where the environment asks for it, as quantisation or another kernel would.
Rule: the noise has a standard deviation of `DART_ABLATION_NOISE` times that of the tensor, and is the same for the same name and version;
the log-probs are those of the perturbed weights, so that they are true to what sampled. Files and digests are left as they are. The
weights of the start are not perturbed. Non-goals: late weights (`late_inference`).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOISE = "DART_ABLATION_NOISE"


def register() -> None:
    """Called by vLLM in each of its processes."""
    noise = float(os.environ.get(NOISE, "0"))
    if noise <= 0:
        return
    from dart_agent.inference.engine import weight_transfer
    from dart_agent.inference.weights.reading import VersionReader

    class PerturbedReader(VersionReader):
        """Gives the tensors of a version with noise."""

        def tensors(self) -> Iterator[tuple[str, Any]]:
            for name, tensor in super().tensors():
                yield name, perturb(tensor, noise, f"{self._directory.name}/{name}")

    vars(weight_transfer)["VersionReader"] = PerturbedReader


def perturb(tensor: Any, noise: float, name: str) -> Any:
    """Add noise to a copy of a tensor.

    Args:
        tensor: A torch tensor.
        noise: Standard deviation, as a share of the tensor's own.
        name: What the noise is drawn by.

    Returns:
        The new tensor; one of a single value is returned as it is.
    """
    import torch

    if tensor.numel() < 2 or not tensor.is_floating_point():
        return tensor
    generator = torch.Generator().manual_seed(zlib.crc32(Path(name).as_posix().encode()))
    drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
    return (tensor.float() + noise * tensor.float().std() * drawn).to(tensor.dtype)
