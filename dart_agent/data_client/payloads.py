"""The agent's carriers on the data manager's wire: `Row` models that convert from and to `dart_agent.types`.

Role: what a trajectory, a step and a work item look like as JSON. Rule: unknown fields are errors; arrays travel as base64 of
little-endian bytes (ids int32, log-probs float32); `X.from_value(value).to_value() == value` up to float32. Non-goals: requests and replies
(`dart_agent.data_client.wire`).
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dart_agent.strict_model import StrictModel
from dart_agent.types import FinishReason, Purpose, SamplingParams, StepRecord, Trajectory, VersionSpan, WorkItem
from dart_envs.types import EndReason


class DataManagerModel(StrictModel):
    """Base of every model on this wire: unknown fields are errors."""


def pack_array(values: NDArray[Any]) -> str:
    """Little-endian bytes of a one-dimensional array, as base64."""
    return base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def unpack_ids(packed: str) -> tuple[int, ...]:
    """Token ids (int32) from `pack_array`."""
    return tuple(np.frombuffer(base64.b64decode(packed), dtype="<i4").tolist())


def unpack_logprobs(packed: str) -> tuple[float, ...]:
    """Log-probs (float32) from `pack_array`."""
    return tuple(np.frombuffer(base64.b64decode(packed), dtype="<f4").tolist())


class SamplingPayload(DataManagerModel):
    """`dart_agent.types.SamplingParams` on the wire."""

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=64, ge=1)
    seed: int | None = None

    @classmethod
    def from_value(cls, sampling: SamplingParams) -> SamplingPayload:
        """From the agent's carrier."""
        return cls(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
        )

    def to_value(self) -> SamplingParams:
        """To the agent's carrier."""
        return SamplingParams(self.temperature, self.top_p, self.max_tokens, self.seed)


class StepPayload(DataManagerModel):
    """`dart_agent.types.StepRecord` on the wire: ids as packed int32, log-probs as packed float32."""

    index: int = Field(ge=0)
    prompt_ids: str
    token_ids: str
    logprobs: str
    version_spans: list[tuple[int, int, int]] = Field(description="version, start, end")
    image_sha256: list[str]
    image_hw: list[tuple[int, int]]
    text: str
    action: dict[str, Any] | None
    parse_error: str | None
    sampling: SamplingPayload
    finish_reason: FinishReason
    model_s: float
    env_s: float

    @classmethod
    def from_value(cls, step: StepRecord) -> StepPayload:
        """From the agent's carrier."""
        return cls(
            index=step.index,
            prompt_ids=pack_array(np.asarray(step.prompt_ids_P, dtype=np.int32)),
            token_ids=pack_array(np.asarray(step.token_ids_T, dtype=np.int32)),
            logprobs=pack_array(np.asarray(step.logprobs_T, dtype=np.float32)),
            version_spans=[(span.version, span.start, span.end) for span in step.version_spans],
            image_sha256=list(step.image_sha256),
            image_hw=list(step.image_hw),
            text=step.text,
            action=None if step.action is None else dict(step.action),
            parse_error=step.parse_error,
            sampling=SamplingPayload.from_value(step.sampling),
            finish_reason=step.finish_reason,
            model_s=step.model_s,
            env_s=step.env_s,
        )

    def to_value(self) -> StepRecord:
        """To the agent's carrier."""
        return StepRecord(
            index=self.index,
            prompt_ids_P=unpack_ids(self.prompt_ids),
            token_ids_T=unpack_ids(self.token_ids),
            logprobs_T=unpack_logprobs(self.logprobs),
            version_spans=tuple(VersionSpan(*span) for span in self.version_spans),
            image_sha256=tuple(self.image_sha256),
            image_hw=tuple(self.image_hw),
            text=self.text,
            action=self.action,
            parse_error=self.parse_error,
            sampling=self.sampling.to_value(),
            finish_reason=self.finish_reason,
            model_s=self.model_s,
            env_s=self.env_s,
        )


class TrajectoryPayload(DataManagerModel):
    """`dart_agent.types.Trajectory` on the wire."""

    rollout_id: str
    group_id: str
    task_id: str
    purpose: Purpose
    phase: str
    steps: list[StepPayload]
    reward: float | None = Field(ge=0, le=1)
    end: EndReason
    cause: str | None
    started_at_s: float
    duration_s: float
    info: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _verdict_agrees_with_the_end(self) -> TrajectoryPayload:
        if self.end.masked != (self.reward is None):
            raise ValueError(f"an episode that ended as {self.end.value} has {'no' if self.end.masked else 'a'} reward")
        if [step.index for step in self.steps] != list(range(len(self.steps))):
            raise ValueError("steps are numbered 0, 1, 2, … in order")
        return self

    @classmethod
    def from_value(cls, trajectory: Trajectory) -> TrajectoryPayload:
        """From the agent's carrier."""
        return cls(
            rollout_id=trajectory.rollout_id,
            group_id=trajectory.group_id,
            task_id=trajectory.task_id,
            purpose=trajectory.purpose,
            phase=trajectory.phase,
            steps=[StepPayload.from_value(step) for step in trajectory.steps_S],
            reward=trajectory.reward,
            end=trajectory.end,
            cause=trajectory.cause,
            started_at_s=trajectory.started_at_s,
            duration_s=trajectory.duration_s,
            info=dict(trajectory.info),
        )

    def to_value(self) -> Trajectory:
        """To the agent's carrier."""
        return Trajectory(
            rollout_id=self.rollout_id,
            group_id=self.group_id,
            task_id=self.task_id,
            purpose=self.purpose,
            phase=self.phase,
            steps_S=tuple(step.to_value() for step in self.steps),
            reward=self.reward,
            end=self.end,
            cause=self.cause,
            started_at_s=self.started_at_s,
            duration_s=self.duration_s,
            info=self.info,
        )


class WorkItemPayload(DataManagerModel):
    """`dart_agent.types.WorkItem` on the wire."""

    rollout_id: str
    group_id: str
    task_id: str
    purpose: Purpose
    sampling: SamplingPayload
    max_steps: int
    phase: str

    def to_value(self) -> WorkItem:
        """To the agent's carrier."""
        return WorkItem(
            rollout_id=self.rollout_id,
            group_id=self.group_id,
            task_id=self.task_id,
            purpose=self.purpose,
            sampling=self.sampling.to_value(),
            max_steps=self.max_steps,
            phase=self.phase,
        )
