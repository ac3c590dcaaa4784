"""The data manager's wire contract: everything that crosses `<run>/data.sock`, as pydantic models.

Role: the single definition shared by the data manager and its clients (rollout worker, launcher, trainer).
Rule: pydantic only; unknown fields are errors. Rows are in `dart_agent.data_client.payloads`. Images never travel:
they are blobs by content hash in a directory that all processes share. `assignment` is the `request_id` that an assignment answered: who
has a rollout now is who names the present one.
Non-goals: no behaviour.

    POST /work/assign            AssignmentRequest -> AssignmentReply   waits up to `wait_s`
    POST /work/heartbeat        HeartbeatRequest -> WorkerHeartbeatReply  extends the deadlines of what a worker holds
    POST /work/abandon          AbandonRequest -> CountReply
    POST /work/release          ReleaseRequest -> CountReply      a worker is gone: hand its rollouts out again at once
    POST /work/park             ParkRequest -> CountReply    an unfinished rollout that anyone may continue
    POST /work/resume           ResumeRequest -> CountReply  an unfinished rollout goes on on a desktop that the worker holds now
    POST /work/restart          RestartRequest -> CountReply the stored steps of an unfinished rollout are dropped
    POST /rollouts/steps        StoreStepRequest -> StoreStepReply  as they happen; idempotent by rollout id and index
    GET  /rollouts/{id}/state   -> SavedEpisodeReply
    POST /trajectories          TrajectoryPayload -> StoreTrajectoryReply  idempotent by rollout id
    GET  /trajectories          ?phase=&after=&limit= -> TrajectoryPage
    POST /phases                PhaseSpec -> PhaseStatus       idempotent by name
    GET  /phases/{name}         -> PhaseStatus
    POST /phases/{name}/stop    -> PhaseStatus
    GET  /phases/{name}/results -> list[EpisodeResult]
    POST /work/hold             HoldRequest -> CountReply    requests for work that do not wait any more
    POST /batches/next          BatchRequest -> BatchReply   waits up to `wait_s`
    POST /batches/{id}/done     BatchReport
    POST /batches/{id}/failed   BatchFailure -> CountReply   failed batches in a row
    POST /versions              VersionRecord                idempotent by number
    GET  /versions/latest       -> VersionReply
    GET  /versions/held         -> VersionReply              that an active phase asks for (`SamplingPayload.version`)
    GET  /stats                 -> DataManagerStats
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dart_agent.data_client.payloads import (
    DataManagerModel,
    SamplingPayload,
    StepPayload,
    StreamStepPayload,
    TrajectoryPayload,
    WorkItemPayload,
)
from dart_agent.rollouts.episode_state import EpisodeState
from dart_agent.types import Directive, Purpose, RewardKind
from dart_envs.types import EndReason

Split = Literal["train", "validation", "test"]
PhaseState = Literal["active", "stopped", "done"]
MAX_PHASE_NAME = 64
"""Characters of a phase's name at most."""
PHASE_NAME = rf"^[a-z0-9][a-z0-9._-]{{0,{MAX_PHASE_NAME - 1}}}$"
"""Pattern of a phase's name."""


class AssignmentRequest(DataManagerModel):
    """Repeating a request with the same `request_id` returns the same rollout (a lost reply costs nothing)."""

    worker_id: str = Field(min_length=1, max_length=128)
    request_id: str = Field(min_length=8, max_length=64)
    wait_s: float = Field(default=0.0, ge=0, le=30, description="how long to wait for work before the answer is None")
    desktops: int | None = Field(default=None, ge=1, description="desktops of the worker; None: not reported")
    kv_cache_usage: float | None = Field(
        default=None, ge=0, description="of its inference workers, above 1 where requests wait for it; None: unknown"
    )


class AssignmentReply(DataManagerModel):
    """`item` is None when there is nothing to do right now."""

    item: WorkItemPayload | None
    deadline_s: float | None = Field(description="seconds until the claim lapses without a heartbeat")


