"""Desktops and snapshots as dart-hostd knows them: create, checkpoint, restore, destroy, health, reap.

Thread-safe: calls for different ids run in parallel (`parallel` of the heavy ones at a time); calls for one id wait for
each other. A desktop id may live many times in a row; each life has a generation and its own directory, control group
and network namespace, so that a new life never waits for the old one's clean-up.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from dart_server.hostd import dial, images, starting
from dart_server.hostd.errors import HostdDesktopGone, HostdError, HostdHostFault, HostdSnapshotBroken
from dart_server.hostd.evidence.desktop import look
from dart_server.hostd.evidence.queries import HostdQuery
from dart_server.hostd.layout import Layout
from dart_server.hostd.linux import cgroups, syscalls, trees
from dart_server.hostd.process_records import DesktopProcess, SnapshotFiles
from dart_server.hostd.runtime import hardening, syscall_filter
from dart_server.hostd.runtime.runc import Runc
from dart_server.hostd.standstill import stopped
from dart_server.hostd.storage import MAX_LAYERS, Storage, discard, file_sizes
from dart_server.hostd.verbs import Limits

CLOSE_TIMEOUT_S = 30.0
RETRY_WAITS_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""How long a desktop runs on between the attempts to save it."""
CREDENTIALS_IN_QUEUE = "Control messages in queue"
"""CRIU's words for a message that carries its sender's credentials, in the queue of a socket (SO_PASSCRED)."""
NAMELESS_WATCH = "error parsing [inotify"
"""CRIU's words for an inotify watch without a file handle: the kernel has dropped every name of what is watched from its cache."""
HALF_ENDED = "Zombies with threads"
"""CRIU's words for a process whose first thread has ended while others have not, as in the middle of `exit_group`."""
PASSING = (CREDENTIALS_IN_QUEUE, NAMELESS_WATCH, HALF_ENDED)
"""CRIU's words for states that another attempt, a moment later, does not meet."""
_log = logging.getLogger(__name__)


def _log_failure(cleaning: Future[None]) -> None:
    if (error := cleaning.exception()) is not None:
        _log.warning("%s", error)


