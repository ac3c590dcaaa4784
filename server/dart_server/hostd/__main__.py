"""Start dart-hostd for root itself: `python -m dart_server.hostd --state-dir D --runtime-dir D --images-dir D`.

Every directory must be root's own: an ordinary user's helper is started by `users.starter`, which takes no arguments.
With `--reap` it starts nothing: it removes what a killed helper of the same state directory left, and says what.
Exit codes: 0 ended as asked, 2 cannot start (one sentence on stderr).
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dart_server.hostd import doctor, leftovers, server
from dart_server.hostd.containers import ContainerManager
from dart_server.hostd.errors import HostdError
from dart_server.hostd.installation import INSTALL_DIR
from dart_server.hostd.layout import Layout
from dart_server.hostd.linux import cgroups, inotify, rlimits, syscalls
from dart_server.hostd.runtime import criu_installation as tools
from dart_server.hostd.runtime.apparmor import DesktopProfile
from dart_server.hostd.runtime.runc import Runc
from dart_server.hostd.storage import Storage, is_memory_backed

SHUTDOWN_TIMEOUT_S = 30.0
"""How long a helper that ends may take to remove its desktops."""


class StartupError(Exception):
    """The one sentence that `main` prints before exit code 2."""


@dataclass(frozen=True)
class HelperOptions:
    """How a helper works, beside where."""

    tools_dir: Path = INSTALL_DIR
    store_mib: int | None = None
    """Size of the memory store; None: 60 % of the memory."""
    parallel: int = 4
    idle_timeout_s: float | None = None


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
        owner_uid=os.getuid(),
        state_dir=chosen.state_dir.resolve(),
        runtime_dir=chosen.runtime_dir.resolve(),
        images_dir=chosen.images_dir.resolve(),
        store_dir=chosen.store_dir.resolve(),
    )
    try:
        if os.geteuid() != 0:
            raise StartupError("must run as root")
        layout.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with layout.lock.open("a") as lock:
            acquire_lock(lock, layout)
            removed = leftovers.remove(layout)
            if not chosen.reap:
                options = HelperOptions(chosen.tools_dir, chosen.store_mib, chosen.parallel, chosen.idle_timeout_s)
                try:
                    return serve(layout, options)
                finally:
                    leftovers.remove_state(layout)
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


def find_programs(tools_dir: Path) -> tuple[Path, Path]:
    """Return runc and CRIU. Raises `StartupError` where one is missing, or where others than root may change it."""
    criu = tools.find_criu(tools_dir)
    runc = doctor.find_program("runc")
    if runc is None:
        raise StartupError("runc is missing: install the package runc")
    if criu is None:
        raise StartupError("a CRIU that is new enough for this kernel is missing: run `dart-farm setup`")
    return runc, criu


def serve(
    layout: Layout,
    options: HelperOptions,
    *,
    listener: socket.socket | None = None,
    attached: socket.socket | None = None,
    on_ready: Callable[[], None] | None = None,
) -> int:
    """Run a helper until it is told to stop, or idle; returns its exit code. The caller holds the lock.

    Args:
        layout: Where it keeps its things.
        options: How it works.
        listener: Where it serves; None: it makes `layout.socket`.
        attached: A connection that counts as attached from the start.
        on_ready: Called when everything is set up, before the first request is served.

    Raises:
        StartupError: The host lacks something.
    """
    runc, criu = find_programs(options.tools_dir)
    syscalls.become_subreaper()
    inotify.raise_limit()
    rlimits.lift_signal_limit()
    profile = DesktopProfile()
    profile.load()
    if listener is None:
        listener = _listen(layout)
    total_mib = (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 20
    storage = Storage(
        layout,
        on_disk=not is_memory_backed(layout.user_store or layout.store_dir),
        size_mib=options.store_mib or total_mib * 6 // 10,
    )
    try:
        storage.open((runc, criu, Path(sys.prefix), Path(sys.base_prefix), Path(__file__)))
    except (OSError, HostdError) as error:
        layout.socket.unlink(missing_ok=True)
        raise StartupError(f"the desktops' file systems cannot be set up: {error}") from error
    runtime = Runc(runc, criu, storage.runc_root, layout.failure_log, profile_for_start=profile.for_start)
    host = ContainerManager(layout, storage, runtime, parallel=options.parallel)
    serving = server.Server(
        listener,
        host,
        owner_uid=layout.owner_uid,
        idle_timeout_s=options.idle_timeout_s,
        doctor=lambda: [
            check.as_dict()
            for check in (
                *doctor.run_checks(
                    layout.state_dir, tools_dir=options.tools_dir, no_profile_because=profile.missing_because
                ),
                doctor.user_ids_check(storage.shares_ids_because),
            )
        ],
        attached=attached,
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: serving.stop())
    logging.getLogger("dart.hostd").info("serving %s with %s and %s", layout.socket, runc, criu)
    if on_ready is not None:
        on_ready()
    try:
        serving.serve()
    finally:
        layout.socket.unlink(missing_ok=True)
        listener.close()
        host.close()
        storage.close()
        leftovers.remove_files(layout)
    return 0 if not cgroups.existing_groups(layout.prefix) else 1


def _listen(layout: Layout) -> socket.socket:
    try:
        return server.listen(layout.socket, layout.owner_uid)
    except OSError as error:
        raise StartupError(f"the socket {layout.socket} cannot be made: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
