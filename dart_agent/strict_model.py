"""The base of every configuration and payload model of the agent and the trainer. It holds no fields of its own."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A frozen model in which unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)
