"""Transitions as grounding samples: what an element is called, where it is, what it does, and what happens after it.

Role: `write_queries` turns a stored exploration into files of samples (`dart_agent.grounding.samples`) with their images. Rule: queries
come from rules on the tree and the transition, or from a model (`model_queries`); a query that would as well describe another element of
its screen is left out; the split is by screen, and screens with the same tree shape are in the same split, so that no evaluation screen
was seen in training.

    name        its name:                               click "Save"
    visual      role and place among its kind:          the push button in the top left, right of "Open"
    functional  what it does, from what it opened:      opens the window "Print"
    outcome     what can be seen after it:              after a click on it, "Untitled 2" appears

An element that another one covers in the middle, or that the stored picture of its screen does not show with its name in its place, is not
asked about. Ambiguity, by rules: a name that another element of the screen has, too; role, place and, where it is told, neighbour that
another element has, too, whether it was tried or not; a function or outcome of a click that one elsewhere on the screen has, too. Of what
vision alone found, in an application without a tree, rules know only what happens after a click; what it looks like and does is for a model
to say. Non-goals: what clicks did (`dart_agent.explore.queries.transitions`), training on the samples (`dart_train.grounding`).
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dart_agent.explore.candidates import CandidateAction
from dart_agent.explore.queries.effects import MAX_NAME
from dart_agent.explore.queries.transitions import (
    ElementTransition,
    element_transitions,
    other_elements,
    stored_regions,
)
from dart_agent.explore.queries.visibility import visible_elements
from dart_agent.explore.storage.records import StoredScreen
from dart_agent.explore.store import ExploreStore
from dart_agent.grounding.samples import Box, GroundingSample, GroundingTarget, QueryKind, write_samples
from dart_envs.observations.views import MARKED_ROLES

SPLITS = ("train", "validation", "test")
VALIDATION_SHARE, TEST_SHARE = 0.1, 0.1
_ROWS, _COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")


@dataclass(frozen=True, slots=True)
class ElementQuery:
    """A question whose answer is the element of a transition."""

    transition: ElementTransition
    kind: QueryKind
    text: str


def rule_queries(transitions: Sequence[ElementTransition]) -> list[ElementQuery]:
    """Write the queries that rules can write, without those that are ambiguous.

    Args:
        transitions: All transitions of the exploration.

    Returns:
        Queries in the order of the transitions.
    """
    queries = [query for transition in transitions for query in _describe(transition)]
    return drop_ambiguous(queries)


def drop_ambiguous(queries: Sequence[ElementQuery]) -> list[ElementQuery]:
    """Leave out what describes more than one element of its screen, and names that none has in its stored picture.

    Args:
        queries: Queries of any screens.

    Returns:
        Those that are left, in their order.
    """
    counts = Counter((query.transition.screen.known.screen_id, query.text) for query in queries)
    kept = []
    for query in queries:
        screen = query.transition.screen
        alone = counts[screen.known.screen_id, query.text] == 1
        if alone and (query.kind != "name" or _namesakes(screen, query.transition.candidate) == 1):
            kept.append(query)
    return kept


def split_of(screen: StoredScreen) -> str:
    """The split of a screen: by a hash of application and tree shape, or of the screen itself where it has no tree.

    Args:
        screen: The screen.

    Returns:
        `train`, `validation` or `test`.
    """
    identity = screen.known.identity
    text = f"{identity.application}|{identity.shape_hash or identity.perceptual_hash}"
    share = int(hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8], 16) / 2**32
    if share < TEST_SHARE:
        return "test"
    return "validation" if share < TEST_SHARE + VALIDATION_SHARE else "train"


def to_samples(queries: Iterable[ElementQuery], prefix: str) -> dict[str, list[GroundingSample]]:
    """Make grounding samples.

    Args:
        queries: The queries.
        prefix: Begins the ids of samples and screens, so that several explorations can be put together.

    Returns:
        Samples by split; images are named `images/SHA256.png`.
    """
    samples: dict[str, list[GroundingSample]] = {split: [] for split in SPLITS}
    numbers: Counter[tuple[int, str]] = Counter()
    for query in queries:
        screen, candidate = query.transition.screen, query.transition.candidate
        screen_id = f"{prefix}/{screen.known.screen_id}"
        numbers[screen.known.screen_id, query.kind] += 1
        box = query.transition.box
        samples[split_of(screen)].append(
            GroundingSample(
                sample_id=f"{screen_id}/{query.kind}/{numbers[screen.known.screen_id, query.kind]}",
                image=f"images/{screen.image_sha256}.png",
                image_wh=screen.resolution,
                instruction=query.text,
                targets=(GroundingTarget(boxes=(box,)),),
                application=screen.known.identity.application,
                element_type="text" if candidate.name else "icon",
                role=candidate.role,
                kind=query.kind,
                screen_id=screen_id,
                distractors=tuple(other_elements(query.transition)),
            )
        )
    return samples


def write_queries(store: ExploreStore, out: Path, queries: Sequence[ElementQuery] | None = None) -> Mapping[str, int]:
    """Write `train.jsonl`, `validation.jsonl` and `test.jsonl` with their images.

    Args:
        store: The exploration.
        out: Folder for the files.
        queries: What is written; None: the queries of rules.

    Returns:
        Number of samples by split.
    """
    if queries is None:
        queries = rule_queries(element_transitions(store.screens(), store.steps(), stored_regions(store)))
    prefix = hashlib.sha256(f"{store.settings.app}|{store.created_s}".encode()).hexdigest()[:8]
    samples = to_samples(queries, prefix)
    (out / "images").mkdir(parents=True, exist_ok=True)
    for sha256 in {query.transition.screen.image_sha256 for query in queries}:
        target = out / "images" / f"{sha256}.png"
        if not target.exists():
            shutil.copyfile(store.image_path(sha256), target)
    return {split: write_samples(out / f"{split}.jsonl", samples[split]) for split in SPLITS}


def _describe(transition: ElementTransition) -> list[ElementQuery]:
    """All that rules can say about an element."""
    candidate = transition.candidate
    found: list[tuple[QueryKind, str]] = []
    if candidate.name and len(candidate.name) <= MAX_NAME:
        found.append(("name", f'click "{candidate.name}"'))
    if (visual := _visual(transition)) is not None:
        found.append(("visual", visual))
    return [ElementQuery(transition, kind, text) for kind, text in (*found, *transition.effects)]


def _visual(transition: ElementTransition) -> str | None:
    """Role and place, without the element's own name; None where another element that can be seen fits, too."""
    screen, role = transition.screen, transition.candidate.role
    place, right_of = _place(screen, transition.box), _neighbour(screen, transition.box)
    fitting = {
        box
        for one, box in visible_elements(screen)
        if one.role == role
        and one.role in MARKED_ROLES
        and _place(screen, box) == place
        and (right_of is None or _neighbour(screen, box) == right_of)
    }
    if len(fitting) != 1:
        return None
    text = f"click the {role} in the {place} of the screen"
    return text if right_of is None else f'{text}, right of "{right_of}"'


def _place(screen: StoredScreen, box: Box) -> str:
    """The third of the screen, each way, that has the middle of a box."""
    (left, top, right, bottom), (width, height) = box, screen.resolution
    row = _ROWS[min(2, int((top + bottom) / 2 * 3 / height))]
    column = _COLUMNS[min(2, int((left + right) / 2 * 3 / width))]
    return "centre" if (row, column) == ("middle", "centre") else f"{row} {column}"


def _neighbour(screen: StoredScreen, box: Box) -> str | None:
    """Name of the nearest named element on the left in the same row; None where there is none."""
    left, top, _, bottom = box
    found = [
        (left - other[2], element.name.strip()[:MAX_NAME])
        for element, other in visible_elements(screen)
        if element.role in MARKED_ROLES
        and element.name.strip()
        and other[2] <= left + 2
        and min(bottom, other[3]) - max(top, other[1]) > 0.5 * (bottom - top)
    ]
    return min(found)[1] if found else None


def _namesakes(screen: StoredScreen, candidate: CandidateAction) -> int:
    return sum(
        element.name.strip() == candidate.name
        for element, _ in visible_elements(screen)
        if element.role in MARKED_ROLES
    )
