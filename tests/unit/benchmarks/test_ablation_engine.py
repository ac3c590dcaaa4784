"""The perturbed engine of the ablation: what its noise and its late weights are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.ablation.late_inference import publish_rarely
from benchmarks.ablation.perturbed_engine import perturb
from dart_agent.inference.settings import PublishedWeights
from dart_agent.inference.weight_updater import WeightUpdater
from dart_envs.clock import SystemClock


class ManualClock(SystemClock):
    """Stands still."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def test_noise_is_a_share_of_a_tensor_and_the_same_for_the_same_version() -> None:
    tensor = 3.0 * torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    kept = tensor.clone()
    noisy = perturb(tensor, 0.02, "v1/weight")
    assert torch.equal(tensor, kept)
    assert float((noisy - tensor).std() / tensor.std()) == pytest.approx(0.02, rel=0.05)
    assert torch.equal(noisy, perturb(tensor, 0.02, "v1/weight"))
    assert not torch.equal(noisy, perturb(tensor, 0.02, "v2/weight"))


def test_versions_are_taken_rarely_and_the_last_one_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    clock = ManualClock()

    def publish(self: Any, published: PublishedWeights) -> None:
        taken.append(published.version)
        self.planner.target = published.identity

    monkeypatch.setattr(WeightUpdater, "publish", publish)
    publish_rarely(10.0, clock)
    updater: Any = SimpleNamespace(planner=SimpleNamespace(target=None))
    for version in range(1, 8):
        WeightUpdater.publish(updater, PublishedWeights(version, Path("w")))
        clock.now_s += 4.0
    assert taken == [1, 4, 7]
