"""The order of turns, as examples and as properties of many random farms in virtual time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dart_server.pool.fair_queue import GRANTS_PER_POINT, FairQueue, KeyQuota, QueueEntry

HOLD_S = 30.0
AGEING_S = 60.0


@dataclass
class Model:
    """A farm of units in virtual time: whoever is served holds its units until they are given back."""

    size: int
    now_s: float = 0.0
    held: list[QueueEntry] = field(default_factory=list)
    served: list[QueueEntry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turns = FairQueue(lambda: self.now_s, AGEING_S, HOLD_S)

    @property
    def free(self) -> int:
        return self.size - sum(turn.units for turn in self.held)

    def ask(self, owner: str, units: int = 1, priority: int = 0, base: str = "basic") -> QueueEntry:
        turn = QueueEntry(owner, base, units, priority)
        self.turns.add(turn)
        return turn

    def serve(self) -> list[QueueEntry]:
        granted = []
        while (turn := self.turns.next(self.free)) is not None:
            assert turn.units <= self.free, "more was granted than there is"
            self.turns.grant(turn)
            self.held.append(turn)
            granted.append(turn)
        self.served += granted
        return granted

    def end(self, turn: QueueEntry) -> None:
        self.held.remove(turn)
        self.turns.release_units(turn.owner, turn.units)


def owners(turns: list[QueueEntry]) -> str:
    return "".join(turn.owner for turn in turns)


def churn(model: Model, rounds: int, backlog: dict[str, int]) -> Counter[str]:
    """Every key keeps a backlog; each round the longest held lease ends. Who was served how often."""
    for _ in range(rounds):
        for owner, units in backlog.items():
            while model.turns.waiting(owner) < 3:
                model.ask(owner, units)
        model.serve()
        if model.held:
            model.end(model.held[0])
        model.now_s += 1
    return Counter(turn.owner for turn in model.served)


def test_first_come_first_served_within_a_key() -> None:
    model = Model(1)
    asked = [model.ask("a", base=base) for base in ("x", "y", "x", "x", "y")]
    while model.serve():
        model.end(model.held[0])
    assert model.served == asked


def test_who_holds_less_for_its_weight_comes_first() -> None:
    model = Model(8)
    for _ in range(8):
        model.ask("a")
    model.serve()
    for owner in "aabb":
        model.ask(owner)
    for turn in list(model.held)[:4]:
        model.end(turn)
    assert sorted(owners(model.serve())) == ["a", "a", "b", "b"]
    assert owners(model.served[8:10]) == "bb"


@pytest.mark.parametrize("weights", [{"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 1.0}, {"a": 0.5, "b": 2.0, "c": 1.5}])
@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_backlog_is_served_in_proportion_to_the_weights(weights: dict[str, float], size: int) -> None:
    model = Model(size)
    for owner, weight in weights.items():
        model.turns.set_quota(owner, KeyQuota(weight))
    served = churn(model, 2000, dict.fromkeys(weights, 1))
    for owner, weight in weights.items():
        assert served[owner] / sum(served.values()) == pytest.approx(weight / sum(weights.values()), rel=0.1)


def test_a_flood_of_one_key_does_not_push_back_another() -> None:
    model = Model(1)
    for _ in range(1000):
        model.ask("flood")
    model.serve()
    model.ask("late")
    model.end(model.held[0])
    assert owners(model.serve()) == "late"


def test_who_comes_back_has_no_credit_for_its_absence() -> None:
    model = Model(1)
    churn(model, 200, {"a": 1})
    for _ in range(20):
        model.ask("b")
    before = len(model.served)
    for _ in range(20):
        model.serve()
        model.end(model.held[0])
        model.ask("a")
    assert 8 <= owners(model.served[before:]).count("b") <= 12


def test_a_higher_priority_is_first_but_not_for_ever() -> None:
    model = Model(1)
    low = model.ask("a", priority=0)
    grants = 0
    while low not in model.served:
        model.ask("b", priority=2)
        model.serve()
        model.end(model.held[0])
        grants += 1
        assert grants <= 2 * GRANTS_PER_POINT + 2
    assert grants > 2 * GRANTS_PER_POINT - 2


def test_time_makes_up_for_priority() -> None:
    model = Model(1)
    model.ask("a", priority=-50)
    model.now_s = 151 * AGEING_S
    model.ask("b", priority=100)
    assert owners(model.serve()) == "a"


def test_a_key_at_its_quota_waits_and_holds_nobody_up() -> None:
    model = Model(10)
    model.turns.set_quota("a", KeyQuota(max_leases=2))
    asked = [model.ask("a") for _ in range(5)]
    model.ask("b")
    assert owners(model.serve()) in ("aab", "aba", "baa")
    assert model.turns.blocked_by_quota(asked[-1])
    assert model.serve() == []
    model.end(model.held[0])
    assert len(model.serve()) == 1
    model.turns.set_quota("a", KeyQuota(max_leases=5))
    assert len(model.serve()) == 2


def test_what_is_free_is_kept_for_a_gang_that_comes_first_and_then_others_pass() -> None:
    model = Model(4)
    for _ in range(4):
        model.ask("a")
    model.serve()
    gang = model.ask("g", units=3)
    model.end(model.held[0])
    model.ask("b")
    assert model.serve() == []
    model.now_s += HOLD_S
    assert owners(model.serve()) == "b"
    model.end(model.held[0])
    model.ask("b")
    assert owners(model.serve()) == "b", "they still pass"
    model.now_s += HOLD_S
    for _ in range(3):
        model.end(model.held[0])
        model.ask("b")
        granted = model.serve()
    assert granted[0] is gang


def test_two_gangs_do_not_hold_halves() -> None:
    model = Model(4)
    blockers = [model.ask("x"), model.ask("x")]
    model.serve()
    gangs = [model.ask("a", units=3), model.ask("b", units=3)]
    assert model.serve() == []
    for turn in blockers:
        model.end(turn)
    assert model.serve() == gangs[:1]
    model.end(gangs[0])
    assert model.serve() == gangs[1:]


def test_smaller_ones_fill_what_a_large_gang_leaves() -> None:
    model = Model(8)
    model.ask("a", units=5)
    model.ask("b", units=6)
    model.ask("c", units=2)
    model.serve()
    model.now_s += HOLD_S
    model.serve()
    assert owners(model.served) == "ac"


def test_leaving_the_queue() -> None:
    model = Model(1)
    first, second, third = (model.ask("a") for _ in range(3))
    assert model.turns.remove(second)
    assert not model.turns.remove(second)
    model.serve()
    assert model.turns.remove(third)
    assert len(model.turns) == model.turns.waiting("a") == 0
    assert model.served == [first]
    assert not model.turns.remove(first)


def test_the_order_is_how_they_are_served() -> None:
    model = Model(60)
    model.turns.set_quota("b", KeyQuota(2.5))
    for number in range(60):
        model.ask("abc"[number % 3], priority=(number % 5) * 3)
    expected = model.turns.order()
    assert len(expected) == 60
    assert model.serve() == expected


ASK = st.tuples(
    st.just("ask"),
    st.sampled_from("abcd"),
    st.integers(1, 5),
    st.integers(-3, 3),
    st.sampled_from(["x", "y"]),
)
END = st.tuples(st.just("end"), st.integers(0, 100))
DROP = st.tuples(st.just("drop"), st.integers(0, 100))
WAIT = st.tuples(st.just("wait"), st.floats(0, 100))
QUOTA = st.tuples(st.just("quota"), st.sampled_from("abcd"), st.integers(1, 6), st.sampled_from([0.5, 1.0, 3.0]))
STEPS = st.lists(st.one_of(ASK, ASK, ASK, END, END, DROP, WAIT, QUOTA), max_size=120)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 8), STEPS)
def test_nothing_is_over_granted_and_all_that_fits_is_served_in_the_end(size: int, steps: list) -> None:
    model = Model(size)
    quotas: dict[str, int] = {}
    waiting: list[QueueEntry] = []
    for step in steps:
        match step:
            case ("ask", owner, units, priority, base):
                waiting.append(model.ask(owner, units, priority, base))
            case ("end", number) if model.held:
                model.end(model.held[number % len(model.held)])
            case ("drop", number) if waiting:
                assert model.turns.remove(waiting.pop(number % len(waiting)))
            case ("wait", seconds):
                model.now_s += seconds
            case ("quota", owner, most, weight):
                model.turns.set_quota(owner, KeyQuota(weight, most))
                quotas[owner] = most
        before = {owner: model.turns.held(owner) for owner in "abcd"}
        for turn in model.serve():
            waiting.remove(turn)
            before[turn.owner] += turn.units
            assert before[turn.owner] <= quotas.get(turn.owner, 99), "more than the quota"
        for owner in "abcd":
            assert model.turns.held(owner) == sum(turn.units for turn in model.held if turn.owner == owner)
            assert model.turns.waiting(owner) == sum(turn.owner == owner for turn in waiting)
        assert sorted(model.turns.order(), key=id) == sorted(waiting, key=id)
    for turn in list(model.held):
        model.end(turn)
    for _ in range(200):
        model.now_s += HOLD_S
        model.serve()
        for turn in list(model.held):
            model.end(turn)
    for turn in model.turns:
        assert turn.units > size or turn.units > quotas.get(turn.owner, 99), "it fits and was never served"


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from("bcd"), st.integers(1, 4), st.integers(0, 20)), min_size=1, max_size=6),
    st.integers(1, 40),
)
@example(5, 4, [("b", 1, 0), ("d", 3, 5)], 37)
@example(4, 2, [("d", 3, 7), ("b", 2, 9), ("c", 1, 0)], 34)
def test_a_claim_is_served_however_many_others_keep_coming(
    size: int, units: int, others: list[tuple[str, int, int]], lease_s: int
) -> None:
    model = Model(size)
    units = min(units, size)
    for owner, most, priority in others:
        model.ask(owner, min(most, size), priority)
    model.serve()
    patient = model.ask("a", units, 0)
    ends: dict[int, float] = {}
    while patient not in model.served:
        for turn in list(model.held):
            if model.now_s >= ends.setdefault(id(turn), model.now_s + lease_s):
                model.end(turn)
        for owner, most, priority in others:
            if model.turns.waiting(owner) < 5:
                model.ask(owner, min(most, size), priority)
        model.serve()
        model.now_s += 1
        assert model.now_s < 20_000, "starved"
