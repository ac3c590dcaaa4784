"""Records of earlier calls of a benchmark, so that seeds of several days and hosts add up.

Role: the argument `--records`, and reading what it names. Rule: a file that is no record of the benchmark is refused with the fix.
Non-goals: what of a record counts, which each benchmark decides.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dart_envs.errors import UnsupportedCapabilityError


def add_records_argument(parser: argparse.ArgumentParser, taken_over: str) -> None:
    """Add `--records`.

    Args:
        parser: The parser of the benchmark.
        taken_over: What of the records is not run again.
    """
    parser.add_argument(
        "--records",
        type=Path,
        nargs="+",
        default=[],
        help=f"records of earlier calls, also on other hosts: {taken_over} that they hold are not run again",
    )


def read_records(paths: Sequence[Path], benchmark: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Read the figures of records.

    Args:
        paths: Files that `--json` wrote.
        benchmark: Name of the benchmark.

    Yields:
        Each file with its figures.

    Raises:
        UnsupportedCapabilityError: One cannot be read, or is a record of something else.
    """
    for path in paths:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            same, figures = record["benchmark"] == benchmark, dict(record["figures"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnsupportedCapabilityError(
                f"--records {path} cannot be read ({type(error).__name__}): give a file that --json of this benchmark wrote"
            ) from None
        if not same:
            raise UnsupportedCapabilityError(
                f"--records {path} is of the benchmark {record['benchmark']}: leave it out"
            )
        yield path, figures
