"""Cleaning up without a server: whatever the provider still owns on this host, and dead files in the runtime directory.

Rule: only what carries our ownership prefix is touched (the provider sees to that), the database is told what is gone, and sockets and
locks of a farm, sockets and worker directories of runs are removed where nobody answers on them any more.
Non-goals: stopping a running farm (`daemon.stop_running`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

from dart_server.clock import SystemClock
from dart_server.database.repository import NewEvent, Repository
from dart_server.database.write_queue import Database
from dart_server.hostd.layout import layout_of_user
from dart_server.process.instance import exclusive_farm, running_pid
from dart_server.process.state_directory import make_directories, migrate_legacy_layout
from dart_server.providers.factory import create_provider
from dart_server.records import LeaseRecord
from dart_server.settings import FarmSettings
from dart_server.wire import DesktopState, LeaseState

HELPER_END_S = 20.0
POLL_S = 0.1


async def reap(settings: FarmSettings, *, dry_run: bool) -> list[str]:
    """Names of what was (or would be) removed. Raises `AlreadyRunning`, `FarmConfigError`, `ProviderError`."""
    make_directories(settings)
    provider = create_provider(settings)
    if dry_run:
        await provider.start()
        inventory = await provider.inventory()
        await provider.aclose()
        held = await _active_leases(settings)
        pid = running_pid(settings)
        running = [] if pid is None else [f"the farm of process {pid}, which would be stopped"]
        files = [str(path) for path in _dead_files(settings, farm_runs=pid is not None)]
        return [*running, *inventory.desktops, *inventory.snapshots, *held, *files]
    with exclusive_farm(settings):
        migrate_legacy_layout(settings)
        await provider.start()
        removed = list(await provider.reap(set()))
        await provider.aclose()
        await asyncio.to_thread(_wait_for_helper, helper_socket(settings))
        if _has_database(settings):
            removed += await _record_reap(settings, removed)
        for path in _dead_files(settings, farm_runs=False):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
            removed.append(str(path))
    return removed


def _has_database(settings: FarmSettings) -> bool:
    return settings.db_url is not None or (settings.state_dir / "farm.db").exists()


def _named(lease: LeaseRecord) -> str:
    """A lease among what is removed; as text, since the host has nothing of that name."""
    return f"lease {lease.lease_id}"


async def _active_leases(settings: FarmSettings) -> list[str]:
    """Leases that would be ended."""
    if not _has_database(settings):
        return []
    database = Database(settings.database_url)
    try:
        await database.start()
        return [_named(lease) for lease in await Repository(database, SystemClock()).active_leases()]
    finally:
        await database.aclose()


def _dead_files(settings: FarmSettings, *, farm_runs: bool) -> list[Path]:
    """What runs, and a farm that does not run, have left in the runtime directory."""
    place = settings.runtime_dir
    farm = [] if farm_runs else [settings.socket_path, settings.lock_path, place / "farm.start.lock"]
    runs = {path.stem.removeprefix("data-") for path in place.glob("data-*.sock")}
    runs |= {path.name.removeprefix("policy-") for path in place.glob("policy-*")}
    found = [path for path in farm if path.exists()]
    for run in sorted(runs):
        ours = [path for path in (place / f"data-{run}.sock", place / f"policy-{run}") if path.exists()]
        if not any(_answers(path) for top in ours for path in (top, *top.rglob("*")) if path.is_socket()):
            found += ours
    return found


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _wait_for_helper(path: Path) -> None:
    """Wait until the root helper, with nothing left to look after, has ended by itself."""
    for _ in range(round(HELPER_END_S / POLL_S)):
        if not path.exists():
            return
        time.sleep(POLL_S)
    with suppress(PermissionError):  # the directory of an ordinary user's helper is root's
        path.unlink(missing_ok=True)


def helper_socket(settings: FarmSettings) -> Path:
    """Where the root helper of this user's farm listens."""
    return layout_of_user(os.geteuid(), settings.runtime_dir.resolve(), settings.home, settings.snapshot_dir).socket


async def _record_reap(settings: FarmSettings, removed: list[str]) -> list[str]:
    """Write down that nothing lives any more; the leases that ended with it."""
    database = Database(settings.database_url, exclusive=True)
    try:
        await database.start()
        repository = Repository(database, SystemClock())
        ended = await repository.active_leases()
        for lease in ended:
            lease.state = LeaseState.EXPIRED
            repository.end_lease(lease)
        for record in await repository.stored_snapshots():
            repository.end_snapshot(record.snapshot_id, "deleted", "reaped")
        repository.discard_unfinished_snapshots()
        repository.abandon_all_setups("reaped")
        for slot in await repository.existing_desktops():
            slot.state, slot.lease_id = DesktopState.GONE, None
            repository.save_desktop(slot)
        repository.add_event(NewEvent("reaped", data={"removed": removed}))
        return [_named(lease) for lease in ended]
    finally:
        await database.aclose()
