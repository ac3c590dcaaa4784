"""Calls into a leased desktop: accessibility tree, programs, files, windows, ports and the clock.

`GuestCalls` is the middle layer of `AsyncLease`. It has one method for each route of the wire contract, with typed answers.
Input and screenshots are in `lease`, credentials and the owners of failures are in `lease_base`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Literal, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from dart_envs.errors import FarmError, GuestError, TooManyRequestsError
from dart_envs.farm.base import GuestResponse
from dart_envs.farm.channel import envelope_code
from dart_envs.farm.lease_base import LeaseBase
from dart_envs.farm.transport import malformed_answer_error
from dart_envs.farm.tunnel import open_tunnel
from dart_envs.types import Evidence
from dart_server.wire import (
    A11yElement,
    ClockRequest,
    ClockView,
    ErrorCode,
    EvidenceQuery,
    EvidenceRequest,
    ExecReply,
    ExecRequest,
)
from dart_server.wire.desktop import (
    A11Y_LIMIT_S,
    EVIDENCE_LIMIT_S,
    EVIDENCE_PERMIT_S,
    FILE_LIMIT_S,
    PROGRAM_GRACE_S,
    client_limit_s,
    passed_through_limit_s,
)
from dart_server.wire.evidence import MAX_EVIDENCE_NBYTES
from dart_server.wire.guest_answers import JsonLimit, MalformedAnswer, parse_object

A11Y_TIMEOUT_S = client_limit_s(A11Y_LIMIT_S)
FILE_TIMEOUT_S = client_limit_s(FILE_LIMIT_S)
EVIDENCE_TIMEOUT_S = client_limit_s(EVIDENCE_PERMIT_S + EVIDENCE_LIMIT_S)
ROOM_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Pauses while the answers of other desktops take all the room that the farm has for them."""
_ELEMENTS = TypeAdapter(list[A11yElement])
_PROGRAM, _CLOCK = TypeAdapter(ExecReply), TypeAdapter(ClockView)
_WINDOWS = TypeAdapter(dict[str, list[dict[str, Any]]])
WINDOWS_LIMIT = JsonLimit(1024**2, depth=6, values=50_000)
TERMINAL_LIMIT = JsonLimit(8 * 1024**2, depth=2, values=64)
T = TypeVar("T")


