"""What may leave the lab: typed text and screenshots can be taken out of everything that is shown or exported.

Role: pure functions on steps. Rule: with `text`, nothing is left from which typed text can be read: not the action's, not the response it
was parsed from, not the ids of its tokens, not the prompt, not the episode's info at any depth; log-probs and counts stay. With `screens`
no pixels leave. Non-goals: secrets elsewhere in a database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from dart_agent.types import StepRecord, Trajectory
from dart_train.data_commands.typed_text import TEXT_FIELDS, typed_keys, typed_texts

REDACTED = "[redacted]"
KEY_FIELDS = frozenset({"key", "keys"})
"""Fields of an action that hold keys."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """What is taken out.

    Attributes:
        text: Typed text.
        screens: Screenshots.
    """

    text: bool = False
    screens: bool = False


def redact_trajectory(trajectory: Trajectory, redaction: Redaction) -> Trajectory:
    """Take out of a trajectory what must not leave.

    Args:
        trajectory: The trajectory.
        redaction: What is taken out.

    Returns:
        The trajectory without it.
    """
    if not redaction.text:
        return trajectory
    secrets = _secrets(trajectory)
    info = _without(trajectory.info, secrets)
    cause = None if trajectory.cause is None else _without(trajectory.cause, secrets)
    return replace(trajectory, steps_S=tuple(redact_step(step) for step in trajectory.steps_S), info=info, cause=cause)


def redact_sentence(sentence: str, trajectory: Trajectory, redaction: Redaction) -> str:
    """Take out of a sentence about a trajectory, such as its instruction, what the policy typed, and why responses were no actions.

    Args:
        sentence: The sentence.
        trajectory: The trajectory as it is stored.
        redaction: What is taken out.

    Returns:
        The sentence without it.
    """
    if not redaction.text:
        return sentence
    return str(_without(sentence, _secrets(trajectory)))


def redact_step(step: StepRecord) -> StepRecord:
    """Take typed text out of a step.

    Args:
        step: The step.

    Returns:
        The step; ids are 0 in the same number.
    """
    return replace(
        step,
        prompt_ids_P=(0,) * len(step.prompt_ids_P),
        token_ids_T=(0,) * len(step.token_ids_T),
        text=REDACTED,
        action=None if step.action is None else redact_action(step.action),
        parse_error=None if step.parse_error is None else REDACTED,
    )


def redact_action(action: Mapping[str, Any]) -> dict[str, Any]:
    """Take typed text out of an action.

    Args:
        action: The action as it is recorded.

    Returns:
        A copy without it.
    """
    return {name: _redact_field(name, value) for name, value in action.items()}


def _redact_field(name: str, value: Any) -> Any:
    if name in TEXT_FIELDS:
        return None if value is None else REDACTED
    if name in KEY_FIELDS:
        keys = [value] if isinstance(value, str) else list(value or ())
        typed = typed_keys(keys)
        if not typed:
            return value
        return REDACTED if isinstance(value, str) else [REDACTED if key in typed else key for key in keys]
    if isinstance(value, Mapping):
        return redact_action(value)
    if isinstance(value, (list, tuple)):
        return [redact_action(each) if isinstance(each, Mapping) else each for each in value]
    return value


def _secrets(trajectory: Trajectory) -> set[str]:
    """What was typed, and the reasons why responses were no actions: they quote the responses."""
    reasons = {step.parse_error for step in trajectory.steps_S if step.parse_error}
    return reasons | typed_texts(step.action for step in trajectory.steps_S)


def _without(value: Any, secrets: set[str]) -> Any:
    if isinstance(value, str):
        return _without_secrets(value, secrets)
    if isinstance(value, Mapping):
        return {_without(name, secrets): _without(each, secrets) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without(each, secrets) for each in value]
    return value


def _without_secrets(sentence: str, secrets: set[str]) -> str:
    """The sentence with each stretch that secrets cover replaced once, also where they overlap."""
    covered = bytearray(len(sentence))
    for secret in secrets:
        start = sentence.find(secret)
        while start >= 0:
            covered[start : start + len(secret)] = b"\1" * len(secret)
            start = sentence.find(secret, start + 1)
    stretches = groupby(zip(sentence, covered, strict=True), key=itemgetter(1))
    return "".join(REDACTED if hidden else "".join(each for each, _ in stretch) for hidden, stretch in stretches)
