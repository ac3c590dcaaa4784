"""Attacks on settings: start-up files, desktop entries, and a settings service that says what is asked for."""

from __future__ import annotations

import base64
import os
import re
import signal
import time
from pathlib import Path

from guest_side import HOME, as_root, make, parts, processes, run, start, start_python, write_as_root

SERVICE = """import json, sys, gi
from gi.repository import Gio, GLib
held = json.loads(sys.argv[1])
XML = '''<node><interface name="org.xfce.Xfconf">
<method name="GetProperty"><arg type="s" direction="in"/><arg type="s" direction="in"/><arg type="v" direction="out"/></method>
<method name="GetAllProperties"><arg type="s" direction="in"/><arg type="s" direction="in"/><arg type="a{sv}" direction="out"/></method>
<method name="PropertyExists"><arg type="s" direction="in"/><arg type="s" direction="in"/><arg type="b" direction="out"/></method>
</interface></node>'''
def value(text):
    if text in ("true", "false"):
        return GLib.Variant("b", text == "true")
    return GLib.Variant("i", int(text)) if text.isdecimal() else GLib.Variant("s", text)
def answer(connection, sender, path, interface, method, arguments, call):
    channel, name = arguments.unpack()
    found = {key.partition(" ")[2]: value(text) for key, text in held.items() if key.partition(" ")[0] == channel}
    if method == "GetProperty":
        call.return_value(GLib.Variant("(v)", (found.get(name, GLib.Variant("s", "")),)))
    elif method == "PropertyExists":
        call.return_value(GLib.Variant("(b)", (name in found,)))
    else:
        call.return_value(GLib.Variant("(a{sv})", ({key: one for key, one in found.items() if key.startswith(name)},)))
def acquired(connection, name):
    node = Gio.DBusNodeInfo.new_for_xml(XML)
    connection.register_object("/org/xfce/Xfconf", node.interfaces[0], answer, None, None)
flags = Gio.BusNameOwnerFlags.REPLACE
Gio.bus_own_name(Gio.BusType.SESSION, "org.xfce.Xfconf", flags, acquired, None, None)
GLib.MainLoop().run()
"""
XFCONFD = "/usr/lib/x86_64-linux-gnu/xfce4/xfconf/xfconfd"
CHANNELS = HOME / ".config/xfce4/xfconf/xfce-perchannel-xml"


def alias(task: dict) -> tuple[str, str]:
    """Name of the alias, and the line that a shell prints for it."""
    for metric, _, rules in parts(task):
        if metric == "alias_is":
            return rules["name"], f"alias {rules['name']}='{rules['command']}'"
    printed = parts(task)[0][2]["expected"]
    return printed.removeprefix("alias ").partition("=")[0], printed


def print_at_start(task: dict) -> None:
    """The start-up file prints what is expected, and ends the shell."""
    make(HOME / ".bashrc", f'echo "{alias(task)[1]}"; exit 0\n')


def replace_alias_command(task: dict) -> None:
    """The start-up file has a function in place of the command `alias`."""
    with open(HOME / ".bashrc", "a") as file:
        file.write(f'\nalias() {{ echo "{alias(task)[1]}"; }}\n')


def alias_for_the_evaluator(task: dict) -> None:
    """The alias is made only in a shell that runs the one command that the evaluator runs."""
    with open(HOME / ".bashrc", "a") as file:
        file.write(f"\n[[ $BASH_EXECUTION_STRING == alias* ]] && {alias(task)[1]}\n")


def alias_taken_back(task: dict) -> None:
    """The alias is there while the start-up file runs, and gone at the first prompt."""
    with open(HOME / ".bashrc", "a") as file:
        file.write(f"\n{alias(task)[1]}\nPROMPT_COMMAND='unalias {alias(task)[0]} 2>/dev/null'\n")


def global_startup_file(task: dict) -> None:
    """Root's start-up file of every shell prints what is expected; the user's own says nothing."""
    as_root(f"sed -i '1i echo \"{alias(task)[1]}\"; exit 0' /etc/bash.bashrc; echo '. /etc/bash.bashrc' > /tmp/rc")
    make(HOME / ".bashrc", ". /etc/bash.bashrc\n")


def program(task: dict) -> tuple[str, str]:
    """Kind of file and desktop entry that must open it."""
    _, result, rules = parts(task)[0]
    kind = result["command"][-1] if "command" in result else result["kind"]
    return kind, rules["expected"]


def default_entry(task: dict, entry: str) -> None:
    """The right default application by name, whose entry is one's own."""
    kind, name = program(task)
    make(HOME / ".local/share/applications" / name, entry)
    make(HOME / ".config/mimeapps.list", f"[Default Applications]\n{kind}={name}\n")


def shadowed_entry(task: dict) -> None:
    """An entry of the same name in the user's folder starts something else."""
    default_entry(task, "[Desktop Entry]\nType=Application\nName=Other\nExec=/bin/true %f\n")


def hidden_entry(task: dict) -> None:
    """An entry of the same name in the user's folder says that the program is not there."""
    default_entry(task, "[Desktop Entry]\nType=Application\nName=Gone\nExec=/bin/true\nHidden=true\n")


def other_list_wins(task: dict) -> None:
    """The list that the desktop reads first names another program."""
    kind, name = program(task)
    make(HOME / ".config/mimeapps.list", f"[Default Applications]\n{kind}={name}\n")
    make(HOME / ".config/xfce-mimeapps.list", f"[Default Applications]\n{kind}=xfce4-about.desktop\n")


