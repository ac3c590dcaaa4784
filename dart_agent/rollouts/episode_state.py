"""What is needed, beside its stored steps, to continue an unfinished episode in any process.

Role: `EpisodeState` (plain data, JSON) and `SavedEpisode` (with the steps). Rule: sampled ids, log-probs, version spans and texts are in
the steps and nowhere else; images are in the image store by their hash. A state that was not saved at a turn boundary (`parked` false)
belongs to the worker that wrote it: only that worker can tell whether an action was under way when it died. Non-goals: storing it
(`dart_train.data_manager.store`), continuing (`dart_agent.rollouts.episode_loop`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from dart_agent.strict_model import StrictModel
from dart_agent.types import StepRecord
from dart_envs.envs.parking import ParkedDesktop


class KeptDesktop(StrictModel):
    """`dart_envs.envs.parking.ParkedDesktop` as JSON."""

    steps: int
    acted: bool
    lease: str | None = None
    desktop_id: str | None = None
    snapshot_id: str | None = None

    @classmethod
    def from_value(cls, parked: ParkedDesktop) -> KeptDesktop:
        """From the environment's carrier."""
        return cls(
            steps=parked.steps,
            acted=parked.acted,
            lease=parked.lease,
            desktop_id=parked.desktop_id,
            snapshot_id=parked.snapshot_id,
        )

    def to_value(self) -> ParkedDesktop:
        """To the environment's carrier."""
        return ParkedDesktop(self.steps, self.acted, self.lease, self.desktop_id, self.snapshot_id)


class EpisodeState(StrictModel):
    """One unfinished episode after its last stored step.

    worker, process: who wrote this, by name and by process. parked: it was left at a turn boundary on purpose. started_at_s: seconds since
    the epoch. elapsed_s: seconds that it has run, without time in which it was parked. outage_s: seconds of these in which it waited for an
    answer while no inference worker served. queue_s: seconds of them in which it waited for requests that no engine computed. tokens,
    repeats, last_action, screens: what it has used of its limits (`dart_agent.rollouts.limits.LimitUse`). first_turn, first_screen: what
    its history shows no more. desktop: where its desktop is, None: nowhere.
    """

    worker: str
    process: str
    parked: bool = False
    started_at_s: float
    elapsed_s: float
    reset_s: float
    outage_s: float = 0.0
    queue_s: float = 0.0
    tokens: int = 0
    repeats: int = 0
    last_action: str = ""
    screens: dict[str, int] = Field(default_factory=dict)
    first_turn: int = 0
    first_screen: int = 0
    desktop: KeptDesktop | None = None

    @property
    def resumable_by(self) -> str | None:
        """Name of the only worker that can continue it; None: any worker can, or none."""
        return None if self.parked or self.desktop is None else self.worker


@dataclass(slots=True)
class EpisodeProgress:
    """What an episode has done since this worker began or continued it, for whoever plays it, however it ends.

    Attributes:
        steps: Steps.
        tokens: Sampled tokens.
        reset_s: Seconds in which its desktop was prepared; None: that has not ended.
        model_s: Seconds of waiting for responses.
        queue_s: The part of them in which no engine computed the request.
        env_s: Seconds of performing actions.
    """

    steps: int = 0
    tokens: int = 0
    reset_s: float | None = None
    model_s: float = 0.0
    queue_s: float = 0.0
    env_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SavedEpisode:
    """An unfinished episode: its state and the steps that are stored of it."""

    state: EpisodeState
    steps_S: tuple[StepRecord, ...]
