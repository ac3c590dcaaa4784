"""Where scalars go: TensorBoard's event files, and a run of Weights & Biases.

Role: `ScalarSink` and its two implementations. Rule: what a sink leaves on disk is made from the metrics file, so that it begins with
nothing: it removes what an earlier process left and is given every line again. Then no step is there twice, and none is missing, however
the earlier process ended. A run of Weights & Biases online keeps what it has, and gets the lines after that. Non-goals: which figures are
scalars (`scalars`), when they are read (`follow`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Literal, Protocol

from dart_train.tracking.config import TrackingConfig
from dart_train.tracking.scalars import STEP_KEYS, ScalarLine

EVENT_FILES = "events.out.tfevents.*"
NEVER_S = 1e9
"""TensorBoard's writer flushes by itself after so long: the follower does it."""


class ScalarSink(Protocol):
    """Takes scalars."""

    def write(self, line: ScalarLine) -> None:
        """Take the scalars of a line.

        Args:
            line: The line.
        """
        ...

    def flush(self) -> None:
        """Let readers see what was taken."""
        ...

    def close(self) -> None:
        """Flush, and end."""
        ...


class TensorBoardSink:
    """Event files of TensorBoard; former ones in the folder are removed.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder.mkdir(parents=True, exist_ok=True)
        for former in folder.glob(EVENT_FILES):
            former.unlink()
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder), flush_secs=NEVER_S)

    def write(self, line: ScalarLine) -> None:
        """Take the scalars of a line."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in line.values.items()]
        self._writer.add_event(self._event(wall_time=line.time_s, step=line.step, summary=self._summary(value=values)))

    def flush(self) -> None:
        """Let readers see what was taken."""
        self._writer.flush()

    def close(self) -> None:
        """Flush, and end."""
        self._writer.close()


class WandbSink:
    """A run of Weights & Biases, whose step is the number of the line; neither code nor console output nor the recipe is uploaded.

    The client's own call tracing (Weave) is switched off for this process, unless `WANDB_DISABLE_WEAVE` says otherwise: it would record
    what is said to language models, and advertises itself on stderr where a library for them is imported.

    Args:
        folder: Where its files are: a folder `wandb`, the name that its client chooses.
        run_id: Id of the run.
        name: Displayed name.
        project: Project.
        mode: `offline` or `online`.
    """

    def __init__(self, folder: Path, run_id: str, name: str, project: str, mode: Literal["offline", "online"]) -> None:
        import wandb

        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
        folder.mkdir(parents=True, exist_ok=True)
        for former in folder.glob(f"offline-run-*-{run_id}"):
            shutil.rmtree(former)
        self._run: Any = wandb.init(
            project=project,
            name=name,
            id=run_id,
            dir=str(folder.parent),
            mode=mode,
            resume="allow",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        for kind, key in STEP_KEYS.items():
            self._run.define_metric(f"{kind}/*", step_metric=f"{kind}/{key}")
        self._next = int(self._run.step)

    def write(self, line: ScalarLine) -> None:
        """Take the scalars of a line, unless the run has them."""
        if line.index >= self._next:
            self._run.log(dict(line.values), step=line.index)

    def flush(self) -> None:
        """Nothing to do: its own process sends."""

    def close(self) -> None:
        """End, when everything is written or sent."""
        self._run.finish()


def open_sinks(config: TrackingConfig) -> list[ScalarSink]:
    """Begin the sinks that a configuration asks for.

    Args:
        config: The configuration.

    Returns:
        The sinks; to be closed.
    """
    sinks: list[ScalarSink] = []
    if config.tensorboard is not None:
        sinks.append(TensorBoardSink(config.tensorboard))
    if config.wandb is not None:
        wandb = config.wandb
        sinks.append(WandbSink(wandb.folder, wandb.run_id, wandb.name, wandb.project, wandb.mode))
    return sinks
