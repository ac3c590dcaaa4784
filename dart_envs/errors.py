"""Every error of the environment package, one class per boundary.

    DartEnvError
    ├── DesktopError            a live desktop did not do what was asked
    │   ├── DesktopFailedError         it died; `fault_owner` says whose fault it was
    │   │   └── HostFaultError       the farm's own host failed at it
    │   ├── LeaseLostError           the lease is no longer ours
    │   │   ├── LeaseExpiredError    it expired or was released
    │   │   └── StaleFencingTokenError          the desktop has another fencing_token now
    │   └── GuestError          the guest agent refused or failed one request
    ├── FarmError               the farm cannot be reached, refused, or is full: one class per code
    │   ├── FarmUnreachableError  FarmTimeoutError
    │   ├── UnauthenticatedError  ForbiddenError  NotFoundError  InvalidRequestError
    │   ├── NoCapacityError  QuotaExceededError  TooManyRequestsError  FarmDrainingError
    │   ├── FarmDatabaseUnavailableError    `retry_after_s` says when to ask again
    │   ├── SnapshotQuotaError  SnapshotNotFoundError  SnapshotBrokenError
    │   ├── ImageNotFoundError  UnsupportedCapabilityError
    │   └── ClaimCancelledError
    ├── SetupError              a setup step failed; the task never started
    ├── EvaluatorError          the evaluator raised; never a silent 0
    ├── TaskError               a task file is wrong; names file and field
    │   └── AssetError          a file that a task brings along is not in the cache and cannot be fetched
    └── ActionError             an action is outside the action space; `fault` says how

Code raises the most specific class, with one sentence that says what to do. This module repeats nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from dart_server.wire import ErrorCode, FaultOwner


class DartEnvError(Exception):
    """Root of all errors of `dart_envs`."""


class DesktopError(DartEnvError):
    """A live desktop did not do what was asked."""


class DesktopFailedError(DesktopError):
    """The desktop died.

    Args:
        message: What happened.
        fault_owner: Whether the policy broke it or the host lost it.
        cause: A short name of the cause.
    """

    def __init__(self, message: str, *, fault_owner: FaultOwner = FaultOwner.HOST, cause: str = "unknown") -> None:
        super().__init__(message)
        self.fault_owner = fault_owner
        self.cause = cause


class HostFaultError(DesktopFailedError):
    """The farm or its host failed at what was asked; the policy had no part in it."""


class LeaseLostError(DesktopError):
    """The lease expired, was released, or another client holds the desktop now."""


class LeaseExpiredError(LeaseLostError):
    """The lease has ended: nobody kept it in time, or it was released."""


class StaleFencingTokenError(LeaseLostError):
    """The desktop has a newer fencing token, after a reset or a takeover by another process. Attach to the lease again to go on."""


TOO_LARGE_CODE = "too_large"
"""Code of a `GuestError`: the desktop's answer has more bytes than the farm reads."""


class GuestError(DesktopError):
    """The guest agent refused or failed one request; the desktop itself is alive.

    Args:
        message: What happened.
        code: The agent's own name of the error.
    """

    def __init__(self, message: str, *, code: str = "unknown") -> None:
        super().__init__(message)
        self.code = code


def append_hint(message: str, hint: str | None) -> str:
    """Join an error message and its hint.

    Args:
        message: What went wrong; a sentence without its full stop is given one.
        hint: What to do; None adds nothing.

    Returns:
        The whole text.
    """
    if hint is None:
        return message
    if message.endswith((".", "!", "?", "\n")):
        return f"{message} {hint}"
    return f"{message}. {hint}" if hint[:1].isupper() else f"{message}; {hint}"


