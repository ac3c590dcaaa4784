"""Q-values from experience, and who chooses by them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from dart_agent.errors import ModelFaultError
from dart_agent.explore.candidates import CandidateAction
from dart_agent.explore.choosers import (
    BreadthFirstChooser,
    ChoiceContext,
    GreatestQChooser,
    PlaceContext,
    RandomChooser,
)
from dart_agent.explore.graph import ExplorationGraph, KnownScreen
from dart_agent.explore.model_chooser import ModelChooser, draw_softmax, parse_choice
from dart_agent.explore.screens import ScreenIdentity, ScreenView
from dart_agent.explore.values import MAX_SWEEPS, SWEEP_TOLERANCE, QTable, StepOutcome, ValueSettings
from dart_agent.types import Completion, FinishReason, PolicyRequest
from dart_envs.types import Action, ActionType

VIEW = ScreenView(np.full((100, 160, 3), 200, np.uint8), (), "app")


def candidate(name: str) -> CandidateAction:
    actions = (Action(ActionType.CLICK, x=5, y=5),)
    return CandidateAction(name, name, "click", actions, "tree", "push button", name, (0.0, 0.0, 10.0, 10.0))


def graph_of(screens: dict[int, list[str]], *, sharing: bool = True) -> ExplorationGraph:
    graph = ExplorationGraph(ValueSettings(sharing=sharing))
    for screen_id, names in screens.items():
        one = KnownScreen(screen_id, ScreenIdentity("app", str(screen_id), 0), screen_id - 1)
        one.candidates = {name: candidate(name) for name in names}
        graph.add_screen(one)
    return graph


def test_a_header_loses_value_on_every_screen_and_a_rare_element_keeps_it() -> None:
    table = QTable()
    table.add_candidates(1, {"home": "home", "help": "help", "a": "a"})
    table.record(1, "home", StepOutcome.NO_CHANGE, 1)
    table.add_candidates(2, {"home": "home", "help": "help", "b": "b"})
    assert table.value(1, "home") == 0
    assert table.value(2, "home") == pytest.approx(1 + 0.5 * (0.5 - 1))  # Jaccard 2/4, novelty 0.5
    assert table.value(2, "b") == table.value(2, "help") == 1
    alone = QTable(ValueSettings(sharing=False))
    for screen_id in (1, 2):
        alone.add_candidates(screen_id, {"home": "home", str(screen_id): str(screen_id)})
    alone.record(1, "home", StepOutcome.NO_CHANGE, 1)
    assert alone.value(2, "home") == 1


def test_the_value_of_a_known_action_is_how_near_it_leads_to_something_untried() -> None:
    table = QTable(ValueSettings(gamma=0.5))
    for screen_id, names in ((1, "ab"), (2, "c"), (3, "d")):
        table.add_candidates(screen_id, {name: name for name in names})
    table.record(1, "a", StepOutcome.NEW_SCREEN, 2)
    table.record(2, "c", StepOutcome.NEW_SCREEN, 3)
    assert (table.value(2, "c"), table.value(1, "a")) == pytest.approx((0.5, 0.25))
    table.record(3, "d", StepOutcome.LEFT, None)
    assert table.value(3, "d") == -1
    assert table.value(2, "c") == pytest.approx(-0.5)
    assert table.screen_value(1) == 1
    table.record(1, "b", StepOutcome.NO_CHANGE, 1)
    assert table.screen_value(1) == 0


class PlainTable(QTable):
    """Forgets what has been found to be unchanged, and sweeps over everything."""

    def _sweep(self) -> None:
        self._untried_best.clear()
        self._changed |= set(self._groups)
        for screen_id in self._changed:
            self._note_value(screen_id)
        for _ in range(MAX_SWEEPS):
            self._unsettled |= set(self._groups)
            if self._sweep_once() < SWEEP_TOLERANCE:
                return


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize(("names", "new"), [(3, 0.05), (5, 0.1), (12, 0.3)])
def test_values_are_those_of_sweeps_over_everything(names: int, new: float, sharing: bool) -> None:
    """With few names everything is tried soon, so that values fall through loops of the graph."""
    rng, settings = random.Random(names), ValueSettings(sharing=sharing)
    table, plain = QTable(settings), PlainTable(settings)
    keys: dict[int, list[str]] = {}

    def add(screen_id: int, groups: dict[str, str]) -> None:
        keys.setdefault(screen_id, []).extend(groups)
        for one in (table, plain):
            one.add_candidates(screen_id, groups)

    def grown(screen_id: int) -> dict[str, str]:
        groups = [f"group {rng.randrange(4 * names)}" for _ in range(names)]
        return {f"{screen_id}/{len(keys.get(screen_id, ()))}/{at}": group for at, group in enumerate(groups)}

    add(1, grown(1))
    for _ in range(150):
        place, chance = rng.randint(1, len(keys)), rng.random()
        to, outcome = place, StepOutcome.NO_CHANGE
        if chance < new:
            to, outcome = len(keys) + 1, StepOutcome.NEW_SCREEN
            add(to, grown(to))
        elif chance < 0.7:
            to, outcome = rng.randint(1, len(keys)), StepOutcome.NEW_EDGE
        elif chance < 0.75:
            add(place, grown(place))
        left = chance > 0.97
        key = rng.choice(keys[place])
        for one in (table, plain):
            one.record(place, key, StepOutcome.LEFT if left else outcome, None if left else to)
        for screen_id, of_screen in keys.items():
            assert table.screen_value(screen_id) == plain.screen_value(screen_id)
            assert [table.value(screen_id, one) for one in of_screen] == [
                plain.value(screen_id, one) for one in of_screen
            ]


def test_a_step_costs_what_it_changes_and_not_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    table, backups, back_up = QTable(), Counter[int](), QTable._backup

    def count(table: QTable, screen_id: int, *rest: Any) -> float:
        backups[screen_id] += 1
        return back_up(table, screen_id, *rest)

    for screen_id in range(1, 101):
        table.add_candidates(screen_id, {name: f"{screen_id}/{name}" for name in "abc"})
    for screen_id in range(1, 100):
        table.record(screen_id, "a", StepOutcome.NEW_SCREEN, screen_id + 1)
    monkeypatch.setattr(QTable, "_backup", count)
    table.record(100, "a", StepOutcome.NO_CHANGE, 100)
    assert backups == {100: 1}
    backups.clear()
    for key in "bc":  # the way to screen 100 is worth less now
        table.record(100, key, StepOutcome.LEFT, None)
    assert set(backups) == {99, 100}


def test_the_graph_knows_the_shortest_way() -> None:
    graph = graph_of({1: ["a", "b"], 2: ["c"], 3: ["d"]})
    graph.record(1, "a", StepOutcome.NEW_SCREEN, 2)
    graph.record(2, "c", StepOutcome.NEW_SCREEN, 3)
    assert graph.path(1, 3) == [("a", 2), ("c", 3)]
    assert graph.path(3, 1) is None
    graph.record(1, "b", StepOutcome.NEW_EDGE, 3)
    assert graph.path(1, 3) == [("b", 3)]
    assert graph.distances(1) == {1: 0, 2: 1, 3: 1}
    assert graph.count_candidates() == (3, 4)


def context(graph: ExplorationGraph, screen_id: int, seed: int = 0) -> ChoiceContext:
    candidates = list(graph.screens[screen_id].candidates.values())
    return ChoiceContext(graph, screen_id, VIEW, candidates, random.Random(seed), 1, ["- clicked x"])


async def test_the_greatest_q_breaks_ties_by_its_seed_and_goes_to_what_is_untried() -> None:
    graph = graph_of({1: ["a", "b", "c"], 2: ["d"]})
    graph.record(1, "a", StepOutcome.NO_CHANGE, 1)
    chooser = GreatestQChooser()
    chosen = Counter([(await chooser.choose(context(graph, 1, seed))).candidate.key for seed in range(40)])
    assert set(chosen) == {"b", "c"}
    graph.record(1, "b", StepOutcome.NO_CHANGE, 1)
    graph.record(1, "c", StepOutcome.NEW_SCREEN, 2)
    place = PlaceContext(graph, 1, {1: 0, 2: 1})
    assert chooser.next_screen(place) == 2
    assert chooser.next_screen(PlaceContext(graph, 1, {1: 0, 2: 1}, frozenset({(2, "d")}))) == 1
    assert (await chooser.choose(context(graph, 1))).candidate.key == "c"  # all was tried; c leads to what was not


def test_nobody_walks_for_what_is_worth_as_little_as_what_is_here() -> None:
    graph = graph_of({1: ["close", "x"], 2: ["close", "x"], 3: ["close", "x"]})
    for screen_id in (1, 2):
        graph.record(screen_id, "x", StepOutcome.NO_CHANGE, screen_id)
    for _ in range(3):
        graph.record(3, "close", StepOutcome.LEFT, None)
    graph.record(3, "x", StepOutcome.NO_CHANGE, 3)
    assert graph.q.value(1, "close") == graph.q.value(2, "close") == pytest.approx(-0.75)
    chooser = GreatestQChooser()
    assert chooser.next_screen(PlaceContext(graph, 1, {1: 0, 2: 3})) == 1
    assert chooser.next_screen(PlaceContext(graph, 3, {3: 0, 1: 2, 2: 1})) == 2
    graph.q.add_candidates(2, {"new": "new"})
    assert chooser.next_screen(PlaceContext(graph, 1, {1: 0, 2: 300})) == 2, "what is worth something is worth a way"


async def test_breadth_first_goes_by_depth_and_chance_by_nothing() -> None:
    graph = graph_of({1: ["a", "b"], 2: ["c"]})
    graph.record(1, "a", StepOutcome.NEW_SCREEN, 2)
    chooser = BreadthFirstChooser()
    assert chooser.next_screen(PlaceContext(graph, 2, {1: 1, 2: 0})) == 1
    assert (await chooser.choose(context(graph, 1))).candidate.key == "b"
    assert {(await RandomChooser().choose(context(graph, 1, seed))).candidate.key for seed in range(20)} == {"a", "b"}


class ScriptedModel:
    """Answers with fixed texts, and remembers what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[PolicyRequest] = []

    async def complete(self, request: PolicyRequest) -> Completion:
        self.asked.append(request)
        return Completion(self.answers.pop(0), (), (), (), (), FinishReason.STOP)


