"""Building blocks of the office families: opened documents, verdicts about saved files, and the plays that only look right.

Role: one short function per thing that several families need. Rule: what the policy sees and what it is judged by come from the same
values; expected ones stay in the evaluator.
"""

from __future__ import annotations

from random import Random
from typing import Any

from dart_envs.tasks.basics.parts import DONE, JsonDict, key, pause, step, type_text, wait_until_idle
from dart_envs.tasks.basics.words import sample_nouns

FOLDER = "/home/user/Documents"
TITLES = {"ods": "LibreOffice Calc", "odt": "LibreOffice Writer", "odp": "LibreOffice Impress"}
ROLES = {"ods": "document spreadsheet", "odt": "document text", "odp": "document presentation"}
START_TIMEOUT_S = 90.0
SAVE: list[JsonDict] = [key("ctrl", "s"), pause(1.0), DONE]
"""Save in the document's own format, and end the episode."""


def random_path(random: Random, extension: str) -> str:
    """Path of a document with a drawn name."""
    return f"{FOLDER}/{sample_nouns(random, 1)[0].lower()}_{random.randint(10, 99)}.{extension}"


def open_document(path: str, content: str) -> list[JsonDict]:
    """A document (base64), and LibreOffice showing it."""
    name = path.rpartition("/")[2]
    extension = path.rpartition(".")[2]
    title = f"{name} - {TITLES[extension]}"
    return [
        step("write_binary", path=path, content_base64=content),
        step("launch", command=["soffice", "--norestore", "--nologo", path]),
        step("wait_window", window_name=title, timeout_s=START_TIMEOUT_S),
        step("activate_window", window_name=title),
        step("wait_element", role=ROLES[extension], timeout_s=START_TIMEOUT_S),
    ]


def saved_file_is(path: str, metric: str, **rules: Any) -> JsonDict:
    """Evaluator: what is in the saved file."""
    return {
        "func": metric,
        "result": {"type": "vm_file", "path": path},
        "expected": {"type": "rule", "rules": rules},
        "postconfig": [wait_until_idle("soffice.bin")],
    }


def overwrite_with_text(path: str, text: str) -> list[JsonDict]:
    """Exploit: a program writes text where the document is."""
    return [{"do": "code", "text": f"open({path!r}, 'w').write({text!r})"}, DONE]


def overwrite_with_document(path: str, content: str) -> list[JsonDict]:
    """Exploit: a program puts another document (base64) in the place of this one."""
    return [{"do": "code", "text": f"import base64; open({path!r}, 'wb').write(base64.b64decode({content!r}))"}, DONE]


def choose_menu_entry(*names: str) -> list[JsonDict]:
    """Open a menu of the menu bar, and choose in it; each name after the first is an entry."""
    first, *rest = names
    moves: list[JsonDict] = [{"do": "click", "target": {"role": "menu", "name": first}, "deferred": True}]
    for index, name in enumerate(rest):
        role = "menu item" if index == len(rest) - 1 else "menu"
        moves.append({"do": "click", "target": {"role": role, "name": name}, "deferred": True})
    return moves


def find_and_replace(old: str, new: str, button: str, *, confirmation_dialog: bool) -> list[JsonDict]:
    """Find and Replace, with one of its buttons; then the dialog is closed.

    confirmation_dialog: how many were replaced is told in a box of its own (Calc), not in the dialog (Writer).
    """
    return [
        key("ctrl", "h"),
        pause(1.5),
        type_text(old),
        key("tab"),
        {"do": "click", "target": {"role": "text", "window": "Find and Replace", "nth": 1}, "deferred": True},
        type_text(new),
        {
            "do": "click",
            "target": {"role": "push button", "name": button, "window": "Find and Replace"},
            "deferred": True,
        },
        pause(),
        *([key("escape")] if confirmation_dialog else []),
        {
            "do": "click",
            "target": {"role": "push button", "name": "Close", "window": "Find and Replace"},
            "deferred": True,
        },
    ]


def repeat_key(*keys: str, times: int) -> list[JsonDict]:
    """The same keys several times."""
    return [key(*keys) for _ in range(times)]
