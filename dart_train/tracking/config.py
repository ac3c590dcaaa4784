"""Settings of the tracking process, one JSON file.

Role: the schema. Rule: unknown keys are errors. Non-goals: the recipe (`dart_train.config.tracking`), from which
`dart_train.run.components` derives this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dart_agent.strict_model import StrictModel, read_config_file


class WandbSettings(StrictModel):
    """A run of Weights & Biases.

    Attributes:
        folder: Where its files are: a folder `wandb`.
        run_id: Its id.
        name: Its displayed name.
        project: Its project.
        mode: `offline`: files for `wandb sync`; `online`: it is sent.
    """

    folder: Path
    run_id: str
    name: str
    project: str
    mode: Literal["offline", "online"]


class TrackingConfig(StrictModel):
    """Everything that the tracking process needs.

    Attributes:
        metrics: The metrics file that it follows.
        tensorboard: Folder of event files; None: none.
        wandb: The run of Weights & Biases; None: none.
    """

    metrics: Path
    tensorboard: Path | None = None
    wandb: WandbSettings | None = None


def read_tracking_config(path: Path) -> TrackingConfig:
    """Read and check the configuration.

    Args:
        path: The JSON file.

    Returns:
        The configuration.

    Raises:
        ConfigError: The file cannot be read or has mistakes.
    """
    return read_config_file(path, TrackingConfig)
