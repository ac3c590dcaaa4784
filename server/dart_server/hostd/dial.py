"""Sockets inside a desktop's network for somebody outside, with what goes wrong said in the helper's words."""

from __future__ import annotations

import socket
from pathlib import Path

from dart_server.hostd.errors import ConnectionRefused, HostdDesktopGone, HostdHostFault
from dart_server.hostd.linux import netns

DIAL_TIMEOUT_S = 5.0


def dial(network: Path, desktop_id: str, port: int | None) -> socket.socket:
    """Connected to the guest agent (None) or a loopback TCP port."""
    try:
        return netns.connect(network, port, DIAL_TIMEOUT_S)
    except ConnectionRefusedError as error:
        what = "the guest agent" if port is None else f"port {port}"
        raise ConnectionRefused(f"{what} of the desktop {desktop_id} does not answer") from error
    except OSError as error:
        raise HostdDesktopGone(f"the desktop {desktop_id} cannot be dialled ({error.strerror})") from error


def listen(network: Path, desktop_id: str, port: int) -> socket.socket:
    """Listening on a loopback TCP port; who holds it answers."""
    try:
        return netns.listen(network, port)
    except OSError as error:
        raise HostdHostFault(
            f"nothing can listen on port {port} of the desktop {desktop_id} ({error.strerror})"
        ) from error
