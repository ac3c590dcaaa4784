"""An exploration as a web page: screens, edges, and coverage over time.

Role: `to_html`. Rule: one file without scripts or anything from elsewhere, readable on a narrow screen and in the dark; pictures are small
copies inside the file. Non-goals: the samples (`dart_agent.explore.queries.rules`).
"""

from __future__ import annotations

import base64
import html
import io
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from dart_agent.explore.graph import ExplorationGraph
from dart_agent.explore.storage.records import StoredScreen, StoredStep
from dart_agent.explore.store import ExploreStore
from dart_agent.explore.values import StepOutcome

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d9dee5; --ground: #fff; --raised: #f5f7fa; --one: #2f6feb;
  --two: #1a7f37; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa4b0; --line: #343b45; --ground: #15181d; --raised: #1d2229;
  --one: #6ea0ff; --two: #4ac26b; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 4rem; color: var(--ink);
  background: var(--ground); }
h1 { font-size: 1.5rem; margin: 0 0 .75rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
.soft { color: var(--soft); } .wide { overflow-x: auto; }
dl { display: flex; flex-wrap: wrap; gap: .35rem 1.5rem; margin: 0; } dl div { display: flex; gap: .4rem; }
dt { color: var(--soft); } dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.screens { display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); gap: .75rem; }
.screen { border: 1px solid var(--line); border-radius: .5rem; background: var(--raised); padding: .6rem; scroll-margin-top: 1rem; }
.screen:target { outline: 3px solid var(--one); } .screen p { margin: .25rem 0; overflow-wrap: anywhere; font-size: .9em; }
.screen img { width: 100%; height: auto; border: 1px solid var(--line); display: block; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; } td { overflow-wrap: anywhere; } .n { text-align: right; }
a { color: var(--one); } svg { max-width: 100%; height: auto; } svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
.axis { stroke: var(--line); } .one, .two { fill: none; stroke-width: 2; } .one { stroke: var(--one); } .two { stroke: var(--two); }
.edge { stroke: var(--soft); fill: none; opacity: .45; } .node { fill: var(--raised); stroke: var(--one); } .key-one { color: var(--one); }
.key-two { color: var(--two); } .graph text { fill: var(--ink); text-anchor: middle; }
"""
THUMBNAIL_WH = (320, 200)
CHART_WH, MARGIN_PX = (720, 240), 44
COLUMN_PX, ROW_PX = 84, 44
MAX_ROWS = 400
"""Edges beyond so many are counted only."""


@dataclass(frozen=True, slots=True)
class CoveragePoint:
    """What was covered after so many steps."""

    step: int
    screens: int
    elements: int
    """Different candidates that were tried, each on its screen."""


def coverage(screens: Sequence[StoredScreen], steps: Sequence[StoredStep]) -> list[CoveragePoint]:
    """Coverage over time.

    Args:
        screens: All screens.
        steps: All steps in the order in which they ended.

    Returns:
        A point for the start, and one after each step; steps include faults and ways back. What a desktop found on its way to a step counts
        with the next step that ended, or with the last one.
    """
    found = sorted(screen.revision for screen in screens)
    tried: set[tuple[int, str]] = set()
    points = [CoveragePoint(0, bisect_left(found, steps[0].revision) if steps else len(found), 0)]
    for number, step in enumerate(steps, 1):
        if step.from_screen is not None and step.candidate is not None:
            tried.add((step.from_screen, step.candidate.key))
        seen = bisect_right(found, step.revision) if number < len(steps) else len(found)
        points.append(CoveragePoint(number, seen, len(tried)))
    return points


def to_html(store: ExploreStore, graph: ExplorationGraph | None = None) -> str:
    """The whole page.

    Args:
        store: The exploration.
        graph: Its graph, where it is loaded already.

    Returns:
        HTML.
    """
    settings, screens, steps = store.settings, store.screens(), store.steps()
    graph = store.load_graph() if graph is None else graph
    title = f"Exploration of {settings.app}"
    body = [
        f"<h1>{html.escape(title)}</h1>",
        _facts(graph, steps, settings.chooser.value),
        "<h2>Coverage</h2>",
        _chart(coverage(screens, steps)),
        "<h2>Graph</h2>",
        '<p class="soft">Screens in columns by the number of actions from the start; edges lead to the screens that were seen after '
        "an action. A number leads to its screen.</p>",
        _graph(screens, steps),
        "<h2>Screens</h2>",
        f'<div class="screens">{"".join(_screen(store, graph, screen) for screen in screens)}</div>',
        "<h2>Edges</h2>",
        _edges(steps),
    ]
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _facts(graph: ExplorationGraph, steps: Sequence[StoredStep], chooser: str) -> str:
    tried, everything = graph.count_candidates()
    kinds, outcomes = Counter(step.kind for step in steps), Counter(step.outcome for step in steps)
    rows = {
        "chooser": chooser,
        "steps": len(steps),
        "screens": len(graph.screens),
        "candidates tried": f"{tried} of {everything}",
        "without a visible change": outcomes[StepOutcome.NO_CHANGE],
        "left the application": outcomes[StepOutcome.LEFT],
        "on the way back": kinds["replay"],
        "returned by snapshot": sum(step.arrived_by == "snapshot" for step in steps),
        "faults of the model": kinds["model_fault"],
        "faults of desktops": kinds["desktop_fault"],
    }
    cells = (f"<div><dt>{name}</dt><dd>{html.escape(str(value))}</dd></div>" for name, value in rows.items())
    return f"<dl>{''.join(cells)}</dl>"


def _chart(points: Sequence[CoveragePoint]) -> str:
    """Screens and tried candidates over steps, each with an axis of its own."""
    (width, height), last = CHART_WH, max(1, points[-1].step)
    across, down = width - 2 * MARGIN_PX, height - 2 * MARGIN_PX
    lines = []
    for name, values in (("one", [one.screens for one in points]), ("two", [one.elements for one in points])):
        top = max(1, *values)
        corners = " ".join(
            f"{MARGIN_PX + point.step / last * across:.1f},{height - MARGIN_PX - value / top * down:.1f}"
            for point, value in zip(points, values, strict=True)
        )
        lines.append(f'<polyline class="{name}" points="{corners}"/>')
    bottom, right = height - MARGIN_PX, width - MARGIN_PX
    return (
        '<p><span class="key-one">left: screens</span> · <span class="key-two">right: candidates tried</span></p>'
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="coverage over steps">'
        f'<line class="axis" x1="{MARGIN_PX}" y1="{bottom}" x2="{right}" y2="{bottom}"/>{"".join(lines)}'
        f'<text x="{MARGIN_PX}" y="{bottom + 18}">0</text><text x="{right}" y="{bottom + 18}" text-anchor="end">{last} steps</text>'
        f'<text x="{MARGIN_PX - 6}" y="{MARGIN_PX + 4}" text-anchor="end">{points[-1].screens}</text>'
        f'<text x="{right + 6}" y="{MARGIN_PX + 4}">{points[-1].elements}</text></svg>'
    )


def _graph(screens: Sequence[StoredScreen], steps: Sequence[StoredStep]) -> str:
    columns: dict[int, list[int]] = {}
    for screen in screens:
        columns.setdefault(screen.known.depth, []).append(screen.known.screen_id)
    places = {
        screen_id: (COLUMN_PX * (column + 0.5), ROW_PX * (row + 0.5))
        for column, depth in enumerate(sorted(columns))
        for row, screen_id in enumerate(columns[depth])
    }
    width, height = COLUMN_PX * len(columns), ROW_PX * max(map(len, columns.values()), default=1)
    edges = sorted(
        {
            (step.from_screen, step.to_screen)
            for step in steps
            if step.from_screen in places and step.to_screen in places
        }
    )
    drawn = []
    for start, end in edges:
        if start == end or start is None or end is None:
            continue
        (x1, y1), (x2, y2) = places[start], places[end]
        bend = 0.0 if x1 != x2 else COLUMN_PX * 0.4
        drawn.append(
            f'<path class="edge" d="M{x1:.0f} {y1:.0f} Q{(x1 + x2) / 2 + bend:.0f} {(y1 + y2) / 2 - 8:.0f} {x2:.0f} {y2:.0f}"/>'
        )
    for screen_id, (x, y) in places.items():
        drawn.append(
            f'<a href="#screen-{screen_id}"><circle class="node" cx="{x:.0f}" cy="{y:.0f}" r="14"/>'
            f'<text x="{x:.0f}" y="{y + 4:.0f}">{screen_id}</text></a>'
        )
    return (
        f'<div class="wide"><svg class="graph" viewBox="0 0 {width} {height}" width="{width}" style="max-width:none" role="img" '
        f'aria-label="graph of screens">{"".join(drawn)}</svg></div>'
    )


def _screen(store: ExploreStore, graph: ExplorationGraph, screen: StoredScreen) -> str:
    screen_id = screen.known.screen_id
    untried = len(graph.q.untried(screen_id))
    names = html.escape(" · ".join(filter(None, (screen.known.identity.application, screen.window))))
    best = graph.q.best_untried(screen_id)
    value = "" if best is None else f", best Q {best:.2f}"
    return (
        f'<div class="screen" id="screen-{screen_id}"><img alt="screen {screen_id}" src="{_thumbnail(store, screen)}">'
        f"<p><b>{screen_id}</b> {names}</p>"
        f'<p class="soft">found in step {screen.found_step}, {screen.known.depth} actions from the start; '
        f"{len(screen.known.candidates)} candidates, {untried} untried{value}</p></div>"
    )


def _thumbnail(store: ExploreStore, screen: StoredScreen) -> str:
    picture = Image.fromarray(np.asarray(store.read_image(screen.image_sha256)))
    picture.thumbnail(THUMBNAIL_WH)
    picture.save(file := io.BytesIO(), "WEBP", quality=70)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _edges(steps: Sequence[StoredStep]) -> str:
    """Every candidate that was tried, with its latest outcome and how often."""
    latest: dict[tuple[int, str], StoredStep] = {}
    counts: Counter[tuple[int, str]] = Counter()
    for step in steps:
        if step.from_screen is not None and step.candidate is not None:
            latest[step.from_screen, step.candidate.key] = step
            counts[step.from_screen, step.candidate.key] += 1
    rows = []
    for place, step in sorted(latest.items())[:MAX_ROWS]:
        assert step.candidate is not None
        outcome = "" if step.outcome is None else step.outcome.value.replace("_", " ")
        rows.append(
            f"<tr><td>{_link(step.from_screen)}</td><td>{html.escape(step.candidate.describe())}</td><td>{_link(step.to_screen)}</td>"
            f'<td>{outcome}</td><td class="n">{counts[place]}</td><td class="soft">{html.escape(step.reason)}</td></tr>'
        )
    more = f'<p class="soft">and {len(latest) - MAX_ROWS} more</p>' if len(latest) > MAX_ROWS else ""
    head = "<tr><th>from</th><th>action</th><th>to</th><th>outcome</th><th>times</th><th>reason</th></tr>"
    return f'<div class="wide"><table>{head}{"".join(rows)}</table></div>{more}'


def _link(screen_id: int | None) -> str:
    return "" if screen_id is None else f'<a href="#screen-{screen_id}">{screen_id}</a>'
