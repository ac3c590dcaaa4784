"""The recipe's section `rollout`: how training rollouts are sampled and scheduled.

Role: the schema. Non-goals: the decisions (`dart_train.scheduling`).
"""

from __future__ import annotations

from pydantic import Field, field_validator

from dart_agent.rollouts.episode import OnParseError
from dart_agent.strict_model import StrictModel
from dart_agent.types import SamplingParams
from dart_train.scheduling.settings import SchedulingMode


class RolloutSection(StrictModel):
    """How training rollouts are sampled and scheduled.

    Attributes:
        group_size: Rollouts per group.
        temperature: Sampling temperature.
        top_p: Must be 1, because the trainer's log-probs are those of the full distribution.
        max_tokens: Longest response, in tokens.
        max_episode_tokens: Most sampled tokens of an episode; None: no limit.
        max_episode_s: Longest episode, in seconds after its first screenshot, without time in which it waits while no inference worker
            serves; None: no limit.
        loop_repeats: So many times may an action be taken on the same screen with no other one in between, and the last one ends the
            episode; None: no limit.
        partial: Whether steps are stored as they happen, and unfinished episodes are continued.
        on_parse_error: What a response that performs nothing leads to: `no_action` (a step in which nothing happens), `fail` (the end
            of the episode, with reward 0) or `retry` (another response on the same screen, which costs no step).
        parse_retries: Further responses in a row that `retry` asks for before a step in which nothing happens.
        scheduling: What a desktop waits for before its next training rollout: `batch`, `task`, `rollout-global` or `rollout-per-worker`.
        over_provision: Rollouts that are launched over those that are needed; 1: no more.
        parallel_groups: Training groups whose rollouts start at the same time; none: the staleness budget decides.
        max_kv_cache_usage: No rollout starts where the inference workers report more than this fraction of their key-value cache in use.
    """

    group_size: int = Field(default=8, ge=2, le=256)
    temperature: float = Field(default=1.0, gt=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=24, ge=1)
    max_episode_tokens: int | None = Field(default=None, ge=1)
    max_episode_s: float | None = Field(default=None, gt=0)
    loop_repeats: int | None = Field(default=None, ge=2)
    partial: bool = False
    on_parse_error: OnParseError = OnParseError.NO_ACTION
    parse_retries: int = Field(default=2, ge=1, le=16)
    scheduling: SchedulingMode = SchedulingMode.ROLLOUT_PER_WORKER
    over_provision: float = Field(default=1.0, ge=1, le=4)
    parallel_groups: int | None = Field(default=None, ge=1)
    max_kv_cache_usage: float = Field(default=0.95, gt=0, le=1)

    @field_validator("top_p")
    @classmethod
    def _whole_distribution(cls, top_p: float) -> float:
        if top_p < 1:
            raise ValueError(
                f"{top_p:g} would cut tokens off that the trainer's log-probs still count, and its ratios would be wrong: "
                "leave it at 1 and lower rollout.temperature instead"
            )
        return top_p

    @property
    def sampling(self) -> SamplingParams:
        """The sampling parameters of the agent with the same values."""
        return SamplingParams(temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_tokens)