class HeartbeatRequest(DataManagerModel):
    """The worker is alive and still runs what it claimed; it has deleted these snapshots. Else as `AssignmentRequest`."""

    worker_id: str
    desktops: int | None = Field(default=None, ge=1)
    kv_cache_usage: float | None = Field(default=None, ge=0)
    deleted_snapshots: list[str] = Field(default_factory=list)


class WorkerHeartbeatReply(DataManagerModel):
    """What the worker holds, and what it does beside.

    Attributes:
        count: Rollouts that it holds.
        stopping: Assignments among them that stop at their next turn: to be parked where steps are stored as they happen, else cancelled.
        obsolete_snapshots: Snapshots at the farm that no unfinished rollout needs any more, for any worker to delete; told again until one
            has said that they are deleted.
    """

    count: int
    stopping: list[str] = Field(default_factory=list)
    obsolete_snapshots: list[str] = Field(default_factory=list)


class HoldRequest(DataManagerModel):
    """Hand out neither rollouts nor batches, for a reason; None: do so again."""

    reason: str | None = Field(max_length=1000)


class AbandonRequest(DataManagerModel):
    """Give one rollout back; nothing happens where another assignment of it holds."""

    rollout_id: str
    assignment: str
    cause: str = Field(max_length=500)
    uses_attempt: bool = Field(default=True, description="False: the rollout is not to blame, its worker stops")


class ReleaseRequest(DataManagerModel):
    """Give back everything that `worker_id` holds; None: everything that anyone holds (all workers are gone)."""

    worker_id: str | None


class StoreStepRequest(DataManagerModel):
    """One step of an unfinished rollout, and how the episode stands after it."""

    rollout_id: str
    assignment: str
    step: StreamStepPayload
    state: EpisodeState


class StoreStepReply(DataManagerModel):
    """What the episode does next. `stored` is False when the step was stored before, or another assignment of the rollout holds."""

    stored: bool
    directive: Directive


class ParkRequest(DataManagerModel):
    """An unfinished rollout is left at a turn boundary; whoever is assigned it next continues it."""

    rollout_id: str
    assignment: str
    state: EpisodeState
    failed_start: str | None = Field(
        default=None,
        max_length=500,
        description="why it could not be continued, which uses up an attempt; None: it was",
    )


class ResumeRequest(DataManagerModel):
    """An unfinished rollout goes on on a desktop that its worker holds now; no step is added."""

    rollout_id: str
    assignment: str
    state: EpisodeState


class SavedEpisodeReply(DataManagerModel):
    """An unfinished rollout. `state` is None when no step of it is stored."""

    state: EpisodeState | None
    steps: list[StreamStepPayload]


class KeptLeasesReply(DataManagerModel):
    """References of the leases that unfinished rollouts are continued on."""

    leases: list[str]


class RestartRequest(DataManagerModel):
    """An assigned rollout begins anew, because it could not be continued."""

    rollout_id: str
    assignment: str
    cause: str = Field(max_length=500)


class CountReply(DataManagerModel):
    """How many rows were touched."""

    count: int


class StoreTrajectoryReply(DataManagerModel):
    """`stored` is False when this rollout had a trajectory already: the first one counts."""

    stored: bool


class TrajectoryPage(DataManagerModel):
    """Trajectories in the order they were stored; pass `next_after` to go on, None at the end."""

    trajectories: list[TrajectoryPayload]
    next_after: int | None


class TaskSelection(DataManagerModel):
    """Tasks of a suite by split: `count` in all, spread evenly over the families, and at most `per_family` of each; None takes all."""

    suite: str = "basics"
    split: Split
    families: list[str] | None = None
    count: int | None = Field(default=None, ge=1)
    per_family: int | None = Field(default=None, ge=1)


