"""The report as a web page of its own: what each step budget came to, side by side, and every episode.

Role: `to_html`. Rule: one file without scripts or anything from elsewhere, readable on a narrow screen and in the dark; what has masked
never looks like a 0. Non-goals: numbers (`report`).
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dart_envs.evaluation.report import ALL, INFEASIBLE, EvaluationSummary, ReportRow, summarise
from dart_envs.evaluation.run import POLICY_ERROR, EvaluationEpisode
from dart_envs.success import is_success
from dart_envs.tasks.requirements import group_refusals

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d9dee5; --ground: #fff; --raised: #f5f7fa; --good: #1a7f37;
  --bar: #2f6feb; --wide: #b6cdf8; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa4b0; --line: #343b45; --ground: #15181d; --raised: #1d2229;
  --good: #4ac26b; --bar: #6ea0ff; --wide: #2c4475; --warn: #d4a72c; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; color: var(--ink);
  background: var(--ground); }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .75rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
p { margin: .5rem 0; } .soft { color: var(--soft); }
dl { display: flex; flex-wrap: wrap; gap: .35rem 1.5rem; margin: 0 0 1.5rem; }
dl div { display: flex; gap: .4rem; } dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: .75rem; }
.card { border: 1px solid var(--line); border-radius: .5rem; background: var(--raised); padding: .75rem 1rem; }
.card b { font-size: 1.6rem; font-variant-numeric: tabular-nums; } .card p { margin: .15rem 0; }
.bar { position: relative; height: .5rem; border-radius: .25rem; background: var(--line); margin: .4rem 0; min-width: 6rem; }
.bar i { position: absolute; top: 0; bottom: 0; border-radius: .25rem; }
.bar .range { background: var(--wide); } .bar .point { width: 3px; margin-left: -1.5px; background: var(--bar); top: -2px; bottom: -2px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.n { text-align: right; white-space: nowrap; } td.id { overflow-wrap: anywhere; min-width: 12rem; }
td.cause { overflow-wrap: anywhere; min-width: 14rem; color: var(--soft); font-size: .9em; }
tr.all td { font-weight: 600; border-top: 2px solid var(--line); }
.solved { color: var(--good); font-weight: 600; } .none { color: var(--warn); }
details > summary { cursor: pointer; padding: .35rem 0; }
@media (max-width: 40rem) { th, td { padding: .3rem .45rem; } body { padding-top: 1rem; } }
"""

NOTE = (
    "Intervals are Wilson's, 95 %, of the share of episodes with reward 1. An episode without a verdict (a fault of the farm, an evaluator "
    "or an endpoint) counts nowhere, and is run again by the same command."
)
NUMBERS = frozenset({"episodes", "masked", "policy errors", "solved", "mean reward", "budget", "steps", "seconds"})
"""Columns of numbers."""


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """One step budget (None: each task's own) and its episodes."""

    budget: int | None
    episodes: Sequence[EvaluationEpisode]
    n_tasks: int
    """How many tasks there are to be run."""

    @property
    def name(self) -> str:
        """Return the label of this part."""
        return "the tasks' own budgets" if self.budget is None else f"{self.budget} steps"


def to_html(
    parts: Sequence[BudgetReport], title: str, settings: Mapping[str, Any], refused: Mapping[str, str] | None = None
) -> str:
    """The whole page.

    Args:
        parts: The step budgets with their episodes.
        title: The head of the page.
        settings: What the run was started with.
        refused: Why tasks were left out, by id.
    """
    reports = [(part, summarise(part.episodes)) for part in parts]
    shown = {name: value for name, value in settings.items() if value is not None}
    facts = "".join(
        f"<div><dt>{html.escape(name.replace('_', ' '))}</dt><dd>{html.escape(_plain(value))}</dd></div>"
        for name, value in shown.items()
    )
    body = [f"<h1>{html.escape(title)}</h1>", f"<dl>{facts}</dl>", _cards(reports)]
    if any(part.episodes for part in parts):
        body += [_domains(reports), "<h2>Episodes</h2>", _episodes_table(parts)]
    if refused:
        body.append(_refused_table(refused))
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style></head><body>\n"
        + "\n".join(body)
        + f'\n<p class="soft">{NOTE}</p>\n</body></html>\n'
    )


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ("×" if all(isinstance(one, int) for one in value) else ", ").join(str(one) for one in value)
    return str(value)


def _cards(reports: Sequence[tuple[BudgetReport, EvaluationSummary]]) -> str:
    return '<div class="cards">' + "".join(_card(part, summary.rows[-1]) for part, summary in reports) + "</div>"


