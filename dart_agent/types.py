"""Carriers of the agent package: completions, steps, trajectories, work items.

Role: the values that policy, runner, worker, store and trainer pass to each other. Rule: frozen, plain data, no heavy imports.
Axes: T tokens of one response, P tokens of one prompt, S steps of one trajectory, G trajectories of one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from dart_envs.types import EndReason, RgbImage

PolicyVersion = int
"""0 is the warm-started policy; each optimiser step of the trainer makes the next one."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. `temperature` 0 is greedy.

    stop: texts that end the answer and are left out of its text. version: only weights of this policy version answer; None: those that a
    worker has.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 64
    seed: int | None = None
    stop: tuple[str, ...] = ()
    version: PolicyVersion | None = None


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Positions [start, end) of a response were sampled by policy `version`: its tokens, and behind them the targets that a head found.

    kept_kv: their key-value cache was in part computed by older weights (`kv_after_update = "keep"`). The log-probs are still those of the
    distribution that was sampled from, but no forward pass of one version gives them again.
    """

    version: PolicyVersion
    start: int
    end: int
    kept_kv: bool = False

    def packed(self) -> tuple[int, int, int] | tuple[int, int, int, bool]:
        """Its fields as they are stored; `VersionSpan(*fields)` reads them. What is not kept has no fourth."""
        fields = (self.version, self.start, self.end)
        return (*fields, True) if self.kept_kv else fields


class FinishReason(StrEnum):
    """Why the engine stopped writing one response."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """One model call: chat messages (text, with `{"type": "image"}` place holders) and the images they refer to, in order.

    images: model-input images, uint8 [H, W, 3], already resized (`dart_agent.prompts.builder`). image_sha256: their content hashes in the
    same order, by which an engine finds features that it has computed before; empty: not known.
    prefix_ids_P: ids that this prompt continues exactly: an earlier prompt and the answer sampled to it; empty: a new segment.
    prefix_messages: how many of `messages` they cover; the last of these is the answer. tools: what the model is given beside the messages,
    as its own API declares it (`dart_envs.action_formats.ActionFormat.tools`). step: index of the step of its episode that it asks for; a
    continued episode counts on. Engines do not get it.
    """

    messages: tuple[Mapping[str, Any], ...]
    images: tuple[RgbImage, ...]
    sampling: SamplingParams
    request_id: str
    image_sha256: tuple[str, ...] = ()
    prefix_ids_P: tuple[int, ...] = ()
    prefix_messages: int = 0
    tools: tuple[Mapping[str, Any], ...] = ()
    step: int = 0


@dataclass(frozen=True, slots=True)
class PointedTarget:
    """A target that an action head found (`dart_agent.grounding.acting`): what a trainer needs to find its log-prob again.

    Attributes:
        instruction: What the head was asked.
        cell: Index of the visual token that was drawn, row by row.
        part: Index of the part of its cell, row by row; 0 without offsets.
        logprob: log a(cell) + log o(part | cell) of the distribution that was drawn from, in nats.
        point: (x, y) in pixels of the model-input image.
    """

    instruction: str
    cell: int
    part: int
    logprob: float
    point: tuple[float, float]

    def packed(self) -> tuple[str, int, int, float, tuple[float, float]]:
        """Its fields as they are stored; `PointedTarget.unpack` reads them."""
        return self.instruction, self.cell, self.part, self.logprob, self.point

    @classmethod
    def unpack(cls, fields: Sequence[Any]) -> PointedTarget:
        """From its fields as they are stored."""
        instruction, cell, part, logprob, (x, y) = fields
        return cls(str(instruction), int(cell), int(part), float(logprob), (float(x), float(y)))


@dataclass(frozen=True, slots=True)
class Completion:
    """What the engine sampled.

    prompt_ids_P: the prompt's token ids as the engine used them, image place holders expanded (what the trainer trains on). token_ids_T,
    logprobs_T: sampled ids (end-of-turn included) and the log-probs of the distribution they were really drawn from; empty where the policy
    does not tell them, and then nothing can be trained on. counted_tokens: number of sampled tokens where only that is told.
    cached_prompt_tokens: tokens of the prompt whose key-value cache was there already. pointers: targets that an action head found, in the
    order of the text. action_text: what is performed, where it is not the text itself: the text with the points of its targets. queue_s:
    seconds between question and answer in which no engine computed it: in a queue, in a retry, or on a worker that took new weights; 0
    where nobody tells.
    """

    text: str
    prompt_ids_P: tuple[int, ...]
    token_ids_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    version_spans: tuple[VersionSpan, ...]
    finish_reason: FinishReason
    worker: str = ""
    cached_prompt_tokens: int = 0
    pointers: tuple[PointedTarget, ...] = ()
    action_text: str | None = None
    counted_tokens: int | None = None
    queue_s: float = 0.0

    @property
    def sampled_tokens(self) -> int:
        """Number of sampled tokens, as far as the policy tells it."""
        return len(self.token_ids_T) or self.counted_tokens or 0


class Policy(Protocol):
    """Anything that answers a request: the vLLM pool, a scripted fake, an oracle."""

    async def complete(self, request: PolicyRequest) -> Completion:
        """Sample one response. Raises `dart_agent.errors.PolicyUnavailableError` when no worker can answer."""
        ...


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One training row: the sampled ids with everything needed to train on them.

    image_sha256: content hashes (over raw RGB bytes) of the images in the prompt, in order; the blobs are in the image store.
    parse_error: why the text could not be turned into an action (None when it could). pointers: targets that an action head found.
    """

    index: int
    prompt_ids_P: tuple[int, ...]
    token_ids_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    version_spans: tuple[VersionSpan, ...]
    image_sha256: tuple[str, ...]
    image_hw: tuple[tuple[int, int], ...]
    text: str
    action: Mapping[str, Any] | None
    parse_error: str | None
    sampling: SamplingParams
    finish_reason: FinishReason
    model_s: float
    env_s: float
    pointers: tuple[PointedTarget, ...] = ()


