"""Start dart-hostd (as root, or through sudo): `python -m dart_server.hostd --state-dir D --runtime-dir D --images-dir D`.

With `--reap` it starts nothing: it removes what a killed helper of the same state directory left, and says what.
Exit codes: 0 ended as asked, 2 cannot start (one sentence on stderr).
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import IO

from dart_server.hostd import doctor, leftovers, server
from dart_server.hostd.containers import ContainerManager
from dart_server.hostd.installation import INSTALL_DIR
from dart_server.hostd.layout import Layout
from dart_server.hostd.linux import cgroups, inotify, syscalls
from dart_server.hostd.runtime import criu_installation as tools
from dart_server.hostd.runtime.runc import Runc
from dart_server.hostd.storage import Storage, is_memory_backed

SHUTDOWN_TIMEOUT_S = 30.0
"""How long a helper that ends may take to remove its desktops."""


class StartupError(Exception):
    """The one sentence that `main` prints before exit code 2."""


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dart_server.hostd", description="Root helper of a DART farm.")
    parser.add_argument("--state-dir", type=Path, required=True, help="the helper's own directory (made 0700)")
    parser.add_argument("--runtime-dir", type=Path, required=True, help="where the socket is made; owned by the user")
    parser.add_argument("--images-dir", type=Path, required=True, help="images, by name")
    parser.add_argument("--tools-dir", type=Path, default=INSTALL_DIR, help="where CRIU is installed")
    parser.add_argument(
        "--store-dir",
        type=Path,
        default=Path("/dev/shm"),
        help="where snapshots are kept; in memory when it is a tmpfs",
    )
    parser.add_argument("--store-mib", type=int, help="size of the memory store (default: 60 %% of the memory)")
    parser.add_argument("--parallel", type=int, default=4, help="desktops started or saved at a time")
    parser.add_argument("--idle-timeout-s", type=float, help="end when no client was attached for this long")
    parser.add_argument("--reap", action="store_true", help="only remove what a killed helper left")
    chosen = parser.parse_args(argv)
    os.umask(0o022)  # a desktop's root must be open to its user, whatever mask the farm runs with
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    layout = Layout(
        owner_uid=int(os.environ.get("SUDO_UID", os.getuid())),
        state_dir=chosen.state_dir.resolve(),
        runtime_dir=chosen.runtime_dir.resolve(),
        images_dir=chosen.images_dir.resolve(),
        store_dir=chosen.store_dir.resolve(),
    )
    try:
        if os.geteuid() != 0:
            raise StartupError("must run as root: start it with sudo")
        layout.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with layout.lock.open("a") as lock:
            acquire_lock(lock, layout)
            removed = leftovers.remove(layout)
            if not chosen.reap:
                return _run(layout, chosen)
            leftovers.remove_state(layout)
        print("\n".join(removed) if removed else "nothing left over")
        return 0
    except StartupError as error:
        print(f"dart-hostd: {error}", file=sys.stderr)
        return 2


def acquire_lock(lock: IO[str], layout: Layout) -> None:
    """Be the only helper there.

    One that ends, whose socket is gone already, is waited for: a farm may be started again just then. Raises `StartupError`.
    """
    deadline_s = time.monotonic() + SHUTDOWN_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if layout.socket.exists() or time.monotonic() >= deadline_s:
                raise StartupError(f"another helper already works on {layout.state_dir}") from error
        time.sleep(0.05)


def _run(layout: Layout, chosen: argparse.Namespace) -> int:
    criu = tools.find_criu(chosen.tools_dir)
    runc = doctor.find_program("runc")
    if runc is None:
        raise StartupError("runc is missing: install the package runc")
    if criu is None:
        raise StartupError("a CRIU that is new enough for this kernel is missing: run `dart-farm setup`")
    syscalls.become_subreaper()
    inotify.raise_limit()
    try:
        listener = server.listen(layout.socket, layout.owner_uid)
    except OSError as error:
        raise StartupError(f"the socket {layout.socket} cannot be made: {error}") from error
    total_mib = (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 20
    storage = Storage(
        layout, on_disk=not is_memory_backed(layout.store_dir), size_mib=chosen.store_mib or total_mib * 6 // 10
    )
    try:
        storage.open((runc, criu, Path(sys.prefix), Path(sys.base_prefix), Path(__file__)))
    except OSError as error:
        layout.socket.unlink(missing_ok=True)
        raise StartupError(f"the desktops' file systems cannot be set up: {error}") from error
    runtime = Runc(runc, criu, storage.runc_root, layout.failure_log)
    host = ContainerManager(layout, storage, runtime, parallel=chosen.parallel)
    serving = server.Server(
        listener,
        host,
        owner_uid=layout.owner_uid,
        idle_timeout_s=chosen.idle_timeout_s,
        doctor=lambda: [check.as_dict() for check in doctor.run_checks(layout.state_dir, tools_dir=chosen.tools_dir)],
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: serving.stop())
    logging.getLogger("dart.hostd").info("serving %s with %s and %s", layout.socket, runc, criu)
    try:
        serving.serve()
    finally:
        layout.socket.unlink(missing_ok=True)
        listener.close()
        host.close()
        storage.close()
        leftovers.remove_files(layout)
        leftovers.remove_state(layout)
    return 0 if not cgroups.existing_groups(layout.prefix) else 1


if __name__ == "__main__":
    sys.exit(main())
