"""What an episode is made of, and what its loop needs of others.

Role: the carriers and protocols of `dart_agent.rollouts.episode_loop`. Rule: plain data. Non-goals: playing an episode.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from dart_agent.rollouts.episode_state import EpisodeState, SavedEpisode
from dart_agent.rollouts.limits import NO_LIMITS, EpisodeLimits
from dart_agent.types import Directive, StepRecord, Trajectory
from dart_envs.types import Action, DecodedAction, Observation, RgbImage, StepResult, TaskLike


class EpisodeEnv(Protocol):
    """What the loop needs of an environment: `dart_envs.envs.core.AsyncDesktopEnv`, or a scripted one in tests."""

    async def reset(
        self, task: TaskLike, seed: int | None = None, *, share_setup: bool | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; raises `dart_envs.errors.DartEnvError` when it cannot begin."""
        ...

    async def step(self, action: Action | DecodedAction, *, last: bool | None = None) -> StepResult:
        """Perform one action, the last one where a limit says so; raises ActionError, and nothing else, for what the policy did."""
        ...


class OnParseError(StrEnum):
    """What an answer that performs nothing leads to."""

    NO_ACTION = "no_action"
    """A step of the environment in which nothing happens."""
    FAIL = "fail"
    """The end of the episode, with reward 0. The action FAIL is not performed: on an infeasible task it would be the solution."""
    RETRY = "retry"
    """Another answer on the same screen, which costs no step of the environment; after `parse_retries` of them in a row, `no_action`."""


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """One step as a teacher sees it: the full screen before the action, and the action."""

    index: int
    observation: Observation
    action: Action | DecodedAction | None


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode and the model-input images that its steps refer to, by sha256, but for some that its journal has stored."""

    trajectory: Trajectory
    images: Mapping[str, RgbImage]


class EpisodeStopped(Exception):
    """The episode stopped at a turn boundary, because it was told to."""

    def __init__(self, directive: Directive) -> None:
        super().__init__(directive.value)
        self.directive = directive


class EpisodeJournal(Protocol):
    """Follows the steps of a running episode, so that another process can continue it."""

    @property
    def sent_images(self) -> Collection[str]:
        """Hashes of the images that are stored; the episode need not keep them."""
        ...

    def acting(self, index: int) -> None:
        """The action of step `index` is performed from now on: until the step is stored, nobody knows whether it was."""
        ...

    async def stored(self, steps_S: tuple[StepRecord, ...], image: RgbImage, state: EpisodeState) -> Directive:
        """Store the last one of the steps, and say what the episode does next. `image`: the model-input image of its screen."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """How episodes run.

    Attributes:
        on_parse_error: What an answer that performs nothing leads to.
        parse_retries: Further answers in a row that `retry` asks for. Each answer is a step record of its own, and stays in the history.
        limits: What an episode may use beside its turns.
        worker: Name that is written into saved states.
        process: Id of this process, written beside it.
    """

    on_parse_error: OnParseError = OnParseError.NO_ACTION
    parse_retries: int = 2
    limits: EpisodeLimits = NO_LIMITS
    worker: str = ""
    process: str = ""


@dataclass(frozen=True, slots=True)
class ResumedEpisode:
    """An unfinished episode whose desktop was taken up again.

    Attributes:
        saved: What is stored of it.
        observation: What its desktop shows.
        images: Model-input images of its last prompt, by hash, and of the screens that its reward source looks at; its coming prompts show
            no others of its stored steps.
    """

    saved: SavedEpisode
    observation: Observation
    images: Mapping[str, RgbImage]


def no_outage() -> float:
    """Return the seconds of outage of a policy that has none."""
    return 0.0
