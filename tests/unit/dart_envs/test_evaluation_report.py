"""The report of an evaluation: its figures, its text and its page."""

from __future__ import annotations

import json
import re

from dart_envs.evaluation import (
    BudgetReport,
    EvaluationEpisode,
    summarise,
    to_html,
    to_text,
)
from dart_envs.evaluation.report import ALL, INFEASIBLE, wilson


def test_the_report_keeps_what_has_no_verdict_apart() -> None:
    episodes = [
        EvaluationEpisode("s/a/0", "calc", False, 1.0, "done", 3, 0, 1.0),
        EvaluationEpisode("s/b/0", "calc", False, 0.0, "done", 5, 0, 1.0),
        EvaluationEpisode("s/c/0", "calc", False, None, "farm_fault", 0, 0, 1.0, "<b>dead</b>"),
        EvaluationEpisode("s/d/0", "os", True, 1.0, "fail", 1, 0, 1.0),
    ]
    summary = summarise(episodes)
    rows = {row.domain: row for row in summary.rows}
    assert list(rows) == ["calc", INFEASIBLE, ALL]
    assert (rows["calc"].episodes, rows["calc"].masked, rows["calc"].mean_reward) == (2, 1, 0.5)
    assert (rows[ALL].episodes, rows[ALL].solved) == (3, 2)
    assert "50.0%" in to_text(summary)
    json.dumps(summary.as_dict())
    assert summarise([]).rows[0].mean_reward is None


def test_a_domain_of_several_families_has_a_row_for_each() -> None:
    rewards = {"basics/press/0": 1.0, "basics/press/1": 0.0, "basics/tick/0": 1.0, "web/click/0": 0.0, "/a/os/x": 1.0}
    episodes = [
        EvaluationEpisode(name, "os" if name.startswith("/") else name.split("/")[0], False, reward, "done", 1, 0, 1.0)
        for name, reward in rewards.items()
    ]
    summary = summarise([*episodes, EvaluationEpisode("basics/tick/1", "basics", True, 1.0, "fail", 1, 0, 1.0)])
    families = {row["domain"]: (row["solved"], row["episodes"]) for row in summary.as_dict()["families"]}
    assert families == {"basics/press": (1, 2), "basics/tick": (1, 1)}, "infeasible tasks are apart"
    shown = ["domain", "basics", "basics/press", "basics/tick", "os", "web", INFEASIBLE, ALL]
    assert [line.split("  ")[0] for line in to_text(summary).splitlines()] == shown
    for parts in ([BudgetReport(None, episodes, 5)], [BudgetReport(15, episodes, 5), BudgetReport(50, episodes, 5)]):
        page = to_html(parts, "x", {})
        names = re.findall(r'<td class="id">([^<]*)</td>', page.split("<h2>Episodes")[0])
        assert names == ["basics", "basics/press", "basics/tick", "os", "web", "all"] * (1 if len(parts) == 1 else 3)


def test_the_page_shows_every_step_budget_and_escapes_what_it_is_told() -> None:
    short = [
        EvaluationEpisode("s/a/0", "calc", False, 0.0, "max_steps", 3, 0, 1.0),
        EvaluationEpisode("s/d/0", "os", True, 1.0, "fail", 1, 0, 1.0),
    ]
    long = [
        EvaluationEpisode("s/a/0", "calc", False, 1.0, "done", 9, 2, 1.0),
        EvaluationEpisode("s/c/0", "calc", False, None, "farm_fault", 0, 0, 1.0, "<b>dead</b>"),
    ]
    page = to_html(
        [BudgetReport(15, short, 3), BudgetReport(50, long, 3)], "oracle on <calc>", {"policy": "oracle", "model": None}
    )
    assert "&lt;b&gt;dead" in page
    assert "<b>dead" not in page
    assert "oracle on &lt;calc&gt;" in page
    text = re.sub(r"<[^>]+>", " ", page)
    for part in (
        "15 steps",
        "50 steps",
        "Domains by step budget",
        "masked",
        "1 of 3 tasks not run yet",
        "infeasible tasks",
        "2 refused",
    ):
        assert part in text, part
    assert "model" not in text, "what was not set is not shown"
    assert 'rowspan="2"' in page, "a task's budgets stand together"
    alone = to_html([BudgetReport(None, [], 4)], "x", {})
    assert "no verdict yet" in alone
    assert "4 of 4 tasks not run yet" in alone


def test_the_head_of_a_column_is_aligned_as_what_stands_under_it() -> None:
    episodes = [
        EvaluationEpisode("s/a/0", "calc", False, 0.0, "max_steps", 3, 0, 1.0),
        EvaluationEpisode("s/b/0", "os", False, 1.0, "done", 3, 0, 1.0),
    ]
    compared = 0
    for parts in ([BudgetReport(None, episodes, 2)], [BudgetReport(15, episodes, 2), BudgetReport(50, episodes, 2)]):
        for table in re.findall(r"<table>.*?</table>", to_html(parts, "x", {}), flags=re.DOTALL):
            heads = [("class" in tag, name) for tag, name in re.findall(r"<th ([^>]*)>([^<]*)</th>", table)]
            for row in re.findall(r"<tr[^>]*>(<td.*?)</tr>", table):
                cells = ['class="n"' in tag for tag in re.findall(r"<td([^>]*)>", row)]
                under = heads[len(heads) - len(cells) :]
                assert cells == [right for right, _ in under], under
                compared += len(cells)
    assert compared > 50


def test_wilsons_interval() -> None:
    low, high = wilson(8, 10) or (0, 0)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)
    assert wilson(0, 0) is None
    assert (wilson(0, 5) or (1, 1))[0] == 0.0
    assert (wilson(5, 5) or (0, 0))[1] == 1.0