class Purpose(StrEnum):
    """What a trajectory is for. Only `train` trajectories may reach the trainer's batches; only `demo` the warm start."""

    TRAIN = "train"
    DEMO = "demo"
    EVAL = "eval"


class RewardKind(StrEnum):
    """Where a reward came from (`dart_agent.rewards`)."""

    EVALUATOR = "evaluator"
    """The task's evaluator."""
    CHECKPOINTS = "checkpoints"
    """The task's evaluator, with partial credit for its checkpoints."""
    PROGRAM = "program"
    """A program of the user."""
    JUDGE = "judge"
    """A model that looked at screenshots."""


class StopReason(StrEnum):
    """Why a trajectory ended; exactly one is stored with each. Limits are scored by the evaluator on the desktop as it then is."""

    DONE = "done"
    """The policy said that the task is done."""
    FAIL = "fail"
    """The policy said that the task cannot be done."""
    PARSE_ERROR = "parse_error"
    """An answer was no action, and the recipe ends the episode then; reward 0, whatever judges it."""
    MAX_STEPS = "max_steps"
    """The budget of turns is used up."""
    MAX_TOKENS = "max_tokens"
    """The budget of sampled tokens is used up."""
    WALL_CLOCK = "wall_clock"
    """The budget of seconds is used up."""
    LOOP = "loop"
    """The same action was sampled on the same screen as often as is allowed, and no other one in between."""
    CONTEXT = "context"
    """The next prompt has more tokens (its answer included) or images than the model takes: earlier turns made it that long."""
    BROKE_DESKTOP = "broke_desktop"
    """The policy broke the desktop from the inside."""
    FARM_FAULT = "farm_fault"
    """The farm or the host failed; masked."""
    EVALUATOR_ERROR = "evaluator_error"
    """The evaluator raised; masked."""
    REWARD_ERROR = "reward_error"
    """The program or the judge model that rewards the episode is at fault, and gave no verdict; masked."""
    CANCELLED = "cancelled"
    """The caller stopped the episode; masked."""

    @property
    def end(self) -> EndReason:
        """How the environment ended the episode: limits of every kind are its `max_steps`, and whoever judges it is an evaluator."""
        return _END_OF_STOP.get(self) or EndReason(self.value)


