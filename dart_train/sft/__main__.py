"""The process of supervised fine-tuning: `python -m dart_train.sft --config FILE`, in several processes under torchrun."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dart_agent.errors import ConfigError
from dart_agent.strict_model import read_config_file
from dart_train.sft.config import SftConfig
from dart_train.trainer.process_start import end_with_torchrun, join_ranks, out_of_memory_refused, refuse


def main(argv: Sequence[str] | None = None) -> int:
    """Fine-tune.

    Args:
        argv: The command line without the program name; None: that of the process.

    Returns:
        The exit code: 0, or 2 for a configuration or demonstrations that cannot be used.
    """
    end_with_torchrun()
    parser = argparse.ArgumentParser(prog="python -m dart_train.sft", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file (dart_train.sft.config)")
    try:
        config = read_config_file(parser.parse_args(argv).config, SftConfig)
    except ConfigError as error:
        return refuse(f"sft: {error}")
    ranks = join_ranks(config)
    from dart_train.imitation.demonstrations import DemonstrationsUnusableError
    from dart_train.model.policy_model import ModelNotFoundError
    from dart_train.sft.fit import fine_tune

    try:
        with out_of_memory_refused():
            result = fine_tune(config, ranks, lambda line: print(line, flush=True))
    except (ConfigError, DemonstrationsUnusableError, ModelNotFoundError, FileExistsError) as error:
        return refuse(f"sft: {error}")
    if ranks.first:
        print(result, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
