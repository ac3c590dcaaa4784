"""The process of supervised fine-tuning: `python -m dart_train.sft --config FILE`, in several processes under torchrun."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from dart_agent.errors import ConfigError
from dart_agent.inference.compat import patch_torch_extras
from dart_agent.inference.process_group import set_parent_death_signal
from dart_train.sft.config import SftConfig

EXIT_REFUSED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Fine-tune.

    Args:
        argv: The command line without the program name; None: that of the process.

    Returns:
        The exit code: 0, or 2 for a configuration or demonstrations that cannot be used.
    """
    if "WORLD_SIZE" in os.environ:  # a rank: torchrun gave it a session of its own, which the launcher cannot end
        set_parent_death_signal(signal.SIGKILL)
    parser = argparse.ArgumentParser(prog="python -m dart_train.sft", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file (dart_train.sft.config)")
    path = parser.parse_args(argv).config
    try:
        config = SftConfig.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        print(f"sft: cannot use {path}: {error}", file=sys.stderr)
        return EXIT_REFUSED
    os.environ.update({"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "OMP_NUM_THREADS": str(config.threads)})
    patch_torch_extras()
    import torch
    from transformers.utils.logging import disable_progress_bar

    from dart_train.imitation.demonstrations import DemonstrationsUnusableError
    from dart_train.model.device import ComputeDevice
    from dart_train.model.policy_model import ModelNotFoundError
    from dart_train.sft.fit import fine_tune
    from dart_train.trainer.ranks import Ranks

    disable_progress_bar()
    torch.set_num_threads(config.threads)
    logging.basicConfig(level=logging.INFO)
    ranks = Ranks.join(ComputeDevice.resolve(config.device, config.dtype).device)
    try:
        result = fine_tune(config, ranks, lambda line: print(line, flush=True))
    except (ConfigError, DemonstrationsUnusableError, ModelNotFoundError, FileExistsError) as error:
        print(f"sft: {error}", file=sys.stderr)
        return EXIT_REFUSED
    if ranks.first:
        print(result, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
