"""When a wait of a run ends: with what was waited for, or with the reason why it did not come.

Role: `decide(state, event)` for the waits of a run: for a phase, for a component that ends by itself, for the inference workers, and for
the data manager that was started. Rule: no I/O, and the time comes with the event; a wait in which nothing changes for
`limits.stall_minutes` ends, and says what it waited for and why. Non-goals: asking the components (the orchestrator).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIX = "look into the logs; where it may take longer, raise limits.stall_minutes"


@dataclass(slots=True)
class Stall:
    """How long a sign of progress has not changed.

    Attributes:
        limit_s: How long it may stay the same, in seconds.
        since_s: When it changed last.
        sign: Anything that changes where there is progress.
    """

    limit_s: float
    since_s: float
    sign: object = None

    def is_stalled(self, now_s: float, sign: object) -> bool:
        """Compare a sign with the last one.

        Args:
            now_s: Present time.
            sign: The sign.

        Returns:
            True where it has not changed for longer than the limit.
        """
        if sign != self.sign:
            self.sign, self.since_s = sign, now_s
        return self.waited_s(now_s) > self.limit_s

    def waited_s(self, now_s: float) -> float:
        """Return the seconds since the sign changed."""
        return now_s - self.since_s


@dataclass(slots=True)
class PhaseWait:
    """A wait for every item of a phase.

    Attributes:
        name: The phase.
        stall: Its limit.
        told: Why it failed, up to the newest fault, which is asked for then.
    """

    name: str
    stall: Stall
    told: str = ""


@dataclass(slots=True)
class ComponentWait:
    """A wait for the end of a component.

    Attributes:
        name: The component.
        kind: What its lines report.
        stall: Its limit.
        explained: Whether somebody knows why there is no line.
        notice_s: Seconds without a line after which the reason is shown.
        look_interval_s: Seconds between two looks at other signs of progress.
        line_s: When the newest line came.
        nlines: Lines so far.
        counted: The other sign of progress.
        looked_s: When it was looked at last.
        failing: Why it failed, up to the explanation, which is asked for then.
        advice: What was advised last, so that the same advice is given once.
    """

    name: str
    kind: str
    stall: Stall
    explained: bool
    notice_s: float
    look_interval_s: float
    line_s: float
    nlines: int = 0
    counted: int = 0
    looked_s: float = -math.inf
    failing: str | None = None
    advice: str = ""


@dataclass(slots=True)
class VersionWait:
    """A wait until all inference workers serve one version.

    Attributes:
        version: The version.
        stall: Its limit.
        reached: The oldest version of all workers, where that was newest.
    """

    version: int
    stall: Stall
    reached: int = -1


@dataclass(slots=True)
class DataManagerWait:
    """A wait until the data manager answers, after its process was started.

    Attributes:
        log: Its log.
        stall: Its limit.
        told: Whether somebody was told that it takes long.
    """

    log: str
    stall: Stall
    told: bool = False


@dataclass(frozen=True, slots=True)
class PhaseSeen:
    """The progress of a phase; counts are episodes.

    Attributes:
        now_s: Present time.
        active: Whether it goes on.
        done: Those with a reward.
        total: All of them, None where there is no end.
        failed: Those that never got a reward.
        masked: Those without a reward, all attempts.
        in_flight: Those in progress.
        queued: Those that wait.
        mean_reward: Over those with a reward.
    """

    now_s: float
    active: bool
    done: int
    total: int | None
    failed: int
    masked: int
    in_flight: int
    queued: int
    mean_reward: float | None


@dataclass(frozen=True, slots=True)
class FaultTold:
    """The answer to AskFault.

    Attributes:
        fault: The newest cause of masking.
    """

    fault: str | None


@dataclass(frozen=True, slots=True)
class ComponentSeen:
    """A look at a component.

    Attributes:
        now_s: Present time.
        ended: Whether it has ended.
        line: Its newest line, None where there is no new one.
    """

    now_s: float
    ended: bool
    line: str | None


@dataclass(frozen=True, slots=True)
class EpisodesCounted:
    """The answer to CountEpisodes.

    Attributes:
        now_s: Present time.
        count: Episodes that have ended.
        ended: Whether the component has ended meanwhile.
    """

    now_s: float
    count: int
    ended: bool


@dataclass(frozen=True, slots=True)
class WaitExplained:
    """The answer to ExplainWait.

    Attributes:
        reason: Why there is no line.
        advice: Sentences on what to change; empty: nothing is known.
        shown: `ExplainWait.shown`.
    """

    reason: str
    advice: str = ""
    shown: str | None = None


@dataclass(frozen=True, slots=True)
class RunPaused:
    """The run pauses: nothing is expected to change.

    Attributes:
        now_s: Present time.
    """

    now_s: float


@dataclass(frozen=True, slots=True)
class VersionsSeen:
    """What the inference workers serve.

    Attributes:
        now_s: Present time.
        served: The versions; empty where a worker does not answer.
        found: The same in words, or why it is not known.
    """

    now_s: float
    served: frozenset[int]
    found: str


@dataclass(frozen=True, slots=True)
class DataManagerSeen:
    """The data manager was asked, for as long as its client repeats a request.

    Attributes:
        now_s: Present time.
        answered: Whether it answered.
    """

    now_s: float
    answered: bool


@dataclass(frozen=True, slots=True)
class ShowProgress:
    """Show a line. `news`: whether it says what happened, and not that one waits."""

    text: str
    news: bool = False


@dataclass(frozen=True, slots=True)
class GiveAdvice:
    """Show a line that stays."""

    text: str


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Look again after the usual pause."""


