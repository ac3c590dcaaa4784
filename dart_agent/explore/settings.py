"""How an exploration runs.

Role: `ExploreSettings`, kept beside the graph, so that a resumed exploration goes on as it began. Rule: what says which screens there are,
who chooses and how values are estimated is fixed at the start; the bounds may be raised on resumption. Non-goals: where the model is
(`dart_agent.chat_api.endpoint_policy.EndpointSettings`), which is given anew each time and may differ.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from dart_agent.explore.candidates import CandidateSettings
from dart_agent.explore.screens import MAX_DISTANCE
from dart_agent.explore.values import ValueSettings
from dart_agent.strict_model import StrictModel


class ChooserName(StrEnum):
    """Who chooses."""

    QICRL = "qicrl"
    MODEL = "model"
    GREATEST_Q = "greatest-q"
    BREADTH_FIRST = "breadth-first"
    RANDOM = "random"

    @property
    def needs_model(self) -> bool:
        """Whether a model is asked."""
        return self in (ChooserName.QICRL, ChooserName.MODEL)


class ExploreSettings(StrictModel):
    """An exploration.

    Attributes:
        app: What is explored: the command that starts an application, or `simulated/SEED`.
        chooser: Who chooses: `qicrl` (a model with Q-values in its context), `model` (without), `greatest-q`, `breadth-first`, `random`.
        seed: Of all random numbers.
        max_steps: Most steps. An action is a step, also one on the way back to a screen; a fault costs one, too.
        max_screens: The exploration ends with so many screens.
        desktops: How many desktops explore at once; all but the first are forks of it.
        snapshots: Whether screens are saved, and returned to, by snapshots. Without, the way back is walked from the start.
        max_snapshots: Most snapshots at once; those of screens that are least worth are deleted first.
        max_faults: Faults in a row. After so many of the model the exploration ends in an error. A desktop with so many of its own is not
            used any more; after the last one the exploration ends in an error.
        max_distance: Bits of the perceptual hash that may differ within one screen.
        applications: Further applications that belong to what is explored; with any other in front, it has been left.
        image: Desktop image.
        resolution: (width, height) of the screen in pixels.
        candidates: Which candidates there are.
        values: How Q-values are estimated.
    """

    app: str = Field(min_length=1)
    chooser: ChooserName = ChooserName.GREATEST_Q
    seed: int = 0
    max_steps: int = Field(default=200, ge=1)
    max_screens: int = Field(default=1000, ge=1)
    desktops: int = Field(default=1, ge=1, le=64)
    snapshots: bool = True
    max_snapshots: int = Field(default=24, ge=1)
    max_faults: int = Field(default=5, ge=1)
    max_distance: int = Field(default=MAX_DISTANCE, ge=0, le=256)
    applications: tuple[str, ...] = ()
    image: str = "basic"
    resolution: tuple[int, int] = (1280, 800)
    candidates: CandidateSettings = CandidateSettings()
    values: ValueSettings = ValueSettings()
