"""The loop of the processes that train together with the first one.

Role: `follow` does what rank 0 announces, in the same order: each of these calls exchanges parameters or gradients between all ranks.
Rule: only rank 0 knows the data manager, signals and limits. A batch that fails, fails on every rank alike. Non-goals: `process`, which
leads.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Literal

from dart_agent.errors import StoreUnavailableError
from dart_train.objectives.advantages import AdvantageError
from dart_train.trainer.checkpoint import CheckpointStore
from dart_train.trainer.ranks import Ranks
from dart_train.trainer.trainer import BatchFailed, Trainer, TrainStep

Call = Literal["setup", "step", "save", "checkpoint", "end"]
log = logging.getLogger(__name__)


def announce(ranks: Ranks, call: Call, *args: Any) -> None:
    """Tell the other ranks what rank 0 does next.

    Args:
        ranks: The ranks.
        call: What it does: a method of `Trainer`, `checkpoint`, or `end`.
        args: Arguments of the method.
    """
    if ranks.size > 1:
        ranks.broadcast((call, args))


def follow(trainer: Trainer, checkpoints: CheckpointStore, ranks: Ranks) -> None:
    """Do what rank 0 announces until it ends.

    Args:
        trainer: The trainer of this rank.
        checkpoints: Where this rank saves its shards.
        ranks: The ranks.
    """
    while True:
        announced: tuple[Call, tuple[Any, ...]] = ranks.broadcast(None)
        call, args = announced
        if call == "end":
            return
        if call == "checkpoint":
            checkpoints.save(trainer.state(TrainStep(trainer.version, {}, ()), "", 0.0))
        else:
            with suppress(
                BatchFailed, StoreUnavailableError, AdvantageError
            ):  # rank 0 reports it, tries again, or ends
                getattr(trainer, call)(*args)
