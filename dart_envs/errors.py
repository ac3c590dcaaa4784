"""Every error of the environment package, one class per boundary.

    DartEnvError
    ├── DesktopError            a live desktop did not do what was asked
    │   ├── DesktopGone         it died; `fault_owner` says whose fault it was
    │   ├── LeaseLost           the lease expired or was fenced off
    │   └── GuestError          the guest agent refused or failed one request
    ├── FarmError               the farm cannot be reached, refused, or is full
    ├── SetupError              a set-up step failed; the task never started
    ├── EvaluatorError          the evaluator raised; never a silent 0
    ├── TaskError               a task file is wrong; names file and field
    └── ActionError             an action is outside the action space

Rule: raise the most specific class, with one sentence that says what to do. Non-goals: no retries here.
"""

from __future__ import annotations

from dart_server.wire import FaultOwner


class DartEnvError(Exception):
    """Root of all errors of `dart_envs`."""


class DesktopError(DartEnvError):
    """A live desktop did not do what was asked."""


class DesktopGone(DesktopError):
    """The desktop died. `fault_owner` says whether the policy broke it or the host lost it."""

    def __init__(self, message: str, *, fault_owner: FaultOwner = FaultOwner.HOST, cause: str = "unknown") -> None:
        super().__init__(message)
        self.fault_owner = fault_owner
        self.cause = cause


class LeaseLost(DesktopError):
    """The lease expired, was released, or another client holds the desktop now."""


class GuestError(DesktopError):
    """The guest agent refused or failed one request; the desktop itself is alive. `code` is the agent's own
    name for it."""

    def __init__(self, message: str, *, code: str = "unknown") -> None:
        super().__init__(message)
        self.code = code


class FarmError(DartEnvError):
    """The farm cannot be reached, refused the request, or has no free desktop."""

    def __init__(self, message: str, *, code: str = "unknown", hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} {hint}")
        self.code = code
        self.hint = hint


class SetupError(DartEnvError):
    """A set-up step failed, so the task never started."""


class EvaluatorError(DartEnvError):
    """The evaluator itself failed; the episode has no verdict."""


class TaskError(DartEnvError):
    """A task definition is wrong."""


class ActionError(DartEnvError):
    """An action is outside the action space."""