async def test_the_model_sees_q_values_and_history_and_its_number_is_taken() -> None:
    graph = graph_of({1: ["a", "b"]})
    graph.record(1, "a", StepOutcome.NO_CHANGE, 1)
    model = ScriptedModel('Sure: {"choice": 1, "text": "", "reason": "new"}', "[2]")
    choice = await ModelChooser(model).choose(context(graph, 1))
    assert (choice.candidate.key, choice.reason) == ("b", "new")
    (request,) = model.asked
    text = question(request)
    assert "[1] click push button 'b'; Q=1.00; tried 0 times" in text
    assert "- click push button 'a'; Q=0.00; tried 1 times; led to nothing visible" in text
    assert "- clicked x" in text
    assert len(request.images) == 1
    graph.record(1, "b", StepOutcome.LEFT, None)
    assert (await ModelChooser(model).choose(context(graph, 1))).candidate.key == "b"
    text = question(model.asked[1])
    assert "[1] click push button 'a'; Q=0.00; tried 1 times; led to nothing visible" in text
    assert "[2] click push button 'b'; Q=-1.00; tried 1 times; led to leaving the application" in text
    plain = ScriptedModel("1")
    await ModelChooser(plain, use_q=False).choose(context(graph, 1))
    assert "Q=" not in question(plain.asked[0])
    assert "tried" not in question(plain.asked[0])


