"""On which device and in which data type a policy is trained.

Role: `ComputeDevice.resolve` turns a recipe's choice into a device and a data type. Rule: weights, gradients and optimiser are float32 on
every device, because the steps of reinforcement learning are too small for bfloat16 weights; `bfloat16` means that matrix products are
computed in it (autocast). Non-goals: more than one device, the data type of vLLM (`inference.dtype`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

DeviceChoice = Literal["auto", "cpu", "cuda"]
DtypeChoice = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """A device that exists, and the data type of forward passes on it.

    Attributes:
        device: Name of the torch device.
        bfloat16: Whether forward passes run in bfloat16.
    """

    device: Literal["cpu", "cuda"]
    bfloat16: bool

    @classmethod
    def resolve(cls, device: DeviceChoice, dtype: DtypeChoice) -> ComputeDevice:
        """Choose the device and the data type.

        Args:
            device: auto: a GPU where torch finds one, else the CPU.
            dtype: auto: bfloat16 on a GPU, float32 on the CPU.

        Returns:
            The device.
        """
        import torch

        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(device, dtype == "bfloat16" or (dtype == "auto" and device == "cuda"))

    def autocast(self) -> Any:
        """Make the context of a forward pass.

        Returns:
            A torch autocast context.
        """
        import torch

        return torch.autocast(self.device, torch.bfloat16, enabled=self.bfloat16)
