"""What a person does on a leased desktop, in the dashboard's live view. Non-goals: the page's own routes, no part of the contract."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from dart_server.wire.base import Int, WireModel
from dart_server.wire.desktop import InputEvent


class LiveViewTicket(WireModel):
    """The page of a lease.

    A browser opens `path` with `?ticket=TICKET` after it, which works once, until `expires_at`; the page takes it out of its address
    at once. `viewer_hint` says what is missing where pictures cannot be shown.
    """

    path: str
    ticket: str
    expires_at: datetime
    viewer_hint: str | None = None


class HumanInput(WireModel):
    """What the guest was given at once, and when; `number` counts from 1 since somebody listens to this lease."""

    number: Int
    at: datetime
    events: list[InputEvent]


class HumanInputs(WireModel):
    """Inputs in order.

    missed: how many before the first of them are gone. controlled: a person has the desktop now. now: the farm's time.
    """

    inputs: list[HumanInput]
    missed: Int = Field(default=0, ge=0)
    controlled: bool
    now: datetime