def _card(part: BudgetReport, row: ReportRow) -> str:
    lines = [f'<p class="soft">{"At most " if part.budget else "With "}{html.escape(part.name)}</p>']
    if row.episodes:
        lines += [
            f"<p><b>{row.solved / row.episodes:.1%}</b> solved, {row.solved} of {row.episodes}</p>",
            _bar(row),
            f'<p class="soft">95 %: {_interval(row)} · mean reward {_format_number(row.mean_reward, 3)} · '
            f"{_format_number(row.mean_steps, 1)} steps</p>",
        ]
    else:
        lines.append("<p><b>–</b> no verdict yet</p>")
    if row.masked:
        lines.append(f'<p class="none">{row.masked} without a verdict</p>')
    if row.errors:
        lines.append(f'<p class="none">{row.errors} ended by an exception of the policy</p>')
    missing = part.n_tasks - row.episodes - row.masked - row.errors
    if missing > 0:
        lines.append(f'<p class="none">{missing} of {part.n_tasks} tasks not run yet</p>')
    return f'<div class="card">{"".join(lines)}</div>'


def _bar(row: ReportRow) -> str:
    """The interval as a stripe and the share as a mark in it."""
    if row.success_rate_low is None or row.success_rate_high is None:
        return ""
    low, high, share = 100 * row.success_rate_low, 100 * row.success_rate_high, 100 * row.solved / row.episodes
    return (
        f'<div class="bar" role="img" aria-label="{share:.0f} %, between {low:.0f} % and {high:.0f} %">'
        f'<i class="range" style="left:{low:.2f}%;width:{high - low:.2f}%"></i>'
        f'<i class="point" style="left:{share:.2f}%"></i></div>'
    )


def _interval(row: ReportRow) -> str:
    if row.success_rate_low is None or row.success_rate_high is None:
        return "–"
    return f"{row.success_rate_low:.1%} to {row.success_rate_high:.1%}"


def _domains(reports: Sequence[tuple[BudgetReport, EvaluationSummary]]) -> str:
    """A line for each domain and family; of several budgets their solved shares side by side, and each one's table below."""
    if len(reports) == 1:
        return f"<h2>Domains</h2>{_table_of(reports[0][1])}"
    shown = [summary.rows_with_families for _, summary in reports]
    names = dict.fromkeys(row.domain for rows in shown for row in rows if row.domain != ALL)
    names = dict.fromkeys(
        [*sorted(name for name in names if name != INFEASIBLE), *(n for n in names if n == INFEASIBLE), ALL]
    )
    head = "".join(f'<th scope="col">{part.name}</th>' for part, _ in reports)
    lines = []
    for name in names:
        found = [next((row for row in rows if row.domain == name), None) for rows in shown]
        cells = "".join(f"<td>{_share(row)}</td>" for row in found)
        lines.append(f'<tr{_row_class(name)}><td class="id">{html.escape(_domain(name))}</td>{cells}</tr>')
    each = "".join(
        f"<details><summary>{part.name}</summary>{_table_of(summary)}</details>" for part, summary in reports
    )
    table = f"<thead><tr><th scope='col'>domain</th>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<h2>Domains by step budget</h2><div class="wide"><table>{table}</table></div>{each}'


def _domain(name: str) -> str:
    return {ALL: "all", INFEASIBLE: "infeasible tasks"}.get(name, name)


def _row_class(name: str) -> str:
    return ' class="all"' if name == ALL else ""


def _share(row: ReportRow | None) -> str:
    if row is None or not row.episodes:
        return '<span class="none">masked</span>' if row is not None and row.masked else "–"
    return f'{row.solved / row.episodes:.1%} <span class="soft">({row.solved}/{row.episodes})</span>{_bar(row)}'


def _table_of(summary: EvaluationSummary) -> str:
    names = (
        "domain",
        "episodes",
        "masked",
        "policy errors",
        "solved",
        "95 % interval",
        "mean reward",
        "steps",
        "seconds",
    )
    head = "".join(f'<th scope="col"{_aligned(name)}>{name}</th>' for name in names)
    lines = []
    for row in summary.rows_with_families:
        solved = f"{row.solved} ({row.solved / row.episodes:.1%})" if row.episodes else "–"
        errors = f'<span class="none">{row.errors}</span>' if row.errors else "0"
        masked = f'<span class="none">{row.masked}</span>' if row.masked else "0"
        numbers = (
            str(row.episodes), masked, errors, solved, _interval(row) + _bar(row),
            _format_number(row.mean_reward, 3), _format_number(row.mean_steps, 1),
            _format_number(row.mean_duration_s, 1),
        )  # fmt: skip
        cells = "".join(f"<td{_aligned(name)}>{cell}</td>" for name, cell in zip(names[1:], numbers, strict=True))
        lines.append(f'<tr{_row_class(row.domain)}><td class="id">{html.escape(_domain(row.domain))}</td>{cells}</tr>')
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _aligned(column: str) -> str:
    """Numbers stand to the right, and so does the head over them."""
    return ' class="n"' if column in NUMBERS else ""


