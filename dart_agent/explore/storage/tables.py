"""Tables of an exploration (SQLAlchemy 2): its settings, its screens, their candidates, and every step; the engine of their database.

Rule: screens, candidates and steps are only added; a screen's snapshot comes and goes. A transaction that adds has the next `revision`,
which all that it added bears: revisions are the order in which things were found, also where several desktops take steps at once and a step
with a greater number ends first. Images are files beside the database, by their SHA-256 (`dart_envs.hashing`). Non-goals: queries
(`dart_agent.explore.store`), tables of earlier layouts (`dart_agent.explore.storage.layouts`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Engine, ForeignKey, UniqueConstraint, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dart_agent.errors import ConfigError
from dart_agent.explore.storage.locks import hold_session

BUSY_TIMEOUT_MS = 10_000
ONE_CONNECTION: dict[str, Any] = {"pool_size": 1, "max_overflow": 0}


class ExploreBase(DeclarativeBase):
    """Registry of the tables."""

    type_annotation_map = {dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012 - SQLAlchemy reads this class attribute


class ExplorationTable(ExploreBase):
    """The one exploration of the database. `layout` is the number of the tables' layout.

    `root_snapshot` is the snapshot of the started application, where desktops can be saved. `revision` is the newest one. `folder` is the
    id of the folder with the screenshots; None: no folder has been noted since an earlier layout.
    """

    __tablename__ = "exploration"
    exploration_id: Mapped[int] = mapped_column(primary_key=True)
    layout: Mapped[int]
    settings: Mapped[dict[str, Any]]
    created_s: Mapped[float]
    root_snapshot: Mapped[str | None]
    revision: Mapped[int]
    folder: Mapped[str | None]


class ScreenTable(ExploreBase):
    """A node, as it was first seen. `elements` are those of the accessibility tree; `perceptual_hash` is hexadecimal."""

    __tablename__ = "screens"
    screen_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    application: Mapped[str]
    window: Mapped[str]
    shape_hash: Mapped[str]
    perceptual_hash: Mapped[str]
    image_sha256: Mapped[str]
    width: Mapped[int]
    height: Mapped[int]
    elements: Mapped[list[Any]]
    depth: Mapped[int]
    found_step: Mapped[int]
    revision: Mapped[int]
    snapshot: Mapped[str | None]


class CandidateTable(ExploreBase):
    """Something that can be done on a screen; `record` is the JSON form of a `CandidateAction`.

    `found_step` is the step that it was first seen before the end of.
    """

    __tablename__ = "candidates"
    seq: Mapped[int] = mapped_column(primary_key=True)
    screen_id: Mapped[int] = mapped_column(ForeignKey("screens.screen_id"), index=True)
    key: Mapped[str]
    found_step: Mapped[int]
    revision: Mapped[int]
    record: Mapped[dict[str, Any]]
    __table_args__ = (UniqueConstraint("screen_id", "key"),)


class ExploreStepTable(ExploreBase):
    """A step: an action with its screens before and after, or a fault that cost one.

    `step` is the number that its desktop took before it began; several desktops end their steps in another order, that of `revision`.
    `kind` is explore (the chooser's action), replay (an action on the way back), model_fault or desktop_fault. `arrived_by` says how the
    desktop came to the screen of a step: stay, snapshot, replay or restart. `candidate` is the JSON form of what was done where it was
    done, `outcome` a `StepOutcome`, `cause` of a fault its sentence. `before_window` and `after_window` are titles of the active window,
    `appeared` is `appeared_names` of the views before and after; None: a fault, or an earlier layout did not note it.
    """

    __tablename__ = "steps"
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    desktop: Mapped[int]
    kind: Mapped[str]
    from_screen: Mapped[int | None] = mapped_column(ForeignKey("screens.screen_id"), index=True)
    to_screen: Mapped[int | None] = mapped_column(ForeignKey("screens.screen_id"), index=True)
    key: Mapped[str | None]
    candidate: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    outcome: Mapped[str | None]
    before_sha256: Mapped[str | None]
    after_sha256: Mapped[str | None]
    before_window: Mapped[str | None]
    after_window: Mapped[str | None]
    appeared: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    arrived_by: Mapped[str]
    reason: Mapped[str]
    cause: Mapped[str | None]
    at_s: Mapped[float]
    revision: Mapped[int]


def make_engine(url: str, *, hold: bool = False) -> Engine:
    """Make the engine of a database; nothing is connected yet.

    Args:
        url: Its URL.
        hold: Whether a PostgreSQL database is held by the one connection of the engine (`hold_session`).

    Returns:
        The engine.

    Raises:
        ConfigError: It is no URL, there is no such kind of database, or its driver is not installed.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigError(
            "--database-url is no URL of a database; it looks like postgresql+psycopg://USER@HOST/NAME or sqlite:////FOLDER/FILE"
        ) from None
    one_session = hold and parsed.get_backend_name() == "postgresql"
    try:
        engine = create_engine(parsed, hide_parameters=True, **ONE_CONNECTION if one_session else {})
    except ArgumentError:
        raise ConfigError(f"--database-url: there is no kind of database that is called {parsed.drivername}") from None
    except ImportError as error:
        raise ConfigError(f"--database-url: the driver of {parsed.drivername} is not installed: {error}") from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_pragmas)
    if one_session:
        event.listen(engine, "connect", lambda connection, _record: hold_session(connection, parsed))
    return engine


def _set_pragmas(connection: Any, _record: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", f"busy_timeout={BUSY_TIMEOUT_MS}"):
        connection.execute(f"PRAGMA {pragma}")
