"""The store of an exploration: a folder with a SQL database and the screenshots.

Role: `ExploreStore` creates, reads and extends an exploration. Rule: what a step found is one transaction, and its images are complete
files before it, so that a process that was killed leaves the graph as it was after the last step. Transactions are numbered (`revision`),
and the graph is built again in their order. The database is SQLite in the folder, or any other by its URL, which notes the folder by its
id and refuses another one; one process writes at a time (`dart_agent.explore.storage.locks`).
Non-goals: what the graph means (`dart_agent.explore.graph`).

    OUT/explore.sqlite    the tables of `dart_agent.explore.storage.tables`
    OUT/images/SHA256.png screenshots before and after steps
    OUT/id                id of the folder, which is copied and moved with it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from uuid import uuid4

from pydantic import ValidationError
from sqlalchemy import Select, delete, func, insert, inspect, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from dart_agent.errors import ConfigError, StoreError
from dart_agent.explore.candidates import CandidateAction
from dart_agent.explore.graph import ExplorationGraph, KnownScreen
from dart_agent.explore.screens import ScreenView
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.storage.layouts import LAYOUT, upgrade_layout
from dart_agent.explore.storage.locks import hold_sqlite
from dart_agent.explore.storage.records import StoredScreen, StoredStep, screen_row, step_row, to_screen, to_step
from dart_agent.explore.storage.tables import (
    CandidateTable,
    ExplorationTable,
    ExploreBase,
    ExploreStepTable,
    ScreenTable,
    make_engine,
)
from dart_agent.grounding.samples import read_image
from dart_agent.strict_model import format_validation_error
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.observations.annotated_screens import write_screenshot
from dart_envs.types import RgbImage
from dart_server.wire import Clock

DATABASE_FILE, IMAGES, ID_FILE = "explore.sqlite", "images", "id"

_FoundTable = TypeVar("_FoundTable", ScreenTable, CandidateTable, ExploreStepTable)


class ExploreStore:
    """An open exploration; `with` closes it.

    Args:
        out: Its folder.
        url: URL of the database; None: SQLite in the folder.
        hold: Whether this process explores, and keeps any other one from exploring in the database until the store is closed.
        clock: Tells when steps were stored.

    Raises:
        ConfigError: Another process explores in the database, or its URL is none.
    """

    def __init__(self, out: Path, url: str | None = None, *, hold: bool = False, clock: Clock = SYSTEM_CLOCK) -> None:
        self.out = out
        self._clock = clock
        self._newest: int | None = None
        """The newest revision that is read; None: all are."""
        self._engine = make_engine(url or f"sqlite:///{out / DATABASE_FILE}", hold=hold)
        self._held = ExitStack()
        if hold and self._engine.dialect.name == "sqlite":
            self._held.enter_context(hold_sqlite(self._engine.url, out / DATABASE_FILE))

    @classmethod
    def create(
        cls, out: Path, settings: ExploreSettings, url: str | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> ExploreStore:
        """Begin an exploration; it takes the place of one that has found nothing, as where no desktop could be started, and is not running.

        Args:
            out: Its folder.
            settings: How it runs.
            url: URL of the database; None: SQLite in the folder.
            clock: Tells when steps were stored.

        Returns:
            The empty store.

        Raises:
            ConfigError: There is one already that has found something, that runs, or whose root snapshot is of another application or
                another desktop.
            StoreError: The database cannot be used.
        """
        (out / IMAGES).mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            store = cls(out, url, hold=True, clock=clock)
            opened.callback(store.close)
            with store._errors():
                replaceable, root_snapshot = store._is_replaceable(settings)
                if not replaceable:
                    if url is None:
                        raise ConfigError(f"{out} holds an exploration already: resume it, or give another folder")
                    raise ConfigError(
                        f"the database {store._name} holds an exploration already: resume it in its folder, or give another database"
                    )
                ExploreBase.metadata.create_all(store._engine)
                with Session(store._engine) as session, session.begin():
                    session.execute(delete(ExplorationTable))
                    session.add(
                        ExplorationTable(
                            exploration_id=1,
                            layout=LAYOUT,
                            settings=settings.model_dump(mode="json"),
                            created_s=clock.time(),
                            root_snapshot=root_snapshot,
                            revision=0,
                            folder=store._make_folder_id(),
                        )
                    )
            opened.pop_all()
        return store

    @staticmethod
    def check_exists(out: Path, url: str | None = None) -> None:
        """Raise ConfigError where a folder has no exploration; of another database only opening it can tell, or that its URL is none."""
        if url is not None:
            make_engine(url)
        elif not (out / DATABASE_FILE).is_file():
            raise ConfigError(f"there is no exploration in {out}: start one with `dart-agent explore start`")

    @classmethod
    def open(
        cls, out: Path, url: str | None = None, *, hold: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> ExploreStore:
        """Open an exploration that exists; one with tables of an earlier layout is given those of today.

        Args:
            out: Its folder.
            url: As at its beginning.
            hold: Whether this process goes on with it, and no other one may until the store is closed.
            clock: Tells when steps were stored.

        Returns:
            The store.

        Raises:
            ConfigError: There is none, it was made by another version, its screenshots are in another folder, or another process holds it.
        """
        cls.check_exists(out, url)
        with ExitStack() as opened:
            store = cls(out, url, hold=hold, clock=clock)
            opened.callback(store.close)
            with store._errors(), Session(store._engine) as session:
                layout = session.scalar(select(ExplorationTable.layout))
            if layout != LAYOUT:
                with store._errors():
                    upgraded = upgrade_layout(store._engine, layout)
                if not upgraded:
                    raise ConfigError(
                        f"the exploration in {out} was made by another version: start a new one in another folder"
                    )
            if url is not None:
                store._check_folder()
            opened.pop_all()
        return store

    @property
    def settings(self) -> ExploreSettings:
        """How it runs."""
        with self._errors(), Session(self._engine) as session:
            record = session.scalars(select(ExplorationTable.settings)).one()
        try:
            return ExploreSettings.model_validate(record)
        except ValidationError as error:
            raise ConfigError(f"the settings in {self.out}: {format_validation_error(error)}") from None

    def change_settings(self, settings: ExploreSettings) -> None:
        """Keep other settings from now on."""
        with self._write() as session:
            session.execute(update(ExplorationTable).values(settings=settings.model_dump(mode="json")))

    @property
    def created_s(self) -> float:
        """When it began, in seconds since 1970-01-01 UTC."""
        with self._errors(), Session(self._engine) as session:
            return session.scalars(select(ExplorationTable.created_s)).one()

    @property
    def root_snapshot(self) -> str | None:
        """Snapshot of the started application."""
        with self._errors(), Session(self._engine) as session:
            return session.scalars(select(ExplorationTable.root_snapshot)).one()

    def set_root_snapshot(self, snapshot: str | None) -> None:
        """Note the snapshot of the started application, or that it is gone."""
        with self._write() as session:
            session.execute(update(ExplorationTable).values(root_snapshot=snapshot))

    def stop_at_newest(self) -> None:
        """Read from now on only what is stored already, so that all that is read fits together while another process explores."""
        with self._errors(), Session(self._engine) as session:
            self._newest = session.scalars(select(ExplorationTable.revision)).one()

    def load_graph(self) -> ExplorationGraph:
        """Build the graph again, with the Q-values that it had.

        Returns:
            The graph.
        """
        settings = self.settings
        graph = ExplorationGraph(settings.values, settings.max_distance)
        screens: dict[int, list[KnownScreen]] = defaultdict(list)
        candidates: dict[int, list[tuple[int, CandidateAction]]] = defaultdict(list)
        steps: dict[int, list[StoredStep]] = defaultdict(list)
        with self._errors(), Session(self._engine) as session:
            for row in session.scalars(self._select(ScreenTable).order_by(ScreenTable.screen_id)):
                screens[row.revision].append(to_screen(row, {}).known)
            for one in session.scalars(self._select(CandidateTable).order_by(CandidateTable.seq)):
                candidates[one.revision].append((one.screen_id, CandidateAction.from_dict(one.record)))
        for step in self.steps():
            steps[step.revision].append(step)
        for revision in sorted({*screens, *candidates, *steps}):
            for known in screens[revision]:
                graph.add_screen(known)
            for screen_id, seen in _by_screen(candidates[revision]).items():
                graph.add_candidates(screen_id, seen)
            for step in steps[revision]:
                if step.from_screen is not None and step.candidate is not None and step.outcome is not None:
                    after = (step.from_screen, step.candidate.key)
                    for screen_id, seen in _by_screen(candidates[revision]).items():
                        if screen_id == step.to_screen:
                            graph.note_first_shown(screen_id, (one.key for one in seen), after)
                    graph.record(step.from_screen, step.candidate.key, step.outcome, step.to_screen)
        return graph

    def screens(self) -> list[StoredScreen]:
        """All screens with their candidates, the oldest first."""
        with self._errors(), Session(self._engine) as session:
            rows = session.scalars(self._select(ScreenTable).order_by(ScreenTable.screen_id)).all()
            candidates: dict[int, dict[str, CandidateAction]] = {row.screen_id: {} for row in rows}
            for one in session.scalars(self._select(CandidateTable).order_by(CandidateTable.seq)):
                candidates[one.screen_id][one.key] = CandidateAction.from_dict(one.record)
            return [to_screen(row, candidates[row.screen_id]) for row in rows]

    def steps(self) -> list[StoredStep]:
        """All steps in the order in which they ended."""
        order = (ExploreStepTable.revision, ExploreStepTable.step)
        with self._errors(), Session(self._engine) as session:
            return [to_step(row) for row in session.scalars(self._select(ExploreStepTable).order_by(*order))]

    def last_step(self) -> int:
        """The greatest number of a step; 0 before the first."""
        with self._errors(), Session(self._engine) as session:
            return session.scalar(select(func.max(ExploreStepTable.step))) or 0

    def add_image(self, image: RgbImage) -> str:
        """Keep a screenshot.

        Args:
            image: uint8 `[H, W, 3]`.

        Returns:
            Its SHA-256.
        """
        return write_screenshot(self.out / IMAGES, image)

    def image_path(self, sha256: str) -> Path:
        """Where a screenshot lies."""
        return self.out / IMAGES / f"{sha256}.png"

    def read_image(self, sha256: str) -> RgbImage:
        """A screenshot, uint8 `[H, W, 3]`."""
        return read_image(self.image_path(sha256))

    def add_step(
        self,
        step: StoredStep | None,
        *,
        screen: KnownScreen | None = None,
        view: ScreenView | None = None,
        image_sha256: str = "",
        candidates: tuple[int, Sequence[CandidateAction]] | None = None,
        found_step: int = 0,
    ) -> None:
        """Keep a step and all that it found, or nothing of it.

        Args:
            step: The step; None for the first screen, which no step led to.
            screen: A new screen.
            view: Its view.
            image_sha256: Its screenshot.
            candidates: New candidates of a known screen.
            found_step: The step that found them, where `step` is None.
        """
        now_s = self._clock.time()
        found_step = found_step if step is None else step.step
        with self._write() as session:
            session.execute(update(ExplorationTable).values(revision=ExplorationTable.revision + 1))
            revision = session.scalars(select(ExplorationTable.revision)).one()
            if screen is not None and view is not None:
                session.add(screen_row(screen, view, image_sha256, found_step, revision))
                session.flush()
                candidates = (screen.screen_id, list(screen.candidates.values()))
            if candidates is not None and candidates[1]:
                place = {"screen_id": candidates[0], "found_step": found_step, "revision": revision}
                rows = [{**place, "key": one.key, "record": one.to_dict()} for one in candidates[1]]
                session.execute(insert(CandidateTable), rows)
            if step is not None:
                session.add(step_row(step, now_s, revision))

    def set_snapshot(self, screen_id: int, snapshot: str | None) -> None:
        """Note the snapshot of a screen, or that it is gone."""
        with self._write() as session:
            session.execute(update(ScreenTable).where(ScreenTable.screen_id == screen_id).values(snapshot=snapshot))

    def close(self) -> None:
        """Close the connections, and hold the database no more."""
        self._engine.dispose()
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_replaceable(self, settings: ExploreSettings) -> tuple[bool, str | None]:
        """Whether another exploration may begin in the database, and the root snapshot that it goes on with.

        A root snapshot is on the farm until an exploration with the same application and desktop deletes it.
        """
        tables = set(inspect(self._engine).get_table_names())
        if ExplorationTable.__tablename__ not in tables:
            return True, None
        with Session(self._engine) as session:
            layout = session.scalar(select(ExplorationTable.layout))
            if layout is None:  # it was stopped while its tables were made
                return True, None
            found = [session.scalar(select(table).limit(1)) for table in (ScreenTable.screen_id, ExploreStepTable.step)]
            if layout != LAYOUT or any(one is not None for one in found):
                return False, None
            root, before = session.execute(select(ExplorationTable.root_snapshot, ExplorationTable.settings)).one()
        wanted = settings.model_dump(mode="json")
        same = all(before.get(name) == wanted[name] for name in ("app", "image", "resolution"))
        return root is None or same, root

    def _select(self, table: type[_FoundTable]) -> Select[_FoundTable]:
        rows = select(table)
        return rows if self._newest is None else rows.where(table.revision <= self._newest)

    @property
    def _name(self) -> str:
        """The database, as it may be told."""
        return self._engine.url.render_as_string(hide_password=True)

    def _read_folder_id(self) -> str:
        path = self.out / ID_FILE
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def _make_folder_id(self) -> str:
        """The id of the folder, which is given one where it has none."""
        folder = self._read_folder_id() or uuid4().hex
        (self.out / ID_FILE).write_text(folder, encoding="utf-8")
        return folder

    def _check_folder(self) -> None:
        """Raise ConfigError where the screenshots are in another folder; one that no layout has noted has that of the first screen."""
        with self._errors(), Session(self._engine) as session:
            noted = session.scalar(select(ExplorationTable.folder))
            first = session.scalar(select(ScreenTable.image_sha256).order_by(ScreenTable.screen_id).limit(1))
        if noted is None and (first is None or self.image_path(first).is_file()):
            noted = self._make_folder_id()
            with self._write() as session:
                session.execute(update(ExplorationTable).values(folder=noted))
        if noted is None or noted != self._read_folder_id():
            raise ConfigError(
                f"{self.out} is not the folder of the exploration in the database {self._name}: give the folder that it began with"
            )

    @contextmanager
    def _write(self) -> Iterator[Session]:
        with self._errors(), Session(self._engine) as session, session.begin():
            yield session

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What the database says as one sentence, without parameters."""
        try:
            yield
        except DBAPIError as error:
            said = next(iter(str(error.orig).splitlines()), type(error.orig).__name__)
            raise StoreError(f"the database of the exploration in {self.out} cannot be used: {said}") from error


def _by_screen(candidates: Sequence[tuple[int, CandidateAction]]) -> dict[int, list[CandidateAction]]:
    found: dict[int, list[CandidateAction]] = defaultdict(list)
    for screen_id, candidate in candidates:
        found[screen_id].append(candidate)
    return found
