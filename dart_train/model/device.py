"""Where a policy is trained and in which number format.

Role: `ComputeDevice.resolve` turns a recipe's wish into a device and a format. Rule: weights, gradients and optimiser are float32 on every device,
because the steps of reinforcement learning are too small for bfloat16 weights; `bfloat16` means that matrix products are computed in it
(autocast). Non-goals: more than one device, the format that vLLM serves in (`inference.dtype`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

DeviceChoice = Literal["auto", "cpu", "cuda"]
DtypeChoice = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """A device that is there, and whether forward passes run in bfloat16."""

    device: Literal["cpu", "cuda"]
    bfloat16: bool

    @classmethod
    def resolve(cls, device: DeviceChoice, dtype: DtypeChoice) -> ComputeDevice:
        """auto: a GPU where torch finds one, and bfloat16 there; else the CPU, and float32."""
        import torch

        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(device, dtype == "bfloat16" or (dtype == "auto" and device == "cuda"))

    def autocast(self) -> Any:
        """Context of a forward pass."""
        import torch

        return torch.autocast(self.device, torch.bfloat16, enabled=self.bfloat16)
