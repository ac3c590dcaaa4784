"""Command line of the benchmarks.

Role: finds `benchmarks/SUBJECT/bench_NAME.py`, runs its `measure(args) -> dict` and writes one JSON record with the date, the machine,
the commit and the arguments. Rule: figures are printed as measured, keys as the issue that asks for them spells them. Non-goals: no pass
or fail.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import commit, machine
from dart_agent.errors import AgentError
from dart_envs.errors import FarmError, ImageNotFoundError, UnsupportedCapabilityError

HERE = Path(__file__).parent


def modules() -> dict[str, str]:
    """Return the module of each benchmark, by the benchmark's name, sorted."""
    found = {
        path.stem.removeprefix("bench_"): f"benchmarks.{path.parent.name}.{path.stem}"
        for path in HERE.glob("*/bench_*.py")
    }
    return dict(sorted(found.items()))


def main() -> int:
    """Run one benchmark; 2 for a wrong name or wrong arguments, and for what this host lacks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure what the project quotes.")
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, path in modules().items():
        module = importlib.import_module(path)
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        command.add_argument("--json", type=Path, help="write the record to this file")
        module.add_arguments(command)
        command.set_defaults(measure=module.measure)
    args = parser.parse_args()
    started, measured = dt.datetime.now(dt.UTC), commit()
    try:
        figures = args.measure(args)
    except (AgentError, FarmError, ImageNotFoundError, UnsupportedCapabilityError) as error:
        sys.stderr.write(f"bench {args.name}: {error}\n")
        return 2
    record = {
        "benchmark": args.name,
        "date": started.isoformat(timespec="seconds"),
        "seconds": round((dt.datetime.now(dt.UTC) - started).total_seconds(), 1),
        "commit": measured,
        "machine": machine(),
        "arguments": arguments_of(vars(args)),
        "figures": figures,
    }
    text = json.dumps(record, indent=2)
    print(text)
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(text + "\n", encoding="utf-8")
    return 0


def arguments_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a measurement as JSON values, sizes and numbers of seeds among them. Paths are left out: they are of one machine.

    Args:
        args: What was parsed.
    """
    plain = {
        name: value for name, value in args.items() if name not in ("name", "measure", "json") and not _has_path(value)
    }
    return {name: json.loads(json.dumps(value, default=str)) for name, value in sorted(plain.items())}


def _has_path(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_path(each) for each in value)
    return isinstance(value, Path)


if __name__ == "__main__":
    sys.exit(main())
