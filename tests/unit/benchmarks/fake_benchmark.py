"""A benchmark that measures nothing, for tests of the command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seeds", type=int, default=1)
    command.add_argument("--folder", type=Path, default=Path("runs/fake"))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    return {"seeds": args.seeds}
