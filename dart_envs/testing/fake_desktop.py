"""A scripted desktop that lives in memory: no network, no processes, no real waiting. It is a fake and draws no real application."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath

import numpy as np

from dart_envs.errors import DesktopFailedError, FarmError
from dart_envs.types import Evidence, Frame, RgbImage
from dart_server.wire import (
    A11yElement,
    DesktopHealthView,
    ErrorCode,
    EvidenceAnswer,
    EvidenceHeader,
    EvidenceQuery,
    ExecReply,
    FaultOwner,
    FileFacts,
    FileQuery,
    FrameHeader,
    FrameSpec,
    InputEvent,
    MoveEvent,
    ProcessesQuery,
    SettleSpec,
    TextEvent,
)

IMAGE_DIGEST = "sha256:" + "fa" * 32
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


Program = Callable[["FakeDesktop", list[str], str], ExecReply]
"""What a fake program does: the desktop, its arguments without the program's name, its standard input."""
OnEvents = Callable[["FakeDesktop", list[InputEvent]], None]


PROGRAMS: dict[str, Program] = {
    "true": lambda _desktop, _args, _stdin: fake_reply(),
    "false": lambda _desktop, _args, _stdin: fake_reply(returncode=1),
    "cat": lambda _desktop, _args, stdin: fake_reply(stdin),
    "printf": lambda _desktop, args, _stdin: fake_reply("".join(args)),
}


@dataclass
class FakeDesktopState:
    """Everything a snapshot keeps."""

    files: dict[str, bytes] = field(default_factory=dict)
    windows: list[str] = field(default_factory=lambda: ["Desktop"])
    elements: list[A11yElement] = field(default_factory=list)
    typed: str = ""
    pointer: tuple[int, int] = (0, 0)
    events: list[InputEvent] = field(default_factory=list)
    clock: datetime | None = None
    """A declared time of day; it stands still."""


def fake_reply(stdout: str = "", *, returncode: int | None = 0, stderr: str = "", timed_out: bool = False) -> ExecReply:
    """Return what a fake program answers."""
    return ExecReply(returncode=returncode, stdout=stdout, stderr=stderr, timed_out=timed_out)


