"""A stage of the warm start: updates until its images are seen or its minutes are used up.

Role: counts, sets the learning rate, asks for reports, and keeps the state of an unfinished warm start in a file beside its result. One
that was interrupted goes on from its last report. Rule: the file is complete under its name or not there; parameters, optimiser and counts
are those of one moment; a state is used for the same settings only. After an interruption other images are drawn than without one.
Non-goals: losses, and what a report measures (`dart_train.warmup.fit`, `dart_train.warmup.reading`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dart_server.wire import Clock
from dart_train.trainer.gradients import GradientGate
from dart_train.trainer.ranks import Ranks
from dart_train.warmup.config import WarmupConfig
from dart_train.warmup.optimisation import make_update, set_rate, sum_of

if TYPE_CHECKING:
    from torch import Tensor

_ADVICE = {
    "pages": "begin another run without warmup.pages",
    "images": "begin another run with a lower warmup.learning_rate",
}
"""What to do about gradients that are not finite; a warm start goes on with the settings that it was begun with alone."""
KEPT_LOSS = 0.95
"""Share of the running mean of the loss that one more update keeps."""
NOT_LEARNED_FROM = {"metrics", "threads"}
"""Settings that may differ between an interrupted warm start and the one that goes on."""

StageName = Literal["pages", "images"]


class StageLimits(NamedTuple):
    """Limits of a stage: how many images, for how many minutes, images per report, and the greatest learning rate."""

    images: int
    max_minutes: float
    report_every: int
    learning_rate: float


@dataclass
class StageProgress:
    """How far a stage is.

    Attributes:
        seen: Images seen by all processes.
        updates: Updates made.
        mean_loss: Running mean of the loss, NaN before the first update.
        elapsed_s: Seconds of work, of all goes.
    """

    seen: int = 0
    updates: int = 0
    mean_loss: float = math.nan
    elapsed_s: float = 0.0

    def is_over(self, limits: StageLimits) -> bool:
        """Whether all images are seen or the time is used up.

        Args:
            limits: The stage's limits.

        Returns:
            True at the end of the stage.
        """
        return self.seen >= limits.images or self.elapsed_s >= limits.max_minutes * 60


class UnfinishedWarmStart:
    """The state of a warm start that has not ended: a file beside its result.

    Args:
        config: The configuration of the warm start.

    Attributes:
        path: The file.
        stage: The stage that the state is of; None where there is no state.
        seen: Images that this stage has seen.

    Raises:
        FileExistsError: The state is of a warm start with other settings.
    """

    def __init__(self, config: WarmupConfig) -> None:
        import torch

        self.path = unfinished_file(config.out_dir)
        self._settings = config.model_dump_json(exclude=NOT_LEARNED_FROM)
        self._state: dict[str, Any] = {}
        if self.path.exists():
            self._state = torch.load(self.path, map_location="cpu", weights_only=True)
            if self._state["settings"] != self._settings:
                raise FileExistsError(
                    f"{self.path} is of a warm start with other settings: remove it to begin anew, or take those settings to go on"
                )
        self.stage: StageName | None = self._state.get("stage")
        self.seen: int = self._state["progress"]["seen"] if self._state else 0

    @property
    def seed_suffix(self) -> str:
        """What makes seeds of a warm start that goes on differ from those of its beginning; nothing at its beginning."""
        return f"/after {self.seen} {self.stage}" if self.seen else ""

    def restore(self, stage: StageName, optimizer: Any, parameters: Sequence[Any]) -> StageProgress:
        """Bring parameters and optimiser to the state that was kept.

        Args:
            stage: The stage that begins.
            optimizer: Its optimiser.
            parameters: What it trains.

        Returns:
            The progress of the stage; nothing is changed, and it is at its start, where no state of this stage is kept.
        """
        import torch

        if self.stage != stage:
            return StageProgress()
        with torch.no_grad():
            for parameter, kept in zip(parameters, self._state["parameters"], strict=True):
                parameter.copy_(kept)
        optimizer.load_state_dict(self._state["optimizer"])
        progress = StageProgress(**self._state["progress"])
        self._state = {}
        return progress

    def keep(self, stage: StageName, progress: StageProgress, optimizer: Any, parameters: Sequence[Any]) -> None:
        """Write a state in place of the last one.

        Args:
            stage: The stage.
            progress: Its progress.
            optimizer: Its optimiser.
            parameters: What it trains.
        """
        import torch

        temporary = self.path.with_name(f".{self.path.name}")
        state = {
            "settings": self._settings,
            "stage": stage,
            "progress": dict(vars(progress)),
            "parameters": [parameter.detach() for parameter in parameters],
            "optimizer": optimizer.state_dict(),
        }
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)

    def remove(self) -> None:
        """Remove the state: the result is there."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Stage:
    """A stage and what it trains.

    Attributes:
        name: Its name.
        limits: Its limits.
        config: The configuration of the warm start.
        optimizer: Its optimiser.
        parameters: What it trains.
        progress: How far it is; `run` goes on from there.
        unfinished: Where its state is kept.
        ranks: The processes that make its updates; the first one keeps the state.
        clock: Clock of its time limit.
    """

    name: StageName
    limits: StageLimits
    config: WarmupConfig
    optimizer: Any
    parameters: Sequence[Any]
    progress: StageProgress
    unfinished: UnfinishedWarmStart
    ranks: Ranks
    clock: Clock

    def run(
        self,
        losses: Callable[[], Sequence[Tensor]],
        shown_loss: Callable[[Sequence[Tensor]], Tensor],
        report: Callable[[StageProgress], None],
    ) -> None:
        """Make updates until the stage is over.

        Args:
            losses: The losses of the next update, whose sum is minimised.
            shown_loss: What of them the running mean is of.
            report: Called by every process after each `report_every` images and at the end.

        Raises:
            ConfigError: Several updates in a row had a gradient that is not finite.
        """
        progress, limits = self.progress, self.limits
        gate = GradientGate(_ADVICE[self.name])
        began_s = self.clock.monotonic() - progress.elapsed_s
        while not progress.is_over(limits):
            done = max(progress.seen / limits.images, progress.elapsed_s / (limits.max_minutes * 60))
            set_rate(self.optimizer, limits.learning_rate, progress.updates, done, self.config)
            found = losses()
            applies = partial(gate.lets_through, update=progress.updates + 1)
            make_update(self.optimizer, sum_of(found), self.ranks, self.config.grad_clip, applies)
            reports = progress.seen // limits.report_every
            progress.seen, progress.updates = progress.seen + self.config.batch_size, progress.updates + 1
            progress.elapsed_s = self.ranks.broadcast(self.clock.monotonic() - began_s)
            loss = float(shown_loss(found).detach())
            if math.isfinite(loss):
                before = loss if math.isnan(progress.mean_loss) else progress.mean_loss
                progress.mean_loss = KEPT_LOSS * before + (1 - KEPT_LOSS) * loss
            if progress.seen // limits.report_every > reports or progress.is_over(limits):
                if self.ranks.first:
                    self.unfinished.keep(self.name, progress, self.optimizer, self.parameters)
                report(progress)


def unfinished_file(out_dir: Path) -> Path:
    """The file with the state of a warm start that has not ended.

    Args:
        out_dir: Where its result is written.

    Returns:
        Its path.
    """
    return out_dir.with_name(f"{out_dir.name}.unfinished.pt")