def question(request: PolicyRequest) -> str:
    return str(request.messages[1]["content"][-1]["text"])


async def test_what_was_tried_does_not_crowd_out_what_the_desktop_came_for() -> None:
    """Known ways to untried screens have Q-values near 1, more than an untried element that elsewhere did nothing."""
    names = [chr(ord("a") + number) for number in range(20)]
    graph = graph_of({1: [*names, "last"], 2: [*names, "last", "far"]})
    for name in names:
        graph.record(1, name, StepOutcome.NEW_EDGE, 2)
    graph.record(2, "last", StepOutcome.NO_CHANGE, 2)
    assert graph.q.value(1, "last") < graph.q.value(1, "a") == pytest.approx(0.9)
    for seed in range(20):
        model = ScriptedModel("1")
        assert (await ModelChooser(model, shown=5).choose(context(graph, 1, seed))).candidate.key == "last"
        assert question(model.asked[0]).count("led to screen 2") == 5


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "no idea",
        '{"choice": 3}',
        '{"choice": true}',
        "[" * 5000,
        '{"choice": null}',
        "{" * 9,
        "1" * 5000,
        '{"choice": ' + "1" * 5000 + "}",
        '{"choice": "' + "1" * 5000 + '"}',
    ],
)
def test_nonsense_is_a_fault_of_the_model(answer: str) -> None:
    with pytest.raises(ModelFaultError):
        parse_choice(answer, 2)


def test_what_no_database_can_hold_does_not_get_there() -> None:
    number, text, reason = parse_choice(r'{"choice": 1, "text": "a\ud800", "reason": "\udfff \u0000 \ud83d\ude00"}', 2)
    assert (number, text, reason) == (1, "a?", "? ? \N{GRINNING FACE}")
    deep = "[" * 400 + "]" * 400
    assert parse_choice(f'{{"choice": 2, "text": 42, "reason": {deep}}}', 2) == (2, "42", "")


def test_softmax_draws_great_values_more_often_and_never_twice() -> None:
    rng = random.Random(3)
    counts: Counter[int] = Counter()
    for _ in range(2000):
        drawn = draw_softmax([1.0, 0.0, 1.0], 1, 0.5, rng)
        counts.update(drawn)
    share = counts[1] / 2000
    assert share == pytest.approx(1 / (1 + 2 * np.exp(2)), abs=0.02)
    assert draw_softmax([0.0] * 3, 5, 1.0, rng) == [0, 1, 2]