class FarmError(DartEnvError):
    """The farm cannot be reached, refused the request, or has no free desktop.

    Args:
        message: What happened.
        code: An `ErrorCode` of the wire, or a code of the client such as `unreachable` or `timeout`.
        hint: What to do.
        retry_after_s: Seconds until the same request may succeed, if the farm named them.
    """

    def __init__(
        self, message: str, *, code: str = "unknown", hint: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(append_hint(message, hint))
        self.code = code
        self.hint = hint
        self.retry_after_s = retry_after_s


class FarmUnreachableError(FarmError):
    """No connection to the farm, or it broke before the answer."""


class FarmTimeoutError(FarmError):
    """The farm did not answer in time; it may still do what was asked."""


class UnauthenticatedError(FarmError):
    """The key is missing, unknown, revoked or expired."""


class ForbiddenError(FarmError):
    """The key may not do that."""


class NotFoundError(FarmError):
    """The object does not exist, or it belongs to another key."""


class InvalidRequestError(FarmError):
    """The request is wrong for every key."""


class NoCapacityError(FarmError):
    """No desktop became free in time."""


class QuotaExceededError(FarmError):
    """The key holds or waits for as many desktops as it may."""


class TooManyRequestsError(FarmError):
    """The key sends more requests at once, or faster, than the farm allows one key."""


class FarmDrainingError(FarmError):
    """The farm takes no claims now: it starts, stops, or was drained."""


class FarmDatabaseUnavailableError(FarmError):
    """The farm's database is unavailable: desktops and leases go on, nothing new is granted."""


class SnapshotQuotaError(FarmError):
    """There is no room for the snapshot."""


class SnapshotNotFoundError(FarmError):
    """The snapshot does not exist (any more)."""


class SnapshotBrokenError(FarmError):
    """The snapshot did not restore and is quarantined."""


class ImageNotFoundError(FarmError):
    """The farm does not have that desktop image."""


class UnsupportedCapabilityError(FarmError):
    """The farm's provider cannot do that."""


class ClaimCancelledError(FarmError):
    """The claim was cancelled before it was granted."""


ERROR_CLASSES: Mapping[ErrorCode, type[FarmError]] = {
    ErrorCode.UNAUTHENTICATED: UnauthenticatedError,
    ErrorCode.FORBIDDEN: ForbiddenError,
    ErrorCode.NOT_FOUND: NotFoundError,
    ErrorCode.INVALID: InvalidRequestError,
    ErrorCode.NO_CAPACITY: NoCapacityError,
    ErrorCode.QUOTA_EXCEEDED: QuotaExceededError,
    ErrorCode.TOO_MANY_REQUESTS: TooManyRequestsError,
    ErrorCode.DRAINING: FarmDrainingError,
    ErrorCode.DATABASE_UNAVAILABLE: FarmDatabaseUnavailableError,
    ErrorCode.TIMED_OUT: FarmTimeoutError,
    ErrorCode.QUOTA: SnapshotQuotaError,
    ErrorCode.SNAPSHOT_MISSING: SnapshotNotFoundError,
    ErrorCode.SNAPSHOT_BROKEN: SnapshotBrokenError,
    ErrorCode.IMAGE_MISSING: ImageNotFoundError,
    ErrorCode.CAPABILITY_MISSING: UnsupportedCapabilityError,
}
"""The class of every refusal; what is about a desktop or a lease (`fenced`, `desktop_failed` …) has a `DesktopError` instead."""


class SetupError(DartEnvError):
    """A setup step failed, so the task never started.

    Args:
        message: What happened.
        failed_step: Number of the setup step that missed its success condition, from 0; None where something else failed,
            such as a request to the desktop.
    """

    def __init__(self, message: str, *, failed_step: int | None = None) -> None:
        super().__init__(message)
        self.failed_step = failed_step


class EvaluatorError(DartEnvError):
    """The evaluator itself failed; the episode has no verdict."""


class TaskError(DartEnvError):
    """A task definition is wrong."""


class AssetError(TaskError):
    """A file that a task needs is missing.

    Args:
        message: What is missing and what to do.
        url: Where the file comes from.
        task_id: Id of the task; empty where it is not known.
    """

    def __init__(self, message: str, *, url: str, task_id: str = "") -> None:
        super().__init__(message)
        self.url = url
        self.task_id = task_id


class ActionFault(StrEnum):
    """Why an answer or an action performs nothing."""

    NO_ACTION = "no_action"
    """Nothing in the answer is meant to be an action."""
    BAD_SYNTAX = "bad_syntax"
    """It is not in the language: not closed, no JSON, no Python, text after the end."""
    UNKNOWN_ACTION = "unknown_action"
    """There is no action of that name."""
    MISSING_FIELD = "missing_field"
    """The action lacks something that it needs."""
    OUT_OF_SCREEN = "out_of_screen"
    """A point is outside the picture or the screen."""
    BAD_VALUE = "bad_value"
    """A field has a value that the action does not take."""
    TOO_MANY = "too_many"
    """One answer holds more than one step can perform."""
    REFUSED = "refused"
    """The desktop refused it."""


class ActionError(DartEnvError):
    """An action is outside the action space.

    Args:
        message: One sentence.
        fault: What is wrong.
    """

    def __init__(self, message: str, fault: ActionFault = ActionFault.BAD_VALUE) -> None:
        super().__init__(message)
        self.fault = fault


__all__ = [
    "ActionError",
    "ActionFault",
    "AssetError",
    "ClaimCancelledError",
    "DartEnvError",
    "DesktopError",
    "DesktopFailedError",
    "EvaluatorError",
    "FarmDatabaseUnavailableError",
    "FarmDrainingError",
    "FarmError",
    "FarmTimeoutError",
    "FarmUnreachableError",
    "ForbiddenError",
    "GuestError",
    "HostFaultError",
    "ImageNotFoundError",
    "InvalidRequestError",
    "LeaseExpiredError",
    "LeaseLostError",
    "NoCapacityError",
    "NotFoundError",
    "QuotaExceededError",
    "SetupError",
    "SnapshotBrokenError",
    "SnapshotNotFoundError",
    "SnapshotQuotaError",
    "StaleFencingTokenError",
    "TaskError",
    "TooManyRequestsError",
    "UnauthenticatedError",
    "UnsupportedCapabilityError",
]