_END_OF_STOP = {
    StopReason.PARSE_ERROR: EndReason.MAX_STEPS,
    StopReason.MAX_TOKENS: EndReason.MAX_STEPS,
    StopReason.WALL_CLOCK: EndReason.MAX_STEPS,
    StopReason.LOOP: EndReason.MAX_STEPS,
    StopReason.CONTEXT: EndReason.MAX_STEPS,
    StopReason.REWARD_ERROR: EndReason.EVALUATOR_ERROR,
}


class Directive(StrEnum):
    """What an episode does after a step was stored."""

    CONTINUE = "continue"
    PARK = "park"
    """Stop at this turn, keep what was sampled, and let another turn continue later."""
    CANCEL = "cancel"
    """Nobody needs this episode any more."""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One rollout to run: handed out by the data manager, claimed by a rollout worker under a deadline.

    task_id: `family/variation`, resolved by `dart_envs.tasks`. group_id: rollouts of one group share it. stored_steps: steps that an
    earlier worker stored of it; the episode continues after them. assignment: identity of this assignment of the rollout; what is said
    about the unfinished rollout under another one, by whichever worker, changes nothing. Empty where the source never assigns a rollout
    twice.
    """

    rollout_id: str
    group_id: str
    task_id: str
    purpose: Purpose
    sampling: SamplingParams
    max_steps: int
    phase: str = ""
    stored_steps: int = 0
    assignment: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished episode, whatever its end. `reward` is None where there is no verdict (`end.masked`).

    reward_source: what judged it, or would have.
    """

    rollout_id: str
    group_id: str
    task_id: str
    purpose: Purpose
    phase: str
    steps_S: tuple[StepRecord, ...]
    reward: float | None
    stop: StopReason
    cause: str | None
    started_at_s: float
    duration_s: float
    info: Mapping[str, Any] = field(default_factory=dict)
    reward_source: RewardKind = RewardKind.EVALUATOR

    @property
    def end(self) -> EndReason:
        """How the environment ended it."""
        return self.stop.end


class WorkSource(Protocol):
    """Where a rollout worker gets its work and leaves its results: the data manager's client, or a list in tests."""

    async def acquire(self, worker_id: str) -> WorkItem | None:
        """Next rollout, None when there is nothing to do right now."""
        ...

    async def report(self, trajectory: Trajectory, images: Mapping[str, RgbImage]) -> None:
        """Store a finished trajectory; `images` by sha256. Idempotent by rollout id. Raises StoreRefusedError where it is refused."""
        ...

    async def abandon(self, item: WorkItem, cause: str, *, uses_attempt: bool = True) -> None:
        """Give a claimed rollout back: it could not be started or its worker is stopping. Idempotent by rollout and assignment.

        uses_attempt: False where the rollout is not to blame; it may then be tried as often as before.
        """
        ...


def family_of(task_id: str) -> str:
    """Extract the family from a task id.

    Args:
        task_id: An id of the form `suite/family/variation`; any other id is its own family.

    Returns:
        The family.
    """
    parts = task_id.split("/")
    return parts[1] if len(parts) == 3 else task_id


__all__ = [
    "Completion",
    "Directive",
    "FinishReason",
    "PointedTarget",
    "Policy",
    "PolicyRequest",
    "PolicyVersion",
    "Purpose",
    "RewardKind",
    "SamplingParams",
    "StepRecord",
    "StopReason",
    "Trajectory",
    "VersionSpan",
    "WorkItem",
    "WorkSource",
    "family_of",
]
