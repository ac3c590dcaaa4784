"""The proof of OSWorld's offline tasks: choosing, remembering, the table. Playing is a command of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import osworld_data
import pytest
from typer.testing import CliRunner

from dart_envs.cli.main import app
from dart_envs.errors import TaskError
from dart_envs.evaluators.scorer_choice import INFEASIBLE, Scorer
from dart_envs.validation.osworld.offline import OFFLINE_TASK_IDS
from dart_envs.validation.osworld.oracles import ORACLES, exclusion_reason
from dart_envs.validation.osworld.records import (
    TABLE_BEGIN,
    TABLE_END,
    OsworldRecords,
    failure_reason,
    is_accounted_for,
    is_validated,
    replace_table,
    to_markdown,
)
from dart_envs.validation.osworld.runs import OsworldCase, OsworldResult, ValidationRun, load_cases

CAN = "e0df059f-28a6-4169-924f-b9623e7184cc"
"""An id that has a solution; the task below is ours."""
CANNOT = "00000000-0000-4000-8000-000000000001"
REPO = Path(__file__).parents[4]


def task(task_id: str, func: str) -> dict[str, Any]:
    evaluator: dict[str, Any] = {"func": func}
    if func != INFEASIBLE:
        evaluator |= {
            "result": {"type": "vm_command_line", "command": ["true"]},
            "expected": {"type": "rule", "rules": {"expected": ""}},
        }
    return {"id": task_id, "instruction": "Do it.", "config": [], "evaluator": evaluator}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "osworld"
    (place / "examples" / "os").mkdir(parents=True)
    for task_id, func in ((CAN, "exact_match"), (CANNOT, INFEASIBLE)):
        (place / "examples" / "os" / f"{task_id}.json").write_text(json.dumps(task(task_id, func)))
    (place / "zero_download.txt").write_text(f"os/{CAN}\tx\ty\nos/{CANNOT}\tx\ty\n2\n")
    return place


def result(
    case: OsworldCase, run: ValidationRun, reward: float | None, cause: str | None = None, image: str = "abc"
) -> OsworldResult:
    return OsworldResult(
        case.domain, case.task.id, run, case.definition(run), image, reward is not None, reward, 1.0, 2.0, cause
    )


def test_cases_are_the_listed_tasks_and_can_be_chosen(folder: Path) -> None:
    can, cannot = load_cases(folder)
    assert (can.runs, cannot.runs) == (
        (ValidationRun.NOOP, ValidationRun.ORACLE),
        (ValidationRun.FAIL, ValidationRun.DONE),
    )
    assert can.task.image == "desktop"
    assert [case.task.id for case in load_cases(folder, ["0000"])] == [CANNOT]
    assert len(load_cases(folder, ["os"])) == 2
    with pytest.raises(TaskError, match="'gimp' is no domain"):
        load_cases(folder, ["gimp"])
    with pytest.raises(TaskError, match="has no folder 'examples'"):
        load_cases(folder.parent)


def test_without_a_list_the_offline_tasks_are_those_we_know(folder: Path) -> None:
    (folder / "zero_download.txt").unlink()
    assert [case.task.id for case in load_cases(folder, [CAN[:8]])] == [CAN]
    with pytest.raises(TaskError, match=r"chrome.*\.json: cannot be read"):
        load_cases(folder)


def test_a_result_stands_until_the_solution_changes(folder: Path, tmp_path: Path) -> None:
    case = load_cases(folder, [CAN])[0]
    path = tmp_path / "records.jsonl"
    records = OsworldRecords(path)
    assert len(records.pending([case])) == 2
    records.add(result(case, ValidationRun.NOOP, 0.0))
    records.add(result(case, ValidationRun.ORACLE, 0.0, "scored 0"))
    assert records.pending([case]) == [(case, ValidationRun.ORACLE)]
    assert failure_reason(records, case) == "scored 0"
    records.add(result(case, ValidationRun.ORACLE, 1.0))
    again = OsworldRecords(path)
    assert again.pending([case]) == []
    assert is_validated(again, case)
    assert case.solution is not None
    other = replace(case, solution=replace(case.solution, moves=case.solution.moves * 2))
    assert again.pending([other]) == [(other, ValidationRun.ORACLE)]
    path.write_text(path.read_text() + '{"task_id": 1}\n')
    with pytest.raises(ValueError, match="line 4 is not a result"):
        OsworldRecords(path)


def test_a_result_stands_for_its_image_and_its_scorer(folder: Path, tmp_path: Path) -> None:
    (case,) = load_cases(folder, [CAN])
    path = tmp_path / "records.jsonl"
    for run in case.runs:
        OsworldRecords(path).add(result(case, run, run.expected_reward, image="sha256:old"))
    assert OsworldRecords(path).pending([case]) == OsworldRecords(path, image_digest="sha256:old").pending([case]) == []
    assert len(OsworldRecords(path, image_digest="sha256:new").pending([case])) == 2
    assert len(OsworldRecords(path).pending(load_cases(folder, [CAN], Scorer.BUILTIN))) == 2


def test_a_line_that_was_cut_off_is_played_again(folder: Path, tmp_path: Path) -> None:
    (case,) = load_cases(folder, [CAN])
    path = tmp_path / "records.jsonl"
    for run in case.runs:
        OsworldRecords(path).add(result(case, run, run.expected_reward))
    path.write_text(path.read_text()[:-30])
    records = OsworldRecords(path)
    assert records.pending([case]) == [(case, ValidationRun.ORACLE)]
    records.add(result(case, ValidationRun.ORACLE, 1.0))
    assert OsworldRecords(path).pending([case]) == []


def test_what_lacks_its_set_up_or_has_the_wrong_score_is_not_proved(folder: Path) -> None:
    can, cannot = load_cases(folder)
    records = OsworldRecords(None)
    for run, reward in ((ValidationRun.FAIL, 1.0), (ValidationRun.DONE, 1.0)):
        records.add(result(cannot, run, reward))
    assert not is_validated(records, cannot)
    records.add(result(cannot, ValidationRun.DONE, 0.0))
    assert is_validated(records, cannot)
    records.add(result(can, ValidationRun.NOOP, None, "SetupError: no window"))
    assert failure_reason(records, can) == "SetupError: no window"
    assert not is_accounted_for(records, can)
    known = replace(can, reason="nothing has to be done")
    assert is_accounted_for(records, known)
    for run in can.runs:
        records.add(result(can, run, run.expected_reward))
    assert (is_validated(records, can), is_validated(records, known), failure_reason(records, known)) == (
        True,
        False,
        "nothing has to be done",
    )


def test_the_table_replaces_what_stands_between_its_marks(folder: Path, tmp_path: Path) -> None:
    wanted = load_cases(folder)
    records = OsworldRecords(None)
    for case in wanted:
        for run in case.runs:
            records.add(result(case, run, run.expected_reward))
    table = to_markdown(records, wanted)
    assert table.startswith("1 of 1 tasks that can be done and 1 of 1 that cannot are proved (image `desktop` abc).")
    assert f"| os/{CAN[:8]} | yes | 0 | 1 | 6 | shell |" in table
    page = tmp_path / "page.md"
    page.write_text(f"before\n{TABLE_BEGIN}\nold\n{TABLE_END}\nafter\n")
    replace_table(page, table)
    assert page.read_text() == f"before\n{TABLE_BEGIN}\n{table}\n{TABLE_END}\nafter\n"
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match="has no lines"):
        replace_table(page, table)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--osworld"),
        (["--osworld", "{}/nowhere"], "has no folder 'examples'"),
        (["--osworld", "{}", "--only", "excel"], "'excel' is no domain"),
        (["--osworld", "{}", "--scorer", "mine"], "auto, builtin or osworld"),
        (["--osworld", "{}"], "dart-envs scorer install"),
        (["--osworld", "{}", "--table", "{}/nowhere.md"], "nowhere.md: cannot be read"),
        (["--osworld", "{}", "--table", "{}/zero_download.txt"], "has no lines"),
        (["--osworld", "{}", "--table", "{}/x.md", "--only", "os"], "leave out --only"),
        (["--osworld", "{}", "--out", "{}/zero_download.txt/x"], "zero_download.txt"),
        (["basics", "--only", "os"], "--only goes with --osworld"),
        (["basics", "--scorer", "mine"], "auto, builtin or osworld"),
    ],
)
def test_wrong_input_is_one_sentence_before_a_desktop_is_leased(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setenv("DART_SCORER_DIR", str(tmp_path / "no-scorer"))
    monkeypatch.setenv("DART_FARM_URL", "http://127.0.0.1:9")
    said = CliRunner().invoke(app, ["tasks", "check", *(one.replace("{}", str(folder)) for one in arguments)])
    assert said.exit_code == 2
    assert words in " ".join(said.output.split())
    assert isinstance(said.exception, SystemExit)


def test_every_offline_task_of_osworld_has_a_solution_or_a_reason() -> None:
    found = load_cases(osworld_data.data())
    known = {(domain, task_id) for domain, ids in OFFLINE_TASK_IDS.items() for task_id in ids}
    assert {(case.domain, case.task.id) for case in found} == known
    assert (len(found), sum(case.infeasible for case in found)) == (58, 17)
    open_ones = [case for case in found if not case.infeasible and case.solution is None]
    assert all(exclusion_reason(case.domain, case.task.id) for case in open_ones)
    assert set(ORACLES) <= {case.task.id for case in found}
