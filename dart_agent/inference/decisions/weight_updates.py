"""Which worker takes new weights when.

Role: `UpdatePlanner.apply(event) -> commands`. Rule: pure and synchronous; driven by what workers report, not by what was sent to them: a
worker that restarts, misses a version or comes back with old weights is brought to the target when it next reports, and one that stands
still for no update is resumed. The commands of one worker are carried out in order. Non-goals: reading and swapping
(`dart_agent.inference.engine`), carrying commands out (`dart_agent.inference.weight_updater`).

    mode         order
    per_worker   every worker stages at once, while it serves; whoever is ready swaps, at most `max_updating` at a time
    global       every worker stages; when all are ready all pause, then all swap, then all resume

Workers that hold versions for evaluations have the held version in place of the target as long as there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class UpdateMode(StrEnum):
    """In which order workers take a new version."""

    PER_WORKER = "per_worker"
    GLOBAL = "global"


class WeightsId(NamedTuple):
    """Identity of weights.

    Attributes:
        number: The policy version.
        digest: Digest of the weights (`dart_agent.inference.weights.digest`); None where it is not known. Two ids of one number with
            different digests are different weights.
    """

    number: int
    digest: str | None = None

    def matches(self, other: WeightsId) -> bool:
        """Compare with weights of which one digest may not be known.

        Args:
            other: The other weights.

        Returns:
            Whether the numbers are equal, and the digests where both are known.
        """
        return self.number == other.number and (None in (self.digest, other.digest) or self.digest == other.digest)


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """How versions are rolled out.

    Attributes:
        mode: The order.
        max_updating: Most workers that stand still for new weights at the same time (mode `per_worker`). One worker always goes on
            serving where there are two or more.
        max_refusals: How often one worker may refuse a version, or workers be lost while they take it, before it is abandoned. Refusals
            are counted by worker: all stage at once, and a read error of shared storage that passes meets each of them. A lost engine
            costs a start, so that losses are counted together.
    """

    mode: UpdateMode = UpdateMode.PER_WORKER
    max_updating: int = 1
    max_refusals: int = 3


@dataclass(frozen=True, slots=True)
class VersionPublished:
    """There are newer weights: every worker is to have them."""

    weights: WeightsId


@dataclass(frozen=True, slots=True)
class VersionHeld:
    """The workers that hold versions are to have these weights; None: the newest, as all others."""

    weights: WeightsId | None


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A worker serves, with these weights. Sent as often as known, in particular when it came up."""

    worker: str
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class WorkerStands:
    """A worker answers that its requests stand still, and no command to it is under way. Sent as often as known."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker does not answer any more, or is drained; it takes part in nothing until it reports again. reason: where it is known."""

    worker: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WorkerStaged:
    """A worker has read and checked the weights and could swap at its next token boundary."""

    worker: str
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class WorkerPaused:
    """A worker's requests stand still (mode `global`)."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerUpdated:
    """A worker has swapped; in mode `per_worker` it serves again."""

    worker: str
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class UpdateRefused:
    """A worker did not take the weights and keeps its own."""

    worker: str
    weights: WeightsId
    reason: str


UpdateEvent = (
    VersionPublished
    | VersionHeld
    | WorkerReported
    | WorkerStands
    | WorkerLost
    | WorkerStaged
    | WorkerPaused
    | WorkerUpdated
    | UpdateRefused
)


@dataclass(frozen=True, slots=True)
class StageWeights:
    """Let the worker read and check the weights while it serves."""

    worker: str
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class PauseWorker:
    """Let the worker's requests stand still at the next token boundary."""

    worker: str


@dataclass(frozen=True, slots=True)
class SwapWeights:
    """Let the worker swap at the next token boundary. pause: also stop and resume its requests (not in mode `global`)."""

    worker: str
    weights: WeightsId
    pause: bool


@dataclass(frozen=True, slots=True)
class ResumeWorker:
    """Let the worker's requests go on. confirm: only where it still answers that they stand still, because the report may be old."""

    worker: str
    confirm: bool = False


@dataclass(frozen=True, slots=True)
class AbandonVersion:
    """The weights were refused, or workers lost with them, too often: nobody is asked to take them again."""

    weights: WeightsId
    reason: str


