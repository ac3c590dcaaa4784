"""What several processes do with parameters that each of them holds whole, in the place of shards.

Role: `share_parameters` gives all of them the same start, `sum_gradients` the same gradient. Rule: every process makes the same calls with
the same parameters in the same order. Non-goals: shards (`dart_train.model.sharding`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dart_train.trainer.ranks import Ranks

BUCKET_VALUES = 64 * 2**20
"""Values that are exchanged at once, which bounds the memory that the exchange takes."""


def share_parameters(parameters: Sequence[Any], ranks: Ranks) -> None:
    """Give every process the parameters of the first one.

    Args:
        parameters: What is trained.
        ranks: The processes.
    """
    if ranks.size > 1:
        import torch.distributed as dist

        for parameter in parameters:
            dist.broadcast(parameter.data, src=0)


def sum_gradients(parameters: Sequence[Any], ranks: Ranks, averaged_over: int = 1) -> None:
    """Replace gradients by their sums over the processes; one that some of them lack is 0 there, and one that all lack stays away.

    Args:
        parameters: What is trained, of one data type and on one device.
        ranks: The processes.
        averaged_over: What the sums are divided by: losses were multiplied by it for the sake of shards.
    """
    if ranks.size == 1 or not parameters:
        return
    import torch
    import torch.distributed as dist

    present = torch.tensor([float(parameter.grad is not None) for parameter in parameters])
    present = present.to(parameters[0].device)
    dist.all_reduce(present)
    found = [parameter for parameter, count in zip(parameters, present.tolist(), strict=True) if count]
    for bucket in _buckets(found):
        flat = torch.cat([(torch.zeros_like(each) if each.grad is None else each.grad).flatten() for each in bucket])
        dist.all_reduce(flat)
        flat /= averaged_over
        for parameter, total in zip(bucket, torch.split(flat, [each.numel() for each in bucket]), strict=True):
            parameter.grad = total.view_as(parameter)


def _buckets(parameters: Sequence[Any]) -> Iterator[list[Any]]:
    bucket: list[Any] = []
    for parameter in parameters:
        if bucket and sum(each.numel() for each in bucket) + parameter.numel() > BUCKET_VALUES:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
