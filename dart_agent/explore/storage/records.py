"""Steps and screens as they are read, and the rows of the tables that hold them.

Role: `StoredStep` and `StoredScreen`, and the functions that make rows of them and read rows. Rule: what is written is read back as it was.
Non-goals: the tables (`dart_agent.explore.storage.tables`), transactions (`dart_agent.explore.store`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dart_agent.explore.candidates import CandidateAction
from dart_agent.explore.graph import KnownScreen
from dart_agent.explore.screens import ScreenIdentity, ScreenView
from dart_agent.explore.storage.tables import ExploreStepTable, ScreenTable
from dart_agent.explore.values import StepOutcome
from dart_server.wire import A11yElement


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A step, as `ExploreStepTable` describes it."""

    step: int
    desktop: int
    kind: str
    arrived_by: str
    from_screen: int | None = None
    to_screen: int | None = None
    candidate: CandidateAction | None = None
    outcome: StepOutcome | None = None
    before_sha256: str | None = None
    after_sha256: str | None = None
    before_window: str | None = None
    after_window: str | None = None
    appeared: tuple[str, ...] | None = None
    reason: str = ""
    cause: str | None = None
    at_s: float = 0.0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class StoredScreen:
    """A screen, as `ScreenTable` describes it."""

    known: KnownScreen
    window: str
    image_sha256: str
    resolution: tuple[int, int]
    elements: tuple[A11yElement, ...]
    found_step: int
    revision: int = 0


def screen_row(screen: KnownScreen, view: ScreenView, image_sha256: str, found_step: int, revision: int) -> ScreenTable:
    """Make the row of a new screen.

    Args:
        screen: The screen.
        view: What it was first seen as.
        image_sha256: Its screenshot.
        found_step: The step that found it.
        revision: That of its transaction.

    Returns:
        The row.
    """
    return ScreenTable(
        screen_id=screen.screen_id,
        application=screen.identity.application,
        window=view.window,
        shape_hash=screen.identity.shape_hash,
        perceptual_hash=f"{screen.identity.perceptual_hash:064x}",
        image_sha256=image_sha256,
        width=view.resolution[0],
        height=view.resolution[1],
        elements=[element.model_dump(mode="json") for element in view.elements],
        depth=screen.depth,
        found_step=found_step,
        revision=revision,
        snapshot=screen.snapshot,
    )


def to_screen(row: ScreenTable, candidates: dict[str, CandidateAction]) -> StoredScreen:
    """Read the row of a screen.

    Args:
        row: The row.
        candidates: What can be done on the screen, by key.

    Returns:
        The screen.
    """
    identity = ScreenIdentity(row.application, row.shape_hash, int(row.perceptual_hash, 16))
    known = KnownScreen(row.screen_id, identity, row.depth, candidates, row.snapshot)
    elements = tuple(A11yElement.model_validate(record) for record in row.elements)
    size = (row.width, row.height)
    return StoredScreen(known, row.window, row.image_sha256, size, elements, row.found_step, row.revision)


def step_row(step: StoredStep, at_s: float, revision: int) -> ExploreStepTable:
    """Make the row of a step.

    Args:
        step: The step; its own time and revision do not count.
        at_s: When it is stored, in seconds since 1970-01-01 UTC.
        revision: That of its transaction.

    Returns:
        The row.
    """
    return ExploreStepTable(
        step=step.step,
        desktop=step.desktop,
        kind=step.kind,
        from_screen=step.from_screen,
        to_screen=step.to_screen,
        key=None if step.candidate is None else step.candidate.key,
        candidate=None if step.candidate is None else step.candidate.to_dict(),
        outcome=None if step.outcome is None else step.outcome.value,
        before_sha256=step.before_sha256,
        after_sha256=step.after_sha256,
        before_window=step.before_window,
        after_window=step.after_window,
        appeared=None if step.appeared is None else list(step.appeared),
        arrived_by=step.arrived_by,
        reason=step.reason,
        cause=step.cause,
        at_s=at_s,
        revision=revision,
    )


def to_step(row: ExploreStepTable) -> StoredStep:
    """Read the row of a step.

    Args:
        row: The row.

    Returns:
        The step.
    """
    return StoredStep(
        step=row.step,
        desktop=row.desktop,
        kind=row.kind,
        arrived_by=row.arrived_by,
        from_screen=row.from_screen,
        to_screen=row.to_screen,
        candidate=None if row.candidate is None else CandidateAction.from_dict(row.candidate),
        outcome=None if row.outcome is None else StepOutcome(row.outcome),
        before_sha256=row.before_sha256,
        after_sha256=row.after_sha256,
        before_window=row.before_window,
        after_window=row.after_window,
        appeared=None if row.appeared is None else tuple(row.appeared),
        reason=row.reason,
        cause=row.cause,
        at_s=row.at_s,
        revision=row.revision,
    )
