"""The book of validations: what was proved, kept line by line, and what it comes to.

Role: `ValidationRecords` (a file of JSON lines, or memory) and its summary, as data and as a table. Rule: a line is written as its
validation ends; what holds of the same definition on the same desktop is not proved again, everything else is; failed lines stay in the
file and are counted. Non-goals: playing (`suites`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.json_lines import append_json_line, cut_incomplete_line, read_json_lines
from dart_envs.validation.suites import ValidationJob, ValidationKind, ValidationResult
from dart_server.wire import Clock, DesktopShape

VALIDATIONS_FILE, RECORD_FILE = "validations.jsonl", "record.json"
_FIELDS = {field.name for field in fields(ValidationResult)}

Key = tuple[str, ValidationKind, int, str, str]
"""Task, kind, repeat, definition, shape."""


def shape_text(shape: DesktopShape) -> str:
    """`desktop 1920x1080`, with the font size where there is one."""
    width, height = shape.resolution
    return f"{shape.image} {width}x{height}" + ("" if shape.font_size is None else f" font {shape.font_size}")


class ValidationRecords:
    """Proofs by key, the newest of each.

    `folder`: where they are kept, None: in memory only. Raises ValueError for a file with something else in it.
    """

    def __init__(self, folder: Path | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = None if folder is None else folder / VALIDATIONS_FILE
        self._clock = clock
        self._session = datetime.now(UTC).isoformat(timespec="microseconds")
        self._started_s = clock.monotonic()
        self._lines: list[dict[str, Any]] = []
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._read()

    def _read(self) -> None:
        assert self._path is not None
        if not self._path.exists():
            return
        cut_incomplete_line(self._path)
        for number, line in enumerate(read_json_lines(self._path), start=1):
            try:
                read = json.loads(line)
                self._parse_result(read)
                _ = (read["shape"], read["session"], read["session_s"])
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"{self._path}: line {number} is not a validation ({error!r}); choose another --out."
                ) from error
            self._lines.append(read)

    @staticmethod
    def _parse_result(line: dict[str, Any]) -> ValidationResult:
        known = {name: value for name, value in line.items() if name in _FIELDS}
        return ValidationResult(**known | {"kind": ValidationKind(known["kind"])})

    def add(self, validation: ValidationResult, shape: DesktopShape) -> None:
        """Write one down."""
        line = validation.as_dict() | {
            "shape": shape_text(shape),
            "session": self._session,
            "session_s": round(self._clock.monotonic() - self._started_s, 3),
        }
        self._lines.append(line)
        if self._path is not None:
            append_json_line(self._path, line)

    def _latest(self) -> dict[Key, ValidationResult]:
        newest: dict[Key, ValidationResult] = {}
        for line in self._lines:
            validation = self._parse_result(line)
            newest[validation.task_id, validation.kind, validation.repeat, validation.definition, line["shape"]] = (
                validation
            )
        return newest

    def pending(self, jobs: Iterable[ValidationJob], shape: DesktopShape) -> list[ValidationJob]:
        """Those of the jobs for which nothing stands that holds."""
        standing = self._latest()
        return [job for job in jobs if not ((found := standing.get(result_key(job, shape))) and found.passed)]

    def summary(self, wanted: Sequence[tuple[ValidationJob, DesktopShape]]) -> dict[str, Any]:
        """What the jobs that were wanted came to, for JSON.

        Times in seconds: `session_s` of this session, `wall_s` over all sessions, `desktops_s` summed over desktops.
        """
        newest = self._latest()
        validations = [newest[key] for job, shape in wanted if (key := result_key(job, shape)) in newest]
        missing = len(wanted) - len(validations)
        ends_s: dict[str, float] = {}
        for line in self._lines:
            ends_s[line["session"]] = max(ends_s.get(line["session"], 0.0), line["session_s"])
        return {
            "shapes": sorted({shape_text(shape) for _, shape in wanted}),
            "image_digests": sorted({validation.image_digest for validation in validations if validation.image_digest}),
            "families": len({suite_family(validation) for validation in validations}),
            "tasks": len({validation.task_id for validation in validations}),
            "validations_expected": len(wanted),
            "validations_missing": missing,
            "passed": sum(validation.passed for validation in validations),
            "failed": [validation.as_dict() for validation in validations if not validation.passed],
            "failed_before": sum(not self._parse_result(line).passed for line in self._lines)
            - sum(not validation.passed for validation in validations),
            "by_kind": {
                kind.value: _counts([validation for validation in validations if validation.kind is kind])
                for kind in ValidationKind
            },
            "repeats_agree": repeats_agree(validations),
            "all_passed": not missing and all(validation.passed for validation in validations),
            "session_s": round(ends_s.get(self._session, 0.0), 1),
            "wall_s": round(sum(ends_s.values()), 1),
            "sessions": len(ends_s),
            "desktops_s": round(sum(validation.setup_s + validation.episode_s for validation in validations), 1),
            "by_family": family_rows(validations),
            "validations": [validation.as_dict() for validation in validations],
        }


def result_key(job: ValidationJob, shape: DesktopShape) -> Key:
    """What a validation of this job is known by."""
    return job.task.id, job.kind, job.repeat, job.definition, shape_text(shape)


def suite_family(validation: ValidationResult) -> str:
    """`suite/family`."""
    return validation.task_id.rsplit("/", 1)[0]


def repeats_agree(validations: Iterable[ValidationResult]) -> bool | None:
    """Whether every play that was repeated got the same verdict each time; None where nothing was repeated."""
    verdicts: dict[tuple[str, ValidationKind], list[float | None]] = {}
    for validation in validations:
        verdicts.setdefault((validation.task_id, validation.kind), []).append(validation.reward)
    repeated = [rewards for rewards in verdicts.values() if len(rewards) > 1]
    return all(None not in rewards and len(set(rewards)) == 1 for rewards in repeated) if repeated else None


def _counts(validations: Sequence[ValidationResult]) -> dict[str, int]:
    return {"validations": len(validations), "passed": sum(validation.passed for validation in validations)}


def family_rows(validations: Sequence[ValidationResult]) -> dict[str, dict[str, Any]]:
    """By family: tasks, validations, those that hold, by kind those that fail, mean seconds of setup and play."""
    rows: dict[str, dict[str, Any]] = {}
    for family in dict.fromkeys(suite_family(validation) for validation in validations):
        own = [validation for validation in validations if suite_family(validation) == family]
        rows[family] = {
            "tasks": len({validation.task_id for validation in own}),
            "validations": len(own),
            "passed": sum(validation.passed for validation in own),
            "failing": {
                kind.value: count
                for kind in ValidationKind
                if (count := sum(p.kind is kind and not p.passed for p in own))
            },
            "setup_s": round(sum(validation.setup_s for validation in own) / len(own), 2),
            "episode_s": round(sum(validation.episode_s for validation in own) / len(own), 2),
        }
    return rows


COLUMN_TITLES = ("family", "tasks", "validations", "passed", "setup s", "play s", "failing")


def to_text(record: dict[str, Any]) -> str:
    """A table for the terminal, a row per family, and the sum below."""
    lines = [COLUMN_TITLES]
    for family, row in record["by_family"].items():
        failing = ", ".join(f"{kind} {count}" for kind, count in row["failing"].items()) or "-"
        figures = (str(row["tasks"]), str(row["validations"]), str(row["passed"]), f"{row['setup_s']:.2f}")
        lines.append((family, *figures, f"{row['episode_s']:.2f}", failing))
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMN_TITLES))]
    table = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    same = record["repeats_agree"]
    repeats = "" if same is None else f" Repeats got {'the same verdicts' if same else 'DIFFERENT verdicts'}."
    all_sessions = f" ({record['wall_s']:.0f} s over all sessions)" if record["wall_s"] > record["session_s"] else ""
    missing = f" {record['validations_missing']} are still missing." if record["validations_missing"] else ""
    return (
        f"{table}\n{record['passed']} of {record['validations_expected']} validations hold, over {record['families']} families, "
        f"in {record['session_s']:.0f} s{all_sessions}.{missing}{repeats}"
    )