UpdateCommand = StageWeights | PauseWorker | SwapWeights | ResumeWorker | AbandonVersion


class _Phase(StrEnum):
    SERVING = "serving"
    REFUSED = "refused"
    STAGING = "staging"
    STAGED = "staged"
    PAUSING = "pausing"
    PAUSED = "paused"
    SWAPPING = "swapping"
    SWAPPED = "swapped"


_STANDING = (_Phase.PAUSING, _Phase.PAUSED, _Phase.SWAPPING, _Phase.SWAPPED)


@dataclass(slots=True)
class _Member:
    """weights: what it serves. wanted: what it stages or swaps to."""

    weights: WeightsId
    phase: _Phase = _Phase.SERVING
    wanted: WeightsId | None = None


class UpdatePlanner:
    """The state of all updates of one set of workers.

    Args:
        settings: Mode and limits.
        holding: Workers that hold versions for evaluations.
    """

    def __init__(self, settings: UpdateSettings | None = None, holding: Collection[str] = ()) -> None:
        self.settings = settings or UpdateSettings()
        self.target: WeightsId | None = None
        self.held: WeightsId | None = None
        self._holding = frozenset(holding)
        self._ever_held: set[WeightsId] = set()
        self._members: dict[str, _Member] = {}
        self._refusals: Counter[tuple[str, WeightsId]] = Counter()
        self._losses: Counter[WeightsId] = Counter()
        self._abandoned: set[WeightsId] = set()
        self._accepted: WeightsId | None = None

    @property
    def updating(self) -> tuple[str, ...]:
        """Workers whose requests stand still."""
        return tuple(name for name, member in self._members.items() if member.phase in _STANDING)

    @property
    def outdated(self) -> tuple[str, ...]:
        """Workers that are up and do not serve what they are to have."""
        wanted = {name: self._wanted(name) for name in self._members}
        return tuple(
            name
            for name, member in self._members.items()
            if (weights := wanted[name]) is not None and not member.weights.matches(weights)
        )

    def _wanted(self, name: str) -> WeightsId | None:
        """What a worker is to have."""
        return self.held if self.held is not None and name in self._holding else self.target

    def apply(self, event: UpdateEvent) -> tuple[UpdateCommand, ...]:
        """Take note of an event and decide what follows.

        Args:
            event: What happened.

        Returns:
            Commands, to be carried out in this order. An event that changes nothing gives none.
        """
        commands: list[UpdateCommand] = []
        if not self._note(event, commands):
            return ()
        self._stage(commands)
        if self.settings.mode is UpdateMode.PER_WORKER:
            self._swap_ready(commands)
        else:
            self._advance_barrier(commands)
        return tuple(commands)

    def _note(self, event: UpdateEvent, commands: list[UpdateCommand]) -> bool:
        """Write the event into the state. Returns whether it changed anything."""
        if isinstance(event, VersionPublished):
            if event.weights == self.target or event.weights in self._abandoned:
                return False
            self.target = event.weights
            return True
        if isinstance(event, VersionHeld):
            if event.weights == self.held or event.weights in self._abandoned:
                return False
            self.held = event.weights
            if event.weights is not None:
                self._ever_held.add(event.weights)
            return True
        member = self._members.get(event.worker)
        if isinstance(event, WorkerReported):
            return self._note_report(member, event)
        if isinstance(event, WorkerStands):
            if member is None or member.phase not in _STANDING:
                commands.append(ResumeWorker(event.worker, confirm=True))
            return True
        if member is None:
            return False
        if isinstance(event, WorkerLost):
            del self._members[event.worker]
            if member.phase is _Phase.SWAPPING and member.wanted is not None:
                reason = event.reason or f"{event.worker} ended while it took it: see its log"
                self._losses[member.wanted] += 1
                if self._losses[member.wanted] >= self.settings.max_refusals:
                    self._abandon(member.wanted, reason, commands)
        elif isinstance(event, WorkerStaged):
            if member.phase is not _Phase.STAGING or member.wanted != event.weights:
                return False
            member.phase = _Phase.STAGED
        elif isinstance(event, WorkerPaused):
            if member.phase is not _Phase.PAUSING:
                return False
            member.phase = _Phase.PAUSED
        elif isinstance(event, WorkerUpdated):
            member.weights = event.weights
            if event.weights != self.held or event.weights == self.target:
                self._accepted = event.weights
            self._leave(member)
        else:
            self._refuse(member, event, commands)
        return True

    def _note_report(self, member: _Member | None, event: WorkerReported) -> bool:
        if member is None:
            self._members[event.worker] = _Member(event.weights)
            return True
        # While a worker swaps, either version may be reported; `WorkerUpdated` or `WorkerLost` says how it ended.
        if member.phase in _STANDING:
            return False
        if member.phase is _Phase.REFUSED:
            member.phase = _Phase.SERVING
        elif member.weights.matches(event.weights):
            return False
        member.weights = event.weights
        return True

    def _leave(self, member: _Member) -> None:
        """The swap is over: serve, or in a barrier wait for the others."""
        member.wanted = None
        in_barrier = self.settings.mode is UpdateMode.GLOBAL and member.phase is _Phase.SWAPPING
        member.phase = _Phase.SWAPPED if in_barrier else _Phase.SERVING

    def _refuse(self, member: _Member, event: UpdateRefused, commands: list[UpdateCommand]) -> None:
        """The worker is asked again when it next reports; after its `max_refusals` of one version nobody is."""
        self._leave(member)
        if member.phase is _Phase.SERVING:
            member.phase = _Phase.REFUSED
        self._refusals[event.worker, event.weights] += 1
        if self._refusals[event.worker, event.weights] >= self.settings.max_refusals:
            self._abandon(event.weights, event.reason, commands)

    def _abandon(self, weights: WeightsId, reason: str, commands: list[UpdateCommand]) -> None:
        """Ask nobody to take this version any more. It stays abandoned, whoever refuses it later."""
        if weights in self._abandoned:
            return
        self._abandoned.add(weights)
        if weights not in self._ever_held or weights == self.target:
            commands.append(AbandonVersion(weights, reason))
        if self.held == weights:
            self.held = None
        if self.target == weights:
            self.target = self._accepted
        for other in self._members.values():
            if other.phase not in _STANDING:
                other.phase, other.wanted = _Phase.SERVING, None

    def _stage(self, commands: list[UpdateCommand]) -> None:
        """Everyone who serves other weights reads those that it is to have, also one that has staged some which nobody wants any more."""
        for name, member in self._members.items():
            target = self._wanted(name)
            if target is None:
                continue
            stale = member.phase is _Phase.STAGED and member.wanted != target
            if stale:
                member.phase, member.wanted = _Phase.SERVING, None
            if member.phase is _Phase.SERVING and not member.weights.matches(target):
                member.phase, member.wanted = _Phase.STAGING, target
                commands.append(StageWeights(name, target))

    def _swap_ready(self, commands: list[UpdateCommand]) -> None:
        free = min(self.settings.max_updating, max(1, len(self._members) - 1)) - len(self.updating)
        for name, member in self._members.items():
            if free > 0 and member.phase is _Phase.STAGED:
                assert member.wanted is not None, "who has staged knows what"
                member.phase = _Phase.SWAPPING
                commands.append(SwapWeights(name, member.wanted, pause=True))
                free -= 1

    def _advance_barrier(self, commands: list[UpdateCommand]) -> None:
        standing = [(name, member) for name, member in self._members.items() if member.phase in _STANDING]
        if not standing:
            waiting = [member for member in self._members.values() if member.phase is not _Phase.SERVING]
            if waiting and all(member.phase is _Phase.STAGED for member in waiting):
                for name, member in self._members.items():
                    if member.phase is _Phase.STAGED:
                        member.phase = _Phase.PAUSING
                        commands.append(PauseWorker(name))
            return
        if all(member.phase is _Phase.PAUSED for _, member in standing):
            for name, member in standing:
                assert member.wanted is not None, "only who has staged is paused"
                member.phase = _Phase.SWAPPING
                commands.append(SwapWeights(name, member.wanted, pause=False))
        elif all(member.phase is _Phase.SWAPPED for _, member in standing):
            for name, member in standing:
                member.phase = _Phase.SERVING
                commands.append(ResumeWorker(name))
            self._stage(commands)
