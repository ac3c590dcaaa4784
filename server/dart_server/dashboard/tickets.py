"""Tickets: a log-in to the page for who holds a key already, without the key in an address.

Rule: a ticket works once and for `TICKET_TTL_S`, is kept in memory as a hash, and opens what its key opens at that moment. Non-goals:
sessions (`sessions`).
"""

from __future__ import annotations

from collections import OrderedDict

from dart_server.errors import ApiError
from dart_server.ids import hash_secret, new_secret
from dart_server.wire import Clock, ErrorCode

TICKET_TTL_S = 300.0
"""How long a ticket waits for its browser."""
MAX_TICKETS = 256


class LoginTickets:
    """All tickets of one farm that were not used yet."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tickets: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def issue(self, key: str) -> str:
        """A ticket for the holder of a key."""
        ticket = new_secret("ticket")
        self._tickets[hash_secret(ticket)] = (key, self._clock.monotonic() + TICKET_TTL_S)
        while len(self._tickets) > MAX_TICKETS:
            self._tickets.popitem(last=False)
        return ticket

    def redeem(self, ticket: str) -> str:
        """The key of a ticket, which is worth nothing from now on. Raises `unauthenticated`."""
        key, until_s = self._tickets.pop(hash_secret(ticket), ("", 0.0))
        if not key or self._clock.monotonic() >= until_s:
            hint = "Ask for another address, or log in with a key."
            raise ApiError(ErrorCode.UNAUTHENTICATED, "this address has been used or is too old", hint=hint)
        return key
