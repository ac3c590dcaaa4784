"""The agent's carriers on the data manager's wire: `Row` models that convert from and to `dart_agent.types`.

Role: what a trajectory, a step and a work item look like as JSON. Rule: unknown fields are errors; arrays travel as base64 of
little-endian bytes (ids int32, log-probs float32); `X.from_value(value).to_value() == value` up to float32. Non-goals: requests and replies
(`dart_agent.data_client.wire`).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dart_agent.data_client.token_stream import StepSlice, StreamReader, slice_step
from dart_agent.strict_model import StrictModel
from dart_agent.types import (
    FinishReason,
    PointedTarget,
    Purpose,
    RewardKind,
    SamplingParams,
    StepRecord,
    StopReason,
    Trajectory,
    VersionSpan,
    WorkItem,
)
from dart_envs.types import EndReason

PointedFields = tuple[str, int, int, float, tuple[float, float]]
POINTERS = "of each target that an action head found: instruction, visual token, part of its cell, log-prob, point in pixels of the image"


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
    version: int | None = Field(default=None, ge=0, description="the policy version that samples; None: any")

    @classmethod
    def from_value(cls, sampling: SamplingParams) -> SamplingPayload:
        """From the agent's carrier."""
        return cls(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            version=sampling.version,
        )

    def to_value(self) -> SamplingParams:
        """To the agent's carrier."""
        return SamplingParams(self.temperature, self.top_p, self.max_tokens, self.seed, version=self.version)


class StepPayload(DataManagerModel):
    """`dart_agent.types.StepRecord` on the wire: ids as packed int32, log-probs as packed float32."""

    index: int = Field(ge=0)
    prompt_ids: str
    token_ids: str
    logprobs: str
    version_spans: list[tuple[int, int, int] | tuple[int, int, int, bool]] = Field(
        description="version, start, end of positions (tokens, then pointers), and true where the key-value cache was kept over new weights"
    )
    image_sha256: list[str]
    image_hw: list[tuple[int, int]]
    text: str
    action: dict[str, Any] | None
    parse_error: str | None
    sampling: SamplingPayload
    finish_reason: FinishReason
    model_s: float
    env_s: float
    pointers: list[PointedFields] = Field(default_factory=list, description=POINTERS)

    @classmethod
    def from_value(cls, step: StepRecord) -> StepPayload:
        """From the agent's carrier."""
        return cls(
            index=step.index,
            prompt_ids=pack_array(np.asarray(step.prompt_ids_P, dtype=np.int32)),
            token_ids=pack_array(np.asarray(step.token_ids_T, dtype=np.int32)),
            logprobs=pack_array(np.asarray(step.logprobs_T, dtype=np.float32)),
            version_spans=[span.packed() for span in step.version_spans],
            image_sha256=list(step.image_sha256),
            image_hw=list(step.image_hw),
            text=step.text,
            action=None if step.action is None else dict(step.action),
            parse_error=step.parse_error,
            sampling=SamplingPayload.from_value(step.sampling),
            finish_reason=step.finish_reason,
            model_s=step.model_s,
            env_s=step.env_s,
            pointers=[pointer.packed() for pointer in step.pointers],
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
            pointers=tuple(PointedTarget.unpack(fields) for fields in self.pointers),
        )


class StreamStepPayload(DataManagerModel):
    """A step as a slice of its token stream (`dart_agent.data_client.token_stream`): only what is new in it travels and is stored."""

    index: int = Field(ge=0)
    segment: int = Field(ge=0)
    response_start: int = Field(ge=0)
    response_end: int = Field(ge=0)
    prompt_new: str
    token_ids: str
    logprobs: str
    version_spans: list[tuple[int, int, int] | tuple[int, int, int, bool]] = Field(
        description="version, start, end of positions (tokens, then pointers), and true where the key-value cache was kept over new weights"
    )
    image_sha256_new: list[str]
    image_hw_new: list[tuple[int, int]]
    text: str
    action: dict[str, Any] | None
    parse_error: str | None
    sampling: SamplingPayload
    finish_reason: FinishReason
    model_s: float
    env_s: float
    pointers: list[PointedFields] = Field(default_factory=list, description=POINTERS)

    @model_validator(mode="after")
    def _slice_is_possible(self) -> StreamStepPayload:
        if not self.segment <= self.index or not self.response_start <= self.response_end:
            raise ValueError(
                f"step {self.index} cannot be [{self.response_start}, {self.response_end}) of segment {self.segment}"
            )
        return self

    @classmethod
    def from_value(cls, step: StepRecord, before: StepRecord | None, before_segment: int) -> StreamStepPayload:
        """From the agent's carrier; `before` is the step before it, `before_segment` that step's segment."""
        cut = slice_step(step, before, before_segment)
        return cls(
            index=step.index,
            segment=cut.segment,
            response_start=cut.response_start,
            response_end=cut.response_end,
            prompt_new=pack_array(np.asarray(cut.prompt_new, dtype=np.int32)),
            token_ids=pack_array(np.asarray(step.token_ids_T, dtype=np.int32)),
            logprobs=pack_array(np.asarray(step.logprobs_T, dtype=np.float32)),
            version_spans=[span.packed() for span in step.version_spans],
            image_sha256_new=list(cut.image_sha256_new),
            image_hw_new=list(cut.image_hw_new),
            text=step.text,
            action=None if step.action is None else dict(step.action),
            parse_error=step.parse_error,
            sampling=SamplingPayload.from_value(step.sampling),
            finish_reason=step.finish_reason,
            model_s=step.model_s,
            env_s=step.env_s,
            pointers=[pointer.packed() for pointer in step.pointers],
        )

    @property
    def slice(self) -> StepSlice:
        """Where the step is in its segment."""
        return StepSlice(
            self.segment,
            self.response_start,
            self.response_end,
            unpack_ids(self.prompt_new),
            tuple(self.image_sha256_new),
            tuple(self.image_hw_new),
        )

    def to_value(self, reader: StreamReader) -> StepRecord:
        """To the agent's carrier; `reader` has read the steps before it."""
        tokens = unpack_ids(self.token_ids)
        prompt, hashes, sizes = reader.read(self.index, self.slice, tokens)
        return StepRecord(
            index=self.index,
            prompt_ids_P=prompt,
            token_ids_T=tokens,
            logprobs_T=unpack_logprobs(self.logprobs),
            version_spans=tuple(VersionSpan(*span) for span in self.version_spans),
            image_sha256=hashes,
            image_hw=sizes,
            text=self.text,
            action=self.action,
            parse_error=self.parse_error,
            sampling=self.sampling.to_value(),
            finish_reason=self.finish_reason,
            model_s=self.model_s,
            env_s=self.env_s,
            pointers=tuple(PointedTarget.unpack(fields) for fields in self.pointers),
        )


