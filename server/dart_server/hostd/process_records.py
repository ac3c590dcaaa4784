"""What dart-hostd remembers of one life of a desktop and of one snapshot. Rule: data only. Non-goals: making them (`containers`)."""

from __future__ import annotations

from dataclasses import dataclass

from dart_server.hostd import images
from dart_server.hostd.verbs import Limits


@dataclass(slots=True)
class DesktopProcess:
    """One life of a desktop. `layers` are the frozen layers below its writable one, newest first."""

    desktop_id: str
    name: str
    image: images.Image
    layers: tuple[str, ...]
    limits: Limits
    env: dict[str, str]
    first_id: int = 0
    """Where its range of user ids begins on the host; 0: it shares the host's ids."""
    restored: bool = False
    pidfd: int = -1
    exit_status: str | None = None
    """How init ended ("signal 9", "exit 0"), None while it runs."""


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """Process images on disk plus the layers and settings that a restored desktop needs."""

    snapshot_id: str
    image: images.Image
    layers: tuple[str, ...]
    limits: Limits
    env: dict[str, str]
    sizes: dict[str, int]
    """Bytes of every file of the process images, by name."""
    quarantined: bool = False
    """It did not restore: its files are kept for a person to look at."""
