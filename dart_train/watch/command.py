"""The command `dart-train watch`: shows how a run stands, again and again.

Role: reads the files of a run and asks its data manager. Rule: it changes nothing and holds nothing, so that a run never notices it; a data
manager that is not there is no error. Non-goals: figures (`snapshot`), their form (`page`).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.live import Live

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.wire import DataManagerStats
from dart_agent.errors import StoreError
from dart_agent.metrics_file import MetricsReader
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock
from dart_train.run.lock import is_locked
from dart_train.run.paths import RunPaths
from dart_train.run.state import RunState, load_resolved_recipe
from dart_train.trainer.checkpoint import CheckpointStore
from dart_train.watch.page import render
from dart_train.watch.snapshot import RunSnapshot, take_snapshot

ANSWER_TIMEOUT_S = 2.0


async def watch(
    paths: RunPaths,
    *,
    window_s: float,
    interval_s: float,
    once: bool = False,
    as_json: bool = False,
    console: Console | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> RunSnapshot:
    """Show a run until it ends.

    Args:
        paths: The run folder.
        window_s: Length of the window of rates and shares, in seconds.
        interval_s: Seconds between two looks.
        once: Look once.
        as_json: Print one JSON object per look in place of tables.
        console: Where to; None: standard output.
        clock: Clock of waits and of the window.

    Returns:
        The last snapshot.

    Raises:
        RecipeError: The folder is no run folder.
    """
    recipe, reader, shown = load_resolved_recipe(paths), MetricsReader(paths.metrics), console or Console()

    lines: list[dict[str, Any]] = []

    async def look() -> RunSnapshot:
        running = is_locked(paths)
        lines.extend(reader.read_new())
        return take_snapshot(
            recipe,
            RunState.load(paths.state),
            lines,
            await ask_data_manager(paths) if running else None,
            running=running,
            now_s=clock.time(),
            window_s=window_s,
            trained_s=CheckpointStore(paths.checkpoints, keep=1).trained_s(),
        )

    snapshot = await look()
    if as_json or once:
        while True:
            if as_json:
                shown.file.write(json.dumps(asdict(snapshot)) + "\n")
            else:
                shown.print(render(snapshot))
            if once or not snapshot.running:
                return snapshot
            await clock.sleep(interval_s)
            snapshot = await look()
    with Live(render(snapshot), console=shown, auto_refresh=False) as live:
        while snapshot.running:
            await clock.sleep(interval_s)
            snapshot = await look()
            live.update(render(snapshot), refresh=True)
    return snapshot


async def ask_data_manager(paths: RunPaths) -> DataManagerStats | None:
    """Ask the data manager of a run for its numbers.

    Args:
        paths: The run folder.

    Returns:
        The numbers, None where it does not answer.
    """
    if not paths.data_socket.exists():
        return None
    try:
        async with DataManagerClient(paths.data_socket, paths.images, retry_timeout_s=ANSWER_TIMEOUT_S) as client:
            return await client.stats()
    except StoreError:
        return None
