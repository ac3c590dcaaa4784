"""The answers of a finished seed in its record, so that seeds of several days and hosts add up.

Role: `pack_answers` writes them compactly, `take_over` puts those of earlier records into the work folder, where they count like answers of
this call. Rule: a seed is taken over in whole, and only with the same setting. Non-goals: models and data of that seed, which are not kept.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from benchmarks.earlier_records import read_records
from benchmarks.grounding.setting import Setting
from benchmarks.work_folder import write_json
from dart_envs.errors import UnsupportedCapabilityError

PACKED = "answers_by_seed"
RECORDED_AS = {"grounding": "head_over_text", "adaptation": "adaptation"}
"""A figure that the record of each part has."""
FOUND = Path("adaptation") / "found.json"
"""What the exploration of a seed counted, in the folder of the seed."""
RECORDED = Path("data") / "recorded.json"
"""What the source told of the recorded screens, in the folder of the seed."""
DIGEST = "test_digest"
"""Key of the digest of test screens and questions, beside that."""
WHERE = ("commit", "cpu")
"""What an arm notes of where it was measured."""


def pack_answers(folder: Path) -> dict[str, Any]:
    """Read the answers of a seed that is done.

    Args:
        folder: The folder of the seed.

    Returns:
        `samples`: ids of samples, each list once; `arms`: by arm, its seconds, its commit and processor, and by method the number of its
        list and a digit per sample, 1 where the answer is right; `found`: what the exploration counted, None without one; `recorded`: what
        the source told of the screens.
    """
    samples: list[str] = []
    arms = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        methods = {}
        for method, hits in content["answers"].items():
            ids = " ".join(hits)
            if ids not in samples:
                samples.append(ids)
            methods[method] = [samples.index(ids), "".join("1" if hit else "0" for hit in hits.values())]
        where = {key: content[key] for key in WHERE if key in content}
        arms[path.stem] = {"seconds": content["seconds"], "methods": methods, **where}
    found = folder / FOUND
    counted = json.loads(found.read_text(encoding="utf-8")) if found.exists() else None
    told = folder / RECORDED
    recorded = json.loads(told.read_text(encoding="utf-8")) if told.exists() else {}
    return {"samples": samples, "arms": arms, "found": counted, "recorded": recorded}


def take_over(
    paths: Sequence[Path], screens: str, setting: Setting, parts: Collection[str], seeds: Collection[int], work: Path
) -> None:
    """Put the answers of earlier records into the folders of seeds that have none.

    Args:
        paths: Files that `--json` wrote.
        screens: Name of the source of screens of this call.
        setting: Its setting.
        parts: The parts of the benchmark that these screens have.
        seeds: Its seeds; others are left out.
        work: The work folder.

    Raises:
        UnsupportedCapabilityError: A record cannot be read, has another setting, or has only a part of the benchmark.
    """
    for path, figures in read_records(paths, "grounding"):
        same = figures["setting"] == json.loads(json.dumps(dataclasses.asdict(setting)))
        if figures["screens"] != screens:
            raise UnsupportedCapabilityError(
                f"--records {path} was measured with --screens {figures['screens']}: leave it out"
            )
        if not same:
            raise UnsupportedCapabilityError(f"--records {path} was measured with another setting: leave it out")
        if not {RECORDED_AS[part] for part in parts} <= figures.keys():
            raise UnsupportedCapabilityError(
                f"--records {path} was measured with --only: give one of a call without it"
            )
        for seed in seeds:
            folder, packed = work / f"seed-{seed}", figures[PACKED].get(str(seed))
            if packed is not None and not folder.exists():
                _unpack(packed, folder)


def _unpack(packed: dict[str, Any], folder: Path) -> None:
    """Write the folder of a seed, at once or not at all."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if packed["found"] is not None:
        (partial / FOUND).parent.mkdir()
        write_json(partial / FOUND, packed["found"])
    (partial / RECORDED).parent.mkdir()
    write_json(partial / RECORDED, packed["recorded"])
    for arm, content in packed["arms"].items():
        answers = {
            method: dict(zip(packed["samples"][number].split(), (digit == "1" for digit in digits), strict=True))
            for method, (number, digits) in content["methods"].items()
        }
        where = {key: content[key] for key in WHERE if key in content}
        write_json(partial / f"{arm}.json", {"answers": answers, "seconds": content["seconds"], **where})
    partial.rename(folder)
