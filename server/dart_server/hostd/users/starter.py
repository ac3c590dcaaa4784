"""dart-starter: what an ordinary user may run as root, with no argument at all. It starts the root helper and starts it again.

Rule: nothing of the caller decides what root runs or where root writes. Arguments are refused and the environment is emptied. The caller's
one request comes over the socket that is its standard input: names of directories, which are opened with the caller's rights. What root
makes lies in `layout.RUN_DIR`. Who the caller is, sudo says.
Flow: read the request, lock, listen, then fork the helper, which answers the request and takes the socket as a client that is attached.
This process stays: a helper that dies is followed by a new one on the same listening socket, after what the dead one left is removed.
A helper that ends by itself ends this process.
Non-goals: the verbs (`server`), keeping a user from using up the host.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dart_server.hostd import __main__ as helper
from dart_server.hostd import leftovers, server
from dart_server.hostd.installation import INSTALL_DIR
from dart_server.hostd.layout import RUN_DIR, Layout, layout_of_user
from dart_server.hostd.linux import credentials
from dart_server.hostd.linux.credentials import HostUser, belongs_to_root, lies_with_root

MAX_RESTARTS = 5
RESTART_WINDOW_S = 300.0
"""A helper that dies more often than `MAX_RESTARTS` times in this time is not started again."""
REQUEST_TIMEOUT_S = 10.0
MAX_PATH_LENGTH = 4000
MIN_IDLE_TIMEOUT_S, MAX_IDLE_TIMEOUT_S = 0.1, 3600.0
_FIELDS = {"runtime_dir", "images_dir", "store_dir", "idle_timeout_s"}
log = logging.getLogger("dart.starter")


@dataclass(frozen=True)
class StartRequest:
    """What a farm asks for: the directories that it works with, and how long its helper waits for it."""

    runtime_dir: Path
    images_dir: Path
    store_dir: Path
    idle_timeout_s: float


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    caller = os.environ.get("SUDO_UID", "")
    credentials.reset_process()
    _close_odd_output()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        if arguments:
            raise helper.StartupError("it takes no arguments")
        if os.geteuid() != 0 or not caller.isascii() or not caller.isdigit() or int(caller) == 0:
            raise helper.StartupError("it is started through sudo, by an ordinary user")
        try:
            user = HostUser.of(int(caller))
        except KeyError as error:
            raise helper.StartupError(f"this host has no user {caller}") from error
        channel = _channel()
        try:
            return start(user, channel)
        except helper.StartupError as error:
            _answer(channel, {"error": str(error)})
            raise
    except helper.StartupError as error:
        print(f"dart-starter: {error}", file=sys.stderr)
        return 2


def start(user: HostUser, channel: socket.socket) -> int:
    """Read the request of a user's farm and serve it until its helper ends. Raises `StartupError`."""
    try:
        channel.settimeout(REQUEST_TIMEOUT_S)
        if server.peer_uid(channel) not in (0, user.uid):
            raise helper.StartupError("the request comes from another user")
        request = parse(server.read_line(channel))
    except (OSError, EOFError) as error:
        raise helper.StartupError(f"there was no request ({error})") from error
    for program in helper.find_programs(INSTALL_DIR):
        if not lies_with_root(program):
            raise helper.StartupError(f"{program} can be changed by others than root")
    try:
        layout = layout_of_user(user.uid, request.runtime_dir, request.images_dir, request.store_dir, user)
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or a name that no file can have
        raise helper.StartupError(f"runtime_dir leads nowhere ({error})") from error
    with take_lock(layout):
        leftovers.remove(layout)
        listener = server.listen(layout.socket, user.uid)
        try:
            return supervise(layout, helper.HelperOptions(idle_timeout_s=request.idle_timeout_s), listener, channel)
        finally:
            listener.close()
            leftovers.remove(layout)
            with suppress(OSError):
                layout.store_dir.rmdir()
            leftovers.remove_state(layout)
            with suppress(OSError):
                layout.runtime_dir.rmdir()  # it stays while it keeps the log of a failure


def take_lock(layout: Layout) -> IO[str]:
    """Make the helper's directories and be the only one who works there; returns the open lock. Raises `StartupError`.

    Whoever had the lock before removes it with its directory at the end: what was locked must still be what lies there.
    """
    while True:
        make_directories(layout)
        try:
            lock = layout.lock.open("a")
        except FileNotFoundError:
            continue
        try:
            helper.acquire_lock(lock, layout)
            if layout.lock.exists() and os.path.samestat(os.fstat(lock.fileno()), layout.lock.stat()):
                return lock
        except BaseException:  # interrupted, too, no lock may stay; raised again
            lock.close()
            raise
        lock.close()


