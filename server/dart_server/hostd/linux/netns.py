"""Network namespaces of desktops: loopback only, reached by opening sockets inside them.

A namespace change is per thread; every function does it in a thread of their own.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path

from dart_server.hostd.linux import syscalls

OSWORLD_PORT = 5000
"""Where OSWorld's server answers. Nothing listens there inside a desktop with our agent: `dial` leads to the agent's own socket for
OSWorld's paths, which no process of the desktop can open."""
GUEST_SOCKET = "\0dart-guest"
OSWORLD_SOCKET = "\0dart-osworld"
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def create(bind_to: Path) -> None:
    """Make a network namespace with its loopback up, held by a bind mount on the (new) file `bind_to`."""

    def work() -> None:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        _raise_loopback()
        syscalls.mount("/proc/thread-self/ns/net", bind_to, None, syscalls.MS_BIND)

    bind_to.touch(mode=0o600)
    syscalls.run_in_thread(work)


def hold(pid: int, bind_to: Path) -> None:
    """Hold the network namespace of a process by a bind mount on the (new) file `bind_to`."""
    bind_to.touch(mode=0o600)
    syscalls.mount(f"/proc/{pid}/ns/net", bind_to, None, syscalls.MS_BIND)


def raise_loopback_of(pid: int) -> None:
    """Bring the loopback up in the network namespace of a process. Raises OSError."""

    def work() -> None:
        _enter(Path(f"/proc/{pid}/ns/net"))
        _raise_loopback()

    syscalls.run_in_thread(work)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _enter(namespace: Path) -> None:
    fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.setns(fd, syscalls.CLONE_NEWNET)
    finally:
        os.close(fd)


def _socket_in(namespace: Path, family: socket.AddressFamily) -> socket.socket:
    """A fresh stream socket of a namespace."""

    def work() -> socket.socket:
        _enter(namespace)
        return socket.socket(family, socket.SOCK_STREAM)

    return syscalls.run_in_thread(work)


def listen(namespace: Path, port: int) -> socket.socket:
    """A TCP socket that listens on the namespace's loopback. Raises OSError."""
    listener = _socket_in(namespace, socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except BaseException:  # interrupted, too, no descriptor may stay; raised again
        listener.close()
        raise
    return listener


def connect(namespace: Path, port: int | None, timeout_s: float) -> socket.socket:
    """A blocking stream socket connected inside the namespace: the guest agent (None), its OSWorld paths (OSWORLD_PORT) or a loopback
    TCP port.

    The agent sees a peer without a process id in the desktop. Raises OSError as connect(2) does."""
    agent = {None: GUEST_SOCKET, OSWORLD_PORT: OSWORLD_SOCKET}.get(port)
    family = socket.AF_INET if agent is None else socket.AF_UNIX

    connection = _socket_in(namespace, family)
    try:
        connection.settimeout(timeout_s)
        connection.connect(("127.0.0.1", port) if agent is None else agent)
        connection.settimeout(None)
    except BaseException:  # interrupted, too, no descriptor may stay; raised again
        connection.close()
        raise
    return connection
