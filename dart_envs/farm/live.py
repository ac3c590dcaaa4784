"""The farm's live view of a lease, in a browser on the user's host, and the input that a person gives there.

`LiveWindow` opens the page or prints its address; `poll_human_inputs` reads the person's input. An address that is
printed or given to a browser holds no key, only a ticket that logs in once within a few minutes. A farm on a Unix
socket gets a port on the loopback interface of this host for as long as the window is open; every request there still
needs a key. This module does not have the page (`dart_server.dashboard`) and does not interpret the input
(`dart_envs.demos`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol, runtime_checkable

from dart_envs.farm.lease_base import LeaseBase
from dart_envs.farm.transport import REPLY_GRACE_S, Address
from dart_envs.farm.tunnel import CHUNK_NBYTES, serve_loopback
from dart_server.wire import HumanInputs, LiveViewTicket

log = logging.getLogger(__name__)


@runtime_checkable
class SupportsLiveView(Protocol):
    """A lease whose farm has a live page of it."""

    @property
    def lease_id(self) -> str:
        """Id of the lease."""
        ...

    @property
    def farm_address(self) -> Address:
        """Where the farm listens."""
        ...

    async def live_view(self) -> LiveViewTicket:
        """Return a login to the lease's page for one use.

        Returns:
            The ticket and the path of the page.

        Raises:
            FarmError: If the farm has no live view.
        """
        ...


def has_browser() -> bool:
    """Return whether a browser opened here can be seen: there is a display, or the user named a browser (`BROWSER`)."""
    if sys.platform in {"darwin", "win32"} or os.environ.get("BROWSER"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


class LiveWindow:
    """Shows leases to the person at this host, each lease once. Close it with `aclose`.

    Args:
        say: Called with each line of text for people.
        open_browser: Opens an address and returns False when it could not; None is the system's browser, where there
            is a display.
    """

    def __init__(self, say: Callable[[str], None] = print, open_browser: Callable[[str], bool] | None = None) -> None:
        self._say = say
        self._open = open_browser or (webbrowser.open if has_browser() else None)
        self._stack = AsyncExitStack()
        self._base: dict[str, str] = {}
        self._shown: str | None = None

    async def show(self, lease: SupportsLiveView) -> None:
        """Open the lease's page in a browser and print its address; without a browser, print an address that logs in once.

        Nothing happens for the lease that is shown already.

        Args:
            lease: The lease to show.

        Raises:
            FarmError: If the farm has no live view.
        """
        if lease.lease_id == self._shown:
            return
        ticket = await lease.live_view()
        page = await self._base_url(lease.farm_address) + ticket.path
        address = f"{page}?ticket={ticket.ticket}"
        opened = self._open is not None and await asyncio.to_thread(self._open, address)
        if opened:
            self._say(f"Live view, opened in the browser: {page}")
        else:
            self._say(f"Live view (this address logs in once, until {ticket.expires_at.astimezone():%H:%M}): {address}")
        if ticket.viewer_hint is not None:
            self._say(f"The live view has no viewer yet. {ticket.viewer_hint}")
        self._shown = lease.lease_id

    async def _base_url(self, address: Address) -> str:
        if address.socket_path is None:
            return address.base_url
        if address.socket_path not in self._base:
            port = await self._stack.enter_async_context(loopback_relay(address.socket_path))
            self._base[address.socket_path] = f"http://127.0.0.1:{port}"
        return self._base[address.socket_path]

    async def aclose(self) -> None:
        """Close the port, if one was opened. Idempotent."""
        self._base.clear()
        await self._stack.aclose()

    async def __aenter__(self) -> LiveWindow:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()


async def poll_human_inputs(lease: LeaseBase, after: int, wait_s: float) -> HumanInputs:
    """Read what a person did in the live view; the first call begins the recording.

    Args:
        lease: The lease that the person uses.
        after: Number of the last input that is known already.
        wait_s: Seconds to wait for an input, at most 60.

    Returns:
        The inputs after that number.

    Raises:
        LeaseLostError: If the lease is gone.
        FarmError: If the farm cannot be reached.
    """
    lease.raise_if_lost()
    content = await lease.transport.call(
        "GET",
        f"{lease.path}/inputs",
        params={"after": str(after), "wait_s": f"{wait_s:g}"},
        headers=lease.guest_headers(),
        timeout_s=wait_s + REPLY_GRACE_S,
    )
    return HumanInputs.model_validate_json(content)


@asynccontextmanager
async def loopback_relay(socket_path: str) -> AsyncIterator[int]:
    """Relay a port of 127.0.0.1 to a Unix socket, which a browser cannot open, for as long as the context is open.

    Args:
        socket_path: Path of the farm's Unix socket.

    Yields:
        The port.
    """

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_unix_connection(socket_path)
        except OSError as error:
            log.warning("The farm at %s does not answer: %s", socket_path, error)
            writer.close()
            return
        async with asyncio.TaskGroup() as both:
            both.create_task(_copy_stream(reader, inner_writer))
            both.create_task(_copy_stream(inner_reader, writer))

    async with serve_loopback(relay) as (_host, port):
        yield port


async def _copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        try:
            while chunk := await reader.read(CHUNK_NBYTES):
                writer.write(chunk)
                await writer.drain()
        finally:
            writer.close()
