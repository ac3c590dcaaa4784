"""The order of waiting claims: which one is served next.

Rules, the strongest first:

- A key that holds as many desktops as it may waits, and holds nobody up.
- The class with the highest priority is served first; a class that is passed over gains on the others with every grant and with time, until
  it is served once.
- Within a class the key that holds the least for its weight is next. A virtual clock of grants settles ties in proportion to the weights,
  and lets no key be passed over for ever.
- Within a key who came first is first.

An entry is of a kind (what it needs, how many units of it), so that the caller can ask for the first that fits. Every operation costs the
logarithm of what waits, times the few classes and kinds. Pure data: no input, no output, no sleeping, time from outside.
Non-goals: what a unit is, which one is given (`pool.claim_queue`).

Let h be the units that a key holds, w its weight, t its tag. The key with the lowest h/w + t/ROUNDS_PER_HELD_UNIT is next, of equal ones
the one that was served longest ago. A grant of u units adds u/w to the tag and u/W to the virtual time, W being the weights of all keys
that wait; before it moves the tag is brought to within MAX_LAG_ROUNDS of the virtual time.

Gangs: one that comes first but does not fit has what becomes free kept for it for a while; then, as long as it does not fit, the others go
past for `hold_s`, and the next time is twice as long. So two gangs never hold halves, a gang gets what it needs once leases end within that
time, and nobody waits for ever behind one that cannot be served. A class that is served past its own first entry loses what it has gained,
but that entry keeps it for itself. Otherwise the small claims of its class would send it back behind the other classes for ever.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace

ROUNDS_PER_HELD_UNIT = 4.0
"""So many rounds of grants weigh as much as one desktop held."""
NO_LIMITS: Mapping[Hashable, int] = {}
MAX_LAG_ROUNDS = 8.0
"""Rounds of grants that a key may be ahead or behind, at most, when it is served; one that comes back has no credit."""
GRANTS_PER_POINT = 8
"""A class that is passed over so many times has gained one point of priority."""


@dataclass(slots=True)
class _Gain:
    """What one that is passed over has gained: with grants to others of a higher priority, and since when."""

    since_s: float
    skipped_grants: int = 0

    def points(self, now_s: float, ageing_s: float) -> float:
        """As points of priority."""
        return self.skipped_grants / GRANTS_PER_POINT + (now_s - self.since_s) / ageing_s


@dataclass(frozen=True, slots=True)
class KeyQuota:
    """What a key may have: its weight against others, leases held at most, claims waiting at most; None: no limit."""

    weight: float = 1.0
    max_leases: int | None = None
    max_waiting: int | None = None


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One that waits for `units` of what `base` names. `arrival` is the order of arrival."""

    owner: str
    base: Hashable
    units: int = 1
    priority: int = 0
    arrival: int = -1
    reservation_s: float = 0.0
    """Gangs: how long what becomes free is kept for it this time, and until when."""
    reserved_until_s: float = 0.0
    gain: _Gain | None = None
    """What its class had gained when another of the class went past it, and what it has gained since."""


Flow = OrderedDict[QueueEntry, None]
RequestKind = tuple[Hashable, int]
Rank = tuple[float, int, int]
"""Of a key in a lane, lowest first: its score, its latest grant, the number of its first entry there."""


@dataclass(slots=True, eq=False)
class _OwnerQueue:
    """One owner. `version` tells entries of heaps that still hold from older ones; `served`: the number of its latest grant."""

    quota: KeyQuota = field(default_factory=KeyQuota)
    held: int = 0
    tag: float = 0.0
    version: int = 0
    served: int = 0
    waiting: int = 0
    flows: dict[tuple[int, RequestKind], Flow] = field(default_factory=dict)

    def rank(self, entry: QueueEntry) -> Rank:
        """Where the key stands with this one at the head of a flow."""
        return (self.held / self.quota.weight + self.tag / ROUNDS_PER_HELD_UNIT, self.served, entry.arrival)

    def within_quota(self, units: int) -> bool:
        limit = self.quota.max_leases
        return limit is None or self.held + units <= limit