class GuestCalls(LeaseBase):
    """A lease with the calls that the guest agent answers."""

    async def a11y(self) -> list[A11yElement]:
        """Return the showing elements of the accessibility tree."""
        content = await self._once_there_is_room(lambda: self.call("GET", "/a11y", timeout_s=A11Y_TIMEOUT_S))
        return _validated(_ELEMENTS, content)

    async def terminal(self) -> str:
        """Return the text of the focused terminal window, empty without one."""
        reply = await self.guest("GET", "/terminal")
        if reply.status != 200:
            return ""
        try:
            output = parse_object(reply.content, TERMINAL_LIMIT).get("output")
        except MalformedAnswer as error:
            raise malformed_answer_error(error) from error
        return output if isinstance(output, str) else ""

    # Programs and files.

    async def exec(
        self,
        argv: list[str],
        *,
        timeout_s: float = 30.0,
        user: str = "user",
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        detach: bool = False,
    ) -> ExecReply:
        """Run a program inside the desktop.

        Args:
            argv: The program and its arguments.
            timeout_s: Seconds until the program is stopped.
            user: `user` (the desktop's user) or `root`.
            env: Environment variables beside those of the session.
            stdin: Text for the program's standard input.
            detach: Whether the program goes on after the call.

        Returns:
            Exit status and output; a program that fails does not raise.
        """
        request = ExecRequest(
            argv=argv,
            timeout_s=timeout_s,
            user=cast(Literal["user", "root"], user),
            env=dict(env or {}),
            stdin=stdin,
            detach=detach,
        )
        content = await self.call(
            "POST", "/execute", body=request, timeout_s=client_limit_s(timeout_s + PROGRAM_GRACE_S)
        )
        return _validated(_PROGRAM, content)

    async def read_file(self, path: str) -> bytes | None:
        """Read a file inside the desktop.

        Args:
            path: Path inside the desktop.

        Returns:
            The content, or None when there is no such file.

        Raises:
            GuestError: With code `too_large` for a file of more than 256 MiB.
        """

        async def read() -> bytes | None:
            response = await self.request("GET", "/files", params={"path": path}, timeout_s=FILE_TIMEOUT_S)
            if response.status == 404 and envelope_code(response.content) in {None, ErrorCode.GUEST_ERROR}:
                return None
            return await self.content_or_raise(response, "GET /files")

        return await self._once_there_is_room(read)

    async def evidence(self, queries: Sequence[EvidenceQuery]) -> Evidence:
        """Return what the host sees of the desktop at one moment; no program of the desktop takes part in the answer.

        Args:
            queries: What is asked, at most `MAX_EVIDENCE_QUERIES`.

        Returns:
            The answers, in the order of the queries.

        Raises:
            FarmError: With code `capability_missing` where the farm's provider cannot look from outside.
        """
        request = EvidenceRequest(queries=list(queries))
        message = await self._once_there_is_room(
            lambda: self.call("POST", "/evidence", body=request, timeout_s=EVIDENCE_TIMEOUT_S)
        )
        if len(message) > MAX_EVIDENCE_NBYTES:
            raise FarmError(
                f"The evidence has {len(message)} bytes, more than the {MAX_EVIDENCE_NBYTES} of the protocol.",
                code="bad_evidence",
            )
        try:
            return await asyncio.to_thread(Evidence.parse, message)
        except ValueError as error:
            raise FarmError(f"The evidence cannot be read: {error}", code="bad_evidence") from error

    async def _once_there_is_room(self, read: Callable[[], Awaitable[T]]) -> T:
        """Make a call that changes nothing, again while the farm refuses it because of what else is under way."""
        for pause_s in ROOM_PAUSES_S:
            try:
                return await read()
            except TooManyRequestsError:
                await self._clock.sleep(pause_s)
        return await read()

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file inside the desktop as the desktop's user; missing parent directories are created.

        Args:
            path: Path inside the desktop.
            content: The content.
            mode: Permission bits.
        """
        await self.call(
            "PUT", "/files", content=content, params={"path": path, "mode": f"{mode:04o}"}, timeout_s=FILE_TIMEOUT_S
        )

    async def activate_window(self, title: str, *, strict: bool = False) -> bool:
        """Raise and focus the first window with a title.

        Args:
            title: The title, or a part of it.
            strict: Whether the title must be equal.

        Returns:
            False when there is no such window.

        Raises:
            GuestError: If the window cannot be activated.
        """
        exact = await self._window_title(title, strict)
        if exact is None:
            return False
        reply = await self.guest(
            "POST", "/setup/activate_window", json={"window_name": exact, "strict": True, "by_class": False}
        )
        if reply.status == 200:
            return True
        if reply.status == 404:
            return False
        detail = reply.content[:200].decode("utf-8", "replace")
        raise await self.attribute_fault(
            GuestError(f"Window {title!r} could not be activated ({reply.status}): {detail}")
        )

    async def _window_title(self, title: str, strict: bool) -> str | None:
        """Return the whole title of the window that is meant, or None; OSWorld's own route does not report it."""
        reply = await self.guest("GET", "/v1/windows")
        try:
            windows = _WINDOWS.validate_python(parse_object(reply.content, WINDOWS_LIMIT))["windows"]
        except MalformedAnswer as error:
            raise malformed_answer_error(error) from error
        except (ValidationError, KeyError) as error:
            raise await self.attribute_fault(GuestError(f"The list of windows cannot be read: {error}")) from error
        titles = [str(window.get("title", "")) for window in windows]
        return next((name for name in titles if name == title or (not strict and title in name)), None)

    async def guest(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object | None = None,
        content: bytes | None = None,
        timeout_s: float | None = None,
    ) -> GuestResponse:
        """Call one of the guest agent's OSWorld routes.

        Args:
            method: HTTP method.
            path: Path of the route, below the guest agent.
            params: Query parameters.
            json: Body as JSON.
            content: Body as bytes.
            timeout_s: Seconds to wait for the answer; None waits until the farm gives it up.

        Returns:
            The guest agent's answer, whatever its status.

        Raises:
            DartEnvError: If the farm or the desktop failed before the guest agent answered.
        """
        limit_s = client_limit_s(passed_through_limit_s(path)) if timeout_s is None else timeout_s

        async def send() -> GuestResponse:
            reply = await self.request(
                method, f"/guest/{path.lstrip('/')}", params=params, json=json, content=content, timeout_s=limit_s
            )
            if reply.status >= 400 and not reply.from_guest and envelope_code(reply.content) is not None:
                await self.content_or_raise(reply, f"{method} {path}")
            return reply

        return await (self._once_there_is_room(send) if method == "GET" else send())

    @asynccontextmanager
    async def tunnel(self, port: int) -> AsyncIterator[tuple[str, int]]:
        """Open a local port that leads to a TCP port inside the desktop, for as long as the context is open.

        Args:
            port: The port inside the desktop.

        Yields:
            (host, port) on the loopback interface.
        """
        self.raise_if_lost()
        path = f"{self.path}/tunnel?port={port}"
        async with open_tunnel(self.transport, path, self.guest_headers) as address:
            yield address

    # The clock.

    async def clock(self) -> ClockView:
        """Return the time of day in the desktop."""
        return _validated(_CLOCK, await self.call("GET", "/clock"))

    async def set_clock(self, time: datetime | None) -> ClockView:
        """Set the desktop's time of day; see `ClockRequest`.

        Args:
            time: The time, with a time zone; None is the farm's time.

        Returns:
            The clock after the change.
        """
        return _validated(_CLOCK, await self.call("PUT", "/clock", body=ClockRequest(time=time)))


def _validated(adapter: TypeAdapter[T], content: bytes) -> T:
    """Return the farm's own answer, which it has checked already."""
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        raise FarmError(f"The farm's answer is not what the protocol says: {error}", code="bad_answer") from error
