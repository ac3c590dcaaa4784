"""What the guest agent promises on a live desktop: who can call it, what it survives, trees, films, wallpapers, pyautogui."""

from __future__ import annotations

import asyncio
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from provider_cases import Case, eventually

pytestmark = pytest.mark.desktop
STATE = "{https://accessibility.ubuntu.example.org/ns/state}"
PLACE = "{https://accessibility.ubuntu.example.org/ns/component}"
KNOCK = """
import socket, sys
answers = []
for name in ("dart-guest", "dart-osworld"):
    door = socket.socket(socket.AF_UNIX)
    door.settimeout(5)
    try:
        door.connect("\\0" + name)
        door.sendall(b"GET /platform HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
        answers.append(door.recv(1000).decode())
    except OSError as error:
        answers.append("" if isinstance(error, (BrokenPipeError, ConnectionResetError)) else repr(error))
print(answers)
"""


BUSY_S = 0.6
BUSY = f"""
import time
from Xlib import X, display, protocol
d = display.Display()
screen = d.screen()
window = screen.root.create_window(0, 0, 300, 200, 0, screen.root_depth, background_pixel=0xff0000, event_mask=X.ButtonPressMask)
window.set_wm_name("Busy")
window.set_wm_protocols([d.intern_atom("_NET_WM_PING"), d.intern_atom("WM_DELETE_WINDOW")])
window.map()
while True:
    event = d.next_event()
    if event.type == X.ButtonPress:
        time.sleep({BUSY_S})
        window.change_attributes(background_pixel=0x00ff00)
        window.clear_area()
        d.flush()
    elif event.type == X.ClientMessage and event.data[1][0] == d.intern_atom("_NET_WM_PING"):
        pong = protocol.event.ClientMessage(window=screen.root, client_type=event.client_type, data=event.data)
        screen.root.send_event(pong, event_mask=X.SubstructureNotifyMask | X.SubstructureRedirectMask)
        d.flush()
"""
"""A program that takes its time to act on a click, and answers pings in their turn."""


@pytest.fixture
async def live(runc_copies: Case) -> Case:
    await runc_copies.ready("d1")
    return runc_copies


async def shell(case: Case, script: str) -> str:
    """Run a script as the desktop's user; its output, or a failure with its errors."""
    ended = await case.exec("d1", "sh", "-c", script, user="user")
    assert ended["returncode"] == 0, ended
    output: str = ended["stdout"]
    return output


async def window(case: Case, title: str) -> None:
    """Wait until a window with this title has the focus."""

    async def active() -> bool:
        listed = json.loads((await case.call("d1", "GET", "/v1/windows")).content)["windows"]
        return any(one["active"] and title in one["title"] for one in listed)

    await eventually(active, 20.0)


async def focused_field(case: Case, title: str) -> None:
    """Wait until a text field of this window has the keyboard: a window is active before its program has taken the focus."""

    async def focused() -> bool:
        await asyncio.sleep(0.3)  # a walk is work for the desktop
        tree = json.loads((await case.call("d1", "GET", "/v1/a11y?format=json")).content)
        return any(
            one["window"] == title and one["role"] in ("text", "entry") and "focused" in one["states"]
            for one in tree["elements"]
        )

    await eventually(focused, 20.0)


async def test_no_process_of_the_desktop_can_call_the_agent(live: Case) -> None:
    await live.call("d1", "PUT", "/v1/files?path=/tmp/knock.py", raw=KNOCK.encode())
    shut = "['', '']\n"
    assert await shell(live, "python3 /tmp/knock.py") == shut
    for escape in ("", "unshare --pid --fork ", "unshare --pid --fork --mount-proc "):
        ended = await live.exec("d1", "sh", "-c", f"echo password | sudo -S {escape}python3 /tmp/knock.py", user="user")
        assert ended["stdout"] in (shut, ""), escape
        assert (ended["returncode"] == 0) is (ended["stdout"] == shut), escape
    assert (await live.exec("d1", "sh", "-c", "echo password | sudo -S id -u", user="user"))["stdout"] == "0\n"
    assert (await live.call("d1", "GET", "/platform")).content == b"Linux"


async def test_the_agent_survives_the_users_killall_and_comes_back_after_roots(live: Case) -> None:
    async def starts() -> int:
        number: int = json.loads((await live.call("d1", "GET", "/v1/health")).content)["agent_starts"]
        return number

    await live.call("d1", "GET", "/v1/a11y?format=json")
    await live.exec("d1", "sh", "-c", "killall python3; killall -9 python3 python; pkill -9 -f dart_guest", user="user")
    assert await starts() == 1
    assert json.loads((await live.call("d1", "GET", "/v1/a11y?format=json")).content)["truncated"] is False
    await live.exec("d1", "setsid", "sh", "-c", "echo password | sudo -S killall -9 python3", user="user", detach=True)

    async def back() -> bool:
        try:
            return await starts() == 2
        except Exception:  # noqa: BLE001 - while the agent starts nothing answers
            return False

    await eventually(back, 20.0)
    header, _ = await live.step("d1", {"type": "move", "x": 7, "y": 8})
    assert header["cursor"] == [7, 8]


