"""Pages of the farm's event history, as the client asks for them. Non-goals: I/O."""

from __future__ import annotations

from pydantic import TypeAdapter

from dart_server.wire import Event

EVENTS = TypeAdapter(list[Event])


def event_params(**wanted: str | int | None) -> dict[str, str]:
    """The query of a page of events: only what was said."""
    return {name: str(value) for name, value in wanted.items() if value is not None}
