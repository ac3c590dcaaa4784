"""What the processes beside the first one do; the proof with real processes is `test_sharded_training` (slow)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from dart_train.objectives.advantages import AdvantageError
from dart_train.trainer.checkpoint import CheckpointStore, TrainerState
from dart_train.trainer.follower import announce, follow
from dart_train.trainer.ranks import Ranks
from dart_train.trainer.trainer import BatchFailed, Trainer


class FakeRanks:
    """The second of two ranks; rank 0 says what it was scripted to say."""

    rank, size, first = 1, 2, False

    def __init__(self, script: list[tuple[str, tuple[Any, ...]]]) -> None:
        self.script = script

    def broadcast(self, _: object) -> tuple[str, tuple[Any, ...]]:
        return self.script.pop(0)


class FakeTrainer:
    """Remembers its calls; the batch `bad` cannot be trained on, and `odd` has no advantages."""

    version = 3

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def setup(self, *args: Any) -> None:
        self.calls.append(("setup", *args))

    def step(self, batch: str) -> None:
        self.calls.append(("step", batch))
        if batch == "bad":
            raise BatchFailed("not finite", [])
        if batch == "odd":
            raise AdvantageError("the advantage 'own:nan' gave [nan]")

    def save(self, directory: Path) -> None:
        self.calls.append(("save", directory))

    def state(self, *_: Any) -> TrainerState:
        return TrainerState(3, 3, None, [], {}, 0.0)


class FakeStore:
    def __init__(self) -> None:
        self.saved: list[TrainerState] = []

    def save(self, state: TrainerState) -> None:
        self.saved.append(state)


def test_a_follower_does_what_rank_0_announces_and_survives_a_batch_that_fails() -> None:
    trainer, store = FakeTrainer(), FakeStore()
    script = [
        ("setup", ("model", 0, None, 0)), ("step", ("bad",)), ("step", ("good",)), ("checkpoint", ()),
        ("save", (Path("v1"),)), ("step", ("odd",)), ("end", ()),
    ]  # fmt: skip
    ranks = cast(Ranks, FakeRanks(script))
    follow(cast(Trainer, trainer), cast(CheckpointStore, store), ranks)
    steps = [("step", "bad"), ("step", "good"), ("save", Path("v1")), ("step", "odd")]
    assert trainer.calls == [("setup", "model", 0, None, 0), *steps]
    assert [state.updates for state in store.saved] == [3]
    assert script == []


def test_one_process_announces_nothing_and_needs_no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    alone = Ranks.join("cpu")
    announce(alone, "step", "batch")
    assert (alone, alone.first, alone.broadcast("v"), alone.gather(1)) == (Ranks(), True, "v", [1])
    assert alone.total({"loss": 2.0}) == {"loss": 2.0}
