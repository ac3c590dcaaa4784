"""On which device and in which data type a policy is trained.

Role: `ComputeDevice.resolve` turns a recipe's choice into a device and a data type; `matrix_tflops` measures how fast it is. Rule: weights,
gradients and optimiser are float32 on every device, because the steps of reinforcement learning are too small for bfloat16 weights;
`bfloat16` means that matrix products are computed in it (autocast). On a processor without instructions for bfloat16 torch emulates it,
which is several times slower than float32. Non-goals: more than one device, the data type of vLLM (`inference.dtype`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dart_envs.clock import SYSTEM_CLOCK

DeviceChoice = Literal["auto", "cpu", "cuda"]
DtypeChoice = Literal["auto", "float32", "bfloat16"]

CPU_DESCRIPTION = Path("/proc/cpuinfo")
BFLOAT16_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""What Linux calls matrix products in bfloat16: AVX-512 and AMX on x86-64, `bf16` on Arm."""
MATRIX = 2048
"""Rows and columns of the matrices by which the speed of the device is measured."""
MATRIX_REPEATS = 4


def cpu_has_bfloat16() -> bool:
    """Return whether this processor has instructions for matrix products in bfloat16."""
    return not BFLOAT16_CPU_FLAGS.isdisjoint(CPU_DESCRIPTION.read_text(encoding="ascii", errors="replace").split())


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
    def resolve(cls, device: DeviceChoice, dtype: DtypeChoice, *, fastest_on_cpu: bool = False) -> ComputeDevice:
        """Choose the device and the data type.

        Args:
            device: auto: a GPU where torch finds one, else the CPU.
            dtype: auto: bfloat16 on a GPU, and on the CPU float32 or what `fastest_on_cpu` says.
            fastest_on_cpu: Whether `auto` is bfloat16 on a CPU that has instructions for it. Supervised training can bear the rounding;
                ratios of policies cannot.

        Returns:
            The device.
        """
        import torch

        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if dtype == "auto":
            return cls(device, device == "cuda" or (fastest_on_cpu and cpu_has_bfloat16()))
        return cls(device, dtype == "bfloat16")

    def autocast(self) -> Any:
        """Make the context of a forward pass.

        Returns:
            A torch autocast context.
        """
        import torch

        return torch.autocast(self.device, torch.bfloat16, enabled=self.bfloat16)


def matrix_tflops(compute: ComputeDevice) -> float:
    """Measure how fast a device multiplies matrices, in the data type of forward passes on it.

    Args:
        compute: The device.

    Returns:
        TFLOP/s.
    """
    import torch

    dtype = torch.bfloat16 if compute.bfloat16 else torch.float32
    factor = torch.ones(MATRIX, MATRIX, device=compute.device, dtype=dtype)
    best_s = float("inf")
    for _ in range(MATRIX_REPEATS):
        began_s = SYSTEM_CLOCK.monotonic()
        product = factor @ factor
        float(product[0, 0])  # waits for a GPU
        best_s = min(best_s, SYSTEM_CLOCK.monotonic() - began_s)
    return 2.0 * MATRIX**3 / best_s / 1e12
