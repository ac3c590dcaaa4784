"""What episodes come to: a row for each domain and family, with 95 % intervals; infeasible tasks and episodes without a verdict apart.

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
    """Rows by domain, the infeasible tasks' row if there are any, and all together.

    Attributes:
        rows: The rows.
        families: Of domains with more than one family of feasible tasks a row per family, whose `domain` is `SUITE/FAMILY`.
    """

    rows: tuple[ReportRow, ...]
    families: tuple[ReportRow, ...] = ()

    @property
    def rows_with_families(self) -> tuple[ReportRow, ...]:
        """All rows for people: those of its families below each domain."""
        return tuple(
            shown
            for row in self.rows
            for shown in (row, *(one for one in self.families if one.domain.rpartition("/")[0] == row.domain))
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"rows": [asdict(row) for row in self.rows], "families": [asdict(row) for row in self.families]}


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
    """Rows of feasible tasks by domain in order of name, infeasible ones apart, then all; and by family."""
    everything = list(episodes)
    feasible = [episode for episode in everything if not episode.infeasible]
    rows, families = [], []
    for domain in sorted({one.domain for one in feasible}):
        own = [one for one in feasible if one.domain == domain]
        rows.append(_row(domain, own))
        names = sorted({name for one in own if (name := task_family(one)) is not None})
        if len(names) > 1:
            families += [_row(f"{domain}/{name}", [one for one in own if task_family(one) == name]) for name in names]
    infeasible = [episode for episode in everything if episode.infeasible]
    if infeasible:
        rows.append(_row(INFEASIBLE, infeasible))
    return EvaluationSummary((*rows, _row(ALL, everything)), tuple(families))


def task_family(episode: EvaluationEpisode) -> str | None:
    """Return the family of an episode's task, as the id of a suite's task (`SUITE/FAMILY/NUMBER`) names it; None for other tasks."""
    parts = episode.task_id.split("/")
    return parts[1] if len(parts) == 3 and parts[0] == episode.domain else None


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
    lines = [HEADER, *(_cells(row) for row in summary.rows_with_families)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
