"""Limits of one episode: sampled tokens, seconds, and the same action on the same screen again and again.

Role: `EpisodeLimits` is the setting, `LimitTracker` the pure decision which limit an episode has reached. Rule: a limit ends the episode
with a verdict and with exactly one `StopReason`; reaching it is the policy's doing. The budget of turns is the environment's
(`max_steps`); `FamilyLimits.lower_steps` sets it. Non-goals: acting on it (`dart_agent.rollouts.episode_loop`), the length
of the context (the engine counts exactly).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from dart_agent.strict_model import StrictModel
from dart_agent.types import StopReason


class EpisodeLimits(StrictModel):
    """What one episode may use beside its turns; None: no limit.

    max_tokens: sampled tokens of all answers. wall_clock_s: seconds from the first observation on, without time in which the episode was
    parked or no inference worker served. loop_repeats: so many times the same action may be taken on the same screen, with no other action
    in between; the last of them ends the episode. Answers that are no action are the same where their texts are.
    """

    max_tokens: int | None = Field(default=None, ge=1)
    wall_clock_s: float | None = Field(default=None, gt=0)
    loop_repeats: int | None = Field(default=None, ge=2)


class FamilyLimits(EpisodeLimits):
    """What one episode of a family may use. max_steps: its turns; None: as many as the rollout and the task allow."""

    max_steps: int | None = Field(default=None, ge=1)

    def lower_steps(self, max_steps: int) -> int:
        """The least of this limit and `max_steps`."""
        return max_steps if self.max_steps is None else min(max_steps, self.max_steps)


NO_LIMITS = EpisodeLimits()


@dataclass(frozen=True, slots=True)
class LimitUse:
    """What an episode has used so far.

    tokens: of all answers. last: the last action, as a digest. screens: how often it was taken on which screen (by hash) since another
    action was taken; a screen that changes by itself and back, such as one with a blinking caret, is the same again. repeats: on the last
    screen.
    """

    tokens: int = 0
    repeats: int = 0
    last: str = ""
    screens: Mapping[str, int] = field(default_factory=dict)


class LimitTracker:
    """Follows one episode. `use`: what it has used, to be saved with the episode and given back when it continues."""

    def __init__(self, limits: EpisodeLimits, use: LimitUse | None = None) -> None:
        self.limits = limits
        self.use = use or LimitUse()

    def answer_tokens(self, max_tokens: int) -> int:
        """Tokens that the next answer may have, where one answer may have `max_tokens`; at least 1."""
        if self.limits.max_tokens is None:
            return max_tokens
        return max(1, min(max_tokens, self.limits.max_tokens - self.use.tokens))

    def seconds_left(self, elapsed_s: float) -> float | None:
        """Seconds that are left after `elapsed_s`, None without a limit."""
        return None if self.limits.wall_clock_s is None else max(0.0, self.limits.wall_clock_s - elapsed_s)

    def add(self, tokens: int, screen_sha256: str, action: Mapping[str, Any]) -> None:
        """Count one answer: its tokens, and its action (what stands for it, where it is none) on a screen."""
        last = hashlib.sha256(json.dumps(action, sort_keys=True).encode()).hexdigest()
        screens = dict(self.use.screens) if last == self.use.last else {}
        repeats = screens[screen_sha256] = screens.get(screen_sha256, 0) + 1
        self.use = LimitUse(self.use.tokens + tokens, repeats, last, screens)

    def reached(self, elapsed_s: float) -> StopReason | None:
        """The limit that is reached after `elapsed_s`; a loop first, then tokens, then time."""
        limits, use = self.limits, self.use
        if limits.loop_repeats is not None and use.repeats >= limits.loop_repeats:
            return StopReason.LOOP
        if limits.max_tokens is not None and use.tokens >= limits.max_tokens:
            return StopReason.MAX_TOKENS
        if limits.wall_clock_s is not None and elapsed_s >= limits.wall_clock_s:
            return StopReason.WALL_CLOCK
        return None
