"""From screens to the samples of a benchmark.

Role: `make_benchmark`. Rule: the same screens with the same seed give the same samples. A question about one place is asked once per
application, so that no split repeats another one's. Whole applications are novel; of the others every screen is in one split. Non-goals:
images, files.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from random import Random

from dart_agent.grounding.desktop_ground.queries import GroundQuery, find_queries
from dart_agent.grounding.desktop_ground.screen import CapturedScreen, center
from dart_agent.grounding.desktop_ground.visibility import Visibility, visibilities
from dart_agent.grounding.desktop_ground.wording import NOT_ASKED, is_text, kind_of
from dart_agent.grounding.samples import Box, GroundingSample, GroundingTarget, QueryKind

NOVEL = "novel"
SPLITS = ("train", "validation", "test", NOVEL)
TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1
NOVEL_SHARE = 0.2
PER_TARGET = 3
"""Most questions about one element of one screen."""
DISTRACTORS = 8
KIND_ORDER: tuple[QueryKind, ...] = ("visual", "positional", "functional", "name")
"""The kinds in turn, the rarest first."""


@dataclass(frozen=True, slots=True)
class BenchmarkScreen:
    """One screen of a benchmark.

    Attributes:
        screen: The screen.
        split: Its split.
        image: Its image, relative to the folder.
        samples: The questions about it.
    """

    screen: CapturedScreen
    split: str
    image: str
    samples: tuple[GroundingSample, ...]


def choose_novel(applications: Sequence[str], seed: int) -> frozenset[str]:
    """Choose the applications that no other split shows.

    Args:
        applications: All applications.
        seed: The seed.

    Returns:
        A fifth of them, at least one where there are three or more.
    """
    if len(applications) < 3:
        return frozenset()
    ordered = sorted(applications, key=lambda name: _rank(seed, "novel", name))
    return frozenset(ordered[: max(1, round(NOVEL_SHARE * len(applications)))])


def choose_splits(screens: Iterable[CapturedScreen], novel: frozenset[str], seed: int) -> dict[str, str]:
    """Choose the split of every screen.

    Args:
        screens: The screens.
        novel: Applications that are novel.
        seed: The seed.

    Returns:
        By screen id; every application with two screens or more has one in test.
    """
    by_application: dict[str, list[str]] = defaultdict(list)
    for screen in screens:
        by_application[screen.application].append(screen.screen_id)
    found: dict[str, str] = {}
    for application, ids in by_application.items():
        ordered = sorted(ids, key=lambda name: _rank(seed, "split", name))
        test = max(1, round(TEST_SHARE * len(ordered))) if len(ordered) > 1 else 0
        validation = round(VALIDATION_SHARE * len(ordered))
        for number, name in enumerate(ordered):
            split = "test" if number < test else "validation" if number < test + validation else "train"
            found[name] = NOVEL if application in novel else split
    return found


def make_benchmark(screens: Sequence[CapturedScreen], seed: int, *, per_screen: int) -> list[BenchmarkScreen]:
    """Make the samples of all screens.

    Args:
        screens: The screens; their ids are different.
        seed: Chooses questions, splits and novel applications.
        per_screen: Most questions about one screen.

    Returns:
        The screens that have questions, by application and in their order.
    """
    asked: set[tuple[str, str, Box | None]] = set()
    chosen: list[tuple[CapturedScreen, list[GroundQuery]]] = []
    for screen in sorted(screens, key=lambda one: one.application):
        queries = [query for query in find_queries(screen) if _key(screen, query) not in asked]
        taken = choose_queries(queries, per_screen, Random(_rank(seed, "queries", screen.screen_id)))
        asked |= {_key(screen, query) for query in taken}
        if taken:
            chosen.append((screen, taken))
    novel = choose_novel(sorted({screen.application for screen, _ in chosen}), seed)
    splits = choose_splits([screen for screen, _ in chosen], novel, seed)
    found = []
    for screen, taken in chosen:
        image = f"images/{hashlib.sha256(screen.screen_id.encode()).hexdigest()[:16]}.png"
        split = splits[screen.screen_id]
        found.append(BenchmarkScreen(screen, split, image, _samples(screen, taken, image, split)))
    return found


def _key(screen: CapturedScreen, query: GroundQuery) -> tuple[str, str, Box | None]:
    return screen.application, query.instruction, query.element.box


def choose_queries(queries: Sequence[GroundQuery], most: int, random: Random) -> list[GroundQuery]:
    """Choose among the questions about one screen.

    Args:
        queries: The questions.
        most: How many to take.
        random: Shuffles them.

    Returns:
        The kinds in turn, as long as they last, at most `PER_TARGET` about one element; in the order of the questions.
    """
    shuffled = random.sample(list(queries), len(queries))
    by_kind = [[query for query in shuffled if query.kind == kind] for kind in KIND_ORDER]
    taken: list[GroundQuery] = []
    per_target: dict[int, int] = defaultdict(int)
    for turn in zip_longest(*by_kind):
        for query in turn:
            if query is None or len(taken) == most or per_target[query.element.index] == PER_TARGET:
                continue
            per_target[query.element.index] += 1
            taken.append(query)
    wanted = {query.instruction for query in taken}
    return [query for query in queries if query.instruction in wanted]


def _samples(
    screen: CapturedScreen, queries: Sequence[GroundQuery], image: str, split: str
) -> tuple[GroundingSample, ...]:
    whole = [
        (element.role, element.box)
        for element, state in zip(screen.elements, visibilities(screen), strict=True)
        if state is Visibility.WHOLE
        and element.box is not None
        and kind_of(element)
        and kind_of(element) not in NOT_ASKED
    ]
    samples = []
    for number, query in enumerate(queries):
        box = query.element.box
        if box is None:
            raise ValueError(f"the answer to {query.instruction!r} has no place")
        x, y = center(box)
        others = sorted(
            (one for one in whole if not (one[1][0] <= x <= one[1][2] and one[1][1] <= y <= one[1][3])),
            key=lambda one: (center(one[1])[0] - x) ** 2 + (center(one[1])[1] - y) ** 2,
        )
        samples.append(
            GroundingSample(
                sample_id=f"{screen.screen_id}/{number:03d}",
                image=image,
                image_wh=screen.wh,
                instruction=query.instruction,
                targets=(GroundingTarget(boxes=(box,)),),
                application=screen.application,
                element_type="text" if is_text(query.element) else "icon",
                role=query.element.role,
                kind=query.kind,
                screen_id=screen.screen_id,
                platform="linux",
                group=split,
                distractors=tuple(others[:DISTRACTORS]),
            )
        )
    return tuple(samples)


def _rank(seed: int, purpose: str, name: str) -> int:
    """A number that depends on these alone."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{purpose}:{name}".encode()).digest()[:8], "big")
