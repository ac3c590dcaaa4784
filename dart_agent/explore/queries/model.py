"""Queries that a model writes from transitions, and that the model must be able to answer.

Role: `model_queries` asks a multimodal model to describe what an element looks like, does, and leads to, from the pictures before and
after a click on it; then asks it which numbered element each query means, and drops those that it cannot tell. Rule: a model that fails,
stalls or answers nonsense costs its transition the model's words; rules describe it instead, and after `MAX_FAULTS` in a row all that is
left. A query of rules that describes another tried element, too, is used for neither, whoever describes the other one. Non-goals: files
(`dart_agent.explore.queries.rules`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import get_args

from dart_agent.errors import ModelFaultError
from dart_agent.explore.drawing import draw_marks
from dart_agent.explore.model_chooser import ask_model, parse_choice, parse_json_object
from dart_agent.explore.queries.rules import ElementQuery, drop_ambiguous, rule_queries
from dart_agent.explore.queries.transitions import ElementTransition, other_elements
from dart_agent.explore.store import ExploreStore
from dart_agent.grounding.samples import Box, QueryKind
from dart_agent.types import Policy
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock

WRITER_PROMPT = (
    "The first picture shows an application before a click on the element with the mark 1, the second one after it. Write instructions "
    "for somebody who sees the first picture without the mark and has to click this element. Name neither the mark nor coordinates. "
    'Answer with one JSON object and nothing else: {"visual": "by look and place", "functional": "by what it does", '
    '"outcome": "by what is seen after it"}.'
)
FILTER_PROMPT = (
    "Which marked element does the instruction mean? Answer with one JSON object and nothing else: "
    '{"choice": NUMBER}, with 0 where several fit or none does.'
)
WRITTEN_KINDS = tuple(kind for kind in get_args(QueryKind) if kind != "name")
MAX_QUERY = 300
MAX_MARKS = 60
"""Most elements that the model chooses from: marks hide each other where there are more."""
MAX_FAULTS = 5
"""Faults of the model in a row after which it is asked no more: each may cost as long as the longest wait for an answer."""


async def model_queries(
    store: ExploreStore,
    transitions: Sequence[ElementTransition],
    model: Policy,
    *,
    timeout_s: float = 90.0,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[list[ElementQuery], int]:
    """Write queries.

    Args:
        store: Holds the pictures.
        transitions: All transitions of the exploration, each element of a screen once.
        model: Who writes and filters.
        timeout_s: Longest wait for an answer.
        clock: The clock of the wait.

    Returns:
        Queries of the model, and of rules: names always, everything where the model was at fault or was asked no more. How many transitions
        that were.
    """
    queries: list[ElementQuery] = []
    of_rules: dict[tuple[int, str], list[ElementQuery]] = defaultdict(list)
    for query in rule_queries(transitions):
        of_rules[_place(query.transition)].append(query)
    faults = in_a_row = 0
    for number, transition in enumerate(transitions):
        by_rules = of_rules[_place(transition)]
        if transition.after is None:
            queries += by_rules
            continue
        if in_a_row == MAX_FAULTS:
            faults += 1
            queries += by_rules
            continue
        try:
            written = await _write(store, transition, model, f"query-{number}", timeout_s, clock)
            kept = [one for one in written if await _is_clear(store, one, model, f"filter-{number}", timeout_s, clock)]
        except ModelFaultError:
            faults, in_a_row = faults + 1, in_a_row + 1
            queries += by_rules
            continue
        in_a_row = 0
        queries += [*(one for one in by_rules if one.kind == "name"), *kept]
    return drop_ambiguous(queries), faults


def _place(transition: ElementTransition) -> tuple[int, str]:
    """What tells a transition from all others: screen and element."""
    return transition.screen.known.screen_id, transition.candidate.key


async def _write(
    store: ExploreStore, transition: ElementTransition, model: Policy, request_id: str, timeout_s: float, clock: Clock
) -> list[ElementQuery]:
    assert transition.after_sha256 is not None
    before = draw_marks(store.read_image(transition.before_sha256), [transition.box])
    pictures = [before, store.read_image(transition.after_sha256)]
    candidate = transition.candidate
    question = (
        "Nothing is known of the element but its picture."
        if candidate.source == "vision"
        else f"The element has the role {candidate.role!r} and the name {candidate.name!r}."
    )
    answer = await ask_model(
        model, WRITER_PROMPT, question, pictures, request_id=request_id, timeout_s=timeout_s, clock=clock
    )
    record = parse_json_object(answer)
    texts = {kind: record.get(kind) for kind in WRITTEN_KINDS}
    usable = {
        kind: text.strip()
        for kind, text in texts.items()
        if isinstance(text, str) and 0 < len(text.strip()) <= MAX_QUERY
    }
    if not usable:
        raise ModelFaultError(f"the answer holds no query: {answer[:200]!r}")
    return [ElementQuery(transition, kind, text) for kind, text in usable.items()]


async def _is_clear(
    store: ExploreStore, query: ElementQuery, model: Policy, request_id: str, timeout_s: float, clock: Clock
) -> bool:
    """Whether the model finds the element by the query."""
    screen, target = query.transition.screen, query.transition.box
    boxes = _marked_boxes(query.transition)
    picture = draw_marks(store.read_image(screen.image_sha256), boxes)
    answer = await ask_model(
        model, FILTER_PROMPT, query.text, [picture], request_id=request_id, timeout_s=timeout_s, clock=clock
    )
    if parse_json_object(answer).get("choice") == 0:
        return False
    return boxes[parse_choice(answer, len(boxes))[0] - 1] == target


def _marked_boxes(transition: ElementTransition) -> list[Box]:
    """The element and what could be taken for it, in reading order: the nearest of its role, then the nearest others."""
    role, middle = transition.candidate.role, _middle(transition.box)
    others = sorted(
        other_elements(transition), key=lambda one: (one[0] != role, math.dist(middle, _middle(one[1])), one[1])
    )
    boxes = list(dict.fromkeys([transition.box, *(box for _, box in others)]))[:MAX_MARKS]
    return sorted(boxes, key=lambda box: (box[1], box[0]))


def _middle(box: Box) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
