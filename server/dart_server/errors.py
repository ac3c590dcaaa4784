"""What the farm raises, and how it reaches the client.

Rule: inside the package a failure is a `ApiError` with a stable code, one sentence, and a hint that fixes it; the middleware turns it
into the one envelope (`wire.ErrorBody`). A provider's errors are translated in one place, `from_provider_error`.
Non-goals: retries, logging.
"""

from __future__ import annotations

from dart_server.providers import base
from dart_server.wire import DesktopHealthView, ErrorCode, FaultOwner

STATUS: dict[ErrorCode, int] = {
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.INVALID: 422,
    ErrorCode.FENCED: 409,
    ErrorCode.LEASE_EXPIRED: 410,
    ErrorCode.NO_CAPACITY: 503,
    ErrorCode.QUOTA: 507,
    ErrorCode.QUOTA_EXCEEDED: 429,
    ErrorCode.TOO_MANY_REQUESTS: 429,
    ErrorCode.CAPABILITY_MISSING: 501,
    ErrorCode.IMAGE_MISSING: 404,
    ErrorCode.SNAPSHOT_MISSING: 404,
    ErrorCode.SNAPSHOT_BROKEN: 409,
    ErrorCode.DESKTOP_FAILED: 502,
    ErrorCode.GUEST_ERROR: 502,
    ErrorCode.HOST_FAULT: 503,
    ErrorCode.DRAINING: 503,
    ErrorCode.DATABASE_UNAVAILABLE: 503,
    ErrorCode.TIMED_OUT: 504,
}


class ApiError(Exception):
    """A refusal or failure that the client hears about.

    `status` overrides the code's own HTTP status, `retry_after_s` the middleware's own Retry-After.
    """

    def __init__(
        self,
        code: ErrorCode,
        detail: str,
        *,
        hint: str | None = None,
        status: int | None = None,
        desktop: DesktopHealthView | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint or None
        self.status = status or STATUS[code]
        self.desktop = desktop
        self.retry_after_s = retry_after_s


class DatabaseUnavailableError(ApiError):
    """The database does not answer: nothing that must be written first can be done now."""

    def __init__(self, detail: str) -> None:
        hint = "Desktops and leases go on; repeat the request in a moment."
        super().__init__(ErrorCode.DATABASE_UNAVAILABLE, detail, hint=hint)


class FarmConfigError(Exception):
    """The farm cannot start like this; the message names the fix. Exit code 2."""


def from_provider_error(error: base.ProviderError) -> ApiError:
    """The client's view of a provider's error."""
    match error:
        case base.DesktopUnsavable():
            cause = base.HealthCause.DISK_FULL.value
            health = DesktopHealthView(alive=False, cause=cause, fault_owner=FaultOwner.POLICY)
            return ApiError(ErrorCode.DESKTOP_FAILED, str(error), hint=error.hint, desktop=health)
        case base.CapabilityMissing():
            code = ErrorCode.CAPABILITY_MISSING
        case base.ImageMissing():
            code = ErrorCode.IMAGE_MISSING
        case base.SnapshotBroken():
            code = ErrorCode.SNAPSHOT_BROKEN
        case _:
            code = ErrorCode.HOST_FAULT
    return ApiError(code, str(error), hint=error.hint)