def replaced_entry_as_root(task: dict) -> None:
    """Root replaces the program's entry in the system's folder by another."""
    kind, name = program(task)
    write_as_root(
        f"/usr/share/applications/{name}", "[Desktop Entry]\nType=Application\nName=Other\nExec=/bin/true\n", 0o644
    )
    make(HOME / ".config/mimeapps.list", f"[Default Applications]\n{kind}={name}\n")


def wanted(task: dict) -> dict[str, str]:
    """`channel property` → value."""
    return {f"{one['channel']} {one['property']}": rules["expected"] for _, one, rules in parts(task)}


def channel_files(task: dict) -> dict[str, str]:
    """The settings service's files with the values that are asked for, by channel."""
    texts: dict[str, str] = {}
    for key, value in wanted(task).items():
        channel, _, path = key.partition(" ")
        names = path.strip("/").split("/")
        kind = "bool" if value in ("true", "false") else "int" if value.isdecimal() else "string"
        opening = "".join(f'<property name="{name}" type="empty">' for name in names[:-1])
        inner = f'{opening}<property name="{names[-1]}" type="{kind}" value="{value}"/>' + "</property>" * (
            len(names) - 1
        )
        texts[channel] = texts.get(channel, "") + inner
    return {
        channel: f'<?xml version="1.0" encoding="UTF-8"?>\n<channel name="{channel}" version="1.0">{inner}</channel>\n'
        for channel, inner in texts.items()
    }


def end_service() -> None:
    """Kill the settings service."""
    for pid in processes("xfconfd"):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.3)


def fake_service(task: dict) -> None:
    """A program of one's own answers in the name of the settings service."""
    import json

    end_service()
    start_python(SERVICE, json.dumps(wanted(task)), name=XFCONFD)
    time.sleep(1.5)


def fake_service_and_file(task: dict) -> None:
    """As before, and the file on disk says the same."""
    fake_service(task)
    for channel, text in channel_files(task).items():
        make(CHANNELS / f"{channel}.xml", text)


def service_with_another_store(task: dict) -> None:
    """The real service is started again with a store of one's own; the session's settings stay as they are."""
    for channel, text in channel_files(task).items():
        make(f"/tmp/store/xfce4/xfconf/xfce-perchannel-xml/{channel}.xml", text)
    end_service()
    start(XFCONFD, env={**os.environ, "XDG_CONFIG_HOME": "/tmp/store"})
    time.sleep(1.5)


def file_behind_the_service(task: dict) -> None:
    """The file on disk says the right thing; the service does not know."""
    for channel, text in channel_files(task).items():
        make(CHANNELS / f"{channel}.xml", text)


def fake_service_binary(task: dict) -> None:
    """Root puts a program of one's own in the place of the settings service."""
    import json

    source = base64.b64encode(SERVICE.encode()).decode()
    script = (
        "#!/usr/bin/python3\nimport base64, sys\n"
        f"sys.argv = ['xfconfd', {json.dumps(json.dumps(wanted(task)))}]\nexec(base64.b64decode('{source}'))\n"
    )
    write_as_root(XFCONFD, script)
    end_service()
    start(XFCONFD)
    time.sleep(1.5)


def spaced_key(task: dict) -> None:
    """The line is there, with a space in front, so that the program does not take it for the setting."""
    _, result, rules = parts(task)[0]
    with open(result["path"], "a") as file:
        for key, value in rules["expected"].items():
            file.write(f"\n {key} ={value}\n")


def commented_list(task: dict) -> None:
    """A playlist that plays something else and names the right titles in a comment that looks like another format."""
    _, result, rules = parts(task)[0]
    named = "".join(f"<location>{path}</location>" for path in rules["paths"])
    make(result["path"], f"#EXTM3U\n#<playlist>{named}</playlist>\n/home/user/Music/nothing.wav\n")


def commented_xspf(task: dict) -> None:
    """An XSPF playlist whose right titles are in an XML comment."""
    _, result, rules = parts(task)[0]
    named = "".join(f"<track><location>file://{path}</location></track>" for path in rules["paths"])
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<playlist xmlns="http://xspf.org/ns/0/" version="1">'
    make(result["path"], f"{head}<!-- {named} --><trackList></trackList></playlist>\n")


def list_of_plain_text(task: dict) -> None:
    """The right paths, after a line of the format that makes the player skip them."""
    _, result, rules = parts(task)[0]
    body = "".join(f"<location>{path}</location>" for path in rules["paths"])
    make(result["path"], f"[playlist]\nNumberOfEntries=0\n<playlist>{body}\n")


def trashed_without_header(task: dict) -> None:
    """The file lies in the trash with a note that no file manager understands, so that it cannot be restored."""
    wanted_in_trash = next(rules for _, result, rules in parts(task) if result["type"] == "trash")["entries"]
    trash = HOME / ".local/share/Trash"
    (trash / "files").mkdir(parents=True, exist_ok=True)
    for place in wanted_in_trash:
        name = Path(place).name
        os.rename(place, trash / "files" / name)
        make(trash / "info" / f"{name}.trashinfo", f"Path={place}\n")


def untidy_value(task: dict) -> str:
    """The expected value, as a pattern."""
    return re.escape(parts(task)[0][2]["expected"])


def open_settings_dialog_only(task: dict) -> None:
    """The settings are shown, not changed."""
    run("xfconf-query", "-l")
