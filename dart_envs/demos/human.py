"""A person's demonstration: what the farm's live view passes on, with the screens around each action.

Role: `HumanRecorder`. Rule: the screen before an action is the last one that was seen before its first event, without a pointer in it, as
observations are; the one after it is what the next action met, or what there was at the end. Looks wait for nothing and are no steps, so
that the person's input never queues behind them. Non-goals: what events mean (`coalesce`), files (`store`), the verdict
(`dart_envs.envs.core`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.demos.coalesce import Coalescer, RecordedAction
from dart_envs.demos.store import DemoStep, DemoWriter
from dart_envs.farm.lease import AsyncLease
from dart_envs.farm.live import poll_human_inputs
from dart_envs.types import Action, ActionType, RgbImage
from dart_server.wire import A11yElement, Clock

CAPTURE_INTERVAL_S = 0.15
"""Between two looks at the screen."""
INPUT_POLL_S = 20.0
FLUSH_INTERVAL_S = 0.25
SCREEN_RETENTION_S = 3.0
"""Screens that are older than this and that no unfinished action needs are forgotten."""
STABLE_BEFORE_A11Y_S = 0.4
"""A screen must have stood so long before its accessibility tree is read."""


@dataclass(slots=True)
class _ScreenSample:
    """A screen, from when on it was seen. elements: its accessibility tree, once it was read."""

    at_s: float
    image: RgbImage
    elements: Sequence[A11yElement] | None = None


class HumanRecorder:
    """Records one lease's desktop until `stop`. on_step: called with each step that was kept, and what is odd about it."""

    def __init__(
        self,
        lease: AsyncLease,
        writer: DemoWriter,
        *,
        a11y: bool = True,
        on_step: Callable[[DemoStep], None] = lambda step: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._lease = lease
        self._writer = writer
        self._tree = a11y
        self._on_step = on_step
        self._clock = clock
        self._coalescer = Coalescer()
        self._screens: list[_ScreenSample] = []
        self._unwritten: tuple[RecordedAction, _ScreenSample] | None = None
        """The latest action, with its screen before: written when the screen after it is known."""
        self._start_s = clock.monotonic()
        self._last_input_number = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.lost_inputs = 0
        """Inputs that were lost because nobody listened in time."""
        self.controlled = asyncio.Event()
        """Set once a person has taken over."""
        self.control_returned = asyncio.Event()
        """Set once they have given the desktop back."""

    async def start(self) -> None:
        """Begin; once this returns nothing of what a person does is missed. Raises `DartEnvError`."""
        await self._capture_screen()
        self._last_input_number = max(
            (one.number for one in (await poll_human_inputs(self._lease, 0, 0)).inputs), default=0
        )
        self._tasks = [asyncio.create_task(work()) for work in (self._capture_loop, self._input_loop)]

    async def wait(self, end: asyncio.Event) -> None:
        """Until `end` is set. Raises what ended the recording before."""
        ending = asyncio.create_task(end.wait())
        try:
            done, _ = await asyncio.wait([*self._tasks, ending], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            ending.cancel()

    async def stop(self, last: ActionType | None) -> None:
        """Stop and write what is left; with `last`, DONE or FAIL, that is the last step, on the screen as it is now.

        Raises `DartEnvError`.
        """
        await self._read_inputs(0)
        await self.aclose()
        await self._capture_screen(settled=True)
        self._record(self._coalescer.flush(self._clock.monotonic()))
        now_s = self._clock.monotonic()
        if last is not None:
            if self._tree and self._screens[-1].elements is None:
                self._screens[-1].elements = await self._lease.a11y()
            self._record([RecordedAction(now_s, now_s, Action(last), ())])
        self._write(self._screens[-1])

    async def aclose(self) -> None:
        """Stop without writing. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Looking.

    async def _capture_loop(self) -> None:
        while True:
            await self._clock.sleep(CAPTURE_INTERVAL_S)
            await self._capture_screen()

    async def _capture_screen(self, *, settled: bool = False) -> None:
        from dart_envs.envs.settling import RESET_SETTLE

        asked_s = self._clock.monotonic()
        frame = await self._lease.step([], RESET_SETTLE if settled else None)
        last = self._screens[-1] if self._screens else None
        if last is None or not np.array_equal(last.image, frame.image):
            # It was like this when it was asked for or soon after; an action that came meanwhile may show already.
            self._screens.append(_ScreenSample(asked_s if last is None else self._clock.monotonic(), frame.image))
        elif self._tree and last.elements is None and asked_s - last.at_s >= STABLE_BEFORE_A11Y_S:
            await self._read_tree(last)
        self._drop_old_screens()

    async def _read_tree(self, look: _ScreenSample) -> None:
        elements = await self._lease.a11y()
        frame = await self._lease.step([])
        if np.array_equal(look.image, frame.image):
            look.elements = elements

    def _drop_old_screens(self) -> None:
        pending_s = self._coalescer.pending_s
        horizon_s = self._clock.monotonic() - SCREEN_RETENTION_S
        if pending_s is not None:
            horizon_s = min(horizon_s, pending_s)
        while len(self._screens) > 1 and self._screens[1].at_s <= horizon_s:
            del self._screens[0]

    def _screen_before(self, at_s: float) -> _ScreenSample:
        """What was on the screen at a time."""
        earlier = [look for look in self._screens if look.at_s <= at_s]
        return earlier[-1] if earlier else self._screens[0]

    # Listening.

    async def _input_loop(self) -> None:
        while True:
            pending = self._coalescer.pending_s is not None
            await self._read_inputs(FLUSH_INTERVAL_S if pending else INPUT_POLL_S)

    async def _read_inputs(self, wait_s: float) -> None:
        heard = await poll_human_inputs(self._lease, self._last_input_number, wait_s)
        now_s = self._clock.monotonic()
        self.lost_inputs += heard.missed
        if heard.controlled:
            self.controlled.set()
        elif self.controlled.is_set():
            self.control_returned.set()
        for said in heard.inputs:
            self._last_input_number = said.number
            age_s = (heard.now - said.at).total_seconds()
            self._record(self._coalescer.feed(now_s - age_s, said.events))
        self._record(self._coalescer.flush(now_s, force=False))

    def _record(self, done: Iterable[RecordedAction]) -> None:
        for one in done:
            before = self._screen_before(one.start_s)
            if one.is_hover and before is self._screen_before(one.end_s):
                continue
            self._write(before)
            self._unwritten = (one, before)

    def _write(self, after: _ScreenSample) -> None:
        """Keep the action that waits for the screen after it."""
        if self._unwritten is None:
            return
        (one, before), self._unwritten = self._unwritten, None
        step = self._writer.add(
            one.action,
            one.events,
            before=before.image,
            after=after.image,
            at_s=one.start_s - self._start_s,
            duration_s=one.end_s - one.start_s,
            elements=before.elements,
        )
        self._on_step(step)
