"""A declared dialog on a simulated desktop: what it shows, how it reacts, what it answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dart_server.clock import SystemClock
from dart_server.providers.guest_server import GuestRequestError
from dart_server.providers.sim.dialog import ANSWER_FILE, DIALOG_FILE
from dart_server.providers.sim.guest import GuestState, SimGuest
from dart_server.providers.sim.screen import ScreenState, draw, elements

ITEMS = {
    "Apple": ("check box", [30, 50, 200, 76]),
    "Bread": ("check box", [30, 82, 200, 108]),
    "OK": ("push button", [30, 116, 94, 150]),
}
DIALOG = {
    "title": "Question",
    "box": [20, 20, 220, 160],
    "presses": 1,
    "items": [{"role": role, "name": name, "box": box} for name, (role, box) in ITEMS.items()],
}


async def _guest(dialog: Any = DIALOG) -> SimGuest:
    guest = SimGuest(GuestState(ScreenState(320, 200), "boot"), SystemClock())
    await guest.handle_request("PUT", f"/v1/files?path={DIALOG_FILE}", "", json.dumps(dialog).encode())
    return guest


async def _click(guest: SimGuest, x: int, y: int) -> None:
    events = [{"type": "move", "x": x, "y": y}, {"type": "down"}, {"type": "up"}]
    await guest.step({"events": events, "frame": {"encoding": "none"}})


async def _answer(guest: SimGuest) -> str:
    reply = await guest.handle_request("GET", f"/v1/files?path={ANSWER_FILE}", "", b"")
    return reply.body.decode()


async def test_a_dialog_answers_with_what_is_ticked_once_ok_is_pressed_and_reacts_no_more() -> None:
    guest = await _guest()
    for x, y in ((40, 60), (40, 90), (40, 60)):  # Apple is ticked and unticked again
        await _click(guest, x, y)
    assert await _answer(guest) == ""
    marked = {each["name"] for each in elements(guest.state.screen) if "checked" in each["states"]}
    assert marked == {"Bread"}
    await _click(guest, 60, 130)
    assert await _answer(guest) == "Bread OK"
    await _click(guest, 40, 60)
    assert await _answer(guest) == "Bread OK"
    assert elements(guest.state.screen) == []


async def test_buttons_are_answered_in_the_order_in_which_they_were_pressed() -> None:
    items = [{"role": "push button", "name": name, "box": [x, 50, x + 60, 80]} for name, x in (("A", 30), ("B", 100))]
    guest = await _guest({**DIALOG, "presses": 2, "items": items})
    await _click(guest, 110, 60)
    await _click(guest, 40, 60)
    assert await _answer(guest) == "B A"


async def test_a_mark_changes_the_picture_and_a_copy_has_marks_of_its_own() -> None:
    guest = await _guest()
    before = draw(guest.state.screen).tobytes()
    copied = guest.copy_state()
    await _click(guest, 40, 60)
    assert draw(guest.state.screen).tobytes() != before
    assert draw(copied.screen).tobytes() == before


@pytest.mark.parametrize("dialog", [{}, {**DIALOG, "items": [{"role": "slider", "name": "A", "box": [0, 0, 1, 1]}]}])
async def test_what_declares_no_dialog_is_refused_and_changes_nothing(dialog: Any) -> None:
    guest = SimGuest(GuestState(ScreenState(320, 200), "boot"), SystemClock())
    with pytest.raises(GuestRequestError, match=r"declares no dialog|one of the roles"):
        await guest.handle_request("PUT", f"/v1/files?path={DIALOG_FILE}", "", json.dumps(dialog).encode())
    assert guest.state.screen.dialog is None
    assert DIALOG_FILE not in guest.state.files