class PhaseSpec(DataManagerModel):
    """What to run. Give either `task_ids` or `select`.

    A phase with `endless` false is a fixed list of (task, repeat) items and is done when each has a verdict; masked ones are retried.
    With `endless` true the curation decides which task comes next, until the phase is stopped; each task then is one group.
    Phases with a higher `priority` get desktops first; without one, fixed lists go before endless phases. `continue_first`: parked rollouts
    are continued before new ones start. `max_in_flight`: so many of its rollouts run at the same time at most; None: no limit.
    """

    name: str = Field(pattern=PHASE_NAME)
    purpose: Purpose
    task_ids: list[str] | None = None
    select: TaskSelection | None = None
    rollouts_per_task: int = Field(default=1, ge=1, le=256)
    sampling: SamplingPayload = SamplingPayload()
    max_steps: int = Field(ge=1)
    endless: bool = False
    max_attempts: int = Field(default=5, ge=1, description="tries per item before it counts as failed")
    priority: int | None = None
    continue_first: bool = True
    max_in_flight: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_source_of_tasks(self) -> PhaseSpec:
        if (self.task_ids is None) == (self.select is None):
            raise ValueError("give either `task_ids` or `select`, not both and not neither")
        if self.purpose is Purpose.TRAIN and (self.sampling.temperature == 0 or self.sampling.top_p != 1):
            raise ValueError(
                "training rollouts need temperature > 0 and top_p = 1: other log-probs cannot be trained on"
            )
        if self.purpose is Purpose.TRAIN and self.rollouts_per_task < 2:
            raise ValueError("a training group needs at least two rollouts per task")
        if self.endless and self.purpose is not Purpose.TRAIN:
            raise ValueError("only a training phase can be endless")
        return self


class FamilyResult(DataManagerModel):
    """Verdicts of one task family."""

    episodes: int
    mean_reward: float


class PhaseStatus(DataManagerModel):
    """Progress of a phase. `total` is None when endless; `failed` items used up their attempts without a verdict."""

    name: str
    purpose: Purpose
    state: PhaseState
    total: int | None
    done: int
    failed: int
    masked: int
    in_flight: int
    queued: int
    parked: int = 0
    mean_reward: float | None
    families: dict[str, FamilyResult]


class EpisodeResult(DataManagerModel):
    """Verdict of `reward_source` on one (task, repeat) item of a phase. `version_min` and `version_max` bound the versions in it."""

    task_id: str
    family: str
    repeat: int
    rollout_id: str
    reward: float
    end: EndReason
    steps: int
    duration_s: float
    version_min: int | None = None
    version_max: int | None = None
    reward_source: RewardKind = RewardKind.EVALUATOR


class BatchRequest(DataManagerModel):
    """Ask for the next training batch at the trainer's version."""

    trainer_version: int = Field(ge=0)
    trainer_digest: str | None = Field(default=None, description="of the trainer's weights: other versions may be lost")
    wait_s: float = Field(default=30.0, ge=0, le=300)


class BatchMember(DataManagerModel):
    """One trajectory of a group; all of them make the baseline, also those whose tokens are withheld. ended_s: seconds since the epoch."""

    rollout_id: str
    reward: float
    steps: int
    source: Literal["fresh", "pool"]
    ended_s: float | None = None


class BatchGroup(DataManagerModel):
    """The members of one GRPO group."""

    group_id: str
    task_id: str
    family: str
    members: list[BatchMember]


class BatchRow(DataManagerModel):
    """One training row by reference to its images; `trainable` are the ranges of positions (tokens, then pointers) that passed the gate."""

    group_id: str
    rollout_id: str
    step: StepPayload
    trainable: list[tuple[int, int]]


class FamilyRewards(DataManagerModel):
    """Rewards of some rollouts of a task family: their number and their sum."""

    rollouts: int
    reward_sum: float


class Batch(DataManagerModel):
    """What one optimiser round trains on.

    `excluded_steps` counts steps that were left out, by reason. `stored_rewards` are those of all training rollouts of this run that were
    stored since the batch before was formed, by family: also of groups that cannot train because all of their members succeed or fail.
    """

    batch_id: str
    trainer_version: int
    groups: list[BatchGroup]
    rows: list[BatchRow]
    staleness_mean: float
    staleness_max: int
    excluded_steps: dict[str, int]
    stored_rewards: dict[str, FamilyRewards] = Field(default_factory=dict)


