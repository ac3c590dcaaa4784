"""What a trainer chooses by its settings and the host: learning rates, device and number format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dart_train.model import device as device_module
from dart_train.model.device import ComputeDevice
from dart_train.trainer.config import OptimizerSettings
from dart_train.trainer.schedule import learning_rate


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, 0.8535533905932737, 0.5, 0.14644660940672627]),
    ],
)
def test_learning_rates_rise_and_follow_their_schedule(schedule: Any, wanted: list[float]) -> None:
    settings = OptimizerSettings(learning_rate=1.0, lr_warmup_updates=2, lr_schedule=schedule)
    assert [learning_rate(settings, update, 6) for update in range(6)] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("gpu", "device", "dtype", "wanted"),
    [
        (False, "auto", "auto", ("cpu", False)),
        (True, "auto", "auto", ("cuda", True)),
        (True, "auto", "float32", ("cuda", False)),
        (True, "cpu", "auto", ("cpu", False)),
        (False, "cpu", "bfloat16", ("cpu", True)),
    ],
)
def test_device_and_format_are_chosen_by_what_is_there(
    gpu: bool, device: Any, dtype: Any, wanted: tuple[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    chosen = ComputeDevice.resolve(device, dtype)
    assert (chosen.device, chosen.bfloat16) == wanted


@pytest.mark.parametrize(
    ("flags", "dtype", "fastest", "wanted"),
    [
        ("fpu avx2 avx512f", "auto", True, False),
        ("fpu avx512f avx512_bf16", "auto", True, True),
        ("fpu amx_bf16 amx_tile", "auto", True, True),
        ("asimd bf16", "auto", True, True),
        ("fpu avx512_bf16", "auto", False, False),
        ("fpu avx2", "bfloat16", True, True),
        ("fpu avx512_bf16", "float32", True, False),
    ],
)
def test_a_cpu_computes_in_bfloat16_only_where_it_has_instructions_for_it(
    flags: str, dtype: Any, fastest: bool, wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    monkeypatch.setattr(device_module, "CPU_DESCRIPTION", tmp_path / "cpuinfo")
    assert ComputeDevice.resolve("cpu", dtype, fastest_on_cpu=fastest).bfloat16 is wanted