@dataclass(frozen=True, slots=True)
class CheckFaults:
    """Check the masked episodes. `due`: only where the last check is long ago."""

    due: bool


@dataclass(frozen=True, slots=True)
class AskFault:
    """Ask for the newest cause of masking."""


@dataclass(frozen=True, slots=True)
class CountEpisodes:
    """Count the episodes that have ended."""


@dataclass(frozen=True, slots=True)
class ExplainWait:
    """Ask why there is no line. `shown`: what is shown before the reason; None: the reason is for the failure."""

    shown: str | None


@dataclass(frozen=True, slots=True)
class EndWait:
    """What was waited for is there."""


@dataclass(frozen=True, slots=True)
class FailWait:
    """It will not come."""

    cause: str


WaitState = PhaseWait | ComponentWait | VersionWait | DataManagerWait
WaitEvent = (
    PhaseSeen | FaultTold | ComponentSeen | EpisodesCounted | WaitExplained | VersionsSeen | DataManagerSeen | RunPaused
)
WaitCommand = (
    ShowProgress | GiveAdvice | LookAgain | CheckFaults | AskFault | CountEpisodes | ExplainWait | EndWait | FailWait
)


def decide(state: WaitState, event: WaitEvent) -> list[WaitCommand]:
    """Decide what follows an event.

    Args:
        state: The wait; changed.
        event: What was seen.

    Returns:
        What is to be done, in order.

    Raises:
        TypeError: The event is none of this wait.
    """
    if isinstance(event, RunPaused):
        state.stall.since_s = event.now_s
        return []
    if isinstance(state, PhaseWait):
        if isinstance(event, PhaseSeen):
            return _phase_seen(state, event)
        if isinstance(event, FaultTold):
            return [FailWait(f"{state.told}; last fault: {event.fault}): {FIX}")]
    elif isinstance(state, VersionWait):
        if isinstance(event, VersionsSeen):
            return _versions_seen(state, event)
    elif isinstance(state, DataManagerWait):
        if isinstance(event, DataManagerSeen):
            return _data_manager_seen(state, event)
    elif isinstance(event, ComponentSeen):
        return _component_seen(state, event)
    elif isinstance(event, EpisodesCounted):
        state.counted, state.looked_s = event.count, event.now_s
        return _unless_stalled(state, event.now_s, ended=event.ended)
    elif isinstance(event, WaitExplained):
        return _explained(state, event)
    raise TypeError(f"{type(event).__name__} is no event of a {type(state).__name__}")


