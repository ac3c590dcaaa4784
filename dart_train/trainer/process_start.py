"""The start of a process that trains: threads, logs, and the other processes.

Role: `end_with_torchrun` first of all, `join_ranks` once the configuration is known. Rule: torch is loaded after the limits that its
runtime reads. Non-goals: command lines.
"""

from __future__ import annotations

import logging
import os
import signal

from dart_agent.inference.compat import patch_torch_extras
from dart_agent.inference.process_group import set_parent_death_signal
from dart_train.trainer.config import PolicyTrainingSettings
from dart_train.trainer.ranks import Ranks


def end_with_torchrun() -> None:
    """Let a rank end with torchrun, which gave it a session of its own that the launcher cannot end."""
    if "WORLD_SIZE" in os.environ:
        set_parent_death_signal(signal.SIGKILL)


def join_ranks(config: PolicyTrainingSettings) -> Ranks:
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
