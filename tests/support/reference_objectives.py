"""The loss and its gradient once more: one token after the other, in plain floats, with derivatives taken by hand.

Role: the reference of the tests of `dart_train.objectives`. Rule: nothing is shared with the code under test, and there is no automatic
differentiation. Derivatives are those with respect to the log-prob and the entropy of each token; where a clip or a clamp binds they are 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

Rows = list[list[float]]
BOUND = 20.0


@dataclass(frozen=True)
class Case:
    """What a loss is computed from: rows of tokens, all of the same length."""

    new: Rows
    old: Rows
    rollout: Rows
    reference: Rows
    entropy: Rows
    advantages: list[float]
    mask: list[list[bool]]
    shares: list[float]
    imitated: list[list[bool]]


@dataclass(frozen=True)
class Parts:
    """Which loss."""

    surrogate: str
    correction: str
    aggregation: str
    clip_low: float
    clip_high: float
    dual_clip: float | None
    tis_cap: float | None
    correction_floor: float
    kl_coefficient: float
    kl_estimator: str
    entropy_coefficient: float
    sft_coefficient: float
    constant_length: int


@dataclass(frozen=True)
class Whole:
    """Denominators of the mini-batch."""

    tokens: int
    rows: int
    trajectories: float
    imitated: int


def bounded(value: float) -> float:
    return max(-BOUND, min(BOUND, value))


def slope(value: float) -> float:
    """Derivative of `bounded`."""
    return 1.0 if -BOUND < value < BOUND else 0.0


def weights(case: Case, parts: Parts, row: int) -> list[float]:
    """The importance weight of each token of a row."""
    trained = [t for t, trains in enumerate(case.mask[row]) if trains]
    logs = {t: bounded(case.old[row][t] - case.rollout[row][t]) for t in trained}
    cap = math.inf if parts.tis_cap is None else parts.tis_cap
    if parts.correction == "token_truncate" and parts.tis_cap is not None:
        found = {t: min(math.exp(value), cap) for t, value in logs.items()}
    elif parts.correction == "decoupled":
        found = {t: math.exp(value) for t, value in logs.items()}
    elif parts.correction == "token_mask":
        found = {
            t: math.exp(value) if parts.correction_floor <= math.exp(value) <= cap else 0.0 for t, value in logs.items()
        }
    elif parts.correction == "sequence_truncate":
        found = dict.fromkeys(trained, min(math.exp(bounded(sum(logs.values()))), cap))
    elif parts.correction == "sequence_mask":
        mean = math.exp(sum(logs.values()) / max(1, len(trained)))
        found = dict.fromkeys(trained, 1.0 if parts.correction_floor <= mean <= cap else 0.0)
    else:
        found = dict.fromkeys(trained, 1.0)
    return [found.get(t, 0.0) for t in range(len(case.mask[row]))]


def clipped(ratio: float, advantage: float, parts: Parts) -> tuple[float, float]:
    """Value of the clipped surrogate, and its derivative with respect to the ratio."""
    inside = min(max(ratio, 1 - parts.clip_low), 1 + parts.clip_high)
    free, held = ratio * advantage, inside * advantage
    value, derivative = (free, advantage) if free <= held else (held, 0.0)
    if parts.dual_clip is not None and advantage < 0 and value < parts.dual_clip * advantage:
        return parts.dual_clip * advantage, 0.0
    return value, derivative


def surrogates(case: Case, parts: Parts, row: int) -> list[tuple[float, float]]:
    """Value of each token of a row, and its derivative with respect to the token's log-prob."""
    anchor = case.rollout[row] if parts.correction == "rollout_anchor" else case.old[row]
    advantage = case.advantages[row]
    trained = [t for t, trains in enumerate(case.mask[row]) if trains]
    differences = {t: case.new[row][t] - anchor[t] for t in trained}
    found = []
    for t in range(len(case.mask[row])):
        if t not in differences:
            found.append((0.0, 0.0))
            continue
        ratio, ratio_slope = math.exp(bounded(differences[t])), slope(differences[t])
        if parts.surrogate == "clipped":
            value, derivative = clipped(ratio, advantage, parts)
            found.append((value, derivative * ratio * ratio_slope))
        elif parts.surrogate == "sequence_clipped":
            sequence = math.exp(sum(bounded(one) for one in differences.values()) / len(trained))
            value, derivative = clipped(sequence, advantage, parts)
            found.append((value, derivative * sequence))
        elif parts.surrogate == "weighted":
            weight = min(max(ratio, 1 - parts.clip_low), 1 + parts.clip_high)
            found.append((weight * advantage * case.new[row][t], weight * advantage))
        else:
            found.append((ratio * advantage, ratio * advantage * ratio_slope))
    return found


