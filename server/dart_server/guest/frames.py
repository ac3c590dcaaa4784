"""How long a step may take. Non-goals: connections (`guest.client`), what a frame looks like (`wire.guest_answers`)."""

from __future__ import annotations

from dart_server import wire

STEP_GRACE_S = 15.0
"""What a step may take beyond its own waiting and settling."""
EVENT_S = 0.05
MAX_STEP_TIMEOUT_S = 900.0
"""No step takes longer, whatever it waits for: over REST the middleware gives it up then, too."""


def step_timeout_s(request: wire.StepRequest) -> float:
    """An upper bound of how long the guest may take for a step."""
    waits_ms = sum(event.ms for event in request.events if isinstance(event, wire.WaitEvent))
    settle_ms = request.settle.cap_ms if request.settle else 0
    characters = sum(len(event.text) for event in request.events if isinstance(event, wire.TextEvent))
    needed_s = STEP_GRACE_S + (waits_ms + settle_ms) / 1000 + EVENT_S * (len(request.events) + characters)
    return min(MAX_STEP_TIMEOUT_S, needed_s)
