"""What episodes come to: a row for each domain, with 95 % intervals; infeasible tasks and episodes without a verdict apart.

Role: `summarise`, and its text. Rule: a mean counts verdicts only; what has none is told beside it, never as 0. The interval is
Wilson's, z = 1.96, for the share of episodes with reward 1 (E. B. Wilson, 1927). Non-goals: running (`run`), the web page (`page`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dart_envs.evaluation.run import POLICY_ERROR, EvaluationEpisode
from dart_envs.success import count_successes

Z = 1.959963984540054
INFEASIBLE = "(infeasible)"
ALL = "(all)"


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One line. Shares and rewards are in [0, 1], and None where there is no episode.

    `episodes` have a verdict; `errors` have none because the policy raised, `masked` for any other reason.
    """

    domain: str
    episodes: int
    masked: int
    errors: int
    solved: int
    mean_reward: float | None
    success_rate_low: float | None
    success_rate_high: float | None
    mean_steps: float | None
    mean_duration_s: float | None


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """Rows by domain, the infeasible tasks' row if there are any, and all together."""

    rows: tuple[ReportRow, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"rows": [asdict(row) for row in self.rows]}


def wilson(successes: int, episodes: int) -> tuple[float, float] | None:
    """The 95 % interval of a share; None without episodes."""
    return wilson_interval(successes / episodes, episodes) if episodes else None


def wilson_interval(share: float, size: float) -> tuple[float, float]:
    """Compute Wilson's 95 % score interval of a share (E. B. Wilson, 1927).

    Args:
        share: The observed share, in [0, 1].
        size: Sample size, above 0; an effective one need not be whole.

    Returns:
        The lower and the upper end.
    """
    centre = share + Z * Z / (2 * size)
    half = Z * math.sqrt(share * (1 - share) / size + Z * Z / (4 * size * size))
    scale = 1 + Z * Z / size
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def summarise(episodes: Iterable[EvaluationEpisode]) -> EvaluationSummary:
    """Rows of feasible tasks by domain in order of name, infeasible ones apart, then all."""
    everything = list(episodes)
    feasible = [episode for episode in everything if not episode.infeasible]
    rows = [
        _row(name, [one for one in feasible if one.domain == name]) for name in sorted({t.domain for t in feasible})
    ]
    infeasible = [episode for episode in everything if episode.infeasible]
    if infeasible:
        rows.append(_row(INFEASIBLE, infeasible))
    return EvaluationSummary((*rows, _row(ALL, everything)))


def _row(domain: str, episodes: Sequence[EvaluationEpisode]) -> ReportRow:
    judged = [episode for episode in episodes if episode.reward is not None]
    rewards = [float(episode.reward or 0.0) for episode in judged]
    solved = count_successes(rewards)
    nerrors = sum(episode.reward is None and episode.end == POLICY_ERROR for episode in episodes)
    interval = wilson(solved, len(judged)) or (None, None)
    return ReportRow(
        domain,
        len(judged),
        len(episodes) - len(judged) - nerrors,
        nerrors,
        solved,
        _mean(rewards),
        interval[0],
        interval[1],
        _mean([episode.steps for episode in judged]),
        _mean([episode.duration_s for episode in judged]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


HEADER = ("domain", "episodes", "masked", "policy errors", "solved", "mean reward", "95 % interval", "steps", "seconds")


def _cells(row: ReportRow) -> tuple[str, ...]:
    def format_number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    interval = (
        "-"
        if row.success_rate_low is None or row.success_rate_high is None
        else f"{row.success_rate_low:.1%} to {row.success_rate_high:.1%}"
    )
    return (
        row.domain,
        str(row.episodes),
        str(row.masked),
        str(row.errors),
        f"{row.solved} ({row.solved / row.episodes:.1%})" if row.episodes else "-",
        format_number(row.mean_reward, ".3f"),
        interval,
        format_number(row.mean_steps, ".1f"),
        format_number(row.mean_duration_s, ".1f"),
    )


def to_text(summary: EvaluationSummary) -> str:
    """A table for the terminal."""
    lines = [HEADER, *(_cells(row) for row in summary.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
