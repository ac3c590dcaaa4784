"""The provider contract: what makes, copies and removes desktops.

Rule: a provider knows desktops and snapshots by the ids its caller chose, and nothing about leases, tenants or
tasks. What a host lacks is a `Capabilities` flag and a `CapabilityMissing` error, never a silent fallback.
Non-goals: pooling, quotas, retries, time-outs of leases (the farm's pool and lease packages do those).

Ids are chosen by the caller and match `ID_PATTERN`. Sizes are bytes, or MiB where the name says so.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol, runtime_checkable

from dart_server.hostd.linux.netns import OSWORLD_PORT as OSWORLD_PORT

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Full match for a desktop or snapshot id."""

IMAGE_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""Full match for an image name; an image is found by name only, under the provider's own images directory."""

CONTROL: Literal["control"] = "control"
"""The port name that dials the guest agent's control socket instead of a TCP port."""

DialPort = int | Literal["control"]


class ProviderError(Exception):
    """Root of everything a provider raises; `hint` is the fix in one sentence, empty when there is none."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class CapabilityMissing(ProviderError):
    """The provider, or the host it runs on, cannot do this at all; `hint` says how to get it."""


class ImageMissing(ProviderError):
    """No image of this name is installed for the provider."""


class SnapshotBroken(ProviderError):
    """The snapshot does not exist, is incomplete, or cannot be restored; make it again."""


class DesktopGone(ProviderError):
    """No live desktop has this id: it was destroyed, it died, or it never existed."""


class DesktopUnsavable(ProviderError):
    """What the desktop's own programs made cannot be saved; the host is not to blame."""


class HostFault(ProviderError):
    """The host failed (no memory, no disk, helper process down, time-out); the desktop is not to blame."""


class HealthCause(StrEnum):
    """Why a desktop is not well. The first group after `ok` is made from inside the desktop."""

    OK = "ok"
    OOM = "oom"
    """The desktop's own memory limit killed a process."""
    PIDS = "pids"
    """The desktop hit its own process limit."""
    DISK_FULL = "disk_full"
    """The desktop filled its own disk quota."""
    SESSION_DEAD = "session_dead"
    """The agent answers but the X server or the desktop session is gone."""
    AGENT_DEAD = "agent_dead"
    """The desktop's init runs but the guest agent does not answer."""
    MALFORMED_ANSWER = "malformed_answer"
    """The desktop runs, but what answers in it does not keep to the guest protocol."""
    HOST_OOM = "host_oom"
    """The host ran out of memory and killed a process of a desktop that was below its own limit."""
    KILLED_FROM_OUTSIDE = "killed_from_outside"
    """The desktop's init ended with none of its own limits hit; only the host can do that."""
    UNKNOWN = "unknown"


SELF_INFLICTED = frozenset(
    {
        HealthCause.OOM,
        HealthCause.PIDS,
        HealthCause.DISK_FULL,
        HealthCause.SESSION_DEAD,
        HealthCause.AGENT_DEAD,
        HealthCause.MALFORMED_ANSWER,
    }
)
"""Causes that only something inside the desktop can bring about: they belong to the policy, not to the farm."""


@dataclass(frozen=True, slots=True)
class DesktopSpec:
    """What to boot: image by name, screen as (width, height) in pixels, and the desktop's own limits."""

    image: str
    resolution: tuple[int, int] = (1920, 1080)
    font_size: int | None = None
    """Points, for toolkits and terminals alike; None keeps the image's own size."""
    memory_mib: int = 2048
    pids: int = 1024
    cpus: float = 2.0
    disk_mib: int = 1024
    """Room for what the desktop writes, image excluded."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this provider can do on this host."""

    memory_snapshot: bool
    """Snapshots hold memory and processes, not only files."""
    fork: bool
    """One snapshot can be restored into many desktops that live at the same time."""
    restore_in_place: bool
    """`restore` into an existing desktop keeps its id usable while others run."""
    tunnel: bool
    """`dial` reaches TCP ports inside the desktop."""
    freeze: bool = False
    """Desktops can stand still without using a processor, and go on at once (`SupportsFreeze`)."""
    evidence: Literal["host", "guest"] = "guest"
    """Who tells what a desktop holds: `host` for a provider that reads its files and processes from outside (`SupportsHostEvidence`)."""
    limits: frozenset[str] = field(default_factory=frozenset)
    """Names of the limits of `DesktopSpec` that are enforced: of memory, pids, cpus, disk."""
    accelerator: str = ""
    """What virtual machines run on: `kvm`, or `tcg` for emulation; empty for what is no machine."""


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A finished snapshot; `bytes` is what it occupies (memory image and written files).

    `files_bytes`: the part of it that later snapshots of its copies go on standing on, so that it is freed with the last of them.
    `pause_s`: how long the desktop stood still. `processes`: how many were saved. None and 0: not told.
    """

    snapshot_id: str
    bytes: int
    image_digest: str
    files_bytes: int = 0
    pause_s: float | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class DesktopHealth:
    """One look at a desktop. `alive` means that it can go on being used; `cause` says why not (or `ok`)."""

    alive: bool
    cause: HealthCause
    detail: str = ""
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    pids: int = 0
    disk_bytes: int = 0
    oom_kills: int = 0


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything of this provider that exists on the host now, known to the caller or not."""

    desktops: tuple[str, ...] = ()
    snapshots: tuple[str, ...] = ()