def steps_digest(token_ids: Iterable[bytes]) -> str:
    """Digest of the sampled ids of consecutive steps, each as little-endian int32 bytes: by it two sides find that they mean the same."""
    digest = hashlib.sha256()
    for ids in token_ids:
        digest.update(len(ids).to_bytes(8, "little") + ids)
    return digest.hexdigest()


def stream_payloads(steps: Sequence[StepRecord]) -> list[StreamStepPayload]:
    """All steps of a trajectory as slices."""
    rows: list[StreamStepPayload] = []
    before: StepRecord | None = None
    for step in steps:
        rows.append(StreamStepPayload.from_value(step, before, rows[-1].segment if rows else 0))
        before = step
    return rows


class TrajectoryPayload(DataManagerModel):
    """`dart_agent.types.Trajectory` on the wire. `steps` may leave out those that are stored already, from the first on."""

    rollout_id: str
    group_id: str
    task_id: str
    purpose: Purpose
    phase: str
    steps: list[StreamStepPayload]
    n_steps: int = Field(ge=0)
    stored_digest: str | None = Field(default=None, description="of the steps that are left out (`steps_digest`)")
    reward: float | None = Field(ge=0, le=1)
    stop: StopReason
    cause: str | None
    started_at_s: float
    duration_s: float
    info: dict[str, Any] = Field(default_factory=dict)
    reward_source: RewardKind = Field(default=RewardKind.EVALUATOR, description="what judged it, or would have")

    @property
    def end(self) -> EndReason:
        """How the environment ended it."""
        return self.stop.end

    @model_validator(mode="after")
    def _verdict_agrees_with_the_end(self) -> TrajectoryPayload:
        if self.end.masked != (self.reward is None):
            raise ValueError(
                f"an episode that ended as {self.stop.value} has {'no' if self.end.masked else 'a'} reward"
            )
        if [step.index for step in self.steps] != list(range(self.n_steps - len(self.steps), self.n_steps)):
            raise ValueError("steps are numbered 0, 1, 2, … in order")
        return self

    @classmethod
    def from_value(cls, trajectory: Trajectory, stored_steps: int = 0) -> TrajectoryPayload:
        """From the agent's carrier, without the first `stored_steps` steps."""
        rows = stream_payloads(trajectory.steps_S)
        left_out = [base64.b64decode(row.token_ids) for row in rows[:stored_steps]]
        return cls(
            rollout_id=trajectory.rollout_id,
            group_id=trajectory.group_id,
            task_id=trajectory.task_id,
            purpose=trajectory.purpose,
            phase=trajectory.phase,
            steps=rows[stored_steps:],
            n_steps=len(rows),
            stored_digest=steps_digest(left_out) if left_out else None,
            reward=trajectory.reward,
            stop=trajectory.stop,
            cause=trajectory.cause,
            started_at_s=trajectory.started_at_s,
            duration_s=trajectory.duration_s,
            info=dict(trajectory.info),
            reward_source=trajectory.reward_source,
        )

    def to_value(self) -> Trajectory:
        """To the agent's carrier. Raises ValueError when steps are left out."""
        reader = StreamReader()
        return Trajectory(
            rollout_id=self.rollout_id,
            group_id=self.group_id,
            task_id=self.task_id,
            purpose=self.purpose,
            phase=self.phase,
            steps_S=tuple(step.to_value(reader) for step in self.steps),
            reward=self.reward,
            stop=self.stop,
            cause=self.cause,
            started_at_s=self.started_at_s,
            duration_s=self.duration_s,
            info=self.info,
            reward_source=self.reward_source,
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
    stored_steps: int = 0
    assignment: str = ""

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
            stored_steps=self.stored_steps,
            assignment=self.assignment,
        )
