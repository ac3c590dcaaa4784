"""A person's demonstration: what the farm's live view passes on, with the screens around each action.

Role: `PersonRecorder`. Rule: the screen before an action is the last one that was seen before its first event, without a pointer in it, as
observations are; the one after it is what the next action met, or what there was at the end. Looks wait for nothing and are no steps, so
that the person's input never queues behind them. Non-goals: what events mean (`coalesce`), files (`store`), the verdict (`dart_envs.envs.core`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dart_envs.clock import SYSTEM_CLOCK, Clock
from dart_envs.demos.coalesce import Coalescer, Done
from dart_envs.demos.store import DemoStep, DemoWriter
from dart_envs.farm.lease import AsyncLease
from dart_envs.farm.live import listen
from dart_envs.types import Action, ActionType, RgbImage
from dart_server.wire import A11yElement

LOOK_S = 0.15
"""Between two looks at the screen."""
LISTEN_S = 20.0
FLUSH_S = 0.25
KEEP_S = 3.0
"""Screens that are older than this and that no unfinished action needs are forgotten."""
REST_BEFORE_TREE_S = 0.4
"""A screen must have stood so long before its accessibility tree is read."""


@dataclass(slots=True)
class _Look:
    """A screen, from when on it was seen. elements: its accessibility tree, once it was read."""

    at_s: float
    image: RgbImage
    elements: Sequence[A11yElement] | None = None


class PersonRecorder:
    """Records one lease's desktop until `stop`. tell: called with each step that was kept, and what is odd about it."""

    def __init__(
        self,
        lease: AsyncLease,
        writer: DemoWriter,
        *,
        tree: bool = True,
        tell: Callable[[DemoStep], None] = lambda step: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._lease = lease
        self._writer = writer
        self._tree = tree
        self._tell = tell
        self._clock = clock
        self._hands = Coalescer()
        self._looks: list[_Look] = []
        self._waiting: tuple[Done, _Look] | None = None
        """The latest action, with its screen before: written when the screen after it is known."""
        self._began_s = clock.monotonic()
        self._heard = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.missed = 0
        """Inputs that were lost because nobody listened in time."""
        self.controlled = asyncio.Event()
        """Set once a person has taken over."""
        self.given_back = asyncio.Event()
        """Set once they have given the desktop back."""

    async def start(self) -> None:
        """Begin; once this returns nothing of what a person does is missed. Raises `DartEnvError`."""
        await self._look()
        self._heard = max((one.number for one in (await listen(self._lease, 0, 0)).inputs), default=0)
        self._tasks = [asyncio.create_task(work()) for work in (self._look_on, self._listen_on)]

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
        """Stop and write what is left; with `last`, DONE or FAIL, that is the last step, on the screen as it is now. Raises
        `DartEnvError`."""
        await self._hear(0)
        await self.aclose()
        await self._look(settled=True)
        self._take(self._hands.flush(self._clock.monotonic()))
        now_s = self._clock.monotonic()
        if last is not None:
            if self._tree and self._looks[-1].elements is None:
                self._looks[-1].elements = await self._lease.a11y()
            self._take([Done(now_s, now_s, Action(last), ())])
        self._write(self._looks[-1])

    async def aclose(self) -> None:
        """Stop without writing. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Looking.

    async def _look_on(self) -> None:
        while True:
            await self._clock.sleep(LOOK_S)
            await self._look()

    async def _look(self, *, settled: bool = False) -> None:
        from dart_envs.envs.core import RESET_SETTLE

        asked_s = self._clock.monotonic()
        frame = await self._lease.step([], RESET_SETTLE if settled else None)
        last = self._looks[-1] if self._looks else None
        if last is None or not np.array_equal(last.image, frame.image):
            # It was like this when it was asked for or soon after; an action that came meanwhile may show already.
            self._looks.append(_Look(asked_s if last is None else self._clock.monotonic(), frame.image))
        elif self._tree and last.elements is None and asked_s - last.at_s >= REST_BEFORE_TREE_S:
            await self._read_tree(last)
        self._forget()

    async def _read_tree(self, look: _Look) -> None:
        elements = await self._lease.a11y()
        frame = await self._lease.step([])
        if np.array_equal(look.image, frame.image):
            look.elements = elements

    def _forget(self) -> None:
        pending_s = self._hands.pending_s
        horizon_s = self._clock.monotonic() - KEEP_S
        if pending_s is not None:
            horizon_s = min(horizon_s, pending_s)
        while len(self._looks) > 1 and self._looks[1].at_s <= horizon_s:
            del self._looks[0]

    def _before(self, at_s: float) -> _Look:
        """What was on the screen at a time."""
        earlier = [look for look in self._looks if look.at_s <= at_s]
        return earlier[-1] if earlier else self._looks[0]

    # Listening.

    async def _listen_on(self) -> None:
        while True:
            pending = self._hands.pending_s is not None
            await self._hear(FLUSH_S if pending else LISTEN_S)

    async def _hear(self, wait_s: float) -> None:
        heard = await listen(self._lease, self._heard, wait_s)
        now_s = self._clock.monotonic()
        self.missed += heard.missed
        if heard.controlled:
            self.controlled.set()
        elif self.controlled.is_set():
            self.given_back.set()
        for said in heard.inputs:
            self._heard = said.number
            age_s = (heard.now - said.at).total_seconds()
            self._take(self._hands.feed(now_s - age_s, said.events))
        self._take(self._hands.flush(now_s, all_of_it=False))

    def _take(self, done: Iterable[Done]) -> None:
        for one in done:
            before = self._before(one.began_s)
            if one.rest and before is self._before(one.ended_s):
                continue
            self._write(before)
            self._waiting = (one, before)

    def _write(self, after: _Look) -> None:
        """Keep the action that waits for the screen after it."""
        if self._waiting is None:
            return
        (one, before), self._waiting = self._waiting, None
        step = self._writer.add(
            one.action,
            one.events,
            before=before.image,
            after=after.image,
            at_s=one.began_s - self._began_s,
            duration_s=one.ended_s - one.began_s,
            elements=before.elements,
        )
        self._tell(step)
