"""The trainer component of a run: `python -m dart_train.trainer --config FILE`, in several processes under torchrun."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from dart_agent.errors import ConfigError
from dart_train.trainer.config import read_trainer_config
from dart_train.trainer.process_start import end_with_torchrun, join_ranks, out_of_memory_refused, refuse

EXIT_STOPPED = 3
"""A signal stopped the trainer before its end; what it did is saved."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trainer until its end, SIGTERM or SIGINT.

    Args:
        argv: The command line without the program name; None: that of the process.

    Returns:
        The exit code: 0; 3 where a signal stopped it before its end; or 2 for a configuration that cannot be used and for training that
        cannot go on.
    """
    end_with_torchrun()
    parser = argparse.ArgumentParser(prog="python -m dart_train.trainer", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file (dart_train.trainer.config)")
    try:
        config = read_trainer_config(parser.parse_args(argv).config)
    except ConfigError as error:
        return refuse(f"trainer: {error}")
    ranks = join_ranks(config)
    from dart_train.model.policy_model import ModelNotFoundError
    from dart_train.trainer.process import TrainingStopped, run_follower, run_trainer

    try:
        with out_of_memory_refused():
            if not ranks.first:
                run_follower(config, ranks)
                return 0
            ended = asyncio.run(run_trainer(config, ranks))
    except (ConfigError, ModelNotFoundError, TrainingStopped) as error:
        return refuse(f"trainer: {error}")
    return 0 if ended else EXIT_STOPPED


if __name__ == "__main__":
    sys.exit(main())
