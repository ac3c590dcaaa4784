"""Connections that a provider has opened into its desktops.

Rule: a connection must not survive the desktop, or the state of the desktop, that it was opened to. Non-goals: opening them.
"""

from __future__ import annotations

import socket
import weakref
from contextlib import suppress

from dart_server.providers.base import CONTROL, DialPort


class OpenConnections:
    """The open connections of one provider, by desktop. A connection that its user closes is forgotten."""

    def __init__(self) -> None:
        self._by_desktop: dict[str, weakref.WeakSet[socket.socket]] = {}

    def add(self, desktop_id: str, connection: socket.socket) -> socket.socket:
        """Register a connection and make it non-blocking.

        Args:
            desktop_id: The desktop that the connection leads to.
            connection: The connected socket.

        Returns:
            The same socket.
        """
        connection.setblocking(False)
        self._by_desktop.setdefault(desktop_id, weakref.WeakSet()).add(connection)
        return connection

    def shut_down(self, desktop_id: str) -> None:
        """Shut down every connection to a desktop; its user sees the end of the stream."""
        for connection in self._by_desktop.pop(desktop_id, ()):
            with suppress(OSError):  # the peer or the user has closed it already
                connection.shutdown(socket.SHUT_RDWR)


def port_refused(desktop_id: str, port: DialPort) -> ConnectionRefusedError:
    """Return the error for a desktop that runs but does not listen on a port."""
    listener = "the guest agent" if port == CONTROL else f"port {port}"
    return ConnectionRefusedError(f"{listener} of the desktop {desktop_id} does not answer")
