"""Following a metrics file: every line with scalars goes to every sink.

Role: `follow` while a run goes on, `export` of what there is. Rule: it only reads the file, so that no component waits for it and a crash
loses nothing. Non-goals: the sinks themselves (`sinks`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from dart_agent.metrics_file import MetricsReader
from dart_envs.clock import SYSTEM_CLOCK, wait_first
from dart_server.wire import Clock
from dart_train.tracking.scalars import ScalarFilter
from dart_train.tracking.sinks import ScalarSink

LOOK_S = 2.0
"""Seconds between two looks at the file."""


class MetricsCopy:
    """What was read of a metrics file, and what the sinks got.

    Args:
        metrics: The metrics file; it need not exist yet.
        sinks: The sinks.
    """

    def __init__(self, metrics: Path, sinks: Sequence[ScalarSink]) -> None:
        self._reader = MetricsReader(metrics)
        self._filter = ScalarFilter()
        self._sinks = sinks

    def copy_new(self) -> int:
        """Give the sinks what is new in the file.

        Returns:
            Number of lines with scalars.
        """
        found = [scalars for line in self._reader.read_new() if (scalars := self._filter.read(line)) is not None]
        for sink in self._sinks:
            for scalars in found:
                sink.write(scalars)
            if found:
                sink.flush()
        return len(found)


async def follow(
    metrics: Path, sinks: Sequence[ScalarSink], stopping: asyncio.Event, clock: Clock = SYSTEM_CLOCK
) -> None:
    """Copy a metrics file to sinks until it is stopped; what is in the file then is copied, too.

    Args:
        metrics: The metrics file.
        sinks: The sinks; not closed.
        stopping: Set when it is to end.
        clock: Clock of the pauses.
    """
    copy = MetricsCopy(metrics, sinks)
    stopped = asyncio.create_task(stopping.wait())
    try:
        while not stopping.is_set():
            copy.copy_new()
            await wait_first(clock, LOOK_S, [stopped])
        copy.copy_new()
    finally:
        stopped.cancel()


def export(metrics: Path, sinks: Sequence[ScalarSink]) -> int:
    """Copy what a metrics file has to sinks.

    Args:
        metrics: The metrics file.
        sinks: The sinks; they are closed.

    Returns:
        Number of lines with scalars.
    """
    try:
        return MetricsCopy(metrics, sinks).copy_new()
    finally:
        for sink in sinks:
            sink.close()
