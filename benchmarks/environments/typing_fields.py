"""Text fields of real programs on a leased desktop: how each is opened, and how what it holds is read back exactly.

Role: what `python -m benchmarks typing` types into. Rule: read from the program itself or from what it saved, code point by code point;
never through accessibility, which cuts and normalises. LibreOffice runs with its automatic changes off, since those alter a text by design.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from dart_envs.farm import AsyncLease
from dart_server.wire import (
    ButtonEvent,
    FrameSpec,
    InputEvent,
    KeyEvent,
    MoveEvent,
    SettleSpec,
)

START_S = 120.0
READ_S = 60.0
STILL_LOOKS = 15
LOOK_EVERY_S = 0.2
HOME = "/home/user"
NO_FRAME = FrameSpec(encoding="none")


class NotTyped(RuntimeError):
    """A field could not be opened, emptied or read."""


async def eventually(what: Callable[[], Awaitable[bool]], limit_s: float) -> None:
    """Wait until something is so. Raises TimeoutError."""
    async with asyncio.timeout(limit_s):
        while not await what():  # noqa: ASYNC110 - what is waited for is outside this process
            await asyncio.sleep(LOOK_EVERY_S)


class Field(ABC):
    """One program with one field that has the keyboard; `takes` are the control characters that the field holds as text."""

    takes = "\n\t"
    part = 500
    """Characters that are typed at once."""

    def __init__(self, desktop: AsyncLease) -> None:
        self.desktop = desktop

    async def run(self, *argv: str, timeout_s: float = 60.0) -> str:
        """A program's output, as the desktop's user. Raises `NotTyped`."""
        ended = await self.desktop.exec(list(argv), timeout_s=timeout_s)
        if ended.returncode != 0:
            raise NotTyped(f"{argv[0]} ended with {ended.returncode}: {ended.stderr[-500:]}")
        return ended.stdout

    async def start(self, *argv: str) -> None:
        """Start a program and leave it running."""
        await self.desktop.exec(list(argv), detach=True)

    async def put(self, path: str, text: str) -> None:
        """Write a file, as the desktop's user."""
        await self.desktop.write_file(path, text.encode())

    async def get(self, path: str) -> str | None:
        """A file's text, None while there is none."""
        content = await self.desktop.read_file(path)
        return None if content is None else content.decode()

    async def press(self, *keys: str) -> None:
        """Press keys together."""
        down: list[InputEvent] = [KeyEvent(type="key_down", key=key) for key in keys]
        up: list[InputEvent] = [KeyEvent(type="key_up", key=key) for key in reversed(keys)]
        await self.desktop.step(down + up, frame=NO_FRAME)

    async def windows(self) -> list[dict[str, Any]]:
        """The window manager's windows."""
        listed: list[dict[str, Any]] = json.loads((await self.desktop.guest("GET", "/v1/windows")).content)["windows"]
        return listed

    async def active(self, title: str) -> None:
        """Wait until a window with this title is active and its program draws no more."""

        async def found() -> bool:
            return any(one["active"] and title in one["title"] for one in await self.windows())

        await eventually(found, START_S)
        await self.desktop.step([], SettleSpec(quiet_ms=1000, cap_ms=20_000), frame=NO_FRAME)

    async def click_middle(self) -> None:
        """Click the middle of the active window."""
        (one,) = [one for one in await self.windows() if one["active"]]
        click: list[InputEvent] = [MoveEvent(x=one["x"] + one["w"] // 2, y=one["y"] + one["h"] // 2)]
        await self.desktop.step([*click, ButtonEvent(type="down"), ButtonEvent(type="up")], frame=NO_FRAME)

    async def saved(self, path: str) -> str:
        """The text of a file that is being written. Raises TimeoutError."""

        async def there() -> bool:
            return await self.get(path) is not None

        await eventually(there, READ_S)
        return await self.get(path) or ""

    async def settled(self, length: int, look: Callable[[], Awaitable[str]]) -> str:
        """What the field holds, once that is long enough or has not grown for a while: programs work on after they have read the keys."""
        text, still = "", 0
        while len(text) < length and still < STILL_LOOKS:
            before, text = text, await look()
            still = still + 1 if text == before else 0
            await asyncio.sleep(LOOK_EVERY_S)
        return text

    @abstractmethod
    async def open(self) -> None:
        """Show the empty field and give it the keyboard."""

    @abstractmethod
    async def read(self, length: int) -> str:
        """All that the field holds, once that is `length` long or nothing more can be expected."""

    @abstractmethod
    async def empty(self) -> None:
        """Clear the field."""


class GtkField(Field):
    """A text editor of GTK 3; it saves on Ctrl+S."""

    path = f"{HOME}/typed.txt"

    async def open(self) -> None:
        await self.put(self.path, "")
        await self.start("mousepad", self.path)
        await self.active("typed.txt")
        await self.click_middle()

    async def read(self, length: int) -> str:
        await self.run("rm", "-f", self.path)
        await self.press("ctrl", "s")
        text = await self.saved(self.path)
        # The editor ends a file with a line end of its own.
        return text[: length + 1].removesuffix("\n") if len(text) == length + 1 else text

    async def empty(self) -> None:
        await self.press("ctrl", "a")
        await self.press("delete")


TK_PROGRAM = f"""
import tkinter
top = tkinter.Tk()
top.title("Typed in Tk")
field = tkinter.Text(top)
field.pack(fill="both", expand=True)
def save(event):
    with open("{HOME}/tk.new", "w", encoding="utf-16", errors="surrogatepass", newline="") as file:
        file.write(field.get("1.0", "end-1c"))
    import os
    text = open("{HOME}/tk.new", encoding="utf-16", newline="").read()
    with open("{HOME}/tk.txt.new", "w", encoding="utf-8", newline="") as file:
        file.write(text)
    os.replace("{HOME}/tk.txt.new", "{HOME}/tk.txt")
    return "break"
def clear(event):
    field.delete("1.0", "end")
    return "break"
field.bind("<F2>", save)
field.bind("<F3>", clear)
field.focus_force()
top.mainloop()
"""


class TkField(Field):
    """A text widget of Tk; the program saves on F2."""

    async def open(self) -> None:
        await self.put(f"{HOME}/tk.py", TK_PROGRAM)
        await self.start("python3", f"{HOME}/tk.py")
        await self.active("Typed in Tk")
        await self.click_middle()

    async def read(self, length: int) -> str:
        await self.run("rm", "-f", f"{HOME}/tk.txt")
        await self.press("f2")
        return await self.saved(f"{HOME}/tk.txt")

    async def empty(self) -> None:
        await self.press("f3")


PLAIN_WRITER = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry" xmlns:xs="http://www.w3.org/2001/XMLSchema"
 xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
{items}
</oor:items>
"""
AUTOMATIC = {
    "Common/AutoCorrect": (
        "CapitalAtStartSentence", "TwoCapitalsAtStart", "ChangeUnderlineWeight", "SetInetAttribute", "ChangeOrdinalNumber",
        "AddNonBreakingSpace", "ChangeDash", "RemoveDoubleSpaces", "ReplaceDoubleQuote", "ReplaceSingleQuote",
        "UseReplacementTable", "CorrectAccidentalCapsLock", "TransliterateRTL", "ChangeAngleQuotes",
    ),
    "Writer/AutoFunction/Completion": ("Enable", "CollectWords"),
    "Writer/AutoFunction/Format/ByInput": ("Enable",),
}  # fmt: skip
"""What Writer does to text by itself while it is typed."""
READ_WRITER = """
import os, sys, uno
local = uno.getComponentContext()
resolver = local.ServiceManager.createInstanceWithContext("com.sun.star.bridge.UnoUrlResolver", local)
remote = resolver.resolve("uno:pipe,name=typed;urp;StarOffice.ComponentContext")
desktop = remote.ServiceManager.createInstanceWithContext("com.sun.star.frame.Desktop", remote)
text = desktop.getCurrentComponent().getText()
if sys.argv[1] == "clear":
    text.setString("")
else:
    sys.stdout.buffer.write(text.getString().encode("utf-8"))
    sys.stdout.buffer.flush()
os._exit(0)  # the bridge crashes now and then when it is taken down
"""


class WriterField(Field):
    """A LibreOffice Writer document with all automatic changes off, read over UNO."""

    part = 50

    async def open(self) -> None:
        items = "\n".join(
            f'<item oor:path="/org.openoffice.Office.{place.partition("/")[0]}/{place.partition("/")[2]}">'
            f'<prop oor:name="{name}" oor:op="fuse"><value>false</value></prop></item>'
            for place, names in AUTOMATIC.items()
            for name in names
        )
        await self.run("mkdir", "-p", "/tmp/office/user")
        await self.put(
            "/tmp/office/user/registrymodifications.xcu",
            PLAIN_WRITER.format(items=items),
        )
        await self.put(f"{HOME}/read_writer.py", READ_WRITER)
        await self.start(
            "soffice",
            "--writer",
            "--norestore",
            "--accept=pipe,name=typed;urp;",
            "-env:UserInstallation=file:///tmp/office",
        )
        await self.active("LibreOffice Writer")
        # The window is there before the document takes keys and before UNO answers.
        look = ("python3", f"{HOME}/read_writer.py", "read")

        async def answers() -> bool:
            return (await self.desktop.exec(list(look), timeout_s=60.0)).returncode == 0

        await eventually(answers, START_S)
        for _ in range(20):
            await self.press("x")
            if await self.read(1):
                break
        await self.empty()

    async def read(self, length: int) -> str:
        return await self.settled(length, lambda: self.run("python3", f"{HOME}/read_writer.py", "read"))

    async def empty(self) -> None:
        await self.run("python3", f"{HOME}/read_writer.py", "clear")


PAGE = "<title>Typed here</title><body style='margin:0'><textarea id=field autofocus style='width:100%;height:100%'></textarea>"
DEBUG_PORT = 9233
ASK_BROWSER = f"""
import asyncio, json, sys, aiohttp
async def main():
    async with aiohttp.ClientSession() as web:
        async with web.get("http://127.0.0.1:{DEBUG_PORT}/json") as reply:
            (page,) = [one for one in json.loads(await reply.text()) if one["type"] == "page"]
        async with web.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            wanted = {{"expression": sys.argv[1], "returnByValue": True}}
            await socket.send_json({{"id": 1, "method": "Runtime.evaluate", "params": wanted}})
            value = (await socket.receive_json())["result"]["result"].get("value") or ""
            sys.stdout.buffer.write(str(value).encode("utf-8"))
asyncio.run(main())
"""


class ChromiumField(Field):
    """A text area in Chromium, read by the developer tools' protocol. Tab leaves the field."""

    takes = "\n"

    async def open(self) -> None:
        await self.put(f"{HOME}/page.html", PAGE)
        await self.put(f"{HOME}/ask.py", ASK_BROWSER)
        profile = "--user-data-dir=/tmp/browser"
        port = f"--remote-debugging-port={DEBUG_PORT}"
        await self.start("chromium", port, profile, f"file://{HOME}/page.html")
        await self.active("Typed here")
        await self.click_middle()

    async def ask(self, expression: str) -> str:
        return await self.run("python3", f"{HOME}/ask.py", expression)

    async def read(self, length: int) -> str:
        return await self.settled(length, lambda: self.ask("document.querySelector('textarea').value"))

    async def empty(self) -> None:
        await self.ask("document.querySelector('textarea').value = ''")


FIELDS: dict[str, type[Field]] = {"gtk": GtkField, "tk": TkField, "writer": WriterField, "chromium": ChromiumField}
