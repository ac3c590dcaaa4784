"""What must hold whatever was killed: one owner per desktop at a time, fences that only grow, every lease ended once.

Role: `violations` reads the farm's event history; `conflicts` and `overdue` read the clients' own journals of answers that they got.
Rule: pure functions of what was written; each finding is one sentence that names ids. An event that is not known here changes nothing. A
lease that is reset may move: the event names its new desktop, and the old one belongs to nobody from then on. Non-goals: how the history
comes about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

ENDS = frozenset({"lease_released", "lease_expired"})
TAKES = frozenset({"lease_granted", "lease_moved", "desktop_reset"})


@dataclass(slots=True)
class _Book:
    """Who holds what, as the history tells it so far."""

    owner: dict[str, str] = field(default_factory=dict)
    desktop: dict[str, str | None] = field(default_factory=dict)
    fencing_token: dict[str, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    found: list[str] = field(default_factory=list)

    def say(self, event: Mapping[str, Any], what: str) -> None:
        self.found.append(f"event {event.get('id')} {event['kind']}: {what}")

    def free(self, lease: str) -> None:
        held = self.desktop.get(lease)
        if held is not None and self.owner.get(held) == lease:
            del self.owner[held]


def violations(events: Iterable[Mapping[str, Any]], *, all_ended: bool = True) -> list[str]:
    """Every breach in a history, oldest event first. `all_ended`: a lease without an end is one, too."""
    book = _Book()
    for event in events:
        kind, desktop, lease = event["kind"], event.get("desktop_id"), event.get("lease_id")
        if kind == "desktop_gone" and desktop is not None:
            book.gone.add(desktop)
            book.owner.pop(desktop, None)
        elif lease is not None and kind in TAKES:
            _take(book, event, desktop, lease)
        elif lease is not None and kind in ENDS:
            _end(book, event, desktop, lease)
    if all_ended:
        book.found += [f"lease {lease} never ended" for lease in book.desktop if lease not in book.ended]
    return book.found


def _take(book: _Book, event: Mapping[str, Any], desktop: str | None, lease: str) -> None:
    if desktop is None:
        book.say(event, f"lease {lease} has no desktop")
        return
    if event["kind"] == "lease_granted" and lease in book.desktop:
        book.say(event, f"lease {lease} was granted before")
    if event["kind"] != "lease_granted" and lease not in book.desktop:
        book.say(event, f"lease {lease} was never granted")
    if lease in book.ended:
        book.say(event, f"lease {lease} has ended")
    if desktop in book.gone:
        book.say(event, f"desktop {desktop} is gone")
    other = book.owner.get(desktop)
    if other is not None and other != lease:
        book.say(event, f"desktop {desktop} belongs to {other}, {lease} gets it")
    _grow(book, event, desktop, strictly=other != lease)
    book.free(lease)
    book.desktop[lease] = desktop
    book.owner[desktop] = lease


def _end(book: _Book, event: Mapping[str, Any], desktop: str | None, lease: str) -> None:
    if lease not in book.desktop:
        book.say(event, f"lease {lease} was never granted")
    if lease in book.ended:
        book.say(event, f"lease {lease} ended before")
    other = book.owner.get(desktop or "")
    if other is not None and other != lease:
        book.say(event, f"desktop {desktop} belongs to {other}, not to {lease}")
    if desktop is not None and desktop == book.desktop.get(lease):
        _grow(book, event, desktop, strictly=False)
    book.free(lease)
    book.desktop.setdefault(lease, desktop)
    book.ended.add(lease)


def _grow(book: _Book, event: Mapping[str, Any], desktop: str, *, strictly: bool) -> None:
    fencing_token, before = event.get("fencing_token"), book.fencing_token.get(desktop)
    if fencing_token is None:
        book.say(event, f"desktop {desktop} has no fencing_token")
        return
    if before is not None and (fencing_token < before or (strictly and fencing_token == before)):
        book.say(event, f"the fencing token of {desktop} went from {before} to {fencing_token}")
    book.fencing_token[desktop] = max(fencing_token, before or 0)


@dataclass(frozen=True, slots=True)
class Use:
    """One call into a desktop that was answered as asked; times of the host's monotonic clock, in seconds."""

    lease_id: str
    desktop_id: str
    sent_s: float
    received_s: float


def conflicts(uses: Iterable[Use]) -> list[str]:
    """Pairs of leases whose calls were answered by the same desktop in turns: each was sent after the other had been answered."""
    spans: dict[str, dict[str, tuple[float, float]]] = {}
    for use in uses:
        of_desktop = spans.setdefault(use.desktop_id, {})
        first, last = of_desktop.get(use.lease_id, (use.received_s, use.sent_s))
        of_desktop[use.lease_id] = (min(first, use.received_s), max(last, use.sent_s))
    found = []
    for desktop, of_desktop in spans.items():
        held = sorted(of_desktop.items(), key=lambda item: item[1])
        for place, (lease, (first, last)) in enumerate(held):
            for other, (other_first, other_last) in held[place + 1 :]:
                if other_first >= last:
                    break
                if other_last > first:
                    found.append(f"desktop {desktop} answered {lease} and {other} in turns")
    return found


def overdue(
    lease_id: str,
    left_s: float,
    answered_s: float,
    ttl_s: float,
    slack_s: float,
    outages: Iterable[tuple[float, float]],
) -> str | None:
    """What is wrong with an answer to a lease whose client said its last word at `left_s`; None when the farm was right to give it.

    `outages`: when the farm was killed and when it was back, in order. A lease that held when it was killed has its whole time again.
    """
    ends_s = left_s + ttl_s + slack_s
    for killed_s, back_s in outages:
        if killed_s <= ends_s < back_s + ttl_s + slack_s:
            ends_s = back_s + ttl_s + slack_s
    if answered_s <= ends_s:
        return None
    return f"{lease_id} was answered {answered_s - left_s:.1f} s after its last word"
