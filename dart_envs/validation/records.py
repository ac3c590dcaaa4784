"""The book of proofs: what was proved, kept line by line, and what it comes to.

Role: `ValidationRecords` (a file of JSON lines, or memory) and its summary, as data and as a table. Rule: a line is written as its proof
ends; what holds of the same definition on the same desktop is not proved again, everything else is; failed lines stay in the file and
are counted. Non-goals: playing (`proof`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.validation.suites import Job, Kind, ValidationResult
from dart_server.wire import Clock, DesktopShape

PROOFS_FILE, RECORD_FILE = "proofs.jsonl", "record.json"
_FIELDS = {field.name for field in fields(ValidationResult)}

Key = tuple[str, Kind, int, str, str]
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
        self._path = None if folder is None else folder / PROOFS_FILE
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
        text = self._path.read_text(encoding="utf-8")
        if not text.endswith("\n") and text:
            text = text[: text.rfind("\n") + 1]
            self._path.write_text(text, encoding="utf-8")
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                read = json.loads(line)
                self._proof(read)
                _ = (read["shape"], read["session"], read["session_s"])
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"{self._path}: line {number} is not a proof ({error!r}); choose another --out."
                ) from error
            self._lines.append(read)

    @staticmethod
    def _proof(line: dict[str, Any]) -> ValidationResult:
        known = {name: value for name, value in line.items() if name in _FIELDS}
        return ValidationResult(**known | {"kind": Kind(known["kind"])})

    def add(self, proof: ValidationResult, shape: DesktopShape) -> None:
        """Write one down."""
        line = proof.as_dict() | {
            "shape": shape_text(shape),
            "session": self._session,
            "session_s": round(self._clock.monotonic() - self._started_s, 3),
        }
        self._lines.append(line)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _newest(self) -> dict[Key, ValidationResult]:
        newest: dict[Key, ValidationResult] = {}
        for line in self._lines:
            proof = self._proof(line)
            newest[proof.task_id, proof.kind, proof.repeat, proof.definition, line["shape"]] = proof
        return newest

    def todo(self, jobs: Iterable[Job], shape: DesktopShape) -> list[Job]:
        """Those of the jobs for which nothing stands that holds."""
        standing = self._newest()
        return [job for job in jobs if not ((found := standing.get(key_of(job, shape))) and found.holds)]

    def record(self, wanted: Sequence[tuple[Job, DesktopShape]]) -> dict[str, Any]:
        """What the jobs that were wanted came to, for JSON.

        Times in seconds: `wall_s` over all sessions, `desktops_s` summed over desktops.
        """
        newest = self._newest()
        proofs = [newest[key] for job, shape in wanted if (key := key_of(job, shape)) in newest]
        missing = len(wanted) - len(proofs)
        ends_s: dict[str, float] = {}
        for line in self._lines:
            ends_s[line["session"]] = max(ends_s.get(line["session"], 0.0), line["session_s"])
        return {
            "shapes": sorted({shape_text(shape) for _, shape in wanted}),
            "image_digests": sorted({proof.image_digest for proof in proofs if proof.image_digest}),
            "families": len({family_of(proof) for proof in proofs}),
            "tasks": len({proof.task_id for proof in proofs}),
            "proofs_wanted": len(wanted),
            "proofs_missing": missing,
            "hold": sum(proof.holds for proof in proofs),
            "failed": [proof.as_dict() for proof in proofs if not proof.holds],
            "failed_before": sum(not self._proof(line).holds for line in self._lines)
            - sum(not proof.holds for proof in proofs),
            "by_kind": {kind.value: _counts([proof for proof in proofs if proof.kind is kind]) for kind in Kind},
            "repeats_same": repeats_same(proofs),
            "all_hold": not missing and all(proof.holds for proof in proofs),
            "wall_s": round(sum(ends_s.values()), 1),
            "sessions": len(ends_s),
            "desktops_s": round(sum(proof.setup_s + proof.play_s for proof in proofs), 1),
            "by_family": rows_of(proofs),
            "proofs": [proof.as_dict() for proof in proofs],
        }


def key_of(job: Job, shape: DesktopShape) -> Key:
    """What a proof of this job is known by."""
    return job.task.id, job.kind, job.repeat, job.definition, shape_text(shape)


def family_of(proof: ValidationResult) -> str:
    """`suite/family`."""
    return proof.task_id.rsplit("/", 1)[0]


def repeats_same(proofs: Iterable[ValidationResult]) -> bool | None:
    """Whether every play that was repeated got the same verdict each time; None where nothing was repeated."""
    verdicts: dict[tuple[str, Kind], list[float | None]] = {}
    for proof in proofs:
        verdicts.setdefault((proof.task_id, proof.kind), []).append(proof.reward)
    repeated = [rewards for rewards in verdicts.values() if len(rewards) > 1]
    return all(None not in rewards and len(set(rewards)) == 1 for rewards in repeated) if repeated else None


def _counts(proofs: Sequence[ValidationResult]) -> dict[str, int]:
    return {"proofs": len(proofs), "hold": sum(proof.holds for proof in proofs)}


def rows_of(proofs: Sequence[ValidationResult]) -> dict[str, dict[str, Any]]:
    """By family: tasks, proofs, those that hold, by kind those that fail, mean seconds of setup and play."""
    rows: dict[str, dict[str, Any]] = {}
    for family in dict.fromkeys(family_of(proof) for proof in proofs):
        own = [proof for proof in proofs if family_of(proof) == family]
        rows[family] = {
            "tasks": len({proof.task_id for proof in own}),
            "proofs": len(own),
            "hold": sum(proof.holds for proof in own),
            "failing": {
                kind.value: count for kind in Kind if (count := sum(p.kind is kind and not p.holds for p in own))
            },
            "setup_s": round(sum(proof.setup_s for proof in own) / len(own), 2),
            "play_s": round(sum(proof.play_s for proof in own) / len(own), 2),
        }
    return rows


HEADER = ("family", "tasks", "proofs", "hold", "setup s", "play s", "failing")


def to_text(record: dict[str, Any]) -> str:
    """A table for the terminal, a row per family, and the sum below."""
    lines = [HEADER]
    for family, row in record["by_family"].items():
        failing = ", ".join(f"{kind} {count}" for kind, count in row["failing"].items()) or "-"
        figures = (str(row["tasks"]), str(row["proofs"]), str(row["hold"]), f"{row['setup_s']:.2f}")
        lines.append((family, *figures, f"{row['play_s']:.2f}", failing))
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    table = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    same = record["repeats_same"]
    repeats = "" if same is None else f" Repeats got {'the same verdicts' if same else 'DIFFERENT verdicts'}."
    missing = f" {record['proofs_missing']} are still missing." if record["proofs_missing"] else ""
    return (
        f"{table}\n{record['hold']} of {record['proofs_wanted']} proofs hold, over {record['families']} families, "
        f"in {record['wall_s']:.0f} s.{missing}{repeats}"
    )