class BatchReply(DataManagerModel):
    """`batch` is None when there was not enough, or while batches are held; `held` says why they are.

    `training_active` is False when no training phase can deliver any more.
    """

    batch: Batch | None
    training_active: bool
    held: str | None = None


class StepReference(DataManagerModel):
    """One stored step."""

    rollout_id: str
    index: int


class StepUse(StepReference):
    """What the trainer did with a step of a batch.

    Attributes:
        group_id: The group in which it was trained; a pooled success can be in two groups.
        advantage: The advantage of its rollout within that group.
        entropy: Mean token entropy at the trainer before the update, in nats; None: not computed.
        reason: Why it was left out; None: it was trained on.
        trained: Ranges of positions that were trained on, where token selection left fewer than were issued; None: those that were issued.
    """

    group_id: str
    advantage: float
    entropy: float | None = None
    reason: str | None = None
    trained: list[tuple[int, int]] | None = None


class BatchFailure(DataManagerModel):
    """A batch cannot be trained on; the weights are those before it. Without culprits nobody knows which of its rows is to blame."""

    cause: str = Field(max_length=1000)
    culprits: list[StepReference] = Field(default_factory=list)


class BatchReport(DataManagerModel):
    """The trainer is done with a batch: it became policy `version`."""

    version: int
    metrics: dict[str, float] = Field(default_factory=dict)
    steps: list[StepUse] = Field(default_factory=list)


class VersionRecord(DataManagerModel):
    """A published policy: a complete model directory.

    Number and digest are its identity: a number never stands for two digests.

    Attributes:
        version: Its number.
        path: Its directory.
        digest: Digest of its weights (`dart_agent.inference.weights.digest`); None: a run from before digests.
        parent: Digest of the weights that it was trained from; None: the first version, or not known.
    """

    version: int = Field(ge=0)
    path: str
    digest: str | None = None
    parent: str | None = None


class VersionReply(DataManagerModel):
    """A published policy, None where there is none."""

    policy: VersionRecord | None


class EpisodeCounts(DataManagerModel):
    """Episodes that were played, and those of them without a verdict through a fault that is not the policy's."""

    episodes: int
    masked: int

    @property
    def masked_fraction(self) -> float:
        """Masked episodes among all, 0 where none was played."""
        return self.masked / self.episodes if self.episodes else 0.0


class MaskedEpisodes(DataManagerModel):
    """Masked episodes of one family that ended for the same reason.

    Attributes:
        family: The task family.
        end: Why they ended.
        episodes: How many there are.
        first_version: Oldest policy version among them, None where none of them got a response.
        last_version: Newest policy version among them.
    """

    family: str
    end: EndReason
    episodes: int
    first_version: int | None
    last_version: int | None


class DataManagerStats(DataManagerModel):
    """The data manager in numbers.

    episode_counts: without demonstrations; by the newest version that wrote in an episode, where one did. last_masked_cause: the newest
    cause of masking.
    max_concurrent_episodes: the most episodes, each on a desktop of its own, that ran at the same moment. curation: what the parts of the
    curation did, by name (docs/metrics.md).
    """

    trajectories: int
    steps: int
    episode_counts: EpisodeCounts
    episode_counts_by_version: dict[int, EpisodeCounts]
    episode_counts_by_family: dict[str, EpisodeCounts]
    masked_episodes: list[MaskedEpisodes]
    last_masked_cause: str | None
    max_concurrent_episodes: int
    groups: dict[str, int]
    dropped_groups: dict[str, int]
    rollouts: dict[str, int]
    batches: dict[str, int]
    rows_used: int
    rows_excluded: dict[str, int]
    latest_version: int | None
    success_rate: dict[str, float] = Field(description="over the latest training rollouts, per family")
    curation: dict[str, float] = Field(default_factory=dict)
    pass_at_k: dict[int, float] = Field(
        default_factory=dict, description="over the latest training rollouts of each task that has k of them, by k"
    )
