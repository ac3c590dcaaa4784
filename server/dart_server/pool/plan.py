"""What the pool should do next: a pure function from what there is and what is wanted to actions.

Rule: level-triggered. Nothing is remembered between two calls; carried out and called again it comes to rest, with everything that is
wanted there as far as there is room. Targets come in the order of their importance and share the free_slots in turns. Copies that somebody
holds, or that are on their way, are counted and never touched.
Non-goals: what is wanted (`pool.standby`, `pool.demand`), carrying it out (`pool.standby`), who waits in the queue (`pool.claim_queue`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
EXISTING_COPY_BONUS = 1.5
"""How much more a copy that exists counts than one that would have to be made: nothing is thrown away for a small difference."""


class SlotPhase(StrEnum):
    """What a slot is to the plan."""

    READY = "ready"
    """Free, running, untouched."""
    FROZEN = "frozen"
    """Free, untouched, standing still."""
    USED = "used"
    """Free, but somebody has used it."""
    PREPARING = "preparing"
    """On its way to a target."""
    HELD = "held"
    """Leased, or being made for a claim."""


class ReadyCopy(NamedTuple):
    """One slot; a tuple, since every plan looks at all of them.

    `base`: what it is a desktop of (shape and image); `kind`: what exactly it is, or will be, a copy of.
    """

    desktop_id: str
    base: Hashable
    kind: Hashable
    phase: SlotPhase


@dataclass(frozen=True, slots=True)
class ReadyTarget:
    """How many copies of one kind are wanted: `warm` running, `standby` frozen, `min_copies` leased ones included, never more than
    `max_copies`.

    `max_new`: how many may be begun now (None: any number); a target that is held back begins none and keeps what it has.
    """

    name: str
    base: Hashable
    kind: Hashable
    warm: int = 0
    standby: int = 0
    min_copies: int = 0
    max_copies: int | None = None
    max_new: int | None = None
    in_backoff: bool = False


@dataclass(frozen=True, slots=True)
class PrepareAction:
    """Bring a slot to the target: a new one, or this one, which is nobody's."""

    target: str
    desktop_id: str | None


@dataclass(frozen=True, slots=True)
class FreezeAction:
    """Let a ready copy stand still."""

    desktop_id: str


@dataclass(frozen=True, slots=True)
class ThawAction:
    """Let a frozen copy run."""

    desktop_id: str


@dataclass(frozen=True, slots=True)
class RemoveAction:
    """Nobody wants this one."""

    desktop_id: str


Action = PrepareAction | FreezeAction | ThawAction | RemoveAction


@dataclass(slots=True)
class _Shortfall:
    target: ReadyTarget
    copies: int


def plan(
    targets: Sequence[ReadyTarget], copies: Iterable[ReadyCopy], *, free_slots: int, max_starts: int, can_freeze: bool
) -> list[Action]:
    """What to do now. `free_slots`: slots that may be added; `max_starts`: how many may be begun at once; `can_freeze`: else standbys
    run."""
    free: dict[SlotPhase, list[ReadyCopy]] = {phase: [] for phase in SlotPhase}
    for copy in copies:
        free[copy.phase].append(copy)
    actions: list[Action] = []
    shortfalls: list[_Shortfall] = []
    for target in targets:
        short = _assign(target, free, actions, can_freeze=can_freeze)
        if short > 0 and not target.in_backoff:
            begin = short if target.max_new is None else min(short, target.max_new)
            shortfalls.append(_Shortfall(target, begin))
    unassigned = [*free[SlotPhase.USED], *free[SlotPhase.READY], *free[SlotPhase.FROZEN]]
    actions += _start_missing(shortfalls, unassigned, free_slots=free_slots, max_starts=max_starts)
    actions += [RemoveAction(copy.desktop_id) for copy in unassigned]
    return actions


def _assign(
    target: ReadyTarget, free: dict[SlotPhase, list[ReadyCopy]], actions: list[Action], *, can_freeze: bool
) -> int:
    """Take what the target needs out of what is free, thawed and frozen as it should be; returns how many copies are lacking."""
    held = sum(copy.kind == target.kind for copy in free[SlotPhase.HELD])
    wanted = max(target.warm + target.standby, target.min_copies - held)
    if target.max_copies is not None:
        wanted = max(0, min(wanted, target.max_copies - held))
    frozen_wanted = min(target.standby, wanted) if can_freeze else 0
    running = _take(free[SlotPhase.READY], target, wanted - frozen_wanted)
    frozen = _take(free[SlotPhase.FROZEN], target, frozen_wanted)
    thaw = _take(free[SlotPhase.FROZEN], target, wanted - frozen_wanted - len(running))
    freeze = _take(free[SlotPhase.READY], target, frozen_wanted - len(frozen))
    coming = _take(free[SlotPhase.PREPARING], target, wanted - len(running) - len(frozen) - len(thaw) - len(freeze))
    actions += [ThawAction(copy.desktop_id) for copy in thaw]
    actions += [FreezeAction(copy.desktop_id) for copy in freeze]
    return wanted - sum(map(len, (running, frozen, thaw, freeze, coming)))


def _take(free: list[ReadyCopy], target: ReadyTarget, number: int) -> list[ReadyCopy]:
    """Up to so many free copies of the target's kind."""
    found = [copy for copy in free if copy.kind == target.kind][: max(0, number)]
    for copy in found:
        free.remove(copy)
    return found


def _start_missing(
    shortfalls: list[_Shortfall], unassigned: list[ReadyCopy], *, free_slots: int, max_starts: int
) -> list[Action]:
    """One copy after another to the targets in turn, first into slots that are there; what is used up leaves `unassigned`."""
    actions: list[Action] = []
    while max_starts > 0 and any(short.copies > 0 for short in shortfalls):
        begun = False
        for short in shortfalls:
            if short.copies <= 0 or max_starts <= 0:
                continue
            slot = next((copy for copy in unassigned if copy.base == short.target.base), None)
            if slot is not None:
                unassigned.remove(slot)
            elif free_slots > 0:
                free_slots -= 1
            else:
                continue
            actions.append(PrepareAction(short.target.name, slot.desktop_id if slot else None))
            short.copies -= 1
            max_starts -= 1
            begun = True
        if not begun:
            break
    return actions


def distribute(scores: Mapping[K, float], budget: int, have: Mapping[K, int]) -> dict[K, int]:
    """Divide `budget` copies among kinds by how much each is asked for, the next copy always to the largest score per copy.

    `have`: copies that exist, which count a little more than new ones.
    """
    given = dict.fromkeys(scores, 0)

    def worth(kind: K) -> float:
        kept = EXISTING_COPY_BONUS if given[kind] < have.get(kind, 0) else 1.0
        return kept * scores[kind] / (given[kind] + 1)

    for _ in range(budget if scores else 0):
        best = max(given, key=worth)
        given[best] += 1
    return {kind: number for kind, number in given.items() if number > 0}