def _phase_seen(state: PhaseWait, event: PhaseSeen) -> list[WaitCommand]:
    rate = "" if event.mean_reward is None else f", mean reward {event.mean_reward:.2f}"
    masked = f", {event.masked} masked" if event.masked else ""
    shown = ShowProgress(f"{event.done} of {event.total}{rate}{masked}")
    if not event.active:
        return [shown, CheckFaults(due=False), EndWait()]
    if state.stall.is_stalled(event.now_s, (event.done, event.failed, event.masked)):
        minutes = state.stall.waited_s(event.now_s) / 60
        state.told = (
            f"{state.name}: no episode has ended for {minutes:.0f} minutes ({event.done} of {event.total} are done, "
            f"{event.in_flight} in progress, {event.queued} queued"
        )
        return [shown, CheckFaults(due=True), AskFault()]
    return [shown, CheckFaults(due=True), LookAgain()]


def _versions_seen(state: VersionWait, event: VersionsSeen) -> list[WaitCommand]:
    if event.served == {state.version}:
        return [EndWait()]
    shown = ShowProgress(f"waiting for the inference workers ({event.found})")
    state.reached = max(state.reached, min(event.served, default=-1))
    if state.stall.is_stalled(event.now_s, state.reached):  # workers that come and go are no progress
        minutes = state.stall.waited_s(event.now_s) / 60
        told = f"the inference workers did not come to version {state.version} within {minutes:.0f} minutes"
        return [shown, FailWait(f"{told} ({event.found}): {FIX}")]
    return [shown, LookAgain()]


def _data_manager_seen(state: DataManagerWait, event: DataManagerSeen) -> list[WaitCommand]:
    if event.answered:
        return [EndWait()]
    if state.stall.is_stalled(event.now_s, None):
        minutes = state.stall.waited_s(event.now_s) / 60
        return [
            FailWait(
                f"the data manager did not answer within {minutes:.0f} minutes of its start (log: {state.log}): {FIX}"
            )
        ]
    told, state.told = state.told, True
    return [LookAgain()] if told else [GiveAdvice("the data manager is still starting"), LookAgain()]


def _component_seen(state: ComponentWait, event: ComponentSeen) -> list[WaitCommand]:
    commands: list[WaitCommand] = [CheckFaults(due=True)]
    silent_s = event.now_s - state.line_s
    if event.line is not None:
        state.nlines += 1
        state.line_s = event.now_s
        commands.append(ShowProgress(event.line, news=True))
    elif state.explained and silent_s >= (state.notice_s if state.nlines else 0.0):
        commands.append(ExplainWait(f"no {state.kind} for {silent_s:.0f} s: "))
    if state.explained and event.now_s - state.looked_s >= state.look_interval_s:
        return [*commands, CountEpisodes()]
    return [*commands, *_unless_stalled(state, event.now_s, ended=event.ended)]


def _explained(state: ComponentWait, event: WaitExplained) -> list[WaitCommand]:
    if event.shown is None:
        told = f"{event.reason}. {event.advice}" if event.advice else event.reason
        return [FailWait(f"{state.failing} ({told}): {FIX}")] if state.failing is not None else []
    shown: list[WaitCommand] = [ShowProgress(event.shown + event.reason)]
    if event.advice and event.advice != state.advice:
        state.advice = event.advice
        shown.append(GiveAdvice(f"{event.reason}. {event.advice}"))
    return shown


def _unless_stalled(state: ComponentWait, now_s: float, *, ended: bool) -> list[WaitCommand]:
    if ended:
        return [EndWait()]
    if not state.stall.is_stalled(now_s, (state.nlines, state.counted)):
        return [LookAgain()]
    told = f"{state.name} made no progress for {state.stall.waited_s(now_s) / 60:.0f} minutes"
    if not state.explained:
        return [FailWait(f"{told}: {FIX}")]
    state.failing = told
    return [ExplainWait(None)]