@dataclass(slots=True)
class ContainerManager:
    """Everything the helper has made, and the only code that makes or removes it."""

    layout: Layout
    storage: Storage
    runc: Runc
    parallel: int = 4
    _desktops: dict[str, DesktopProcess] = field(default_factory=dict)
    """The present life of each desktop id."""
    _by_name: dict[str, DesktopProcess] = field(default_factory=dict)
    """By name: every life that may have mounts, those starting and those being removed included."""
    _snapshots: dict[str, SnapshotFiles] = field(default_factory=dict)
    _locks: dict[str, tuple[threading.Lock, list[int]]] = field(default_factory=dict)
    """By id: the lock, and how many hold it or wait for it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _serial: Iterator[int] = field(default_factory=itertools.count)
    _closing: bool = False
    _operation_slots: threading.Semaphore = field(init=False)
    _cleaners: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._operation_slots = threading.Semaphore(self.parallel)
        self._cleaners = ThreadPoolExecutor(2, thread_name_prefix="cleaner")

    # Verbs

    def create(
        self,
        desktop_id: str,
        image: str,
        resolution: tuple[int, int],
        font_size: int | None,
        limits: Limits,
        proxy_port: int | None,
    ) -> dict[str, Any]:
        """Boot a desktop; returns as soon as its init runs. The id must be free."""
        found = images.find(self.layout.images_dir, image, self.layout.user)
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        env["DART_RESOLUTION"] = f"{resolution[0]}x{resolution[1]}"
        if font_size is not None:
            env["DART_FONT_SIZE"] = str(font_size)
        if proxy_port is not None:
            env["DART_PROXY_PORT"] = str(proxy_port)
        with self._exclusive(desktop_id), self._operation_slots:
            if desktop_id in self._desktops:
                raise HostdHostFault(f"the desktop {desktop_id} exists already", hint="choose a fresh id or destroy it")
            with self._lock:
                desktop = self._register(desktop_id, found, (), limits, env)
            self._start(desktop, None)
        return {}

    def harden(self, desktop_id: str) -> dict[str, Any]:
        """Close what a desktop needed open only while it booted."""
        with self._exclusive(desktop_id):
            hardening.make_proc_read_only(self._running(desktop_id).pidfd)
        return {}

    def freeze(self, desktop_id: str) -> dict[str, Any]:
        """Stop every process of a desktop until `thaw`; connections into it stay. One that cannot be stopped goes on."""
        with self._exclusive(desktop_id):
            if not cgroups.freeze(self._cgroup(self._running(desktop_id).name)):
                raise HostdHostFault(f"the desktop {desktop_id} could not be frozen")
        return {}

    def thaw(self, desktop_id: str) -> dict[str, Any]:
        """Undo `freeze`; nothing happens to a desktop that runs."""
        with self._exclusive(desktop_id):
            if not cgroups.thaw(self._cgroup(self._running(desktop_id).name)):
                raise HostdHostFault(f"the desktop {desktop_id} could not be thawed")
        return {}

    def evidence(self, desktop_id: str, queries: tuple[HostdQuery, ...]) -> BinaryIO:
        """Files and processes of a desktop as the host sees them at one moment, in a file in memory."""
        with self._exclusive(desktop_id):
            desktop = self._running(desktop_id)
            return look(desktop, self.storage, self._cgroup(desktop.name), queries)

    def checkpoint(self, desktop_id: str, snapshot_id: str) -> dict[str, Any]:
        """Save a running desktop, which goes on; its control connections must be closed."""
        with self._exclusive(snapshot_id), self._exclusive(desktop_id), self._operation_slots:
            if snapshot_id in self._snapshots:
                raise HostdHostFault(f"the snapshot {snapshot_id} exists already", hint="choose a fresh id")
            desktop = self._running(desktop_id)
            if cgroups.is_frozen(self._cgroup(desktop.name)):
                raise HostdHostFault(f"the desktop {desktop_id} is frozen", hint="thaw it first")
            if len(desktop.layers) >= MAX_LAYERS:
                hint = "reset the desktop, or take the snapshot from an earlier state"
                raise HostdHostFault(
                    f"{desktop_id} stands on {MAX_LAYERS} snapshots, and no more can be restored", hint=hint
                )
            place = self.storage.snapshot_dir(snapshot_id)
            processes, work = place / "images", place / "work"
            processes.mkdir(parents=True, mode=0o700)
            work.mkdir(mode=0o700)
            layer_id = f"{next(self._serial):x}"
            count = cgroups.processes(self._cgroup(desktop.name))
            try:
                pause_s = self._save(desktop, processes, work, layer_id)
                layers = (layer_id, *desktop.layers)
                sizes = file_sizes(processes)
                snapshot = SnapshotFiles(snapshot_id, desktop.image, layers, desktop.limits, desktop.env, sizes)
                with self._lock:
                    self._snapshots[snapshot_id] = snapshot
                files_bytes = self.storage.measure_layer(layer_id).nbytes
                processes_bytes = trees.usage(place).nbytes
            except BaseException:  # interrupted, too, half a snapshot is removed; raised again
                discard(place)
                self.storage.remove_layer(layer_id)
                with self._lock:
                    self._snapshots.pop(snapshot_id, None)
                raise
        return {
            "bytes": processes_bytes + files_bytes,
            "files_bytes": files_bytes,
            "processes": count,
            "pause_s": pause_s,
            "image_digest": desktop.image.digest,
        }

    def _save(self, desktop: DesktopProcess, processes: Path, work: Path, layer_id: str) -> float:
        """Save processes and files of a desktop; returns how long it stood still, in seconds.

        CRIU cannot save a socket with an unread message that carries its sender's credentials. The processes of a browser that starts send
        each other many, so the desktop runs on for a moment, and is saved then. A process with threads that was frozen while it ended is
        treated in the same way: its remaining threads end as soon as it runs on. Nor can CRIU save a watch of which the kernel knows no
        name any more, as after a lack of memory; then all names are looked up first.
        """
        stood_still_s = 0.0
        failure: HostdHostFault | None = None
        for wait_s in (*RETRY_WAITS_S, None):
            still = stopped(desktop.name, self._cgroup(desktop.name), syscall_filter.read_all)
            with still as (began_s, further):
                try:
                    if failure is not None and NAMELESS_WATCH in str(failure):
                        self.storage.look_up_names(desktop.name)
                    failure = None
                    supervised = desktop.restored and bool(desktop.first_id)
                    self.runc.checkpoint(desktop.name, processes, work, supervised=supervised, further=further)
                    self.storage.commit_layer(desktop.name, layer_id)
                except HostdHostFault as error:
                    if wait_s is None or not any(words in str(error) for words in PASSING):
                        raise
                    failure = error
            stood_still_s += time.monotonic() - began_s
            if failure is None or wait_s is None:
                break
            _log.info("%s is saved again in %g s: %s", desktop.name, wait_s, failure)
            trees.remove(processes)
            processes.mkdir(mode=0o700)
            time.sleep(wait_s)
        return stood_still_s

    def restore(self, desktop_id: str, snapshot_id: str) -> dict[str, Any]:
        """Replace (or make) a desktop by a copy of a snapshot; returns as soon as its processes run."""
        with self._exclusive(desktop_id):
            self._kill(desktop_id)
            with self._operation_slots:
                with self._lock:
                    snapshot = self._snapshots.get(snapshot_id)
                    if snapshot is None or snapshot.quarantined:
                        raise HostdSnapshotBroken(
                            f"there is no snapshot {snapshot_id}", hint="prepare the desktop again"
                        )
                    desktop = self._register(desktop_id, snapshot.image, snapshot.layers, snapshot.limits, snapshot.env)
                self._start(desktop, snapshot)
        return {}

    def destroy(self, desktop_id: str) -> dict[str, Any]:
        """Remove a desktop; nothing happens when there is none."""
        with self._exclusive(desktop_id):
            self._kill(desktop_id, wait=True)
        return {}

    def quarantine(self, snapshot_id: str) -> dict[str, Any]:
        """Never restore from a snapshot again; its files stay, with CRIU's log of the failure, until it is deleted.

        `path`: where root finds them for as long as this helper runs; None when there is no such snapshot.
        """
        with self._exclusive(snapshot_id):
            with self._lock:
                snapshot = self._snapshots.get(snapshot_id)
                if snapshot is None:
                    return {"path": None}
                self._snapshots[snapshot_id] = replace(snapshot, quarantined=True)
            place = self.storage.snapshot_dir(snapshot_id)
            layers = [str(self.storage.layer_dir(layer)) for layer in snapshot.layers]
            text = json.dumps({"image": snapshot.image.digest, "layers": layers}, indent=1)
            (place / "snapshot.json").write_text(text + "\n", encoding="utf-8")
        return {"path": f"/proc/{os.getpid()}/root{place}"}

    def delete_snapshot(self, snapshot_id: str) -> dict[str, Any]:
        """Remove a snapshot; its layers stay while a desktop or a later snapshot stands on them."""
        with self._exclusive(snapshot_id):
            with self._lock:
                gone = self._snapshots.pop(snapshot_id, None)
            if gone is not None:
                discard(self.storage.snapshot_dir(snapshot_id))
                self._collect_layers(gone.layers)
        return {}

    def dial(self, desktop_id: str, port: int | None) -> socket.socket:
        """A socket connected inside the desktop: the guest agent (None) or a loopback TCP port."""
        return dial.dial(self._network(desktop_id), desktop_id, port)

    def listen(self, desktop_id: str, port: int) -> socket.socket:
        """A socket that listens on the desktop's loopback."""
        return dial.listen(self._network(desktop_id), desktop_id, port)

    def health(self, desktop_id: str) -> dict[str, Any]:
        """What the host sees of a desktop; `state` is absent, running or ended."""
        with self._lock:
            desktop = self._desktops.get(desktop_id)
        if desktop is None:
            return {"state": "absent"}
        self._record_exit(desktop)
        usage = cgroups.usage(self._cgroup(desktop.name))
        try:
            used, free = self.storage.usage(desktop.name)
        except OSError:
            used, free = 0, 1 << 40
        return {
            "state": "running" if desktop.exit_status is None else "ended",
            "exit_status": desktop.exit_status,
            "frozen": desktop.exit_status is None and cgroups.is_frozen(self._cgroup(desktop.name)),
            "kill_pending": desktop.exit_status is None and syscalls.has_pending_kill(desktop.pidfd),
            "memory_bytes": usage.memory_bytes,
            "memory_limit_bytes": usage.memory_limit_bytes,
            "oom_kills": usage.oom_kills,
            "host_oom_kills": usage.host_oom_kills,
            "pids": usage.pids,
            "pids_refused": usage.pids_refused,
            "disk_bytes": used,
            "disk_free_bytes": free,
        }

    def inventory(self) -> dict[str, Any]:
        """Ids of every desktop and snapshot."""
        with self._lock:
            return {"desktops": sorted(self._desktops), "snapshots": sorted(self._snapshots)}

    def reap(self, keep: frozenset[str]) -> dict[str, Any]:
        """Remove every desktop and snapshot that is not to be kept, and control groups that belong to none."""
        inventory = self.inventory()
        removed = []
        for desktop_id in inventory["desktops"]:
            if desktop_id not in keep:
                try:
                    self.destroy(desktop_id)
                    removed.append(desktop_id)
                except HostdHostFault as error:  # the others are removed all the same
                    _log.warning("%s", error)
        for snapshot_id in inventory["snapshots"]:
            if snapshot_id not in keep:
                self.delete_snapshot(snapshot_id)
                removed.append(snapshot_id)
        return {"removed": removed}

    def close(self) -> None:
        """Refuse new lives, then remove everything."""
        with self._lock:
            self._closing = True
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while self._by_name and time.monotonic() < deadline:
            self.reap(frozenset())
            time.sleep(0.05)
        self._cleaners.shutdown(wait=True)
        cgroups.remove(f"/{self.layout.prefix}")

    # Parts

    @contextmanager
    def _exclusive(self, identifier: str) -> Iterator[None]:
        with self._lock:
            lock, users = self._locks.setdefault(identifier, (threading.Lock(), []))
            users.append(1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                users.pop()
                if not users:
                    del self._locks[identifier]

    def _register(
        self,
        desktop_id: str,
        image: images.Image,
        layers: tuple[str, ...],
        limits: Limits,
        env: dict[str, str],
    ) -> DesktopProcess:
        """Reserve a name and the layers; call with the table locked."""
        if self._closing:
            raise HostdHostFault("dart-hostd is ending", hint="start the farm again")
        desktop = DesktopProcess(desktop_id, f"{desktop_id}.{next(self._serial):x}", image, layers, limits, env)
        self._by_name[desktop.name] = desktop
        return desktop

    def _network(self, desktop_id: str) -> Path:
        """Where the network namespace of a running desktop is held."""
        with self._lock:
            desktop = self._desktops.get(desktop_id)
        if desktop is None or desktop.exit_status is not None:
            raise HostdDesktopGone(f"there is no running desktop {desktop_id}")
        return self.storage.desktop_dir(desktop.name) / "net"

    def _cgroup(self, name: str) -> str:
        return f"/{self.layout.prefix}/{name}"

    def _running(self, desktop_id: str) -> DesktopProcess:
        with self._lock:
            desktop = self._desktops.get(desktop_id)
        if desktop is None:
            raise HostdDesktopGone(f"there is no desktop {desktop_id}")
        self._record_exit(desktop)
        if desktop.exit_status is not None:
            raise HostdDesktopGone(f"the desktop {desktop_id} has ended ({desktop.exit_status})")
        return desktop

    def _start(self, desktop: DesktopProcess, snapshot: SnapshotFiles | None) -> None:
        try:
            starting.start(self.storage, self.runc, desktop, snapshot, self._cgroup(desktop.name))
        except BaseException as error:
            log = self.storage.desktop_dir(desktop.name) / "restore.log"
            if snapshot is not None and log.exists():
                with suppress(OSError):
                    shutil.copyfile(log, self.storage.snapshot_dir(snapshot.snapshot_id) / "restore.log")
            self._tear_down(desktop)
            if isinstance(error, HostdError):
                raise
            raise HostdHostFault(f"the desktop {desktop.desktop_id} did not start: {error}") from error
        with self._lock:
            self._desktops[desktop.desktop_id] = desktop

    def _record_exit(self, desktop: DesktopProcess) -> None:
        """Record how init ended, once; it is our child because this process is its subreaper."""
        with self._exclusive(desktop.name):
            if desktop.exit_status is not None or desktop.pidfd < 0:
                return
            if not syscalls.has_ended(desktop.pidfd):
                return
            try:
                result = os.waitid(os.P_PIDFD, desktop.pidfd, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                result = None
            if result is None:
                desktop.exit_status = "unknown"
            elif result.si_code == os.CLD_EXITED:
                desktop.exit_status = f"exit {result.si_status}"
            else:
                desktop.exit_status = f"signal {result.si_status}"

    def _kill(self, desktop_id: str, *, wait: bool = False) -> None:
        """Kill a desktop at once; its mounts and groups are removed in the background unless `wait`."""
        with self._lock:
            desktop = self._desktops.pop(desktop_id, None)
        if desktop is None:
            return
        if desktop.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(desktop.pidfd, signal.SIGKILL)
        cleaning = self._cleaners.submit(self._tear_down, desktop)
        cleaning.add_done_callback(_log_failure)
        if wait:
            cleaning.result()

    def _tear_down(self, desktop: DesktopProcess) -> None:
        """Remove every trace of one life; safe on a life that only half began."""
        place = self.storage.desktop_dir(desktop.name)
        group = self._cgroup(desktop.name)
        killed = cgroups.kill(group)
        if desktop.pidfd >= 0:
            syscalls.has_ended(desktop.pidfd, 5.0)
            self._record_exit(desktop)
            os.close(desktop.pidfd)
            desktop.pidfd = -1
        if place.exists():
            discard(self.runc.state_dir(desktop.name))
        removed = cgroups.remove(group)
        self.storage.unmount_root(desktop.name)
        if desktop.first_id and self.storage.user_ids is not None and killed and removed:
            self.storage.user_ids.give_back(desktop.first_id)
        with self._lock:
            self._by_name.pop(desktop.name, None)
        self._collect_layers(desktop.layers)
        if not (killed and removed):
            raise HostdHostFault(f"processes of the desktop {desktop.desktop_id} could not be killed")

    def _collect_layers(self, candidates: tuple[str, ...]) -> None:
        """Remove those layers that no desktop and no snapshot stands on any more."""
        with self._lock:
            used = {layer for desktop in self._by_name.values() for layer in desktop.layers}
            used |= {layer for snapshot in self._snapshots.values() for layer in snapshot.layers}
        for layer in candidates:
            if layer not in used:
                self.storage.remove_layer(layer)
