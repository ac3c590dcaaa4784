"""The tracking component of a run: `python -m dart_train.tracking --config FILE`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from dart_agent.errors import ConfigError
from dart_train.tracking.config import TrackingConfig, read_tracking_config
from dart_train.tracking.follow import follow
from dart_train.tracking.sinks import open_sinks

EXIT_REFUSED = 2


async def _run(config: TrackingConfig) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    sinks = open_sinks(config)
    try:
        await follow(config.metrics, sinks, stopping)
    finally:
        for sink in sinks:
            sink.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Follow the metrics file of a run until SIGTERM or SIGINT.

    Args:
        argv: The command line without the program name; None: that of the process.

    Returns:
        The exit code: 0, or 2 for a configuration that cannot be used.
    """
    parser = argparse.ArgumentParser(prog="python -m dart_train.tracking", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file (dart_train.tracking.config)")
    try:
        asyncio.run(_run(read_tracking_config(parser.parse_args(argv).config)))
    except ConfigError as error:
        print(f"tracking: {error}", file=sys.stderr)
        return EXIT_REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
