"""What trials come to: a row for each domain, with 95 % intervals; infeasible tasks and trials without a verdict apart.

Role: `summarise`, and its text. Rule: a mean counts verdicts only; what has none is told beside it, never as 0. The interval is
Wilson's, z = 1.96, for the share of trials with reward 1 (E. B. Wilson, 1927). Non-goals: running (`run`), the web page (`page`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dart_envs.evaluation.run import Trial

Z = 1.96
INFEASIBLE = "(infeasible)"
ALL = "(all)"


@dataclass(frozen=True, slots=True)
class Row:
    """One line. `trials` have a verdict, `unjudged` have none. Shares and rewards in [0, 1]; None where there is no trial."""

    domain: str
    trials: int
    unjudged: int
    solved: int
    mean_reward: float | None
    share_low: float | None
    share_high: float | None
    mean_steps: float | None
    mean_seconds: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Rows by domain, the infeasible tasks' row if there are any, and all together."""

    rows: tuple[Row, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"rows": [asdict(row) for row in self.rows]}


def wilson(successes: int, trials: int) -> tuple[float, float] | None:
    """The 95 % interval of a share; None without trials."""
    if trials == 0:
        return None
    share = successes / trials
    centre = share + Z * Z / (2 * trials)
    half = Z * math.sqrt(share * (1 - share) / trials + Z * Z / (4 * trials * trials))
    scale = 1 + Z * Z / trials
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def summarise(trials: Iterable[Trial]) -> Summary:
    """Rows of feasible tasks by domain in order of name, infeasible ones apart, then all."""
    everything = list(trials)
    feasible = [trial for trial in everything if not trial.infeasible]
    rows = [
        _row(name, [one for one in feasible if one.domain == name]) for name in sorted({t.domain for t in feasible})
    ]
    infeasible = [trial for trial in everything if trial.infeasible]
    if infeasible:
        rows.append(_row(INFEASIBLE, infeasible))
    return Summary((*rows, _row(ALL, everything)))


def _row(domain: str, trials: Sequence[Trial]) -> Row:
    judged = [trial for trial in trials if trial.reward is not None]
    rewards = [float(trial.reward or 0.0) for trial in judged]
    solved = sum(reward == 1.0 for reward in rewards)
    interval = wilson(solved, len(judged)) or (None, None)
    return Row(
        domain,
        len(judged),
        len(trials) - len(judged),
        solved,
        _mean(rewards),
        interval[0],
        interval[1],
        _mean([trial.steps for trial in judged]),
        _mean([trial.seconds for trial in judged]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


HEADER = ("domain", "trials", "no verdict", "solved", "mean reward", "95 % interval", "steps", "seconds")


def _cells(row: Row) -> tuple[str, ...]:
    def told(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    interval = (
        "-" if row.share_low is None or row.share_high is None else f"{row.share_low:.1%} to {row.share_high:.1%}"
    )
    return (
        row.domain,
        str(row.trials),
        str(row.unjudged),
        f"{row.solved} ({row.solved / row.trials:.1%})" if row.trials else "-",
        told(row.mean_reward, ".3f"),
        interval,
        told(row.mean_steps, ".1f"),
        told(row.mean_seconds, ".1f"),
    )


def to_text(summary: Summary) -> str:
    """A table for the terminal."""
    lines = [HEADER, *(_cells(row) for row in summary.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
