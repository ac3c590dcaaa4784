"""What was proved, kept line by line, and the table made of it.

Role: the record of results, which of them still stand, and the table in Markdown. Rule: the newest result of a play counts, as long as
task, solution and image are what they were; a last line that was cut off is no result. Non-goals: playing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dart_envs.validation.osworld.prove import Case, Result, ValidationRun

BEGIN, END = "<!-- offline tasks: begin -->", "<!-- offline tasks: end -->"
"""Between these lines of a page the table is replaced."""


class OsworldRecords:
    """Results by task and play, the newest of each. image_digest: the image whose results count; None: whatever they were made on.

    Raises ValueError for a file with something else in it.
    """

    def __init__(self, path: Path | None, *, image_digest: str | None = None) -> None:
        self._path = path
        self._image_digest = image_digest
        self._results: dict[tuple[str, ValidationRun, str], Result] = {}
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        whole, _, cut_off = path.read_text(encoding="utf-8").rpartition("\n")
        if cut_off:
            path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                read = json.loads(line)
                self._keep(Result(**read | {"play": ValidationRun(read["play"])}))
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}: line {number} is not a result ({error!r}); choose another --out.") from error

    def _keep(self, result: Result) -> None:
        if self._image_digest in (None, result.image_digest) or not result.image_digest:
            self._results[result.task_id, result.play, result.definition] = result

    def add(self, result: Result) -> None:
        """Write one down."""
        self._keep(result)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")

    def of(self, case: Case, play: ValidationRun) -> Result | None:
        """The newest result of a play as it is defined now."""
        return self._results.get((case.task.id, play, case.definition(play)))

    def todo(self, wanted: Sequence[Case]) -> list[tuple[Case, ValidationRun]]:
        """The plays of which no result holds."""
        return [
            (case, play)
            for case in wanted
            for play in case.plays
            if not ((found := self.of(case, play)) is not None and found.holds)
        ]


def proved(book: OsworldRecords, case: Case) -> bool:
    """Whether every play of a case holds, its solution among them, and nothing is known against it."""
    complete = (case.infeasible or case.solution is not None) and case.reason is None
    return complete and all((found := book.of(case, play)) is not None and found.holds for play in case.plays)


def accounted(book: OsworldRecords, case: Case) -> bool:
    """Whether a case is proved, or it is known why it cannot be."""
    return proved(book, case) or case.reason is not None


def reason(book: OsworldRecords, case: Case) -> str:
    """Why a case is not proved, in a sentence; "" where it is."""
    if proved(book, case):
        return ""
    results = [book.of(case, play) for play in case.plays]
    causes = [result.cause for result in results if result is not None and result.cause]
    missing = "not played yet" if None in results else ""
    said = case.reason or next(iter(causes), None) or missing
    return said.replace("\n", " ").replace("|", "/")[:300]


def to_markdown(book: OsworldRecords, wanted: Sequence[Case]) -> str:
    """The table: a row per task, and the sums above it."""
    feasible = [case for case in wanted if not case.infeasible]
    impossible = [case for case in wanted if case.infeasible]
    digests = {
        found.image_digest for case in wanted for play in case.plays if (found := book.of(case, play)) and found.set_up
    }
    lines = [
        f"{sum(proved(book, case) for case in feasible)} of {len(feasible)} tasks that can be done and"
        f" {sum(proved(book, case) for case in impossible)} of {len(impossible)} that cannot are proved"
        f" (image `desktop` {', '.join(sorted(digests)) or 'not seen'}).",
        "",
        "| task | setup | nothing / DONE | oracle / FAIL | seconds | how, or why not |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_row(book, case) for case in wanted]
    return "\n".join(lines)


def _row(book: OsworldRecords, case: Case) -> str:
    zero, one = (
        (ValidationRun.DONE, ValidationRun.FAIL) if case.infeasible else (ValidationRun.NOTHING, ValidationRun.ORACLE)
    )
    found = [book.of(case, play) for play in (zero, one)]
    known = [result for result in found if result is not None]
    set_up = "–" if not known else "yes" if all(result.set_up for result in known) else "no"
    seconds = f"{sum(result.setup_s + result.play_s for result in known):.0f}" if known else "–"
    how = "cannot be done" if case.infeasible else case.solution.how if case.solution else ""
    scores = " | ".join("–" if result is None or result.reward is None else f"{result.reward:g}" for result in found)
    return f"| {case.domain}/{case.task.id[:8]} | {set_up} | {scores} | {seconds} | {reason(book, case) or how} |"


def check_page(page: Path, *, whole: bool, official: bool) -> None:
    """Raise ValueError where a page cannot take the table, before hours were spent on it."""
    if not (whole and official):
        raise ValueError("--table takes the whole table under the osworld scorer: leave out --only and --scorer.")
    _parts(page)


def _parts(page: Path) -> tuple[str, str]:
    """What stands before and after the table of a page. Raises ValueError."""
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{page}: cannot be read: {error.strerror}.") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} has no lines {BEGIN} and {END}.")
    return before, after


def put_into(page: Path, table: str) -> None:
    """Replace what stands between the marks of a page. Raises ValueError where they are missing."""
    before, after = _parts(page)
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
