"""Protocols of the parts of a task: its setup steps and its evaluator.

Code that fetches files, runs setup steps or judges needs these parts only, and takes any task that has them. The task
itself is `dart_envs.types.TaskLike`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class SetupStepLike(Protocol):
    """A setup step of a task; implemented by `dart_envs.tasks.model.SetupStep`."""

    @property
    def type(self) -> str:
        """Kind of the step."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Parameters of the step by name."""
        ...


class EvaluatorLike(Protocol):
    """How a task is judged, as parallel sequences with one entry per function; implemented by `dart_envs.tasks.model.Evaluator`."""

    @property
    def functions(self) -> Sequence[str]:
        """Names of the metrics."""
        ...

    @property
    def result_configs(self) -> Sequence[Mapping[str, Any] | None]:
        """The getter of each metric's result; None where it has none."""
        ...

    @property
    def expected_configs(self) -> Sequence[Mapping[str, Any] | None]:
        """The getter of each metric's expected value; None where it has none."""
        ...

    @property
    def metric_options(self) -> Sequence[Mapping[str, Any]]:
        """Options of each metric."""
        ...

    @property
    def conj(self) -> str:
        """How the metrics are combined: `and` or `or`."""
        ...

    @property
    def postconfig(self) -> Sequence[SetupStepLike]:
        """Steps that are performed on the desktop before it is judged."""
        ...
