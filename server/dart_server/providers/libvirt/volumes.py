"""The disks of machines and the snapshots inside them.

A volume is a qcow2 overlay on an image's disk. A snapshot lives inside volumes: memory and disk together, under a tag. A volume belongs
to a running desktop, or is parked: left by its desktop because it holds a snapshot that no other volume holds. To fork, a volume is
copied with the wanted snapshot and those it came from; the others are taken out of the copy.
Rule: what is known of a volume lies beside it as JSON, written by rename, so that a farm that was started again knows it. Blocking calls.
Non-goals: machines (`libvirt`); taking a snapshot or removing one while a machine writes the volume (its monitor does).
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import threading
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dart_server.providers.base import DesktopSpec, HostFault
from dart_server.providers.libvirt.images import VmImage

TAG = "s-"
AGENT, OSWORLD = "agent", "osworld"
"""What runs inside a machine: our agent, or OSWorld's own server only."""
MIB = 1024**2
CALL_TIMEOUT_S = 120.0


@dataclass(slots=True)
class VolumeSnapshot:
    """One snapshot as a volume holds it. `parent` is the one that the desktop had come from, None at the boot."""

    bytes: int
    parent: str | None


@dataclass(slots=True)
class Volume:
    """One overlay. `desktop` is whose disk it is now; `current` the snapshot that desktop was restored from or has taken last."""

    path: Path
    image_digest: str
    spec: DesktopSpec
    isolated_network: bool
    """Whether its machine has the network that leads nowhere: our own images need none."""
    guest: str
    """`AGENT`, `OSWORLD`, or empty while it is not known."""
    desktop: str | None = None
    current: str | None = None
    saved: dict[str, VolumeSnapshot] = field(default_factory=dict)

    def ancestry(self, snapshot_id: str) -> set[str]:
        """A snapshot and those it came from that are still here."""
        found: set[str] = set()
        at: str | None = snapshot_id
        while at is not None and at in self.saved and at not in found:
            found.add(at)
            at = self.saved[at].parent
        return found


