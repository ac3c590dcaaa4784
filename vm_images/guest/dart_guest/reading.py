"""Whether the programs that input went to have read it.

Role: after input, one question to the window manager (which may hold a click back until it has raised a window), then a ping to the
programs of the active window and of the one under the pointer: their answers come after all input before them. After keys, a ping to the
active window's program alone, also where it does not say that it takes pings (Tk answers all the same).
Rule: asks over the connection that made the input; never waits itself, `note` is given the events that arrive; a program that cannot be
asked, or whose window is gone, counts as having read. Non-goals: how long to wait (`xinput`, `settle`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from Xlib import X, error, protocol

MANAGER_LIMIT_S = 0.5
"""How long the window manager is waited for; one that did not answer the first time is never asked again."""

UNSURE_LIMIT_S = 1.0
"""How long a program is waited for that does not say that it takes pings; one that did not answer is not asked again."""

LOOK_S = 0.02
"""Between two looks whether the windows whose programs are waited for are still there."""

DEEPEST = 4
"""Windows between the root and a program's own: the manager's frame and what it is made of."""


class Reading:
    """Asks after one piece of input at a time."""

    def __init__(self, display: Any, root: Any, monotonic: Callable[[], float]) -> None:
        self.display = display
        self.root = root
        self.monotonic = monotonic
        names = (
            "WM_PROTOCOLS",
            "_NET_WM_PING",
            "_NET_ACTIVE_WINDOW",
            "_NET_REQUEST_FRAME_EXTENTS",
            "_NET_FRAME_EXTENTS",
            "_NET_WM_PID",
        )
        self.atoms: dict[str, int] = {name: display.intern_atom(name) for name in names}
        self.asker = root.create_window(-1, -1, 1, 1, 0, X.CopyFromParent, event_mask=X.PropertyChangeMask)
        """A window that is never shown, for the manager to answer about."""
        self.manager_answers: bool | None = None
        """Not known before it was asked."""
        self.manager_due_s: float | None = None
        self.pings = 0
        self.awaited: dict[int, int] = {}
        """Number of a ping that was not answered -> window."""
        self.pinged = 0
        """How many programs were asked the last time."""
        self.unsure_due_s: float | None = None
        self.look_at_s = 0.0
        self.mute: set[int] = set()
        """Windows whose programs are known not to answer."""

    def ask(self) -> None:
        """Ask after all input so far; earlier questions are forgotten."""
        self.forget()
        if self.manager_answers is False:
            self.ping(self.windows())
            return
        self.manager_due_s = self.monotonic() + MANAGER_LIMIT_S
        self.send(self.root, self.asker.id, "_NET_REQUEST_FRAME_EXTENTS", [0, 0, 0, 0, 0])
        self.display.flush()

    def ask_focused(self) -> None:
        """Ask the program that has the keyboard after all keys so far; earlier questions are forgotten."""
        self.forget()
        window = self.active()
        if window is None or window.id in self.mute:
            return
        if not self.takes_pings(window):
            self.unsure_due_s = self.monotonic() + UNSURE_LIMIT_S
        self.ping([window])

    def forget(self) -> None:
        """Wait for nobody any more."""
        self.awaited.clear()
        self.pinged = 0
        self.manager_due_s = self.unsure_due_s = None

    def done(self) -> bool:
        """Whether everyone that was asked has answered; gives up on who does not have to."""
        if self.awaited and self.unsure_due_s is not None and self.monotonic() >= self.unsure_due_s:
            self.mute.update(self.awaited.values())
            self.forget()
        if self.manager_due_s is not None and self.monotonic() >= self.manager_due_s:
            self.manager_answers = self.manager_answers or False
            self.manager_due_s = None
            self.ping(self.windows())
        self.forget_gone()
        return self.manager_due_s is None and not self.awaited

    def forget_gone(self) -> None:
        """A program whose window is gone has read what closed it, and answers no more."""
        if not self.awaited or self.monotonic() < self.look_at_s:
            return
        self.look_at_s = self.monotonic() + LOOK_S
        self.awaited = {number: window for number, window in self.awaited.items() if self.exists(window)}

    def note(self, event: Any) -> None:
        """Take notice of an event that arrived."""
        if event.type == X.PropertyNotify and event.window.id == self.asker.id:
            if self.manager_due_s is not None and event.atom == self.atoms["_NET_FRAME_EXTENTS"]:
                self.manager_answers = True
                self.manager_due_s = None
                self.ping(self.windows())
        elif event.type == X.ClientMessage and event.data[0] == 32 and event.data[1][0] == self.atoms["_NET_WM_PING"]:
            self.awaited.pop(int(event.data[1][1]), None)
            if not self.awaited:
                self.root.change_attributes(event_mask=0)

    def ping(self, windows: list[Any]) -> None:
        """Ask the programs of these windows."""
        self.pinged = len(windows)
        if not windows:
            return
        self.root.change_attributes(event_mask=X.SubstructureNotifyMask)
        for window in windows:
            self.pings += 1
            self.awaited[self.pings] = window.id
            data = [self.atoms["_NET_WM_PING"], self.pings, window.id, 0, 0]
            self.send(window, window.id, "WM_PROTOCOLS", data)
        self.display.flush()

    def send(self, to: Any, about: int, kind: str, data: list[int]) -> None:
        """A client message, to the root by way of the manager."""
        message = protocol.event.ClientMessage(window=about, client_type=self.atoms[kind], data=(32, data))
        mask = X.SubstructureRedirectMask | X.SubstructureNotifyMask if to is self.root else 0
        to.send_event(message, event_mask=mask, onerror=error.CatchError())

    def active(self) -> Any | None:
        """The active window, if there is one."""
        found = self.root.get_full_property(self.atoms["_NET_ACTIVE_WINDOW"], X.AnyPropertyType)
        identifier = int(found.value[0]) if found is not None and len(found.value) else 0
        return self.display.create_resource_object("window", identifier) if identifier else None

    def focused_pid(self, classes: tuple[str, ...]) -> int:
        """The process of the active window when its class begins with one of `classes`; 0 else."""
        window = self.active()
        if window is None:
            return 0
        try:
            named = window.get_wm_class()
            found = window.get_full_property(self.atoms["_NET_WM_PID"], X.AnyPropertyType)
        except error.BadWindow:
            return 0
        wanted = named is not None and str(named[1]).lower().startswith(classes)
        return int(found.value[0]) if wanted and found is not None and len(found.value) else 0

    def windows(self) -> list[Any]:
        """The active window and the one under the pointer, each once, if they take pings."""
        active = self.active()
        found = {} if active is None or not self.takes_pings(active) else {active.id: active}
        with contextlib.suppress(error.BadWindow):
            under = self.root.query_pointer().child
            for _ in range(DEEPEST):
                if not under or under.id in found:
                    break
                if self.takes_pings(under):
                    found[under.id] = under
                    break
                under = under.query_pointer().child
        return list(found.values())

    def exists(self, identifier: int) -> bool:
        """Whether there is such a window; a round trip."""
        try:
            self.display.create_resource_object("window", identifier).get_attributes()
        except error.BadWindow:
            return False
        return True

    def takes_pings(self, window: Any) -> bool:
        """Whether the window's program says that it answers pings."""
        try:
            return self.atoms["_NET_WM_PING"] in window.get_wm_protocols()
        except error.BadWindow:
            return False
