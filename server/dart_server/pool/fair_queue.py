"""The order of turns: which waiting claim is served next.

Rules, the strongest first:

- A key that holds as many desktops as it may waits, and holds nobody up.
- The class with the highest priority is served first; a class that is passed over gains on the others with every grant and with time, until
  it is served once.
- Within a class the key that holds the least for its weight is next. A virtual clock of grants settles ties in proportion to the weights,
  and lets no key be passed over for ever.
- Within a key who came first is first.

A turn is of a kind (what it needs, how many units of it), so that whoever serves can ask for the first that fits. Every operation costs the
logarithm of what waits, times the few classes and kinds. Pure data: no input, no output, no sleeping, time from outside.
Non-goals: what a unit is, which one is given (`pool.serving`).

Let h be the units that a key holds, w its weight, t its tag. The key with the lowest h/w + t/PATIENCE is next, of equal ones the one
that was served longest ago. A grant of u units adds u/w to the tag and u/W to the virtual time, W being the weights of all keys that wait;
before it moves the tag is brought to within LAG of the virtual time.

Gangs: one that comes first but does not fit has what becomes free kept for it for a while; then, as long as it does not fit, the others go
past for `hold_s`, and the next time is twice as long. So two gangs never hold halves, a gang gets what it needs once leases end within that
time, and nobody waits for ever behind one that cannot be served.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field

PATIENCE = 4.0
"""So many rounds of grants weigh as much as one desktop held."""
NOTHING: Mapping[Hashable, int] = {}
LAG = 8.0
"""Rounds of grants that a key may be ahead or behind, at most, when it is served; one that comes back has no credit."""
GRANTS_PER_POINT = 8
"""A class that is passed over so many times has gained one point of priority."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a key may have: its weight against others, leases held at most, claims waiting at most; None: no limit."""

    weight: float = 1.0
    max_leases: int | None = None
    max_waiting: int | None = None


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One that waits for `units` of what `base` names. `number` is the order of arrival."""

    owner: str
    base: Hashable
    units: int = 1
    priority: int = 0
    number: int = -1
    kept_s: float = 0.0
    """Gangs: how long what becomes free is kept for it this time, and until when."""
    kept_until_s: float = 0.0


Flow = OrderedDict[QueueEntry, None]
Kind = tuple[Hashable, int]
Place = tuple[float, int, int]
"""Of a key in a lane, lowest first: its score, its latest grant, the number of its first turn there."""


@dataclass(slots=True, eq=False)
class _Key:
    """One owner. `version` tells entries of heaps that still hold from older ones; `served`: the number of its latest grant."""

    share: Share = field(default_factory=Share)
    held: int = 0
    tag: float = 0.0
    version: int = 0
    served: int = 0
    waiting: int = 0
    flows: dict[tuple[int, Kind], Flow] = field(default_factory=dict)

    def place(self, turn: QueueEntry) -> Place:
        """Where the key stands with this one at the head of a flow."""
        return (self.held / self.share.weight + self.tag / PATIENCE, self.served, turn.number)

    def may_have(self, units: int) -> bool:
        most = self.share.max_leases
        return most is None or self.held + units <= most


@dataclass(slots=True, eq=False)
class _Class:
    """All that wait with one priority; `lanes` are heaps of (place, version, owner), by kind."""

    priority: int
    since_s: float
    passed: int = 0
    waiting: int = 0
    lanes: dict[Kind, list[tuple[Place, int, str]]] = field(default_factory=dict)


class FairQueue:
    """Everybody who waits. `ageing_s`: being passed over so long is worth a point of priority to a class; `hold_s`: of gangs, see above."""

    def __init__(self, now_s: Callable[[], float], ageing_s: float, hold_s: float) -> None:
        self._now_s = now_s
        self._ageing_s = ageing_s
        self._hold_s = hold_s
        self._keys: dict[str, _Key] = {}
        self._classes: dict[int, _Class] = {}
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
        """Turns of a key that wait."""
        key = self._keys.get(owner)
        return key.waiting if key else 0

    def share(self, owner: str) -> Share:
        key = self._keys.get(owner)
        return key.share if key else Share()

    def set_share(self, owner: str, share: Share) -> None:
        """What a key may have from now on; what it holds already, it keeps."""
        key = self._keys.setdefault(owner, _Key())
        if key.share == share:
            return
        if key.waiting:
            self._weights += share.weight - key.share.weight
        key.share = share
        self._moved(owner, key)

    def add(self, turn: QueueEntry) -> None:
        """Stand at the end of the key's own queue."""
        key = self._keys.setdefault(turn.owner, _Key())
        if not key.waiting:
            key.tag = min(max(key.tag, self._virtual), self._virtual + LAG)
            self._weights += key.share.weight
        turn.number = self._numbers
        self._numbers += 1
        kind = (turn.base, turn.units)
        group = self._classes.get(turn.priority)
        if group is None:
            group = self._classes[turn.priority] = _Class(turn.priority, self._now_s())
        flow = key.flows.setdefault((turn.priority, kind), OrderedDict())
        flow[turn] = None
        first_of_all = not key.waiting
        key.waiting += 1
        group.waiting += 1
        self._count += 1
        self.version += 1
        if first_of_all:
            self._moved(turn.owner, key)
        elif len(flow) == 1:
            heapq.heappush(group.lanes.setdefault(kind, []), (key.place(turn), key.version, turn.owner))

    def drop(self, turn: QueueEntry) -> bool:
        """Leave without a grant; False when the turn does not wait (any more)."""
        key = self._keys.get(turn.owner)
        lane = (turn.priority, (turn.base, turn.units))
        flow = key.flows.get(lane) if key else None
        if key is None or flow is None or turn not in flow:
            return False
        at_head = next(iter(flow)) is turn
        self._leave(turn, key, flow)
        if at_head:
            self._moved(turn.owner, key)
        return True

    def _leave(self, turn: QueueEntry, key: _Key, flow: Flow) -> None:
        del flow[turn]
        if not flow:
            del key.flows[(turn.priority, (turn.base, turn.units))]
        key.waiting -= 1
        self._count -= 1
        self.version += 1
        if not key.waiting:
            self._weights = self._weights - key.share.weight if self._count else 0.0
        group = self._classes[turn.priority]
        group.waiting -= 1
        if not group.waiting:
            del self._classes[turn.priority]

    def next(self, free: int, without: Mapping[Hashable, int] = NOTHING) -> QueueEntry | None:
        """Whom to serve now that so many units are free; None when what is free is kept, or nobody waits for it. `without`: of these bases
        only those that want fewer units."""
        if free <= 0:
            return None
        turn = self.first(without=without)
        if turn is None or turn.units <= free:
            return turn
        return None if self.keeps_for(turn) else self.first(free, without)

    def keeps_for(self, gang: QueueEntry) -> bool:
        """Whether what becomes free is kept now for this one, which does not fit: for a while, then not for as long, then twice as long."""
        now_s = self._now_s()
        if not gang.kept_s:
            gang.kept_s = self._hold_s
        elif now_s < gang.kept_until_s:
            return True
        elif now_s < gang.kept_until_s + self._hold_s:
            return False
        else:
            gang.kept_s *= 2
        gang.kept_until_s = now_s + gang.kept_s
        return True

    def first(self, most_units: int | None = None, without: Mapping[Hashable, int] = NOTHING) -> QueueEntry | None:
        """The next one, of those that want no more than `most_units`, and of the bases `without` fewer than it says there; it goes on
        waiting."""
        for group in self._in_order():
            best: Place | None = None
            chosen: QueueEntry | None = None
            for kind in list(group.lanes):
                base, units = kind
                if units >= without.get(base, units + 1) or (most_units is not None and units > most_units):
                    continue
                turn = self._head(group, kind)
                if turn is None:
                    del group.lanes[kind]
                    continue
                place = group.lanes[kind][0][0]
                if best is None or place < best:
                    best, chosen = place, turn
            if chosen is not None:
                return chosen
        return None

    def _in_order(self) -> list[_Class]:
        groups = list(self._classes.values())
        if len(groups) > 1:
            now_s = self._now_s()

            def rank(group: _Class) -> tuple[float, int]:
                gained = group.passed / GRANTS_PER_POINT + (now_s - group.since_s) / self._ageing_s
                return (group.priority + gained, group.priority)

            groups.sort(key=rank, reverse=True)
        return groups

    def _head(self, group: _Class, kind: Kind) -> QueueEntry | None:
        """The first of one kind in one class, after what does not hold any more was taken off its heap."""
        lane = group.lanes[kind]
        while lane:
            _, version, owner = lane[0]
            key = self._keys[owner]
            flow = key.flows.get((group.priority, kind))
            if version == key.version and flow is not None and key.may_have(kind[1]):
                return next(iter(flow))
            heapq.heappop(lane)
        return None

    def grant(self, turn: QueueEntry) -> None:
        """It is served: its key holds its units from now on."""
        key = self._keys[turn.owner]
        weight = key.share.weight
        weights = max(self._weights, weight)
        group = self._classes[turn.priority]
        group.passed, group.since_s = 0, self._now_s()
        for other in self._classes.values():
            if other.priority < turn.priority:
                other.passed += 1
        self._leave(turn, key, key.flows[(turn.priority, (turn.base, turn.units))])
        key.held += turn.units
        key.tag = min(max(key.tag, self._virtual - LAG), self._virtual + LAG) + turn.units / weight
        self._virtual += turn.units / weights
        self._grants += 1
        key.served = self._grants
        self._moved(turn.owner, key)

    def hold(self, owner: str, units: int = 1) -> None:
        """A key holds more, without a turn."""
        key = self._keys.setdefault(owner, _Key())
        key.held += units
        self._moved(owner, key)

    def give_back(self, owner: str, units: int = 1) -> None:
        """A key holds less."""
        key = self._keys[owner]
        key.held -= units
        self._moved(owner, key)

    def held_up(self, turn: QueueEntry) -> bool:
        """Whether only the key's own quota is in the way of a turn."""
        key = self._keys.get(turn.owner)
        return key is not None and not key.may_have(turn.units)

    def _moved(self, owner: str, key: _Key) -> None:
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
            heapq.heappush(lane, (key.place(next(iter(flow))), key.version, owner))

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
            share = Share(key.share.weight)
            model._keys[owner] = _Key(share, key.held, key.tag, served=key.served)
        originals: dict[QueueEntry, QueueEntry] = {}
        for turn in sorted(self, key=lambda turn: turn.number):
            copied = QueueEntry(turn.owner, None, turn.units, turn.priority)
            originals[copied] = turn
            model.add(copied)
        for priority, group in self._classes.items():
            model._classes[priority].passed, model._classes[priority].since_s = group.passed, group.since_s
        for owner, key in self._keys.items():
            if key.waiting:
                model._keys[owner].tag = key.tag
                model._moved(owner, model._keys[owner])
        found = []
        while (first := model.first()) is not None:
            found.append(originals[first])
            model.grant(first)
        return found