class FakeDesktop:
    """A desktop in memory. Tests set `state`, `programs` and `on_events`, and read what was done to it.

    on_events: called after each step with the events, to play the application. programs: by name; others are "not found".
    seen_from_outside: the host's answers by path, and by `processes`; beside them `state.files` is seen. None: nobody looks from outside.
    """

    def __init__(self, resolution: tuple[int, int] = (320, 200), *, on_events: OnEvents | None = None) -> None:
        self._resolution = resolution
        self.state = FakeDesktopState()
        self.programs: dict[str, Program] = dict(PROGRAMS)
        self.seen_from_outside: dict[str, EvidenceAnswer] | None = None
        self.on_events = on_events
        self.calls: list[str] = []
        self._faults: dict[str, list[Exception]] = {}
        self._dead: DesktopHealthView | None = None

    # What a test does to it.

    def fail_next(self, method: str, error: Exception) -> None:
        """The next call of `method` raises `error`; may be given several times."""
        self._faults.setdefault(method, []).append(error)

    def kill(self, owner: FaultOwner, cause: str) -> None:
        """The desktop dies; every later call raises `DesktopFailedError` with this owner."""
        self._dead = DesktopHealthView(alive=False, cause=cause, fault_owner=owner)

    # What a desktop is asked to do.

    @property
    def resolution(self) -> tuple[int, int]:
        return self._resolution

    async def step(
        self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
    ) -> Frame:
        self._enter("step")
        for event in events:
            self.state.events.append(event)
            if isinstance(event, MoveEvent):
                self.state.pointer = (event.x, event.y)
            elif isinstance(event, TextEvent):
                self.state.typed += event.text
        if events and self.on_events is not None:
            self.on_events(self, events)
        (width, height), spec = self._resolution, frame or FrameSpec()
        image = np.zeros((0, 0, 3), np.uint8) if spec.encoding == "none" else self.paint(cursor=spec.cursor)
        header = FrameHeader(
            seq=len(self.calls),
            width=width,
            height=height,
            encoding=spec.encoding,
            settled=settle is not None,
            settle_ms=0.0,
            grab_ms=0.0,
            cursor=self.state.pointer,
            nbytes=image.nbytes,
        )
        return Frame(image, header)

    def paint(self, *, cursor: bool = False) -> RgbImage:
        """The screen: a colour that depends on what was typed and on the windows; the pointer as a dark square where it is asked for."""
        state = self.state
        checksum = zlib.crc32(f"{state.typed}\n{state.windows}\n{sorted(state.files)}".encode("utf-8", "replace"))
        colour = [128 + (checksum >> shift) % 128 for shift in (0, 8, 16)]
        image = np.full((*self._resolution[::-1], 3), colour, dtype=np.uint8)
        if cursor:
            x, y = state.pointer
            image[y : y + 4, x : x + 4] = 16
        return image

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
        self._enter("exec")
        if argv[0] == "sleep":
            too_long = float(argv[1]) > timeout_s
            return (
                fake_reply(returncode=None, timed_out=True)
                if too_long and not detach
                else _detached(fake_reply(), detach)
            )
        if argv[:2] == ["/usr/bin/env", "-i"]:
            argv = list(itertools.dropwhile(lambda word: "=" in word, argv[2:]))
        program = self.programs.get(argv[0]) or self.programs.get(PurePosixPath(argv[0]).name)
        if program is None:
            return fake_reply(returncode=127, stderr=f"{argv[0]}: not found")
        return _detached(program(self, argv[1:], stdin or ""), detach)

    async def read_file(self, path: str) -> bytes | None:
        self._enter("read_file")
        return self.state.files.get(path)

    async def evidence(self, queries: Sequence[EvidenceQuery]) -> Evidence:
        self._enter("evidence")
        if self.seen_from_outside is None:
            raise FarmError("Nobody looks into this desktop from outside.", code=ErrorCode.CAPABILITY_MISSING)
        contents: list[bytes] = []
        answers = [self._seen(query, contents) for query in queries]
        header = EvidenceHeader(source="host", frozen=True, pause_s=0.0, answers=answers)
        return Evidence(header, b"".join(contents))

    def _seen(self, query: EvidenceQuery, contents: list[bytes]) -> EvidenceAnswer:
        """The scripted answer, else that of `state.files`."""
        known = self.seen_from_outside or {}
        if isinstance(query, ProcessesQuery):
            return known.get("processes", EvidenceAnswer(processes=[]))
        if query.path in known:
            return known[query.path]
        if query.path not in self.state.files:
            return EvidenceAnswer(error="not_found")
        content = self.state.files[query.path]
        facts = FileFacts(
            kind="file", nbytes=len(content), mode=0o644, uid=1000, gid=1000, modified_s=0.0, from_image=False
        )
        if not isinstance(query, FileQuery):
            return EvidenceAnswer(facts=facts)
        offset = sum(map(len, contents))
        contents.append(content)
        return EvidenceAnswer(facts=facts, offset=offset, content_nbytes=len(content))

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        self._enter("write_file")
        self.state.files[path] = bytes(content)

    async def a11y(self) -> list[A11yElement]:
        self._enter("a11y")
        return list(self.state.elements)

    async def activate_window(self, title: str, *, strict: bool = False) -> bool:
        self._enter("activate_window")
        for window in self.state.windows:
            if window == title or (not strict and title in window):
                self.state.windows.remove(window)
                self.state.windows.append(window)
                return True
        return False

    def _enter(self, method: str) -> None:
        self.calls.append(method)
        if waiting := self._faults.get(method):
            raise waiting.pop(0)
        if self._dead is not None:
            raise DesktopFailedError(
                f"The desktop died: {self._dead.cause}.", fault_owner=self._dead.fault_owner, cause=self._dead.cause
            )


def _detached(reply: ExecReply, detach: bool) -> ExecReply:
    return fake_reply(returncode=None) if detach else reply
