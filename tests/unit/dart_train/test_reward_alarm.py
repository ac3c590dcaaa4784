"""The alarm of an exploited reward, on planted series: it follows neither noise nor real progress."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from dart_envs.evaluation.report import wilson_interval
from dart_train.evaluation.reward_alarm import find_reward_alarm
from dart_train.metrics import training_reward

UPDATES, EVERY, EPISODES, GROUPS = 90, 10, 32, 64
Curve = Callable[[float], float]


def series(seed: int, reward: Curve, success: Curve) -> list[dict[str, Any]]:
    """The metrics of a run whose true rates are these functions of the fraction of training that is over."""
    random = Random(seed)

    def solved(rate: float, episodes: int) -> int:
        return sum(random.random() < rate for _ in range(episodes))

    lines: list[dict[str, Any]] = []
    for version in range(1, UPDATES + 1):
        done = version / UPDATES
        lines.append({"kind": "update", "version": version, "reward_mean": solved(reward(done), GROUPS) / GROUPS})
        if version % EVERY == 0:
            count = solved(success(done), EPISODES)
            lower, upper = wilson_interval(count / EPISODES, EPISODES)
            found = {"success": count / EPISODES, "lower": lower, "upper": upper}
            lines.append({"kind": "evaluation", "version": version, **found})
    return lines


def flat(_: float) -> float:
    return 0.4


def rising(done: float) -> float:
    return 0.3 + 0.5 * done


def alarms(reward: Curve, success: Curve, seeds: int = 100) -> int:
    """In how many of the runs there is an alarm after any evaluation."""

    def is_raised(lines: list[dict[str, Any]]) -> bool:
        ends = [number + 1 for number, line in enumerate(lines) if line["kind"] == "evaluation"]
        return any(find_reward_alarm(lines[:end]) is not None for end in ends)

    return sum(is_raised(series(seed, reward, success)) for seed in range(seeds))


def test_a_reward_that_rises_alone_raises_the_alarm() -> None:
    assert alarms(rising, flat) >= 40, "32 episodes per evaluation do not always suffice"
    assert alarms(rising, lambda done: 0.4 - 0.3 * done) >= 98


def test_a_reward_that_rises_with_evaluation_raises_none() -> None:
    assert alarms(rising, rising) == 0
    assert alarms(rising, lambda done: 0.2 + 0.4 * done) <= 1


def test_noise_raises_none() -> None:
    assert alarms(flat, flat) == 0
    assert alarms(flat, lambda done: 0.4 - 0.3 * done) == 0, "the reward did not rise"


def test_the_reward_is_that_of_all_rollouts() -> None:
    """A group trains only where members differ, so that its mean hardly changes while ever more groups have the full reward."""
    lines = series(0, rising, flat)
    for line in lines:
        if line["kind"] == "update":
            line |= {"rollouts": 64.0, "rollout_reward": line["reward_mean"], "reward_mean": 0.4}
    assert find_reward_alarm(lines) is not None
    for line in lines:
        if line["kind"] == "update":
            line |= {"rollout_reward": 0.4, "reward_mean": line["rollout_reward"]}
    assert find_reward_alarm(lines) is None
    assert training_reward({"rollouts": 0.0, "reward_mean": 0.5}) is None, "nothing was stored"


def test_too_little_is_no_evidence() -> None:
    lines = series(0, rising, lambda done: 0.4 - 0.3 * done)
    assert find_reward_alarm([]) is None
    first = next(line for line in lines if line["kind"] == "evaluation")
    assert find_reward_alarm([line for line in lines if line["kind"] == "update" or line is first]) is None
    assert find_reward_alarm([line for line in lines if line["kind"] == "evaluation"]) is None


def test_the_sentence_has_the_figures() -> None:
    found = find_reward_alarm(series(0, rising, lambda done: 0.4 - 0.3 * done))
    assert found is not None
    assert f"{found.reward_before:.2f} → {found.reward_after:.2f}" in found.sentence
    assert f"{100 * found.success_before:.1f} % → {100 * found.success_after:.1f} %" in found.sentence
    line = found.as_line(1.0)
    assert (line["kind"], line["version"], line["gain_upper"]) == ("alarm", 90, found.gain_upper)
