"""Whose hands are on a desktop: one person at a time, and what they press.

Rule: taking over and its end are events of the history, with the key that did it. Input goes to the guest as a step without a frame, in
order, and only while the desktop is the lease's; what is still held at the end is let go. A person who does nothing loses the control
after `IDLE_TIMEOUT_S`. The lease's own steps go on beside it. Non-goals: pictures; who may take over is asked before.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dart_server.dashboard.camera import ViewClosed, current_slot
from dart_server.dashboard.inputs import HumanInputLog
from dart_server.dashboard.keysyms import MODIFIERS, key_name
from dart_server.dashboard.rfb import KeyInput, PointerInput
from dart_server.database.repository import NewEvent, Repository
from dart_server.errors import ApiError
from dart_server.guest.client import GuestChannel, GuestClient, GuestUnreachable
from dart_server.records import LeaseRecord
from dart_server.wire import Clock, ErrorCode
from dart_server.wire.guest_answers import MalformedAnswer, split_frame

log = logging.getLogger(__name__)
IDLE_TIMEOUT_S = 300.0
INPUT_TIMEOUT_S = 15.0
MAX_PENDING_EVENTS = 2000
"""Input events that may wait for the guest; a person who is faster is cut short."""
Event = dict[str, Any]


@dataclass(slots=True)
class InputTranslator:
    """What a viewer's input means for a guest: remembers buttons and keys that are down."""

    buttons: int = 0
    keys: list[str] = field(default_factory=list)

    def events(self, said: KeyInput | PointerInput) -> list[Event]:
        """The guest's events for one message of the viewer."""
        return self._key(said) if isinstance(said, KeyInput) else self._pointer(said)

    def _pointer(self, said: PointerInput) -> list[Event]:
        events: list[Event] = [{"type": "move", "x": said.x, "y": said.y}]
        before, self.buttons = self.buttons, said.buttons
        for bit, button in ((0, 1), (1, 2), (2, 3)):
            if (before ^ said.buttons) >> bit & 1:
                events.append({"type": "down" if said.buttons >> bit & 1 else "up", "button": button})
        for bit, dx, dy in ((3, 0, 1), (4, 0, -1), (5, -1, 0), (6, 1, 0)):
            if said.buttons >> bit & 1 and not before >> bit & 1:
                events.append({"type": "scroll", "dx": dx, "dy": dy})
        return events

    def _key(self, said: KeyInput) -> list[Event]:
        name = key_name(said.keysym)
        if name is None:
            return []
        if not said.down:
            if name not in self.keys:
                return []
            self.keys.remove(name)
            return [{"type": "key_up", "key": name}]
        if name in self.keys:
            # The browser repeats a key that is held; a guest's keyboard does not by itself.
            repeated = [{"type": "key_up", "key": name}, {"type": "key_down", "key": name}]
            return [] if name in MODIFIERS else repeated
        self.keys.append(name)
        return [{"type": "key_down", "key": name}]

    def release(self) -> list[Event]:
        """The events that release all that is down."""
        events: list[Event] = [{"type": "key_up", "key": name} for name in reversed(self.keys)]
        events += [
            {"type": "up", "button": button} for bit, button in ((0, 1), (1, 2), (2, 3)) if self.buttons >> bit & 1
        ]
        self.keys, self.buttons = [], 0
        return events


def coalesce(events: Iterable[Event]) -> list[Event]:
    """The same with one move for several in a row, and one scroll."""
    kept: list[Event] = []
    for event in events:
        if kept and event["type"] == kept[-1]["type"] == "move":
            kept[-1] = event
        elif kept and event["type"] == kept[-1]["type"] == "scroll":
            kept[-1] = {"type": "scroll", "dx": kept[-1]["dx"] + event["dx"], "dy": kept[-1]["dy"] + event["dy"]}
        else:
            kept.append(event)
    return kept


@dataclass(slots=True, eq=False)
class Control:
    """One person's hands on the desktop of one lease."""

    lease: LeaseRecord
    view_id: str
    key_id: str
    since_s: float
    """Seconds since 1970."""
    used_s: float
    """On the clock's monotonic axis."""
    translator: InputTranslator = field(default_factory=InputTranslator)
    waiting: list[Event] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    sender: asyncio.Task[None] | None = None
    by_hand: bool = True
    """The guest knows steps of a person; older ones do not, and make two clicks of a double click."""
    inputs: int = 0