def _format_number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _episodes_table(parts: Sequence[BudgetReport]) -> str:
    """Every task, with its episode in each budget; those that were not solved first."""
    by_part = [{episode.task_id: episode for episode in part.episodes} for part in parts]
    tasks = sorted(
        {task_id for episodes in by_part for task_id in episodes}, key=lambda one: (_worst_reward(one, by_part), one)
    )
    several = len(parts) > 1
    saved = any(episode.trajectory for episodes in by_part for episode in episodes.values())
    names = [
        *(["budget"] if several else []),
        *(["steps seen"] if saved else []),
        "reward",
        "end",
        "steps",
        "seconds",
        "cause",
    ]
    head = "".join(f'<th scope="col"{_aligned(name)}>{name}</th>' for name in names)
    lines = []
    for task_id in tasks:
        runs = [(part, episodes[task_id]) for part, episodes in zip(parts, by_part, strict=True) if task_id in episodes]
        for index, (part, episode) in enumerate(runs):
            span = f' rowspan="{len(runs)}"' if len(runs) > 1 else ""
            asked = f'<br><span class="soft">{html.escape(episode.instruction)}</span>' if episode.instruction else ""
            first = f'<td class="id"{span}>{html.escape(task_id)}{asked}</td>' if index == 0 else ""
            budget = (
                f"<td{_aligned('budget')}>{part.budget if part.budget is not None else 'own'}</td>" if several else ""
            )
            seen = f"<td>{_trajectory_link(part, episode, several)}</td>" if saved else ""
            lines.append(f"<tr>{first}{budget}{seen}{_cells(episode)}</tr>")
    table = f"<thead><tr><th scope='col'>task</th>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<p class="soft">What was not solved comes first.</p><div class="wide"><table>{table}</table></div>'


def _refused_table(refused: Mapping[str, str]) -> str:
    """The tasks that cannot run here: a fold for each reason, with what is known of each task."""
    folds = []
    for reason, ids in group_refusals(refused):
        lines = "".join(
            f'<tr><td class="id">{html.escape(one)}</td><td class="cause">{html.escape(refused[one])}</td></tr>'
            for one in sorted(ids)
        )
        folds.append(
            f"<details><summary>{len(ids)}: {html.escape(reason)}</summary>"
            f'<div class="wide"><table><tbody>{lines}</tbody></table></div></details>'
        )
    return f'<h2>Left out</h2><p class="soft">{len(refused)} tasks cannot run here.</p>{"".join(folds)}'


def _trajectory_link(part: BudgetReport, episode: EvaluationEpisode, several: bool) -> str:
    if episode.trajectory is None:
        return ""
    folder = f"steps-{part.budget}/" if several else ""
    return f'<a href="{html.escape(folder + episode.trajectory)}/index.html">look</a>'


def _worst_reward(task_id: str, by_part: Iterable[Mapping[str, EvaluationEpisode]]) -> float:
    rewards = [episodes[task_id].reward for episodes in by_part if task_id in episodes]
    return min(-1.0 if reward is None else reward for reward in rewards)


def _cells(episode: EvaluationEpisode) -> str:
    if episode.reward is None:
        reward = f'<span class="none">{"error" if episode.end == POLICY_ERROR else "masked"}</span>'
    else:
        reward = (
            f'<span class="solved">{episode.reward:g}</span>' if is_success(episode.reward) else f"{episode.reward:g}"
        )
    refused = f", {episode.rejected_actions} refused" if episode.rejected_actions else ""
    return (
        f"<td>{reward}</td><td>{html.escape(episode.end)}{' (infeasible task)' if episode.infeasible else ''}</td>"
        f"<td{_aligned('steps')}>{episode.steps}{refused}</td><td{_aligned('seconds')}>{episode.duration_s:.1f}</td>"
        f'<td class="cause">{html.escape(episode.cause or "")}</td>'
    )
