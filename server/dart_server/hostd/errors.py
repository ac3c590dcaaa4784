"""Everything dart-hostd may answer instead of a result. `kind` is what travels; `hint` is the fix."""

from __future__ import annotations


class HostdError(Exception):
    """Root of the helper's errors."""

    kind = "host_fault"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class HostdHostFault(HostdError):
    """The host failed: no memory, no disk, a tool that ended badly."""

    kind = "host_fault"


class BadRequest(HostdError):
    """The request is not one of the fixed verbs with valid arguments."""

    kind = "bad_request"


class HostdCapabilityMissing(HostdError):
    """The host lacks a tool or a kernel feature."""

    kind = "capability_missing"


class HostdImageMissing(HostdError):
    """No image of that name under the images directory."""

    kind = "image_missing"


class HostdSnapshotBroken(HostdError):
    """Unknown snapshot, or one that does not restore."""

    kind = "snapshot_broken"


class HostdDesktopGone(HostdError):
    """No running desktop of that id."""

    kind = "desktop_gone"


class ConnectionRefused(HostdError):
    """The desktop runs but nothing listens on that port."""

    kind = "refused"


class HostdDesktopUnsavable(HostdError):
    """What the desktop's programs made cannot be saved: the desktop is to blame, the host is well."""

    kind = "desktop_unsavable"
