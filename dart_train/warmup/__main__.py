"""`python -m dart_train.warmup --config FILE`: the warm start as a process.

Role: reads the configuration, limits the threads before torch is loaded, trains, ends. Rule: what the user can fix is one sentence and
exit code 2. Non-goals: defaults (`WarmupConfig`).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pydantic import ValidationError

from dart_agent.errors import ConfigError
from dart_train.trainer.process_start import end_with_torchrun, out_of_memory_refused, refuse
from dart_train.trainer.ranks import Ranks
from dart_train.warmup.config import WarmupConfig


def main(argv: list[str] | None = None) -> int:
    """Run the warm start.

    Args:
        argv: The command line without the program name; None: that of the process.

    Returns:
        The exit code: 0, or 2 for a configuration or input that cannot be used.
    """
    end_with_torchrun()
    parser = argparse.ArgumentParser(prog="python -m dart_train.warmup")
    parser.add_argument("--config", type=Path, required=True)
    path = parser.parse_args(argv).config
    try:
        config = WarmupConfig.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        return refuse(f"warm start: cannot use {path}: {error}")
    os.environ.setdefault("OMP_NUM_THREADS", str(config.threads))
    from dart_train.model.device import ComputeDevice
    from dart_train.model.policy_model import ModelNotFoundError
    from dart_train.warmup.fit import warm_start
    from dart_train.warmup.screens import ScreenError

    ranks = Ranks.join(ComputeDevice.resolve(config.device, config.dtype).device)
    try:
        with out_of_memory_refused():
            result = warm_start(config, lambda line: print(line, flush=True), ranks)
    except (ConfigError, ScreenError, ModelNotFoundError, FileExistsError) as error:
        return refuse(f"warm start: {error}")
    if ranks.first:
        print(result, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
