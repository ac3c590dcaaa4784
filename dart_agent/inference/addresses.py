"""Where the inference workers of a run are: a small JSON file.

Role: written by the process that starts the workers, read by those that use them. Rule: replaced atomically; a worker keeps its place
when it is restarted, so the file changes only with the number of workers. Non-goals: keys (each worker's directory holds its own).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dart_agent.errors import ConfigError, PolicyUnavailableError
from dart_server.wire import Clock


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """A worker's name and the directory that holds its socket and key. holds: whether it holds the versions of evaluations."""

    name: str
    directory: Path
    holds: bool = False


def write_addresses(path: Path, addresses: Sequence[WorkerAddress]) -> None:
    """Replace the file."""
    workers = [
        {"name": address.name, "directory": str(address.directory), "holds": address.holds} for address in addresses
    ]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"workers": workers}, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_addresses(path: Path) -> list[WorkerAddress]:
    """Raises ConfigError when the file is malformed, FileNotFoundError when there is none (yet)."""
    text = path.read_text(encoding="utf-8")
    try:
        return [
            WorkerAddress(str(worker["name"]), Path(worker["directory"]), bool(worker.get("holds", False)))
            for worker in json.loads(text)["workers"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not a file of worker addresses: {error}") from error


async def wait_for_addresses(path: Path, clock: Clock, *, timeout_s: float = 60.0) -> list[WorkerAddress]:
    """The addresses, as soon as they are written. Raises PolicyUnavailableError when they are not in time."""
    deadline_s = clock.monotonic() + timeout_s
    while True:
        try:
            return read_addresses(path)
        except FileNotFoundError:
            if clock.monotonic() > deadline_s:
                raise PolicyUnavailableError(
                    f"{path} did not appear within {timeout_s:.0f} s: are the inference workers started?"
                ) from None
        await clock.sleep(0.2)
