"""Tables of an earlier layout, brought to that of today.

Role: `upgrade_layout` gives an exploration that an earlier version stored the columns that it lacks. Rule: nothing that was stored is
changed, and an upgrade that was killed is repeated. Non-goals: the tables of today (`dart_agent.explore.storage.tables`).

Layout 1 had no revisions: its steps have the time at which they were stored, its screens and candidates the number of a step. From these
the order is made anew, so that nothing comes after its first use. With one desktop it is the order that was; with several it is one of
those that were possible. Layout 2 did not say which folder has the screenshots. Layout 3 did not say what a step changed: it is noted
where the pictures before and after the step are those of the stored screens, so that their elements are known.
"""

from __future__ import annotations

from sqlalchemy import Engine, inspect, select, text, update
from sqlalchemy.orm import Session

from dart_agent.explore.screens import appeared_names
from dart_agent.explore.storage.tables import CandidateTable, ExplorationTable, ExploreStepTable, ScreenTable
from dart_server.wire import A11yElement

LAYOUT = 4
"""Number of the layout of today."""


def upgrade_layout(engine: Engine, layout: int | None) -> bool:
    """Bring the tables of an exploration to the layout of today.

    Args:
        engine: The database.
        layout: The layout that it has.

    Returns:
        Whether there is a way from there.
    """
    if layout not in (1, 2, 3):
        return False
    for table in (ExplorationTable, ScreenTable, CandidateTable, ExploreStepTable):
        _add_column(engine, table.__tablename__, "revision", "INTEGER NOT NULL DEFAULT 0")
    _add_column(engine, ExplorationTable.__tablename__, "folder", "VARCHAR")
    for column, kind in (("before_window", "VARCHAR"), ("after_window", "VARCHAR"), ("appeared", "JSON")):
        _add_column(engine, ExploreStepTable.__tablename__, column, kind)
    with Session(engine) as session, session.begin():
        newest = {"revision": _number_revisions(session)} if layout == 1 else {}
        _note_changes(session)
        session.execute(update(ExplorationTable).values(layout=LAYOUT, **newest))
    return True


def _add_column(engine: Engine, table: str, column: str, kind: str) -> None:
    """Add a column where the table lacks it."""
    if column not in {one["name"] for one in inspect(engine).get_columns(table)}:
        with engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {column} {kind}"))


def _note_changes(session: Session) -> None:
    """Note what steps changed whose views before and after are stored as screens."""
    screens = {one.screen_id: one for one in session.scalars(select(ScreenTable))}
    for step in session.scalars(select(ExploreStepTable).where(ExploreStepTable.to_screen.is_not(None))):
        before, after = screens.get(step.from_screen or 0), screens.get(step.to_screen or 0)
        if before is None or after is None:
            continue
        if (step.before_sha256, step.after_sha256) == (before.image_sha256, after.image_sha256):
            step.before_window, step.after_window = before.window, after.window
            step.appeared = list(appeared_names(_elements(before), _elements(after)))


def _elements(screen: ScreenTable) -> list[A11yElement]:
    return [A11yElement.model_validate(record) for record in screen.elements]


def _number_revisions(session: Session) -> int:
    """Number what layout 1 stored; the newest revision."""
    of_step: dict[int, int] = {}
    to_screen: dict[int, int | None] = {}
    of_screen: dict[int, int] = {}
    first_use: dict[tuple[int, str], int] = {}
    steps = session.scalars(select(ExploreStepTable).order_by(ExploreStepTable.at_s, ExploreStepTable.step)).all()
    end = len(steps) + 1
    for revision, step in enumerate(steps, 1):
        step.revision = of_step[step.step] = revision
        to_screen[step.step] = step.to_screen
        for screen_id in (step.from_screen, step.to_screen):
            if screen_id is not None:
                of_screen.setdefault(screen_id, revision)
        if step.from_screen is not None and step.key is not None:
            first_use.setdefault((step.from_screen, step.key), revision)
    after, found_step = end, {}
    for screen in session.scalars(select(ScreenTable).order_by(ScreenTable.screen_id.desc())):
        known = 0 if screen.found_step == 0 else of_screen.get(screen.screen_id, end)
        screen.revision = of_screen[screen.screen_id] = after = min(after, known)
        found_step[screen.screen_id] = screen.found_step
    for one in session.scalars(select(CandidateTable)):
        first = of_screen[one.screen_id]
        if one.found_step == found_step[one.screen_id]:
            one.revision = first
            continue
        by_step = of_step.get(one.found_step, end) if to_screen.get(one.found_step) == one.screen_id else end
        one.revision = max(first, min(by_step, first_use.get((one.screen_id, one.key), end)))
    return end