async def test_the_xml_tree_has_osworlds_form_also_when_many_ask(live: Case) -> None:
    await shell(live, "zenity --scale --title Slider --text 'How &amp; much &lt;?&gt;' --value 30 >/dev/null 2>&1 &")
    await window(live, "Slider")
    replies = await asyncio.gather(*(live.call("d1", "GET", "/accessibility") for _ in range(6)))
    trees = [ElementTree.fromstring(json.loads(reply.content)["AT"]) for reply in replies]
    for root in trees:
        assert root.tag == "desktop-frame"
        assert any(app.get("name") == "zenity" for app in root.findall("application"))
        (slider,) = root.iter("slider")
        assert slider.get("{https://accessibility.ubuntu.example.org/ns/value}value") == "30.0"
        assert slider.get(f"{STATE}showing") == "true"
        assert slider.get(f"{STATE}focused") in ("true", None)
        assert slider.get(f"{PLACE}screencoord", "").startswith("(")
        assert slider.get(f"{PLACE}size", "").startswith("(")
        assert any(label.text == "How & much <?>" for label in root.iter("label"))
        assert any(
            "{https://accessibility.ubuntu.example.org/ns/action}click_desc" in button.attrib
            for button in root.iter("push-button")
        )


async def test_terminal_text(live: Case) -> None:
    await shell(live, "lxterminal --title=Term -e 'sh -c \"echo seen-it; sleep 60\"' >/dev/null 2>&1 &")
    await window(live, "Term")

    async def shown() -> bool:
        return "seen-it" in (json.loads((await live.call("d1", "GET", "/terminal")).content)["output"] or "")

    await eventually(shown, 20.0)


async def test_a_film_shows_what_happened_and_a_snapshot_ends_it(live: Case, tmp_path: Path) -> None:
    assert (await live.call("d1", "POST", "/start_recording")).status == 200
    for x in range(20, 420, 20):
        await live.step("d1", {"type": "move", "x": x, "y": 50})
        await asyncio.sleep(0.05)
    await live.provider.snapshot("d1", "s1")
    film = (await live.call("d1", "POST", "/end_recording")).content
    await live.provider.delete_snapshot("s1")
    assert film[4:8] == b"ftyp"
    assert b"moov" in film
    assert film.count(b"\xff\xd8\xff") >= 5


async def test_a_wallpaper_is_seen_and_given_back(live: Case) -> None:
    await shell(live, "python3 -c \"from PIL import Image; Image.new('RGB', (9, 9), (1, 200, 3)).save('/tmp/w.png')\"")
    assert (await live.call("d1", "POST", "/wallpaper")).status == 404
    body = json.dumps({"path": "/tmp/w.png"}).encode()
    assert (await live.call("d1", "POST", "/setup/change_wallpaper", raw=body)).status == 200
    _, pixels = await live.step("d1")
    assert set(zip(pixels[0::3], pixels[1::3], pixels[2::3], strict=True)) == {(1, 200, 3)}
    assert (await live.call("d1", "POST", "/wallpaper")).content.startswith(b"\x89PNG")


async def test_pyautogui_and_the_agent_share_one_keyboard(live: Case) -> None:
    await shell(live, "zenity --entry --title Field > /tmp/typed 2>/dev/null &")
    await focused_field(live, "Field")
    words = ["Grüße < Жук", " 漢字 ", "Ωμέγα > ", "שלום "]
    for turn, text in enumerate(words):
        if turn % 2:
            await live.step("d1", {"type": "text", "text": text})
        else:
            await shell(live, f"python3 -c 'import pyautogui; pyautogui.write(\"{text}\")'")
    await shell(live, "python3 -c 'import pyautogui; pyautogui.press(\"enter\")'")

    async def written() -> bool:
        return (await shell(live, "cat /tmp/typed")).rstrip("\n") != ""

    await eventually(written)
    assert (await shell(live, "cat /tmp/typed")).rstrip("\n") == "".join(words)


async def test_the_answer_to_a_click_waits_for_a_program_that_is_busy_with_it(live: Case) -> None:
    await live.call("d1", "PUT", "/v1/files?path=/tmp/busy.py", raw=BUSY.encode())
    await shell(live, "python3 /tmp/busy.py >/tmp/busy.log 2>&1 &")
    await window(live, "Busy")
    listed = json.loads((await live.call("d1", "GET", "/v1/windows")).content)["windows"]
    (busy,) = [one for one in listed if one["title"] == "Busy"]
    x, y = busy["x"] + busy["w"] // 2, busy["y"] + busy["h"] // 2
    events = [{"type": "move", "x": x, "y": y}, {"type": "down", "button": 1}, {"type": "up", "button": 1}]
    body = {"events": events, "settle": {"quiet_ms": 50, "cap_ms": 9000}, "frame": {"encoding": "raw"}}
    content = (await live.call("d1", "POST", "/v1/step", body)).content
    begin = 4 + int.from_bytes(content[:4], "big")
    header = json.loads(content[4:begin])
    pixel = begin + (y * header["width"] + x) * 3
    assert content[pixel : pixel + 3] == b"\x00\xff\x00"
    assert header["settled"] is True
    assert header["settle_ms"] > BUSY_S * 1000
