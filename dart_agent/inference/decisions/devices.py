"""Which GPUs a process sees.

Role: `split_devices` shares the GPUs of a configuration among workers; `visible_devices` turns numbers of GPUs into CUDA_VISIBLE_DEVICES of
a process, for inference workers and trainer. Rule: pure; a number counts the GPUs that the launcher sees, as torch counts them, so that a
launcher that was given some of a host's GPUs starts nothing on the others. Non-goals: whether a GPU is there
(`dart_train.run.recipe_policy`).
"""

from __future__ import annotations

from itertools import takewhile

from dart_agent.errors import ConfigError

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""The environment variable that names the GPUs of a process by number or UUID."""


def split_devices(devices: tuple[int, ...] | None, workers: int, tensor_parallel: int) -> list[str | None]:
    """Give each worker as many devices as its engine is split over.

    Args:
        devices: Numbers of the GPUs; None: nothing is given, every worker sees what its process sees.
        workers: Number of workers.
        tensor_parallel: Devices per worker.

    Returns:
        Numbers of the GPUs per worker, separated by commas.

    Raises:
        ValueError: There are more or fewer devices than workers x tensor_parallel, or one is given twice.
    """
    if devices is None:
        return [None] * workers
    needed = workers * tensor_parallel
    if len(set(devices)) != len(devices) or len(devices) != needed:
        raise ValueError(
            f"devices names {list(devices)}, but {workers} workers with tensor_parallel = {tensor_parallel} need {needed} "
            "different ones: change devices or workers"
        )
    return [
        ",".join(str(device) for device in devices[index * tensor_parallel : (index + 1) * tensor_parallel])
        for index in range(workers)
    ]


def visible_devices(numbers: str, inherited: str | None) -> str:
    """Name the GPUs of a process.

    Args:
        numbers: Numbers of the GPUs among those that the launcher sees, separated by commas.
        inherited: CUDA_VISIBLE_DEVICES of the launcher; None: it sees all GPUs of the host.

    Returns:
        CUDA_VISIBLE_DEVICES of the process.

    Raises:
        ConfigError: The launcher sees fewer GPUs.
    """
    if inherited is None:
        return numbers
    # CUDA ignores what follows the first entry that names no device, such as -1.
    names = takewhile(lambda name: name and not name.startswith("-"), map(str.strip, inherited.split(",")))
    seen = list(names)
    chosen = [int(number) for number in numbers.split(",")]
    if max(chosen) >= len(seen):
        raise ConfigError(
            f"devices names GPU {max(chosen)}, but {VISIBLE_DEVICES}={inherited} shows {len(seen)} to this process, with numbers from 0: "
            f"name others, or change {VISIBLE_DEVICES}"
        )
    return ",".join(seen[number] for number in chosen)
