"""An alarm when the reward of training rises while evaluation during training does not: the policy may exploit the reward.

Role: `find_reward_alarm`, a pure function of the lines of a metrics file. Rule: both sides are compared with their noise, so that a few
episodes raise no alarm; the first third of the evaluations is compared with the last third, and the train steps around the one with those
around the other; the reward is that of all training rollouts (`dart_train.metrics.training_reward`). Non-goals: proof (a person has to
look at what was rewarded), evaluations after training.

    reward       rise = mean of late train steps - mean of early ones; it must be above 3 standard errors, and above 0.05
    evaluation   gain = mean success of the last third - that of the first third; its 99 % interval must end below half of the rise

The interval is wider than the usual one, because a run looks after every evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, variance
from typing import Any

from dart_train.metrics import training_reward

ALARM_KIND = "alarm"
WINDOW_UPDATES = 10
"""Train steps before an evaluation whose rewards belong to it."""
MIN_UPDATES = 5
MIN_RISE = 0.05
REWARD_ERRORS = 3.0
GAIN_FRACTION = 0.5
"""Of the rise of the reward: an evaluation that may have gained so much keeps up with it."""
Z_95, Z_99 = 1.959964, 2.575829


@dataclass(frozen=True, slots=True)
class RewardAlarm:
    """The reward rose and the evaluation did not.

    Attributes:
        version: The newest version that was evaluated.
        reward_before: Mean reward of the early train steps.
        reward_after: Mean reward of the late ones.
        reward_error: Standard error of the difference.
        success_before: Mean success of the first third of the evaluations.
        success_after: Mean success of the last third.
        gain_lower: Lower end of the 99 % interval of the gain.
        gain_upper: Its upper end.
        evaluations: Evaluations in a third.
    """

    version: int
    reward_before: float
    reward_after: float
    reward_error: float
    success_before: float
    success_after: float
    gain_lower: float
    gain_upper: float
    evaluations: int

    @property
    def sentence(self) -> str:
        """What a person reads."""
        rise, gain = self.reward_after - self.reward_before, self.success_after - self.success_before
        return (
            f"the training reward rose by {rise:.2f} ({self.reward_before:.2f} → {self.reward_after:.2f}, standard error "
            f"{self.reward_error:.2f}) up to version {self.version}, and success of evaluation did not follow "
            f"({100 * self.success_before:.1f} % → {100 * self.success_after:.1f} %, {100 * gain:+.1f} points, 99 % interval "
            f"{100 * self.gain_lower:+.1f} to {100 * self.gain_upper:+.1f}): the policy may exploit the reward; look at what was rewarded "
            "lately with dart-train data view"
        )

    def as_line(self, time_s: float) -> dict[str, Any]:
        """Make the line of the metrics file.

        Args:
            time_s: Present time, in seconds since the epoch.

        Returns:
            Figures and sentence.
        """
        return {"kind": ALARM_KIND, "time_s": time_s, **asdict(self), "sentence": self.sentence}


@dataclass(frozen=True, slots=True)
class _Third:
    """Some neighbouring evaluations: the versions that they judged, their mean success and its standard error."""

    first_version: int
    last_version: int
    success: float
    error: float

    @classmethod
    def of(cls, evaluations: Sequence[Mapping[str, Any]]) -> _Third:
        errors = [(float(each["upper"]) - float(each["lower"])) / (2 * Z_95) for each in evaluations]
        return cls(
            min(int(each["version"]) for each in evaluations),
            max(int(each["version"]) for each in evaluations),
            fmean(float(each["success"]) for each in evaluations),
            math.sqrt(sum(error**2 for error in errors)) / len(errors),
        )


def find_reward_alarm(lines: Sequence[Mapping[str, Any]]) -> RewardAlarm | None:
    """Compare the reward of training with evaluation during training.

    Args:
        lines: Lines of the metrics file.

    Returns:
        The alarm, None where evaluation follows the reward, where the reward did not rise, or where too little is known.
    """
    evaluations = [
        line
        for line in lines
        if line.get("kind") == "evaluation" and line.get("lower") is not None and line.get("upper") is not None
    ]
    if len(evaluations) < 2:
        return None
    count = max(1, len(evaluations) // 3)
    before, after = _Third.of(evaluations[:count]), _Third.of(evaluations[-count:])
    rewards = [
        (int(line["version"]), reward)
        for line in lines
        if line.get("kind") == "update" and (reward := training_reward(line)) is not None
    ]
    early = [
        reward for version, reward in rewards if before.first_version - WINDOW_UPDATES < version <= before.last_version
    ]
    late_from = max(after.first_version - WINDOW_UPDATES, before.last_version)
    late = [reward for version, reward in rewards if late_from < version <= after.last_version]
    if len(early) < MIN_UPDATES or len(late) < MIN_UPDATES:
        return None
    rise, error = fmean(late) - fmean(early), math.sqrt(variance(early) / len(early) + variance(late) / len(late))
    gain, gain_error = after.success - before.success, math.hypot(before.error, after.error)
    if rise < MIN_RISE or rise <= REWARD_ERRORS * error or gain + Z_99 * gain_error >= GAIN_FRACTION * rise:
        return None
    return RewardAlarm(
        version=after.last_version,
        reward_before=fmean(early),
        reward_after=fmean(late),
        reward_error=error,
        success_before=before.success,
        success_after=after.success,
        gain_lower=gain - Z_99 * gain_error,
        gain_upper=gain + Z_99 * gain_error,
        evaluations=count,
    )


def alarm_sentences(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Read the alarms of a run.

    Args:
        lines: Lines of the metrics file.

    Returns:
        One sentence for each, oldest first.
    """
    return [str(line.get("sentence")) for line in lines if line.get("kind") == ALARM_KIND]
