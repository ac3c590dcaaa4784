"""Text fields of real programs on a live desktop: how each is opened, and how what it holds is read back exactly.

Rule: read from the program itself or from what it saved, code point by code point; never through accessibility, which cuts and normalises.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from provider_cases import Case, eventually

START_S = 90.0
READ_S = 30.0
STILL_LOOKS = 15
HOME = "/home/user"


class Field(ABC):
    """One program with one field that has the keyboard; `takes` are the control characters that the field holds as text."""

    takes = "\n\t"
    part = 500
    """Characters that are typed at once."""

    def __init__(self, case: Case, desktop_id: str) -> None:
        self.case = case
        self.desktop_id = desktop_id

    async def run(self, *argv: str, timeout_s: float = 60.0) -> str:
        """A program's output, as the desktop's user."""
        ended = await self.case.exec(self.desktop_id, *argv, user="user", timeout_s=timeout_s)
        assert ended["returncode"] == 0, ended
        return str(ended["stdout"])

    async def start(self, *argv: str) -> None:
        """Start a program and leave it running."""
        await self.case.exec(self.desktop_id, *argv, user="user", detach=True)

    async def put(self, path: str, text: str) -> None:
        """Write a file."""
        reply = await self.case.call(self.desktop_id, "PUT", f"/v1/files?path={path}&owner=user", raw=text.encode())
        assert reply.status == 200, reply.content

    async def get(self, path: str) -> str | None:
        """A file's text, None while there is none."""
        reply = await self.case.call(self.desktop_id, "GET", f"/v1/files?path={path}")
        return reply.content.decode() if reply.status == 200 else None

    async def press(self, *keys: str) -> None:
        """Press keys together."""
        down = [{"type": "key_down", "key": key} for key in keys]
        await self.case.step(self.desktop_id, *down, *({"type": "key_up", "key": key} for key in reversed(keys)))

    async def active(self, title: str) -> None:
        """Wait until a window with this title is active and its program draws no more."""

        async def found() -> bool:
            listed = json.loads((await self.case.call(self.desktop_id, "GET", "/v1/windows")).content)["windows"]
            return any(one["active"] and title in one["title"] for one in listed)

        await eventually(found, START_S)
        rest = {"events": [], "settle": {"quiet_ms": 1000, "cap_ms": 20000}, "frame": {"encoding": "none"}}
        await self.case.call(self.desktop_id, "POST", "/v1/step", rest)

    async def click_middle(self) -> None:
        """Click the middle of the active window."""
        listed = json.loads((await self.case.call(self.desktop_id, "GET", "/v1/windows")).content)["windows"]
        (one,) = [one for one in listed if one["active"]]
        place = {"type": "move", "x": one["x"] + one["w"] // 2, "y": one["y"] + one["h"] // 2}
        await self.case.step(self.desktop_id, place, {"type": "down", "button": 1}, {"type": "up", "button": 1})

    async def settled(self, length: int, look: Callable[[], Awaitable[str]]) -> str:
        """What the field holds, once that is long enough or has not grown for a while: programs work on after they have read the keys."""
        text, still = "", 0
        while len(text) < length and still < STILL_LOOKS:
            before, text = text, await look()
            still = still + 1 if text == before else 0
            await asyncio.sleep(0.2)
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

        async def saved() -> bool:
            return await self.get(self.path) is not None

        await eventually(saved, READ_S)
        text = await self.get(self.path)
        assert text is not None
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

        async def saved() -> bool:
            return await self.get(f"{HOME}/tk.txt") is not None

        await eventually(saved, READ_S)
        return await self.get(f"{HOME}/tk.txt") or ""

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
        await self.put(
            "/tmp/office/user/registrymodifications.xcu",
            PLAIN_WRITER.format(items=items),
        )
        await self.case.exec(self.desktop_id, "chown", "-R", "user:user", "/tmp/office")
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
            ended = await self.case.exec(self.desktop_id, *look, user="user")
            return bool(ended["returncode"] == 0)

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


FIELDS: dict[str, Any] = {"gtk": GtkField, "tk": TkField, "writer": WriterField, "chromium": ChromiumField}
