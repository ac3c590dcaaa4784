"""A scripted desktop with windows that the scripts of `dart_envs.setup.windows` tell about, and a clock that only sleeps move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dart_envs.setup import windows
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_server.wire import ExecReply

LEFT, RIGHT, TOP, BOTTOM = 1, 1, 31, 5


class ManualClock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.on_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s
        self.on_sleep()


@dataclass
class FakeWindow:
    """One window: its inside, without borders."""

    title: str
    wm_class: str = "app.App"
    x: int = 10
    y: int = 40
    w: int = 200
    h: int = 100
    moves: bool = True
    closes: bool = True


def reply(stdout: str = "", returncode: int | None = 0, stderr: str = "", timed_out: bool = False) -> ExecReply:
    return ExecReply(returncode=returncode, stdout=stdout, stderr=stderr, timed_out=timed_out)


class FakeWindowDesktop(FakeDesktop):
    """`fake_windows` are its windows; `work_area` (x, y, w, h) is free of panels; `ran` is every program that was run, with its user."""

    def __init__(self, resolution: tuple[int, int] = (640, 400)) -> None:
        super().__init__(resolution)
        self.fake_windows: list[FakeWindow] = []
        self.ran: list[tuple[str, list[str]]] = []
        self.detached: list[list[str]] = []
        self.other_script: Callable[[], ExecReply] = reply
        self.programs["wmctrl"] = lambda _desktop, args, _stdin: self._wmctrl(args)
        self.work_area = (0, 0, *resolution)
        self.programs["xprop"] = lambda _desktop, _args, _stdin: reply(
            f"_NET_WORKAREA(CARDINAL) = {', '.join(map(str, self.work_area))}\n"
        )
        self.programs["/bin/sh"] = lambda _desktop, args, _stdin: self._script(args[1], args[3:])

    async def exec(self, argv: list[str], **how: object) -> ExecReply:  # type: ignore[override]
        self.ran.append((str(how.get("user", "user")), list(argv)))
        if how.get("detach"):
            self.detached.append(list(argv))
        return await super().exec(argv, **how)  # type: ignore[arg-type]

    def _script(self, script: str, args: list[str]) -> ExecReply:
        if script == windows.LIST_SCRIPT:
            return reply("".join(f"{n:#010x}  0 {w.wm_class}  vm {w.title}\n" for n, w in enumerate(self.fake_windows)))
        if script == windows.MEASURE_SCRIPT:
            return self._measure(args[0])
        if script == windows.MOVE_SCRIPT:
            window = self.fake_windows[int(args[0], 16)]
            if window.moves:
                _, x, y, w, h = (int(part) for part in args[1].split(","))
                window.x, window.y = x + LEFT, y + TOP
                window.w, window.h = (window.w if w < 0 else w), (window.h if h < 0 else h)
            return self._measure(args[0])
        if script == windows.ACTIVATE_SCRIPT:
            self.state.typed += f"[{self.fake_windows[int(args[0], 16)].title}]"
            return reply()
        return self.other_script()

    def _wmctrl(self, args: list[str]) -> ExecReply:
        window = self.fake_windows[int(args[2], 16)]
        if args[1] == "-c" and window.closes:
            self.fake_windows.remove(window)
        return reply()

    def _measure(self, window_id: str) -> ExecReply:
        index = int(window_id, 16)
        if index >= len(self.fake_windows):
            return reply(returncode=1)
        w = self.fake_windows[index]
        return reply(
            f"  Absolute upper-left X:  {w.x}\n  Absolute upper-left Y:  {w.y}\n  Width: {w.w}\n  Height: {w.h}\n"
            f"_NET_FRAME_EXTENTS(CARDINAL) = {LEFT}, {RIGHT}, {TOP}, {BOTTOM}\n"
        )
