"""Training rows: the steps of a batch with their advantages, and which of them to use.

Role: pure functions from the data manager's batch to rows. Rule: plain data, no tensors. Non-goals: tensors
(`dart_train.trainer.batches.tensors`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from dart_agent.data_client.wire import Batch
from dart_agent.types import PointedTarget, StepRecord
from dart_train.curation.step_filter import select_high_entropy
from dart_train.curation.token_filter import Ranges, select_high_entropy_tokens
from dart_train.objectives.advantages import group_advantages
from dart_train.objectives.settings import AdvantageOver

StepKey = tuple[str, str, int]
"""group id, rollout id, step index; a pooled success can be in two groups with two advantages"""


@dataclass(frozen=True, slots=True)
class TrainRow:
    """One step to train on.

    Attributes:
        rollout_id: Its rollout.
        group_id: Its group.
        step: The stored step.
        trainable: Ranges of positions that passed the staleness gate.
        advantage: The advantage of its rollout within the group.
        trajectory_share: 1 / number of rows of its rollout in the group that are trained on; whatever leaves rows out sets it anew.
        targets: What an action head found and is trained on; positions of the response behind its tokens.
        imitated: Whether its whole response is imitated and no part of it trained on by its advantage.
    """

    rollout_id: str
    group_id: str
    step: StepRecord
    trainable: tuple[tuple[int, int], ...]
    advantage: float
    trajectory_share: float = 1.0
    targets: tuple[PointedTarget, ...] = ()
    imitated: bool = False

    @property
    def name(self) -> str:
        """What error messages call this row."""
        return f"step {self.step.index} of rollout {self.rollout_id}"

    @property
    def key(self) -> StepKey:
        """Identity within a batch."""
        return (self.group_id, self.rollout_id, self.step.index)

    @property
    def trained_tokens(self) -> int:
        """Number of tokens and targets of this row that are trained on."""
        return sum(end - start for start, end in self.trainable)

    @property
    def positions(self) -> int:
        """Number of sampled tokens and of targets behind them."""
        return len(self.step.token_ids_T) + len(self.targets)


def build_rows(batch: Batch, kind: str, over: AdvantageOver = "group_steps", pointer: bool = False) -> list[TrainRow]:
    """Give every row of a batch the advantage of its rollout within its group.

    A target is found after the last token, by the weights that sampled it: it is trained on where that token is.

    Args:
        batch: The batch of the data manager.
        kind: Formula of the advantages, taken over all members of a group.
        over: What the formula's mean and deviation are taken over.
        pointer: Whether the targets that an action head found are trained on.

    Returns:
        The rows, in the order of the batch.
    """
    advantages: dict[tuple[str, str], float] = {}
    for group in batch.groups:
        steps_G = [member.steps for member in group.members] if over == "group_steps" else None
        values_G = group_advantages([member.reward for member in group.members], kind, steps_G)
        for member, value in zip(group.members, values_G, strict=True):
            advantages[(group.group_id, member.rollout_id)] = float(value)
    rows = []
    for row in batch.rows:
        step, trainable = row.step.to_value(), tuple(row.trainable)
        ntokens = len(step.token_ids_T)
        fresh_targets = any(end > ntokens for _, end in trainable)
        if not pointer:
            clipped = ((start, min(end, ntokens)) for start, end in trainable)
            trainable = tuple((start, end) for start, end in clipped if start < end)
        rows.append(
            TrainRow(
                rollout_id=row.rollout_id,
                group_id=row.group_id,
                step=step,
                trainable=trainable,
                advantage=advantages[(row.group_id, row.rollout_id)],
                targets=step.pointers if pointer and fresh_targets else (),
            )
        )
    return _with_shares(rows)


def mean_token_entropy(row: TrainRow, entropies_R: NDArray[np.float64]) -> float:
    """Compute by what steps are ranked: targets are left out, whose entropy says whether a step points and not whether it was undecided.

    Args:
        row: The row.
        entropies_R: Entropy of each position of its response, in nats, [R].

    Returns:
        The mean over its tokens, 0 without tokens.
    """
    entropies_T = entropies_R[: len(row.step.token_ids_T)]
    return float(entropies_T.mean()) if len(entropies_T) else 0.0


def select_steps(
    rows: Sequence[TrainRow], entropies: Mapping[StepKey, float], fraction: float
) -> tuple[list[TrainRow], list[TrainRow]]:
    """Split rows by their entropy within each group.

    Args:
        rows: The rows.
        entropies: Mean entropy of a row's tokens, in nats.
        fraction: Fraction of the steps of a group that is kept.

    Returns:
        The rows to train on, with their shares of what is left of their trajectories, and the excluded rows.
    """
    by_group: dict[str, list[TrainRow]] = defaultdict(list)
    for row in rows:
        by_group[row.group_id].append(row)
    used: list[TrainRow] = []
    unused: list[TrainRow] = []
    for members in by_group.values():
        keep = select_high_entropy([entropies[row.key] for row in members], fraction)
        for row, kept in zip(members, keep, strict=True):
            (used if kept else unused).append(row)
    return _with_shares(used), unused


def select_tokens(
    rows: Sequence[TrainRow], entropies_T: Mapping[StepKey, NDArray[np.float64]], fraction: float
) -> tuple[list[TrainRow], list[TrainRow]]:
    """Narrow rows to their tokens with the highest entropy, of all trained tokens of the batch; targets are kept.

    Args:
        rows: The rows.
        entropies_T: Entropy of each position of a row's response, in nats, [T].
        fraction: Fraction of the trained tokens that is kept.

    Returns:
        The rows to train on, with their shares of what is left of their trajectories, and those of which nothing is left.
    """
    tokens, targets = zip(*(_divided(row) for row in rows), strict=True) if rows else ((), ())
    narrowed = [
        (*of_tokens, *of_targets)
        for of_tokens, of_targets in zip(
            select_high_entropy_tokens([entropies_T[row.key] for row in rows], tokens, fraction), targets, strict=True
        )
    ]
    used = [replace(row, trainable=ranges) for row, ranges in zip(rows, narrowed, strict=True) if ranges]
    return _with_shares(used), [row for row, ranges in zip(rows, narrowed, strict=True) if not ranges]


def _divided(row: TrainRow) -> tuple[Ranges, Ranges]:
    """The trained ranges of a row's tokens, and of its targets."""
    ntokens = len(row.step.token_ids_T)
    tokens = ((start, min(end, ntokens)) for start, end in row.trainable)
    targets = ((max(start, ntokens), end) for start, end in row.trainable)
    return tuple(each for each in tokens if each[0] < each[1]), tuple(each for each in targets if each[0] < each[1])


def split_minibatches(rows: Sequence[TrainRow], parts: int, random: Random) -> list[list[TrainRow]]:
    """Split rows into parts of about the same size, with the steps of a trajectory in one part, where they share passes.

    Args:
        rows: The rows.
        parts: Greatest number of parts.
        random: Decides the order of the trajectories.

    Returns:
        The parts; none is empty.
    """
    trajectories: dict[tuple[str, str], list[TrainRow]] = defaultdict(list)
    for row in rows:
        trajectories[(row.group_id, row.rollout_id)].append(row)
    order = list(trajectories.values())
    random.shuffle(order)
    made: list[list[TrainRow]] = [[] for _ in range(parts)]
    begin = 0
    for members in order:
        made[int((begin + len(members) / 2) * parts / len(rows))] += members
        begin += len(members)
    return [part for part in made if part]


def _with_shares(rows: Sequence[TrainRow]) -> list[TrainRow]:
    """The rows, each with its share of the rows of its trajectory."""
    counts = Counter((row.group_id, row.rollout_id) for row in rows)
    return [replace(row, trajectory_share=1 / counts[(row.group_id, row.rollout_id)]) for row in rows]