class Controls:
    """Who controls which lease's desktop."""

    def __init__(self, repository: Repository, clock: Clock, inputs: HumanInputLog) -> None:
        self._repository = repository
        self._clock = clock
        self._inputs = inputs
        self._controls: dict[str, Control] = {}

    def find(self, lease_id: str) -> Control | None:
        """Whose hands are on the desktop of a lease."""
        return self._controls.get(lease_id)

    def take(self, lease: LeaseRecord, view_id: str, key_id: str) -> Control:
        """Put a person's hands on a desktop; again from the same view is no error. Raises `fenced` while another has them there."""
        held = self._controls.get(lease.lease_id)
        if held is not None and held.view_id == view_id and held.key_id == key_id:
            return held
        if held is not None:
            hint = "Wait until they let go; who does nothing loses the control after five minutes."
            raise ApiError(ErrorCode.FENCED, "somebody else controls this desktop", hint=hint)
        slot = current_slot(lease)
        now = self._clock.monotonic()
        control = Control(lease, view_id, key_id, self._clock.time(), now)
        self._controls[lease.lease_id] = control
        control.sender = asyncio.get_running_loop().create_task(self._send(control))
        self._note("takeover_started", control, slot.desktop_id, slot.fencing_token)
        return control

    def input(self, lease_id: str, view_id: str, said: KeyInput | PointerInput) -> bool:
        """Pass on what a view's person does; False when that view has no control."""
        control = self._controls.get(lease_id)
        if control is None or control.view_id != view_id:
            return False
        control.used_s = self._clock.monotonic()
        if len(control.waiting) < MAX_PENDING_EVENTS:
            control.waiting += control.translator.events(said)
            control.inputs += 1
            control.arrived.set()
        return True

    async def release(self, lease_id: str, view_id: str | None = None) -> None:
        """End a control; one that has ended, or is another view's, is left alone."""
        control = self._controls.get(lease_id)
        if control is None or (view_id is not None and control.view_id != view_id):
            return
        del self._controls[lease_id]
        slot = control.lease.slot
        self._note(
            "takeover_ended",
            control,
            control.lease.desktop_id,
            slot.fencing_token if slot else control.lease.fencing_token,
        )
        control.waiting += control.translator.release()
        control.arrived.set()
        if control.sender is not None:
            await asyncio.wait({control.sender}, timeout=INPUT_TIMEOUT_S)
            control.sender.cancel()

    async def release_idle(self) -> None:
        """End the controls of those who do nothing, and of leases that are over."""
        for lease_id, control in list(self._controls.items()):
            over = control.lease.slot is None
            if over or self._clock.monotonic() - control.used_s >= IDLE_TIMEOUT_S:
                await self.release(lease_id)

    async def stop(self) -> None:
        for lease_id in list(self._controls):
            await self.release(lease_id)

    def _note(self, kind: str, control: Control, desktop_id: str | None, fencing_token: int) -> None:
        data: dict[str, Any] = {"key_id": control.key_id}
        if kind == "takeover_ended":
            data |= {"inputs": control.inputs, "duration_s": round(self._clock.time() - control.since_s, 1)}
        self._repository.add_event(NewEvent(kind, desktop_id, control.lease.lease_id, fencing_token, data))
        self._inputs.notify(control.lease.lease_id)

    async def _send(self, control: Control) -> None:
        """Send what waits, as long as the control holds, and what was still to be let go then."""
        client: GuestClient | None = None
        channel: GuestChannel | None = None
        try:
            while True:
                await control.arrived.wait()
                control.arrived.clear()
                events, control.waiting = coalesce(control.waiting), []
                ended = self._controls.get(control.lease.lease_id) is not control
                guest = current_slot(control.lease).guest
                if guest is not client or channel is None:
                    if client is not None and channel is not None:
                        await client.close_channel(channel)
                        # A desktop after its reset: what was held down was held in the one before.
                        control.translator = InputTranslator()
                    client, channel = guest, guest.channel() if guest is not None else None
                if channel is not None and events:
                    await self._perform(control, channel, events)
                if ended and not control.waiting:
                    return
        except ViewClosed:
            return
        finally:
            if client is not None and channel is not None:
                await client.close_channel(channel)

    async def _perform(self, control: Control, channel: GuestChannel, events: list[Event]) -> None:
        at_s = self._clock.time()
        request: dict[str, Any] = {"seq": 0, "events": events, "settle": None, "frame": {"encoding": "none"}}
        try:
            if control.by_hand:
                refusal = _refusal(await channel.step(json.dumps({**request, "by_hand": True}), INPUT_TIMEOUT_S))
                control.by_hand = refusal is None or "by_hand" not in refusal
            if not control.by_hand:
                refusal = _refusal(await channel.step(json.dumps(request), INPUT_TIMEOUT_S))
            if refusal is None:
                self._inputs.record(control.lease.lease_id, at_s, events)
            else:
                log.info("a person's input was refused: %s", refusal)
        except GuestUnreachable as error:
            log.info("a person's input did not arrive: %s", error)


def _refusal(frame: bytearray) -> str | None:
    """Why the guest did not do a step; None when it did."""
    try:
        header, _ = split_frame(frame)
    except MalformedAnswer as error:
        return str(error)
    return f"{str(header['error'])[:64]}: {str(header.get('detail', ''))[:2_000]}" if "error" in header else None
