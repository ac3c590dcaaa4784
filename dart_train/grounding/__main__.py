"""`python -m dart_train.grounding --config FILE`: the training of a grounding model or a verifier, in several processes under torchrun.

Role: reads the configuration, limits the threads before torch is loaded, trains, ends. Rule: what the user can fix is one sentence and
exit code 2. Non-goals: defaults (`GroundingConfig`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dart_agent.errors import ConfigError
from dart_agent.strict_model import format_validation_error
from dart_train.grounding.config import GroundingConfig, PointRewardConfig, SupervisedConfig, VerifierConfig
from dart_train.trainer.process_start import end_with_torchrun, join_ranks, out_of_memory_refused, refuse

ADVICE = (
    "lower rows_per_pass, set gradient_checkpointing to true, or lower max_pixels; the same command goes on from its last checkpoint with "
    "the first two"
)
"""What to do about a GPU that is too small."""


def main(argv: list[str] | None = None) -> int:
    """Run the training.

    Args:
        argv: The command line without the program name; None: that of the process.

    Returns:
        The exit code: 0, or 2 for a configuration or input that cannot be used.
    """
    end_with_torchrun()
    parser = argparse.ArgumentParser(prog="python -m dart_train.grounding")
    parser.add_argument("--config", type=Path, required=True)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--verifier", action="store_true", help="train a verifier instead of a head")
    kind.add_argument("--reward", action="store_true", help="train a head by the reward of sampled points")
    arguments = parser.parse_args(argv)
    path = arguments.config
    try:
        config = _settings(arguments).model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        return refuse(f"grounding: cannot use {path}: {format_validation_error(error)}")
    except OSError as error:
        return refuse(f"grounding: cannot read {path}: {error.strerror}")
    ranks = join_ranks(config)
    from dart_train.grounding.fit import train_grounding
    from dart_train.grounding.reward import train_by_reward
    from dart_train.grounding.verifier import train_verifier
    from dart_train.model.policy_model import ModelNotFoundError
    from dart_train.objectives.advantages import AdvantageError

    try:
        with out_of_memory_refused(ADVICE):
            if isinstance(config, VerifierConfig):
                train_verifier(config, _report, ranks=ranks)
            elif isinstance(config, PointRewardConfig):
                train_by_reward(config, _report, ranks=ranks)
            elif isinstance(config, GroundingConfig):
                train_grounding(config, _report, ranks=ranks)
    except (ConfigError, ModelNotFoundError, FileExistsError) as error:
        return refuse(f"grounding: {error}")
    except AdvantageError as error:
        return refuse(
            f"grounding: {error}; correct it and run the same command again: it goes on from its last checkpoint"
        )
    return 0


def _settings(arguments: argparse.Namespace) -> type[SupervisedConfig]:
    if arguments.verifier:
        return VerifierConfig
    return PointRewardConfig if arguments.reward else GroundingConfig


def _report(line: Mapping[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