class Volumes:
    """All volumes of one farm, in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._all: dict[Path, Volume] = {}
        self._lock = threading.RLock()
        """Held while what is known changes; copies are made without it."""

    def load(self) -> None:
        """Take over what lies there; files that nothing tells of are removed."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._all = {path: volume for path, volume in self._all.items() if path.exists()}
        for record in self._directory.glob("*.json"):
            volume = _read(record)
            if volume is not None and volume.path.exists():
                self._all.setdefault(volume.path, volume)
        known = {path.stem for path in self._all}
        for path in self._directory.iterdir():
            if path.stem not in known:
                path.unlink(missing_ok=True)

    def all(self) -> list[Volume]:
        return list(self._all.values())

    def find(self, desktop_id: str) -> Volume | None:
        """The disk of a desktop."""
        return next((volume for volume in self.all() if volume.desktop == desktop_id), None)

    def with_snapshot(self, snapshot_id: str) -> list[Volume]:
        """Volumes with this snapshot inside, parked ones first."""
        found = [volume for volume in self.all() if snapshot_id in volume.saved]
        return sorted(found, key=lambda volume: volume.desktop is not None)

    def snapshots(self) -> set[str]:
        return {name for volume in self.all() for name in list(volume.saved)}

    def create(self, image: VmImage, desktop_id: str, spec: DesktopSpec) -> Volume:
        """A fresh overlay for a desktop. The disk of an image of ours ends `disk_mib` after the image; others keep their size."""
        backing, has_agent = image.disk, image.has_agent
        told = json.loads(qemu_img("info", "--output=json", str(backing)))
        size = int(told["virtual-size"]) + (spec.disk_mib * MIB if has_agent else 0)
        path = self._free_path()
        qemu_img("create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(backing), str(path), str(size))
        os.chmod(path, 0o600)
        return self._register(Volume(path, image.digest, spec, not has_agent, AGENT if has_agent else "", desktop_id))

    def copy(self, source: Volume, desktop_id: str, snapshot_id: str) -> Volume:
        """A copy for a desktop with one snapshot and its ancestry; nobody may write the source meanwhile. `trim` it before use."""
        path = self._free_path()
        try:
            _run(["cp", "--reflink=auto", "--sparse=always", str(source.path), str(path)])
            saved = {name: VolumeSnapshot(**asdict(one)) for name, one in source.saved.items()}
            copied = replace(source, path=path, desktop=desktop_id, current=snapshot_id, saved=saved)
        except BaseException:  # interrupted, too, no half a disk may stay; raised again
            path.unlink(missing_ok=True)
            raise
        return self._register(copied)

    def trim(self, volume: Volume, snapshot_id: str) -> None:
        """Take out of a volume that no machine runs on every snapshot but this one and its ancestry."""
        for name in set(volume.saved) - volume.ancestry(snapshot_id):
            qemu_img("snapshot", "-q", "-d", TAG + name, str(volume.path))
            del volume.saved[name]
        self.write(volume)

    def attach(self, volume: Volume, desktop_id: str, snapshot_id: str) -> bool:
        """Make a parked volume a desktop's disk, at this snapshot; False when it is another's by now, or gone."""
        with self._lock:
            if volume.path not in self._all or volume.desktop not in (None, desktop_id):
                return False
            volume.desktop, volume.current = desktop_id, snapshot_id
            self.write(volume)
            return True

    def detach(self, volume: Volume) -> None:
        """Its desktop is gone: park it or remove it."""
        with self._lock:
            volume.desktop = None
            self.write(volume)
            self.collect_garbage()

    def remove_snapshot(self, volume: Volume, snapshot_id: str) -> None:
        """Forget a snapshot of a volume; taken out of the file too where no machine runs on it."""
        with self._lock:
            if volume.path not in self._all:
                return
            if volume.desktop is None:
                qemu_img("snapshot", "-q", "-d", TAG + snapshot_id, str(volume.path))
            volume.saved.pop(snapshot_id, None)
            self.write(volume)

    def collect_garbage(self) -> None:
        """Remove parked volumes of which every snapshot is in another one too."""
        with self._lock:
            for volume in self.all():
                if volume.desktop is None and all(len(self.with_snapshot(name)) > 1 for name in volume.saved):
                    del self._all[volume.path]
                    volume.path.with_suffix(".json").unlink(missing_ok=True)
                    volume.path.unlink(missing_ok=True)

    def write(self, volume: Volume) -> None:
        """Put down what is known of a volume."""
        with self._lock:
            raw: dict[str, Any] = asdict(volume)
            raw["path"] = volume.path.name
            fresh = volume.path.with_suffix(".new")
            fresh.write_text(json.dumps(raw), encoding="utf-8")
            os.replace(fresh, volume.path.with_suffix(".json"))

    def _register(self, volume: Volume) -> Volume:
        with self._lock:
            self._all[volume.path] = volume
            self.write(volume)
        return volume

    def _free_path(self) -> Path:
        return self._directory / f"{secrets.token_hex(6)}.qcow2"


def used_bytes(volume: Volume) -> int:
    """Room that a volume takes on the host."""
    try:
        return volume.path.stat().st_blocks * 512
    except OSError:
        return 0


def _read(record: Path) -> Volume | None:
    """What was put down of a volume, None when it cannot be read."""
    try:
        raw = json.loads(record.read_text(encoding="utf-8"))
        spec = DesktopSpec(**{**raw["spec"], "resolution": tuple(raw["spec"]["resolution"])})
        saved = {name: VolumeSnapshot(**one) for name, one in raw["saved"].items()}
        path = record.parent / str(raw["path"])
        return Volume(**{**raw, "path": path, "spec": spec, "saved": saved})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def qemu_img(*arguments: str) -> str:
    """What `qemu-img` says. Blocking. Raises HostFault."""
    return _run(["qemu-img", *arguments])


def _run(argv: list[str]) -> str:
    """A host program's output. Raises HostFault."""
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostFault(
            f"{argv[0]} did not run: {error}", hint="install qemu-utils, and look at the host's disk"
        ) from error
    if ended.returncode != 0:
        raise HostFault(f"{' '.join(argv[:2])} failed: {ended.stderr.strip()[-300:]}")
    return ended.stdout