def coefficients(case: Case, parts: Parts, row: int, whole: Whole) -> float:
    """How much a token of this row counts in the mini-batch."""
    trained = max(1, sum(case.mask[row]))
    return {
        "token_mean": 1 / whole.tokens,
        "constant_length": 1 / (whole.trajectories * parts.constant_length),
        "trajectory_mean": case.shares[row] / trained / whole.trajectories,
        "seq_mean_token_mean": 1 / trained / whole.rows,
    }[parts.aggregation]


def loss_and_gradient(case: Case, parts: Parts, whole: Whole) -> tuple[float, Rows, Rows]:
    """The loss, and its derivatives with respect to log-probs and entropies."""
    total, by_new, by_entropy = 0.0, [], []
    for row, mask in enumerate(case.mask):
        share = coefficients(case, parts, row, whole)
        weight, values = weights(case, parts, row), surrogates(case, parts, row)
        new_row, entropy_row = [], []
        for t, trains in enumerate(mask):
            if case.imitated[row][t]:
                total -= parts.sft_coefficient * case.new[row][t] / whole.imitated
                new_row.append(-parts.sft_coefficient / whole.imitated)
                entropy_row.append(0.0)
                continue
            if not trains:
                new_row.append(0.0)
                entropy_row.append(0.0)
                continue
            raw = case.reference[row][t] - case.new[row][t]
            difference = bounded(raw)
            if parts.kl_estimator == "k1":
                kl, kl_slope = -difference, slope(raw)
            else:
                kl, kl_slope = math.exp(difference) - difference - 1, (1 - math.exp(difference)) * slope(raw)
            value, derivative = values[t]
            total += share * (
                -weight[t] * value + parts.kl_coefficient * kl - parts.entropy_coefficient * case.entropy[row][t]
            )
            new_row.append(share * (-weight[t] * derivative + parts.kl_coefficient * kl_slope))
            entropy_row.append(-share * parts.entropy_coefficient)
        by_new.append(new_row)
        by_entropy.append(entropy_row)
    return total, by_new, by_entropy


def aggregate_by_trajectory(values: dict[tuple[str, int], list[float]], aggregation: str, length: int) -> float:
    """What an aggregation over trajectories makes of the values of trained tokens, which are given by trajectory and step."""
    of: dict[str, list[list[float]]] = {}
    for (trajectory, _), tokens in values.items():
        of.setdefault(trajectory, []).append(tokens)
    if aggregation == "constant_length":
        return math.fsum(value for tokens in values.values() for value in tokens) / (len(of) * length)
    means = [math.fsum(math.fsum(tokens) / len(tokens) for tokens in steps) / len(steps) for steps in of.values()]
    return math.fsum(means) / len(means)


def advantages(rewards: list[float], kind: str, steps: list[int] | None) -> list[float]:
    """Advantages from the exact sums of the rewards as they are; only the square root and the last division are rounded."""
    counted = [
        Fraction(reward)
        for reward, times in zip(rewards, steps or [1] * len(rewards), strict=True)
        for _ in range(times)
    ]
    if not counted:
        return [0.0] * len(rewards)
    found = []
    for index, reward in enumerate(map(Fraction, rewards)):
        if kind == "leave_one_out":
            others = [Fraction(other) for position, other in enumerate(rewards) if position != index]
            found.append(float(reward - sum(others) / len(others)))
            continue
        mean = sum(counted) / Fraction(len(counted))
        difference = float(reward - mean)
        if kind == "grpo":
            variance = sum((each - mean) ** 2 for each in counted) / Fraction(max(len(counted) - 1, 1))
            difference /= math.sqrt(variance) + 1e-6
        found.append(difference)
    return found
