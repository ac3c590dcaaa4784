"""The loop of an exploration: choose a screen, get there, choose an action, do it, see, store.

Role: `Explorer.run` explores with one desktop, or with several that share the graph. Rule: the store knows a step before the next one of
the same desktop begins; every step has a number below the bound, and random numbers of its own, made from seed and number. A model that
fails, stalls or answers nonsense, and a desktop that fails, cost one step, never the graph. After `max_faults` faults of the model in a row
the exploration ends in an error and can be resumed. A desktop with `max_faults` faults in a row is retired: the others go on, and without
any other the exploration ends in an error, too. Two desktops never try the same candidate of the same screen at once: who is asked for a
choice while another desktop takes the same one is asked again.

Ways to a screen: its snapshot (costs no step), else known actions from here, or from the start after a restart, each of them a step. Who
arrives elsewhere goes on from there. Where that is a screen that nobody knew, the step is done there: a screen that changes by itself adds
one screen per step on the way, not screens without end. Nobody goes to a screen for something that it no longer shows. Where nothing else
is left to be tried, what showed such a candidate before is done again.

Non-goals: who chooses (`dart_agent.explore.choosers`), what desktops are (`dart_agent.explore.desktops.base`), what is within reach
(`dart_agent.explore.reach`), what a view is (`dart_agent.explore.matching`), which snapshots there are
(`dart_agent.explore.desktops.snapshots`).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dart_agent.errors import AgentError, ModelFaultError
from dart_agent.explore.candidates import CandidateAction
from dart_agent.explore.choosers import ChoiceContext, Chooser, PlaceContext
from dart_agent.explore.desktops.base import DesktopFaultError, ExplorableDesktop
from dart_agent.explore.desktops.snapshots import ScreenSnapshots
from dart_agent.explore.desktops.walker import Walker
from dart_agent.explore.graph import START_SCREEN, ExplorationGraph, KnownScreen
from dart_agent.explore.matching import ScreenMatcher
from dart_agent.explore.reach import Reach
from dart_agent.explore.screens import appeared_names
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.storage.records import StoredStep
from dart_agent.explore.store import ExploreStore
from dart_agent.explore.values import StepOutcome

Report = Callable[[str], None]


@dataclass(frozen=True)
class _NextAction:
    """What a desktop does next. expected: the screen that a known action led to before."""

    kind: str
    candidate: CandidateAction
    reason: str = ""
    expected: int | None = None


class Explorer:
    """An exploration that runs.

    Args:
        store: Where it is kept; it may hold steps already.
        chooser: Who chooses.
        settings: How it runs; None: as the store says.
        report: Takes a line for each step.
        graph: The graph of the store, where it is loaded already.
    """

    def __init__(
        self,
        store: ExploreStore,
        chooser: Chooser,
        settings: ExploreSettings | None = None,
        report: Report | None = None,
        *,
        graph: ExplorationGraph | None = None,
    ) -> None:
        self._store = store
        self._chooser = chooser
        self._settings = settings or store.settings
        self._report = report or (lambda _line: None)
        self.graph = store.load_graph() if graph is None else graph
        self._matcher = ScreenMatcher(self.graph, self._settings)
        self._reach = Reach(self.graph)
        self._snapshots = ScreenSnapshots(store, self.graph, self._reach, self._settings.max_snapshots, self._report)
        self._last_step = store.last_step()
        self._returned_steps: set[int] = set()
        """Numbers below the last one that were given back."""
        self._model_faults = 0
        """Faults of the model in a row, whichever desktop asked it."""
        self._in_use = 0
        """Desktops that are not retired."""
        self._walking = False
        """Whether desktops have begun to take steps."""
        self._busy: Counter[tuple[int, str]] = Counter()
        """By screen and candidate: how many desktops are doing it."""
        self._at_work: set[int] = set()
        """Numbers of the desktops that choose or do something; the others wait for what these may find."""
        self._moved = asyncio.Event()
        """Set, and replaced by a new one, when a desktop has taken a step or has ended."""

    async def run(self, desktop: ExplorableDesktop) -> None:
        """Explore until a bound is reached, or nothing is left to be tried.

        Args:
            desktop: The first desktop; it is not closed. The others are forks of it, which are.

        Raises:
            AgentError: Too many faults in a row, or the store failed. What was found until then is kept.
        """
        first = Walker(0, desktop)
        await desktop.restart()
        await self._look(first)
        if first.screen_id is None:
            raise DesktopFaultError("the application shows nothing that can be explored at its start")
        forks: Sequence[ExplorableDesktop] = ()
        try:
            if self._settings.desktops > 1:
                forks = await desktop.fork(self._settings.desktops - 1)
            self._walking = True
            walkers = [first, *(Walker(number, fork) for number, fork in enumerate(forks, 1))]
            self._in_use = len(walkers)
            async with asyncio.TaskGroup() as group:
                for walker in walkers:
                    group.create_task(self._walk(walker))
        except ExceptionGroup as errors:
            raise _first(errors) from errors
        finally:
            await asyncio.gather(*(fork.aclose() for fork in forks), return_exceptions=True)

    async def discard_snapshots(self, desktop: ExplorableDesktop) -> None:
        """Delete all snapshots of screens; a later exploration walks back from the start, or takes new ones.

        Args:
            desktop: Any desktop of the exploration.

        Raises:
            DesktopFaultError: Some could not be deleted; all have been tried.
        """
        await self._snapshots.discard_all(desktop)

    # One desktop.

    async def _walk(self, walker: Walker) -> None:
        try:
            while walker.faults < self._settings.max_faults and (step := self._next_step()) is not None:
                self._at_work.add(walker.number)
                if await self._try_step(walker, step):
                    self._tell_moved()
                    continue
                self._returned_steps.add(step)
                self._at_work.discard(walker.number)
                if not self._at_work:
                    return
                await self._moved.wait()
        finally:
            self._at_work.discard(walker.number)
            self._tell_moved()

    def _tell_moved(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def _try_step(self, walker: Walker, step: int) -> bool:
        """Do one step, or note what fault it cost; False where nothing is left to be tried now."""
        try:
            if walker.screen_id is None:
                await self._restart(walker)
            return await self._step(walker, step)
        except ModelFaultError as fault:
            self._note_fault(walker, step, "model_fault", fault)
            self._model_faults += 1
            if self._model_faults >= self._settings.max_faults:
                raise _too_many(self._model_faults, fault) from fault
        except DesktopFaultError as fault:
            self._note_fault(walker, step, "desktop_fault", fault)
            walker.screen_id = None
            self._miss(walker)
            walker.faults += 1
            if walker.faults >= self._settings.max_faults:
                self._retire(walker, fault)
        return True

    def _next_step(self) -> int | None:
        """Number of the next step; None where a bound is reached."""
        if self._has_all_screens():
            return None
        if self._returned_steps:
            step = min(self._returned_steps)
            self._returned_steps.discard(step)
            return step
        if self._last_step >= self._settings.max_steps:
            return None
        self._last_step += 1
        return self._last_step

    def _has_all_screens(self) -> bool:
        return len(self.graph.screens) >= self._settings.max_screens

    async def _step(self, walker: Walker, step: int) -> bool:
        """Do one step; False where nothing is left to be tried now, and nothing was done."""
        found = await self._next_action(walker, step, random.Random(f"{self._settings.seed}/{step}"))
        if found is None:
            return False
        place, key = walker.screen_id, found.candidate.key
        assert place is not None
        self._busy[place, key] += 1
        walker.trying = (place, found.candidate)
        try:
            await self._perform(walker, step, found)
        finally:
            self._busy[place, key] -= 1
            self._busy += Counter()  # keeps what is above 0
        if found.kind == "replay" and walker.screen_id != found.expected:
            self._miss(walker)
        self._model_faults = walker.faults = 0
        return True

    async def _next_action(self, walker: Walker, step: int, rng: random.Random) -> _NextAction | None:
        """What the desktop does next: a step of its way, or what the chooser wants; None where nothing is left to be tried now.

        Who was asked while another desktop began or did the same goes on from where there is something to be tried then.
        """
        while walker.way or await self._go_on(walker, rng):
            place, shown = walker.screen_id, walker.shown
            assert place is not None
            assert walker.view is not None
            free = [one for one in shown.values() if (place, one.key) not in self._busy]
            if walker.way and self._reach.is_scarce(place, [one.key for one in free]):
                walker.way.clear()
                self._stop(walker)
            elif walker.way:
                key, expected = walker.way.popleft()
                if key in shown:
                    return _NextAction("replay", shown[key], "", expected)
                self._miss(walker)
                continue
            if not free:
                return None
            tries = {one.key: self.graph.q.tries(place, one.key) for one in free}
            context = ChoiceContext(self.graph, place, walker.view, free, rng, step, list(walker.history))
            choice = await self._chooser.choose(context)
            key = choice.candidate.key
            if (place, key) not in self._busy and self.graph.q.tries(place, key) == tries[key]:
                return _NextAction("explore", choice.candidate, choice.reason)
        return None

    async def _go_on(self, walker: Walker, rng: random.Random) -> bool:
        """Bring the desktop to the screen that the chooser wants, or set its way there; False where nothing is left to be tried.

        Where the way ends at a screen that nobody knew, the desktop stays, and the bound on screens may have been reached.
        """
        known = len(self.graph.screens)
        while True:
            scarce = self._stop(walker)
            assert walker.screen_id is not None
            is_new = walker.screen_id > known
            if is_new and self._has_all_screens():
                return False
            costs = self._reach.costs(walker.screen_id, snapshots=self._settings.snapshots)
            unavailable = self._reach.absent.union(self._busy)
            context = PlaceContext(self.graph, walker.screen_id, costs, unavailable, rng)
            if (scarce or is_new) and context.untried(walker.screen_id):
                return True
            if not any(context.untried(screen_id) for screen_id in costs):
                if not await self._bring_back(walker, costs):
                    return False
            else:
                wanted = self._chooser.next_screen(context)
                if wanted == walker.screen_id:
                    return True
                await self._set_out(walker, wanted, afresh=self._reach.was_missed(wanted))
                walker.goal = wanted
                if not walker.way and walker.screen_id != wanted:
                    self._miss(walker)
            if walker.way:
                return True  # else look again: a snapshot may be gone, or another desktop may have been faster

    async def _set_out(self, walker: Walker, wanted: int, *, afresh: bool) -> None:
        """Restore the snapshot of a screen, or set the way there: the shortest one, or afresh, from the start."""
        screen = self.graph.screens[wanted]
        if screen.snapshot is not None and self._settings.snapshots:
            await self._restore(walker, screen)
            return
        assert walker.screen_id is not None
        here = self.graph.path(walker.screen_id, wanted)
        start = self.graph.path(START_SCREEN, wanted)
        if start is not None and (afresh or here is None or len(start) < len(here)):
            await self._restart(walker)
            here = self.graph.path(walker.screen_id, wanted) if walker.screen_id is not None else None
        walker.way = deque(here or ())

    async def _bring_back(self, walker: Walker, costs: Mapping[int, int]) -> bool:
        """Go where something absent may be shown again; False where no way is left that could lead there."""
        found = self._reach.take_way_back(costs, snapshots=self._settings.snapshots)
        if found is None:
            return False
        if found.snapshot:
            await self._restore(walker, self.graph.screens[found.screen_id])
        elif found.action is None:
            await self._restart(walker)
        else:
            place, key = found.action
            if walker.screen_id != place or key not in walker.shown:
                await self._set_out(walker, place, afresh=walker.screen_id == place)
            if walker.way or walker.screen_id == place:
                walker.way.append((key, found.screen_id))
        walker.goal, walker.way_back = None, found
        return True

    def _stop(self, walker: Walker) -> bool:
        """Note what a desktop shows that goes no further; whether that is worth staying for, whatever the chooser wants."""
        assert walker.screen_id is not None
        scarce = self._reach.stop(walker.screen_id, walker.shown)
        if scarce and walker.way_back is not None:
            self._reach.give_back(walker.way_back)
        walker.goal = walker.way_back = None
        return scarce

    def _miss(self, walker: Walker) -> None:
        """Note that a desktop does not get where it wanted to be."""
        walker.way.clear()
        if walker.goal is not None:
            self._reach.miss(walker.goal)
        walker.goal = None

    # Actions, and what they lead to.

    async def _perform(self, walker: Walker, step: int, found: _NextAction) -> None:
        before_screen, before, before_sha256 = walker.screen_id, walker.view, walker.image_sha256
        assert before_screen is not None
        assert before is not None
        candidate, arrived_by = found.candidate, walker.arrived_by
        await walker.desktop.perform(candidate.actions)
        view = await walker.desktop.observe()
        walker.view, walker.arrived_by = view, "stay"
        walker.image_sha256 = await asyncio.to_thread(self._store.add_image, view.image)
        seen = self._matcher.find(view, self.graph.screens[before_screen].depth + 1)
        outcome = self._matcher.outcome(before_screen, candidate.key, seen, before, view)
        to_screen, walker.shown = seen.screen_id, seen.shown
        stored = StoredStep(
            step=step,
            desktop=walker.number,
            kind=found.kind,
            arrived_by=arrived_by,
            from_screen=before_screen,
            to_screen=to_screen,
            candidate=candidate,
            outcome=outcome,
            before_sha256=before_sha256,
            after_sha256=walker.image_sha256,
            before_window=before.window,
            after_window=view.window,
            appeared=appeared_names(before.elements, view.elements),
            reason=found.reason,
        )
        self._store.add_step(
            stored, screen=seen.new, view=view, image_sha256=walker.image_sha256, candidates=seen.added
        )
        walker.trying = None
        self.graph.record(before_screen, candidate.key, outcome, to_screen)
        if to_screen is not None:
            self.graph.note_first_shown(to_screen, seen.first_shown, (before_screen, candidate.key))
        walker.screen_id = to_screen
        line = f"{candidate.describe()} on screen {before_screen}: {outcome.value.replace('_', ' ')}"
        walker.history.append(f"- {line}")
        self._report(f"{step:5d}  {line}{'' if to_screen is None else f', screen {to_screen}'}")
        if seen.new is not None:
            await self._save(walker, seen.new)

    async def _look(self, walker: Walker, arrived_by: str = "restart") -> None:
        """See where a desktop stands, without a step; what it shows for the first time counts as found by the next step."""
        found_step = self._last_step if self._walking else self._last_step + 1 if self.graph.screens else 0
        walker.view = await walker.desktop.observe()
        walker.arrived_by = arrived_by
        walker.screen_id = None
        walker.way.clear()
        if not self._matcher.belongs(walker.view):
            return
        walker.image_sha256 = await asyncio.to_thread(self._store.add_image, walker.view.image)
        seen = self._matcher.find(walker.view, 0)
        walker.screen_id, walker.shown = seen.screen_id, seen.shown
        if seen.new is not None or seen.added is not None:
            self._store.add_step(
                None,
                screen=seen.new,
                view=walker.view,
                image_sha256=walker.image_sha256,
                candidates=seen.added,
                found_step=found_step,
            )
        if seen.new is not None and arrived_by != "snapshot":  # else the restored snapshot shows something else
            await self._save(walker, seen.new)

    async def _restart(self, walker: Walker) -> None:
        await walker.desktop.restart()
        await self._look(walker)
        if walker.screen_id is None:
            raise DesktopFaultError("the application is not in front after a restart")

    # Snapshots.

    async def _save(self, walker: Walker, screen: KnownScreen) -> None:
        """Take a snapshot of a screen that the desktop shows, where snapshots are taken."""
        if self._settings.snapshots:
            await self._snapshots.take(walker.desktop, screen)

    async def _restore(self, walker: Walker, screen: KnownScreen) -> None:
        """Go to a screen by its snapshot; a snapshot that fails, or shows something else, is deleted."""
        snapshot = screen.snapshot
        assert snapshot is not None
        try:
            await walker.desktop.restore(snapshot)
        except DesktopFaultError as fault:
            self._report(f"       screen {screen.screen_id} is not restored from its snapshot: {fault}")
            await self._snapshots.forget(walker.desktop, screen, snapshot)
            await self._restart(walker)
            return
        await self._look(walker, "snapshot")
        if walker.screen_id != screen.screen_id:
            await self._snapshots.forget(walker.desktop, screen, snapshot)
            if walker.screen_id is None:
                await self._restart(walker)

    def _note_fault(self, walker: Walker, step: int, kind: str, fault: AgentError) -> None:
        """A fault costs its step. An action that has begun is the one that failed."""
        tried, walker.trying = walker.trying, None
        self._store.add_step(
            StoredStep(
                step=step,
                desktop=walker.number,
                kind=kind,
                arrived_by=walker.arrived_by,
                from_screen=walker.screen_id if tried is None else tried[0],
                candidate=None if tried is None else tried[1],
                outcome=None if tried is None else StepOutcome.ERROR,
                cause=str(fault),
            )
        )
        if tried is not None:
            self.graph.record(tried[0], tried[1].key, StepOutcome.ERROR, None)
        self._report(f"{step:5d}  {kind.replace('_', ' ')}: {fault}")

    def _retire(self, walker: Walker, fault: DesktopFaultError) -> None:
        """Go on without a desktop that fails; raises AgentError where it is the last one."""
        self._in_use -= 1
        if not self._in_use:
            raise _too_many(walker.faults, fault) from fault
        self._report(
            f"       desktop {walker.number} is not used any more after {walker.faults} faults in a row: {fault}"
        )


def _too_many(faults: int, last: AgentError) -> AgentError:
    return AgentError(
        f"the exploration ended after {faults} faults in a row, the last of them: {last}. What was found is kept: resume it when the cause "
        "is gone"
    )


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    found: Exception = errors
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found