@dataclass(slots=True, eq=False)
class _PriorityClass:
    """All that wait with one priority; `lanes` are heaps of (place, version, owner), by kind."""

    priority: int
    gain: _Gain
    passed_over: QueueEntry | None = None
    """The one that came first when another of the class was served; until it leaves, no other of the class keeps a gain."""
    waiting: int = 0
    lanes: dict[RequestKind, list[tuple[Rank, int, str]]] = field(default_factory=dict)


class FairQueue:
    """Everybody who waits. `ageing_s`: being passed over so long is worth a point of priority to a class; `hold_s`: of gangs, see above."""

    def __init__(self, now_s: Callable[[], float], ageing_s: float, hold_s: float) -> None:
        self._now_s = now_s
        self._ageing_s = ageing_s
        self._hold_s = hold_s
        self._keys: dict[str, _OwnerQueue] = {}
        self._classes: dict[int, _PriorityClass] = {}
        self._virtual = 0.0
        self._weights = 0.0
        self._numbers = self._grants = 0
        self._count = 0
        self.version = 0
        """Changes with every change of the order."""

    def __len__(self) -> int:
        return self._count

    def held(self, owner: str) -> int:
        """Units that a key holds."""
        key = self._keys.get(owner)
        return key.held if key else 0

    def waiting(self, owner: str) -> int:
        """How many entries of a key wait."""
        key = self._keys.get(owner)
        return key.waiting if key else 0

    def quota(self, owner: str) -> KeyQuota:
        key = self._keys.get(owner)
        return key.quota if key else KeyQuota()

    def set_quota(self, owner: str, quota: KeyQuota) -> None:
        """What a key may have from now on; what it holds already, it keeps."""
        key = self._keys.setdefault(owner, _OwnerQueue())
        if key.quota == quota:
            return
        if key.waiting:
            self._weights += quota.weight - key.quota.weight
        key.quota = quota
        self._reposition(owner, key)

    def add(self, entry: QueueEntry) -> None:
        """Stand at the end of the key's own queue."""
        key = self._keys.setdefault(entry.owner, _OwnerQueue())
        if not key.waiting:
            key.tag = min(max(key.tag, self._virtual), self._virtual + MAX_LAG_ROUNDS)
            self._weights += key.quota.weight
        entry.arrival = self._numbers
        self._numbers += 1
        kind = (entry.base, entry.units)
        group = self._classes.get(entry.priority)
        if group is None:
            group = self._classes[entry.priority] = _PriorityClass(entry.priority, _Gain(self._now_s()))
        flow = key.flows.setdefault((entry.priority, kind), OrderedDict())
        flow[entry] = None
        first_of_all = not key.waiting
        key.waiting += 1
        group.waiting += 1
        self._count += 1
        self.version += 1
        if first_of_all:
            self._reposition(entry.owner, key)
        elif len(flow) == 1:
            heapq.heappush(group.lanes.setdefault(kind, []), (key.rank(entry), key.version, entry.owner))

    def remove(self, entry: QueueEntry) -> bool:
        """Leave without a grant; False when the entry does not wait (any more)."""
        key = self._keys.get(entry.owner)
        lane = (entry.priority, (entry.base, entry.units))
        flow = key.flows.get(lane) if key else None
        if key is None or flow is None or entry not in flow:
            return False
        at_head = next(iter(flow)) is entry
        self._leave(entry, key, flow)
        if at_head:
            self._reposition(entry.owner, key)
        return True

    def _leave(self, entry: QueueEntry, key: _OwnerQueue, flow: Flow) -> None:
        del flow[entry]
        if not flow:
            del key.flows[(entry.priority, (entry.base, entry.units))]
        key.waiting -= 1
        self._count -= 1
        self.version += 1
        if not key.waiting:
            self._weights = self._weights - key.quota.weight if self._count else 0.0
        group = self._classes[entry.priority]
        if group.passed_over is entry:
            group.passed_over, entry.gain = None, None
        group.waiting -= 1
        if not group.waiting:
            del self._classes[entry.priority]

    def next(self, free: int, unit_limits: Mapping[Hashable, int] = NO_LIMITS) -> QueueEntry | None:
        """Whom to serve now that so many units are free; None when what is free is kept, or nobody waits for it.

        `unit_limits`: of these bases only those that want fewer units.
        """
        if free <= 0:
            return None
        entry = self.first(unit_limits=unit_limits)
        if entry is None or entry.units <= free:
            return entry
        return None if self.reserves_for(entry) else self.first(free, unit_limits)

    def reserves_for(self, gang: QueueEntry) -> bool:
        """Whether what becomes free is kept now for this one, which does not fit: for a while, then not for as long, then twice as long."""
        now_s = self._now_s()
        if not gang.reservation_s:
            gang.reservation_s = self._hold_s
        elif now_s < gang.reserved_until_s:
            return True
        elif now_s < gang.reserved_until_s + self._hold_s:
            return False
        else:
            gang.reservation_s *= 2
        gang.reserved_until_s = now_s + gang.reservation_s
        return True

    def first(self, max_units: int | None = None, unit_limits: Mapping[Hashable, int] = NO_LIMITS) -> QueueEntry | None:
        """The next one, of those that want no more than `max_units`, and of the bases `unit_limits` fewer than it says there.

        It goes on waiting.
        """
        for turn in self._in_order():
            if isinstance(turn, QueueEntry):
                limit = unit_limits.get(turn.base, turn.units + 1)
                fits = max_units is None or turn.units <= max_units
                if fits and turn.units < limit and self._keys[turn.owner].within_quota(turn.units):
                    return turn
            elif (entry := self._first_of(turn, max_units, unit_limits)) is not None:
                return entry
        return None

    def _first_of(
        self, group: _PriorityClass, max_units: int | None = None, unit_limits: Mapping[Hashable, int] = NO_LIMITS
    ) -> QueueEntry | None:
        """The next one of a class, of those that `first` asks for."""
        best: Rank | None = None
        chosen: QueueEntry | None = None
        for kind in list(group.lanes):
            base, units = kind
            if units >= unit_limits.get(base, units + 1) or (max_units is not None and units > max_units):
                continue
            entry = self._head(group, kind)
            if entry is None:
                del group.lanes[kind]
                continue
            place = group.lanes[kind][0][0]
            if best is None or place < best:
                best, chosen = place, entry
        return chosen

    def _in_order(self) -> list[_PriorityClass | QueueEntry]:
        """The classes, and those that keep a gain of their own, by what they have gained."""
        groups = list(self._classes.values())
        turns: list[_PriorityClass | QueueEntry] = [*groups, *(one.passed_over for one in groups if one.passed_over)]
        if len(turns) > 1:
            now_s = self._now_s()

            def rank(turn: _PriorityClass | QueueEntry) -> tuple[float, int]:
                gained = 0.0 if turn.gain is None else turn.gain.points(now_s, self._ageing_s)
                return (turn.priority + gained, turn.priority)

            turns.sort(key=rank, reverse=True)
        return turns

    def _head(self, group: _PriorityClass, kind: RequestKind) -> QueueEntry | None:
        """The first of one kind in one class, after what does not hold any more was taken off its heap."""
        lane = group.lanes[kind]
        while lane:
            _, version, owner = lane[0]
            key = self._keys[owner]
            flow = key.flows.get((group.priority, kind))
            if version == key.version and flow is not None and key.within_quota(kind[1]):
                return next(iter(flow))
            heapq.heappop(lane)
        return None

    def grant(self, entry: QueueEntry) -> None:
        """It is served: its key holds its units from now on."""
        key = self._keys[entry.owner]
        weight = key.quota.weight
        weights = max(self._weights, weight)
        group = self._classes[entry.priority]
        first = group.passed_over or self._first_of(group)
        if first is not None and first is not entry and group.passed_over is None:
            group.passed_over, first.gain = first, replace(group.gain)
        group.gain = _Gain(self._now_s())
        for other in self._classes.values():
            if other.priority < entry.priority:
                other.gain.skipped_grants += 1
                if other.passed_over is not None and other.passed_over.gain is not None:
                    other.passed_over.gain.skipped_grants += 1
        self._leave(entry, key, key.flows[(entry.priority, (entry.base, entry.units))])
        key.held += entry.units
        key.tag = (
            min(max(key.tag, self._virtual - MAX_LAG_ROUNDS), self._virtual + MAX_LAG_ROUNDS) + entry.units / weight
        )
        self._virtual += entry.units / weights
        self._grants += 1
        key.served = self._grants
        self._reposition(entry.owner, key)

    def hold_units(self, owner: str, units: int = 1) -> None:
        """A key holds more, without an entry."""
        key = self._keys.setdefault(owner, _OwnerQueue())
        key.held += units
        self._reposition(owner, key)

    def release_units(self, owner: str, units: int = 1) -> None:
        """A key holds less."""
        key = self._keys[owner]
        key.held -= units
        self._reposition(owner, key)

    def blocked_by_quota(self, entry: QueueEntry) -> bool:
        """Whether only the key's own quota is in the way of an entry."""
        key = self._keys.get(entry.owner)
        return key is not None and not key.within_quota(entry.units)

    def _reposition(self, owner: str, key: _OwnerQueue) -> None:
        """The key's place has changed: what heaps say of it is void, and is said anew."""
        key.version += 1
        self.version += 1
        if not key.waiting:
            return
        for (priority, kind), flow in key.flows.items():
            lane = self._classes[priority].lanes.setdefault(kind, [])
            if len(lane) > 64 and len(lane) > 4 * len(self._keys):
                lane[:] = [entry for entry in lane if self._keys[entry[2]].version == entry[1]]
                heapq.heapify(lane)
            heapq.heappush(lane, (key.rank(next(iter(flow))), key.version, owner))

    def __iter__(self) -> Iterator[QueueEntry]:
        """All that wait, by arrival within each key."""
        for key in self._keys.values():
            for flow in key.flows.values():
                yield from flow

    def order(self) -> list[QueueEntry]:
        """All that wait, as they would be served now if everything fitted and no quota were in the way. Costs as much as serving them."""
        model = FairQueue(self._now_s, self._ageing_s, self._hold_s)
        model._virtual, model._grants = self._virtual, self._grants
        for owner, key in self._keys.items():
            quota = KeyQuota(key.quota.weight)
            model._keys[owner] = _OwnerQueue(quota, key.held, key.tag, served=key.served)
        originals: dict[QueueEntry, QueueEntry] = {}
        copies: dict[QueueEntry, QueueEntry] = {}
        for entry in sorted(self, key=lambda entry: entry.arrival):
            copied = QueueEntry(entry.owner, None, entry.units, entry.priority)
            originals[copied], copies[entry] = entry, copied
            model.add(copied)
        for priority, group in self._classes.items():
            model._classes[priority].gain = replace(group.gain)
            if group.passed_over is not None and group.passed_over.gain is not None:
                passed_over = copies[group.passed_over]
                model._classes[priority].passed_over, passed_over.gain = passed_over, replace(group.passed_over.gain)
        for owner, key in self._keys.items():
            if key.waiting:
                model._keys[owner].tag = key.tag
                model._reposition(owner, model._keys[owner])
        found = []
        while (first := model.first()) is not None:
            found.append(originals[first])
            model.grant(first)
        return found
