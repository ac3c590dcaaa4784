"""The plan of the pool as a pure function: what holds for every situation, and that it comes to rest with what is wanted."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

from farm_harness import ManualClock
from hypothesis import given
from hypothesis import strategies as st

from dart_server import wire
from dart_server.pool.demand import HALF_LIFE_S, Demand
from dart_server.pool.plan import (
    Action,
    FreezeAction,
    PrepareAction,
    ReadyCopy,
    ReadyTarget,
    RemoveAction,
    SlotPhase,
    ThawAction,
    distribute,
    plan,
)
from dart_server.records import DesktopTarget

BASES = ("a", "b")
KINDS = tuple((base, number) for base in BASES for number in range(2))
KIND = st.sampled_from(KINDS)
SMALL = st.integers(0, 4)
NUMBERS = itertools.count()


@st.composite
def copies(draw: st.DrawFn) -> list[ReadyCopy]:
    found = draw(st.lists(st.tuples(KIND, st.sampled_from(SlotPhase)), max_size=8))
    return [ReadyCopy(f"d{number}", kind[0], kind, phase) for number, (kind, phase) in enumerate(found)]


@st.composite
def targets(draw: st.DrawFn) -> list[ReadyTarget]:
    found = []
    for number in range(draw(st.integers(0, 4))):
        kind = draw(KIND)
        numbers = {"warm": draw(SMALL), "standby": draw(SMALL), "min_copies": draw(SMALL)}
        more = {"max_copies": draw(st.none() | SMALL), "max_new": draw(st.none() | SMALL)}
        found.append(ReadyTarget(f"t{number}", kind[0], kind, **numbers, **more, in_backoff=draw(st.booleans())))
    return found


def touched(actions: list[Action]) -> list[str]:
    return [action.desktop_id for action in actions if action.desktop_id is not None]


@given(targets(), copies(), SMALL, SMALL, st.booleans())
def test_no_plan_oversteps(
    wanted: list[ReadyTarget], there: list[ReadyCopy], free_slots: int, max_starts: int, can_freeze: bool
) -> None:
    actions = plan(wanted, there, free_slots=free_slots, max_starts=max_starts, can_freeze=can_freeze)
    phases = {copy.desktop_id: copy.phase for copy in there}
    kinds = {copy.desktop_id: copy.kind for copy in there}
    assert max(Counter(touched(actions)).values(), default=1) == 1, "one thing at a time happens to a desktop"
    made = [action for action in actions if isinstance(action, PrepareAction)]
    assert len(made) <= max_starts
    assert sum(action.desktop_id is None for action in made) <= free_slots
    by_name = {target.name: target for target in wanted}
    for action in actions:
        match action:
            case PrepareAction(name, desktop_id):
                assert not by_name[name].in_backoff
                if desktop_id is not None:
                    assert phases[desktop_id] in (SlotPhase.USED, SlotPhase.READY, SlotPhase.FROZEN)
                    assert kinds[desktop_id][0] == by_name[name].base
            case FreezeAction(desktop_id):
                assert can_freeze
                assert phases[desktop_id] is SlotPhase.READY
            case ThawAction(desktop_id):
                assert phases[desktop_id] is SlotPhase.FROZEN
            case RemoveAction(desktop_id):
                assert phases[desktop_id] in (SlotPhase.USED, SlotPhase.READY, SlotPhase.FROZEN)
    for target in wanted:
        begun = sum(action.target == target.name for action in made)
        if target.max_new is not None:
            assert begun <= target.max_new
        if target.max_copies is not None:
            held = sum(copy.kind == target.kind and copy.phase is SlotPhase.HELD for copy in there)
            assert begun <= max(0, target.max_copies - held)


def apply_actions(actions: list[Action], there: list[ReadyCopy], wanted: list[ReadyTarget]) -> list[ReadyCopy]:
    """The same a moment later, with everything that was begun done."""
    found = {copy.desktop_id: copy for copy in there}
    for action in actions:
        match action:
            case PrepareAction(name, desktop_id):
                target = next(target for target in wanted if target.name == name)
                made = desktop_id or f"n{next(NUMBERS)}"
                found[made] = ReadyCopy(made, target.base, target.kind, SlotPhase.READY)
            case FreezeAction(desktop_id):
                found[desktop_id] = found[desktop_id]._replace(phase=SlotPhase.FROZEN)
            case ThawAction(desktop_id):
                found[desktop_id] = found[desktop_id]._replace(phase=SlotPhase.READY)
            case RemoveAction(desktop_id):
                found[desktop_id] = found[desktop_id]._replace(phase=SlotPhase.HELD, kind=("gone", 0))
    return [copy for copy in found.values() if copy.kind != ("gone", 0)]


@given(targets(), copies(), st.booleans())
def test_carried_out_again_and_again_it_comes_to_rest_with_what_is_wanted(
    wanted: list[ReadyTarget], there: list[ReadyCopy], can_freeze: bool
) -> None:
    wanted = [replace(target, max_new=None, in_backoff=False, max_copies=None) for target in wanted]
    there = [copy for copy in there if copy.phase is not SlotPhase.PREPARING]
    for _ in range(12):
        actions = plan(wanted, there, free_slots=100 - len(there), max_starts=3, can_freeze=can_freeze)
        if not actions:
            break
        there = apply_actions(actions, there, wanted)
    assert actions == [], "it comes to rest"
    for kind in KINDS:
        here = [target for target in wanted if target.kind == kind]
        of_kind = [copy.phase for copy in there if copy.kind == kind]
        held = of_kind.count(SlotPhase.HELD)
        ready = sum(max(target.warm + target.standby, target.min_copies - held) for target in here)
        assert len(of_kind) - held == ready
        standby = sum(target.standby for target in here) if can_freeze else 0
        assert of_kind.count(SlotPhase.FROZEN) == standby


def test_without_room_the_targets_take_turns() -> None:
    wanted = [ReadyTarget("x", "a", ("a", 0), warm=4), ReadyTarget("y", "a", ("a", 1), warm=4)]
    made = plan(wanted, [], free_slots=3, max_starts=9, can_freeze=True)
    assert Counter(action.target for action in made if isinstance(action, PrepareAction)) == {"x": 2, "y": 1}


def test_what_nobody_wants_makes_room_for_what_is_wanted() -> None:
    there = [ReadyCopy("d0", "a", ("a", 0), SlotPhase.FROZEN), ReadyCopy("d1", "b", ("b", 0), SlotPhase.FROZEN)]
    actions = plan([ReadyTarget("y", "a", ("a", 1), standby=2)], there, free_slots=0, max_starts=9, can_freeze=True)
    assert actions == [PrepareAction("y", "d0"), RemoveAction("d1")]


@given(st.dictionaries(KIND, st.floats(0.01, 100)), st.integers(0, 12), st.dictionaries(KIND, st.integers(0, 5)))
def test_shares_use_the_whole_budget_and_favour_what_is_asked_for(
    scores: dict[tuple[str, int], float], budget: int, have: dict[tuple[str, int], int]
) -> None:
    given_to = distribute(scores, budget, have)
    assert sum(given_to.values()) == (budget if scores else 0)
    assert set(given_to) <= set(scores)
    for more in scores:
        for less in scores:
            if scores[more] >= 3 * scores[less]:
                assert given_to.get(more, 0) >= given_to.get(less, 0)


def test_a_small_change_of_demand_throws_nothing_away() -> None:
    assert distribute({"x": 10.0, "y": 10.1}, 1, {"x": 1}) == {"x": 1}
    assert distribute({"x": 10.0, "y": 20.0}, 1, {"x": 1}) == {"y": 1}


WANT = DesktopTarget(wire.DesktopShape(), "sha256:0", "key_1")


def test_what_comes_again_is_expected_until_it_is_forgotten() -> None:
    clock = ManualClock()
    demand = Demand(clock)
    task, other = replace(WANT, setup_key="a" * 64), replace(WANT, setup_key="b" * 64)
    demand.record(task)
    demand.record(other)
    assert demand.expected() == {}, "once is not again"
    assert list(demand.expected([other])) == [other], "what somebody waits for is"
    for _ in range(3):
        demand.record(task)
    assert demand.expected() == {task: 4.0}
    clock.now += HALF_LIFE_S
    assert demand.expected() == {task: 2.0}
    clock.now += HALF_LIFE_S
    assert demand.expected() == {}
