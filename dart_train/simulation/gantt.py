"""A Gantt chart of a simulation: what desktops, inference workers and trainer did, second by second, as one SVG file.

Role: `gantt_svg`. Rule: plain SVG without scripts or fonts of its own; at most `MAX_ROWS` rows of each kind, evenly chosen; colours differ
in lightness, too. Non-goals: charts over the time of a run (`dart_train.report.page`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from dart_train.utilisation import SlotActivity, TrainerActivity, WorkerActivity

Spans = Sequence[tuple[str, str, float, float]]
MAX_ROWS = 24
ROW, GAP, LEFT, WIDTH, TOP = 12, 3, 96, 1000, 56

COLOURS: dict[str, str] = {
    SlotActivity.EXECUTING: "#1b6ca8",
    SlotActivity.RUNNING: "#62b1e5",
    SlotActivity.QUEUED: "#f2b233",
    SlotActivity.RESETTING: "#8a6bb1",
    SlotActivity.IDLE: "#e4e4e4",
    WorkerActivity.SERVING: "#2a8f6d",
    WorkerActivity.UPDATING: "#d1495b",
    WorkerActivity.DOWN: "#3a3a3a",
    TrainerActivity.TRAINING: "#7a4a1e",
    TrainerActivity.PUBLISHING: "#d1495b",
    TrainerActivity.WAITING: "#e4e4e4",
}
LEGEND = (
    ("executing", SlotActivity.EXECUTING),
    ("waiting for a running request", SlotActivity.RUNNING),
    ("waiting for a queued request", SlotActivity.QUEUED),
    ("resetting", SlotActivity.RESETTING),
    ("serving", WorkerActivity.SERVING),
    ("new weights", WorkerActivity.UPDATING),
    ("training", TrainerActivity.TRAINING),
    ("down", WorkerActivity.DOWN),
    ("idle", SlotActivity.IDLE),
)


def gantt_svg(intervals: Mapping[str, Spans], title: str) -> str:
    """Draw a chart.

    Args:
        intervals: By kind (`desktops`, `workers`, `trainer`): resource, state, begin and end in seconds.
        title: The title.

    Returns:
        The SVG document; one without rows where nothing was recorded.
    """
    spans = [span for each in intervals.values() for span in each]
    begin_s = min((span[2] for span in spans), default=0.0)
    end_s = max((span[3] for span in spans), default=1.0)
    scale = (WIDTH - LEFT - 10) / max(end_s - begin_s, 1e-9)
    parts: list[str] = []
    y = TOP
    for kind, each in intervals.items():
        for name, members in _rows(each):
            parts.append(f'<text x="{LEFT - 6}" y="{y + ROW - 2}" text-anchor="end">{escape(name)}</text>')
            for state, at_s, until_s in members:
                x, width = LEFT + (at_s - begin_s) * scale, max((until_s - at_s) * scale, 0.05)
                colour = COLOURS.get(state, "#999999")
                parts.append(f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW}" fill="{colour}"/>')
            y += ROW + GAP
        y += 2 * GAP if kind else 0
    axis = _axis(begin_s, end_s, scale, y)
    height = y + 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="10">'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
        f'<text x="8" y="18" font-size="14">{escape(title)}</text>{_legend()}{"".join(parts)}{axis}</svg>\n'
    )


def _rows(spans: Spans) -> list[tuple[str, list[tuple[str, float, float]]]]:
    by_name: dict[str, list[tuple[str, float, float]]] = {}
    for name, state, begin_s, end_s in spans:
        by_name.setdefault(name, []).append((state, begin_s, end_s))
    names = sorted(by_name, key=lambda name: (name.rstrip("0123456789"), len(name), name))
    step = max(1, -(-len(names) // MAX_ROWS))
    return [(name, sorted(by_name[name], key=lambda span: span[1])) for name in names[::step]]


def _legend() -> str:
    parts, x = [], 8
    for label, state in LEGEND:
        parts.append(
            f'<rect x="{x}" y="30" width="10" height="10" fill="{COLOURS[state]}" stroke="#777" stroke-width="0.5"/>'
        )
        parts.append(f'<text x="{x + 14}" y="39">{escape(label)}</text>')
        x += 26 + 5 * len(label)
    return "".join(parts)


def _axis(begin_s: float, end_s: float, scale: float, y: float) -> str:
    length_s = max(end_s - begin_s, 1e-9)
    step_s = next((each for each in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600) if length_s / each <= 12), 7200)
    parts = []
    for index in range(int(length_s // step_s) + 1):
        x = LEFT + index * step_s * scale
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{y}" stroke="#00000022"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 12}" text-anchor="middle">{index * step_s}</text>')
    parts.append(f'<text x="{WIDTH - 10}" y="{y + 26}" text-anchor="end">seconds</text>')
    return "".join(parts)
