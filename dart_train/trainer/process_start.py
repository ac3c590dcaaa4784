"""The start of a process that trains: threads, logs, and the other processes.

Role: `end_with_torchrun` first of all, `join_ranks` once the configuration is known, `out_of_memory_refused` around the work, `refuse`
where it cannot be done. Rule: torch is loaded after the limits that its runtime reads. Non-goals: command lines.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from dart_agent.errors import ConfigError
from dart_agent.inference.compat import patch_torch_extras
from dart_agent.inference.process_group import set_parent_death_signal
from dart_envs.clock import SYSTEM_CLOCK
from dart_train.model.device import DeviceChoice, DtypeChoice
from dart_train.trainer.ranks import Ranks

TRAINER_ADVICE = (
    "lower train.micro_batch_tokens, set train.gradient_checkpointing = true, lower inference.gpu_memory_fraction where an inference "
    "worker shares the GPU, or train on more GPUs (train.processes); the run goes on with such a change (--set KEY=VALUE)"
)
"""What to do about a GPU that is too small, of a run."""
EXIT_REFUSED = 2
"""Exit code of a process that another start would end in the same way."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where torchrun looks for what a process says of its end."""


class ProcessSettings(Protocol):
    """What every configuration of a process that trains says of it."""

    @property
    def threads(self) -> int:
        """CPU threads of torch."""
        ...

    @property
    def device(self) -> DeviceChoice:
        """Where to train."""
        ...

    @property
    def dtype(self) -> DtypeChoice:
        """Data type of matrix products."""
        ...


def end_with_torchrun() -> None:
    """Let a rank end with torchrun, which gave it a session of its own that the launcher cannot end."""
    if "WORLD_SIZE" in os.environ:
        set_parent_death_signal(signal.SIGKILL)


def join_ranks(config: ProcessSettings) -> Ranks:
    """Limit the threads, load torch, and join the processes that train together.

    Args:
        config: The configuration of this process.

    Returns:
        The ranks.
    """
    # Idle threads must sleep, not spin: other processes need the cores. Read when the OpenMP runtime is loaded, with torch.
    os.environ.update({"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "OMP_NUM_THREADS": str(config.threads)})
    patch_torch_extras()
    import torch
    from transformers.utils.logging import disable_progress_bar

    from dart_train.model.device import ComputeDevice

    disable_progress_bar()
    torch.set_num_threads(config.threads)
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return Ranks.join(ComputeDevice.resolve(config.device, config.dtype).device)


@contextmanager
def out_of_memory_refused(advice: str = TRAINER_ADVICE) -> Iterator[None]:
    """Refuse the settings under which the work does not fit into the memory of the GPU: it would not fit again.

    Args:
        advice: Which settings to lower.

    Yields:
        Nothing.

    Raises:
        ConfigError: It does not fit; the sentence names the settings to lower, all of which a run may change when it goes on.
    """
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        cause = str(error).partition(". ")[0]
        raise ConfigError(f"the training does not fit into the memory of the GPU ({cause}): {advice}") from error


def refuse(sentence: str) -> int:
    """Say why a process ends, to whoever reads its log and to torchrun.

    Args:
        sentence: What is wrong, and the fix.

    Returns:
        The exit code.
    """
    print(sentence, file=sys.stderr)
    if file := os.environ.get(ERROR_FILE):
        told = {"message": sentence, "timestamp": int(SYSTEM_CLOCK.time())}
        Path(file).write_text(json.dumps(told), encoding="utf-8")
    return EXIT_REFUSED
