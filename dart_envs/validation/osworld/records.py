"""What was proved, kept line by line, and the table made of it.

Role: the record of results, which of them still stand, and the table in Markdown. Rule: the newest result of a run counts, as long as
task, solution and image are what they were; a last line that was cut off is no result. Non-goals: playing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dart_envs.json_lines import append_json_line, cut_incomplete_line, read_json_lines
from dart_envs.validation.osworld.runs import OsworldCase, OsworldResult, ValidationRun

TABLE_BEGIN, TABLE_END = "<!-- offline tasks: begin -->", "<!-- offline tasks: end -->"
"""Between these lines of a page the table is replaced."""


class OsworldRecords:
    """Results by task and run, the newest of each. image_digest: the image whose results count; None: whatever they were made on.

    Raises ValueError for a file with something else in it.
    """

    def __init__(self, path: Path | None, *, image_digest: str | None = None) -> None:
        self._path = path
        self._image_digest = image_digest
        self._results: dict[tuple[str, ValidationRun, str], OsworldResult] = {}
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        cut_incomplete_line(path)
        for number, line in enumerate(read_json_lines(path), start=1):
            try:
                read = json.loads(line)
                self._keep(OsworldResult(**read | {"run": ValidationRun(read["run"])}))
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}: line {number} is not a result ({error!r}); choose another --out.") from error

    def _keep(self, result: OsworldResult) -> None:
        if self._image_digest in (None, result.image_digest) or not result.image_digest:
            self._results[result.task_id, result.run, result.definition] = result

    def add(self, result: OsworldResult) -> None:
        """Write one down."""
        self._keep(result)
        if self._path is not None:
            append_json_line(self._path, asdict(result))

    def latest(self, case: OsworldCase, run: ValidationRun) -> OsworldResult | None:
        """The newest result of a run as it is defined now."""
        return self._results.get((case.task.id, run, case.definition(run)))

    def pending(self, wanted: Sequence[OsworldCase]) -> list[tuple[OsworldCase, ValidationRun]]:
        """The plays of which no result holds."""
        return [
            (case, run)
            for case in wanted
            for run in case.runs
            if not ((found := self.latest(case, run)) is not None and found.passed)
        ]


def is_validated(records: OsworldRecords, case: OsworldCase) -> bool:
    """Whether every run of a case holds, its solution among them, and nothing is known against it."""
    complete = (case.infeasible or case.solution is not None) and case.reason is None
    return complete and all((found := records.latest(case, run)) is not None and found.passed for run in case.runs)


def is_accounted_for(records: OsworldRecords, case: OsworldCase) -> bool:
    """Whether a case is proved, or it is known why it cannot be."""
    return is_validated(records, case) or case.reason is not None


def failure_reason(records: OsworldRecords, case: OsworldCase) -> str:
    """Why a case is not proved, in a sentence; "" where it is."""
    if is_validated(records, case):
        return ""
    results = [records.latest(case, run) for run in case.runs]
    causes = [result.cause for result in results if result is not None and result.cause]
    missing = "not played yet" if None in results else ""
    said = case.reason or next(iter(causes), None) or missing
    return said.replace("\n", " ").replace("|", "/")[:300]


def to_markdown(records: OsworldRecords, wanted: Sequence[OsworldCase]) -> str:
    """The table: a row per task, and the sums above it."""
    feasible = [case for case in wanted if not case.infeasible]
    impossible = [case for case in wanted if case.infeasible]
    digests = {
        found.image_digest
        for case in wanted
        for run in case.runs
        if (found := records.latest(case, run)) and found.setup_done
    }
    lines = [
        f"{sum(is_validated(records, case) for case in feasible)} of {len(feasible)} tasks that can be done and"
        f" {sum(is_validated(records, case) for case in impossible)} of {len(impossible)} that cannot are proved"
        f" (image `desktop` {', '.join(sorted(digests)) or 'not seen'}).",
        "",
        "| task | setup | noop / DONE | oracle / FAIL | seconds | how, or why not |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_row(records, case) for case in wanted]
    return "\n".join(lines)


def _row(records: OsworldRecords, case: OsworldCase) -> str:
    zero, one = (
        (ValidationRun.DONE, ValidationRun.FAIL) if case.infeasible else (ValidationRun.NOOP, ValidationRun.ORACLE)
    )
    found = [records.latest(case, run) for run in (zero, one)]
    known = [result for result in found if result is not None]
    setup_done = "–" if not known else "yes" if all(result.setup_done for result in known) else "no"
    seconds = f"{sum(result.setup_s + result.episode_s for result in known):.0f}" if known else "–"
    how = "cannot be done" if case.infeasible else case.solution.method if case.solution else ""
    scores = " | ".join("–" if result is None or result.reward is None else f"{result.reward:g}" for result in found)
    return f"| {case.domain}/{case.task.id[:8]} | {setup_done} | {scores} | {seconds} | {failure_reason(records, case) or how} |"


def check_page(page: Path, *, whole: bool, osworld_scorer: bool) -> None:
    """Raise ValueError where a page cannot take the table, before hours were spent on it."""
    if not (whole and osworld_scorer):
        raise ValueError("--table takes the whole table under the osworld scorer: leave out --only and --scorer.")
    _parts(page)


def _parts(page: Path) -> tuple[str, str]:
    """What stands before and after the table of a page. Raises ValueError."""
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{page}: cannot be read: {error.strerror}.") from error
    before, begin, rest = text.partition(TABLE_BEGIN)
    _, end, after = rest.partition(TABLE_END)
    if not (begin and end):
        raise ValueError(f"{page} has no lines {TABLE_BEGIN} and {TABLE_END}.")
    return before, after


def replace_table(page: Path, table: str) -> None:
    """Replace what stands between the marks of a page. Raises ValueError where they are missing."""
    before, after = _parts(page)
    page.write_text(f"{before}{TABLE_BEGIN}\n{table}\n{TABLE_END}{after}", encoding="utf-8")