class Provider(Protocol):
    """Makes, copies and removes desktops.

    Every method may raise `ProviderError`; all are safe to call in parallel for different ids; calls for one id are the caller's to
    order.
    """

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def start(self) -> None:
        """Make ready for use (start or find the helper process). Idempotent. Raises `CapabilityMissing`."""
        ...

    async def aclose(self) -> None:
        """Let go of the provider; desktops it made are destroyed if the provider started their host itself."""
        ...

    async def image_digest(self, image: str) -> str:
        """Content digest of an image, `sha256:…`. Raises `ImageMissing`."""
        ...

    async def create(self, desktop_id: str, spec: DesktopSpec) -> None:
        """Boot a desktop from its image; returns when its guest agent answers ready. The id must be free."""
        ...

    async def snapshot(self, desktop_id: str, snapshot_id: str) -> SnapshotInfo:
        """Save the desktop's whole state under a new id; the desktop goes on running.

        Every connection dialled into this desktop is closed by this call; dial again afterwards.
        """
        ...

    async def restore(self, desktop_id: str, snapshot_id: str) -> None:
        """Bring `desktop_id`, existing or not, to the snapshot's state; returns when its guest agent answers ready.

        A fork is this call with several desktop ids. Connections into a former desktop of that id are closed.
        Raises `SnapshotBroken`; afterwards the desktop of that id does not exist.
        """
        ...

    async def destroy(self, desktop_id: str) -> None:
        """Remove a desktop and all it holds. Idempotent, also for ids that never existed."""
        ...

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove a snapshot. Idempotent. Desktops restored from it live on."""
        ...

    async def dial(self, desktop_id: str, port: DialPort) -> socket.socket:
        """A connected stream socket into the desktop: loopback TCP `port`, the guest agent's control socket for
        `"control"`, OSWorld's server for `OSWORLD_PORT`. The caller closes it.
        Raises `DesktopGone`; `ConnectionRefusedError` when nothing listens."""
        ...

    async def health(self, desktop_id: str) -> DesktopHealth:
        """One look, without side effects; never raises for a dead or unknown desktop."""
        ...

    async def inventory(self) -> Inventory:
        """What exists on the host now, for the reaper."""
        ...

    async def reap(self, keep: set[str]) -> Sequence[str]:
        """Remove every owned desktop, snapshot and left-over whose id is not in `keep`; names what it removed."""
        ...


@runtime_checkable
class SupportsQuarantine(Protocol):
    """A provider that can keep a snapshot which does not restore aside, with the tools' own last words."""

    async def quarantine(self, snapshot_id: str) -> str | None:
        """Never restore from it again and keep its files, until `delete_snapshot`; where a person finds them, None when nothing is left."""
        ...


@runtime_checkable
class SupportsFreeze(Protocol):
    """A provider whose desktops can stand still; those that declare `Capabilities.freeze`.

    A frozen desktop keeps its memory, its screen and the connections into it, uses no processor, and is well to `health`, which does not
    ask its agent. `restore` and `destroy` take frozen ones as they are; `snapshot` refuses them.
    """

    async def freeze(self, desktop_id: str) -> None:
        """Stop all its processes; returns when they stand still. Idempotent. Raises `DesktopGone`, `HostFault` (it goes on then)."""
        ...

    async def thaw(self, desktop_id: str) -> None:
        """Let it go on. Idempotent. Raises `DesktopGone`, `HostFault`."""
        ...


@runtime_checkable
class SupportsHostEvidence(Protocol):
    """A provider that reads a desktop from outside; those that declare `Capabilities.evidence` as `host`.

    Nothing inside the desktop takes part in the answer, and the desktop stands still while it is made.
    """

    async def evidence(self, desktop_id: str, queries: Sequence[Mapping[str, Any]]) -> bytes:
        """The binary message of `hostd.evidence.collect`. `queries`: as `hostd.evidence.queries` checks them, all of one moment.

        Raises `DesktopGone`, `HostFault`.
        """
        ...
