"""The recipe's section `tracking`: where else the metrics of a run are shown.

Role: the schema. Rule: `metrics.jsonl` is written whatever the section says, and the rest is made from it. Non-goals: event files
(`dart_train.tracking`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dart_agent.strict_model import StrictModel

WandbMode = Literal["off", "offline", "online"]


class TrackingSection(StrictModel):
    """TensorBoard and Weights & Biases beside the metrics file; may be changed at any time.

    Attributes:
        tensorboard: Write event files to `tensorboard/` of the run folder (extra `tensorboard`).
        wandb: Log a run of Weights & Biases (extra `wandb`): `offline` writes files for `wandb sync` to `wandb/` of the run folder,
            `online` sends them to the account that `wandb login` chose.
        wandb_project: Project of that run.
    """

    tensorboard: bool = False
    wandb: WandbMode = "off"
    wandb_project: str = Field(default="dart", min_length=1, max_length=128)

    @property
    def extras(self) -> tuple[str, ...]:
        """Extras of the distribution, and packages of the same names, that the section needs."""
        return (*(("tensorboard",) if self.tensorboard else ()), *(() if self.wandb == "off" else ("wandb",)))