def parse(line: bytes) -> StartRequest:
    """Check one request, field by field. Raises `StartupError`."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise helper.StartupError("the request is not JSON") from error
    if not isinstance(message, dict) or set(message) != _FIELDS:
        raise helper.StartupError(f"the request has other fields than {', '.join(sorted(_FIELDS))}")
    idle_s = message["idle_timeout_s"]
    if isinstance(idle_s, bool) or not isinstance(idle_s, (int, float)):
        raise helper.StartupError("idle_timeout_s is not a number")
    if not MIN_IDLE_TIMEOUT_S <= idle_s <= MAX_IDLE_TIMEOUT_S:
        raise helper.StartupError(f"idle_timeout_s is not from {MIN_IDLE_TIMEOUT_S} to {MAX_IDLE_TIMEOUT_S}")
    return StartRequest(
        _path(message, "runtime_dir"), _path(message, "images_dir"), _path(message, "store_dir"), float(idle_s)
    )


def _path(message: dict[str, Any], field: str) -> Path:
    value = message[field]
    if not isinstance(value, str) or not value.startswith("/") or len(value) > MAX_PATH_LENGTH or "\0" in value:
        raise helper.StartupError(f"{field} is not an absolute path")
    path = Path(value)
    if ".." in path.parts or path.parts[0] != "/":
        raise helper.StartupError(f"{field} is not an absolute path without `..`")
    return path


def make_directories(layout: Layout) -> None:
    """Make the helper's directories. Raises `StartupError` where one of them is not root's own."""
    for place, mode in ((RUN_DIR, 0o755), (layout.runtime_dir, 0o755), (layout.state_dir, 0o700)):
        try:
            place.mkdir(mode=mode)
        except FileNotFoundError:
            return  # an earlier helper removes it just now; the caller tries again
        except FileExistsError:
            status = place.lstat()
            if not stat.S_ISDIR(status.st_mode) or not belongs_to_root(status):
                raise helper.StartupError(f"{place} is not a directory of root's") from None


def supervise(layout: Layout, options: helper.HelperOptions, listener: socket.socket, channel: socket.socket) -> int:
    """Run one helper after another, until one ends by itself or they die too fast; returns the exit code.

    The first one answers the request and serves the channel; the end of the channel tells the farm of that helper's end.
    """
    attached: socket.socket | None = channel
    deaths: list[float] = []
    while True:
        pid = os.fork()
        if pid == 0:
            os._exit(_become_helper(layout, options, listener, attached))
        with _signals_go_to(pid):
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if attached is not None:
            # sudo has a copy of it: only this tells the farm that its helper is gone.
            with suppress(OSError):
                attached.shutdown(socket.SHUT_RDWR)
            attached.close()
            attached = None
        if code in (0, 1, 2):
            return code
        now_s = time.monotonic()
        deaths = [died_s for died_s in deaths if now_s - died_s < RESTART_WINDOW_S] + [now_s]
        removed = "; ".join(leftovers.remove(layout, keep_socket=True))
        if len(deaths) > MAX_RESTARTS:
            log.error(
                "the helper died %d times in %.0f s (%d): it is not started again", len(deaths), RESTART_WINDOW_S, code
            )
            return 1
        log.warning("the helper died (%d) and is started again; removed: %s", code, removed or "nothing")


@contextmanager
def _signals_go_to(pid: int) -> Iterator[None]:
    """Send on to a process what asks this one to end."""

    def send(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, send)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _become_helper(
    layout: Layout, options: helper.HelperOptions, listener: socket.socket, attached: socket.socket | None
) -> int:
    """Be the helper in a forked process; returns its exit code."""

    def ready() -> None:
        if attached is not None:
            _answer(attached, {"socket": str(layout.socket)})

    try:
        credentials.drop_capabilities()
        return helper.serve(layout, options, listener=listener, attached=attached, on_ready=ready)
    except helper.StartupError as error:
        if attached is not None:
            _answer(attached, {"error": str(error)})
        print(f"dart-hostd: {error}", file=sys.stderr)
        return 2
    except BaseException:  # the child may not return into its parent's code
        log.exception("the helper ends")
        return 70 if layout.socket.exists() else 1


def _channel() -> socket.socket:
    """Take standard input as the socket that it must be. Raises `StartupError`."""
    try:
        if not stat.S_ISSOCK(os.fstat(0).st_mode):
            raise helper.StartupError("standard input is not the socket of a farm")
        channel = socket.socket(fileno=os.dup(0))
        if channel.family != socket.AF_UNIX or channel.type != socket.SOCK_STREAM:
            raise helper.StartupError("standard input is not a Unix socket")
    except OSError as error:
        raise helper.StartupError(f"standard input cannot be used ({error.strerror})") from error
    with open("/dev/null", "rb") as null:
        os.dup2(null.fileno(), 0)
    return channel


def _close_odd_output() -> None:
    """Send what is written to /dev/null where the caller gave a file of the kernel's, which would take it as root's word."""
    with open("/dev/null", "wb") as null:
        for descriptor in (1, 2):
            if not takes_output(descriptor):
                os.dup2(null.fileno(), descriptor)


def takes_output(descriptor: int) -> bool:
    """Return whether root may write to a file of its caller's: not to one of the kernel's, whatever path it has by the caller's mounts."""
    try:
        mode, name = os.fstat(descriptor).st_mode, os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return False
    if not stat.S_ISREG(mode):
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
    return credentials.is_mounted_here(descriptor) and not name.startswith(("/proc", "/sys"))


def _answer(channel: socket.socket, reply: dict[str, str]) -> None:
    try:
        server.send_line(channel, reply)
    except OSError as error:
        log.info("the farm is gone already: %s", error)


if __name__ == "__main__":
    sys.exit(main())
