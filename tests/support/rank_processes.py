"""The two processes of a training that torchrun would start.

They begin as new processes do, from a server that has computed nothing: a copy of a process that has may wait for ever for a lock of MKL's
memory that another thread held when it was forked.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable

import torch

from dart_train.trainer.ranks import Ranks

WAIT_S = 240.0


def in_two_processes(work: Callable[[Ranks], None]) -> None:
    """Run a function in two processes that belong together, and expect that both end well.

    Args:
        work: A function of a module, or a `functools.partial` of one.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers", "dart_train.trainer.process"])
    processes = [context.Process(target=_one_rank, args=(rank, port, work)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(WAIT_S)
        process.kill()
    assert [process.exitcode for process in processes] == [0, 0]


def _one_rank(rank: int, port: int, work: Callable[[Ranks], None]) -> None:
    os.environ |= {
        "WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    torch.set_num_threads(1)
    work(Ranks.join("cpu"))
    torch.distributed.destroy_process_group()
