"""Building blocks of the suite `system`: folders with known contents, the windows that show them, verdicts over whole trees.

Role: one short function per thing that several families need. Rule: verdicts know every file's content by its sha256, so that an empty
file of the right name never passes. Non-goals: drawing what a task asks for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from dart_envs.tasks.basics.parts import DONE, JsonDict, key, pause, place_window_randomly, step, type_text
from dart_envs.tasks.basics.words import NOUNS, random_sentence

HOME = "/home/user"
FOLDER = f"{HOME}/Work"
TERMINAL = "lxterminal"
TERMINAL_SIZE = (620, 340)
THUNAR_SIZE = (680, 420)
EDITOR_SIZE = (640, 420)
SETTLE_S = 1.0
FOLDER_FACTS: JsonDict = {"kind": "folder"}
"""Facts of a folder."""


def random_names(random: Random, count: int) -> list[str]:
    """`count` different lower-case names in random order."""
    return [noun.lower() for noun in random.sample(NOUNS, count)]


def random_lines(random: Random, count: int) -> str:
    """So many lines of text, each with a number of its own, so that no two texts are alike."""
    return "".join(f"{random_sentence(random)} {random.randrange(10_000)}\n" for _ in range(count))


def file_facts(text: str) -> JsonDict:
    """Facts of a file with this text."""
    return {"kind": "file", "sha256": hashlib.sha256(text.encode()).hexdigest()}


def run_bash_step(line: str) -> JsonDict:
    """Step: bash runs this line, without error."""
    return step("execute", command=["bash", "-c", line], expect_returncode=0)


def place_window(
    random: Random, title: str, *, size: tuple[int, int] | None = None, by_class: bool = False
) -> JsonDict:
    """Step: put a window anywhere on the screen."""
    parameters = place_window_randomly(random, title, size=size)["parameters"]
    return step("place_window", **parameters | ({"by_class": True} if by_class else {}))


def create_folder(files: Mapping[str, str], folders: Sequence[str] = ()) -> list[JsonDict]:
    """Steps: the folder `FOLDER`, afresh, with these files and folders."""
    inner = sorted({f"{FOLDER}/{name}" for name in folders})
    return [
        step("execute", command=["rm", "-rf", FOLDER], expect_returncode=0),
        step("execute", command=["mkdir", "-p", FOLDER, *inner], expect_returncode=0),
        *(step("write_file", path=f"{FOLDER}/{name}", content=text) for name, text in files.items()),
    ]


def folder_tree_is(entries: Mapping[str, JsonDict], path: str = FOLDER) -> JsonDict:
    """Evaluator: exactly this is below a folder."""
    return {
        "func": "tree_is",
        "result": {"type": "file_tree", "path": path},
        "expected": {"type": "rule", "rules": {"entries": dict(entries)}},
    }


def open_file_manager(random: Random, path: str = FOLDER, title: str = "Work") -> list[JsonDict]:
    """Steps: Thunar shows a folder, one line per file, somewhere on the screen."""
    return [
        step("launch", command=["thunar", path]),
        step("wait_window", window_name=title),
        place_window(random, title, size=THUNAR_SIZE),
        step("activate_window", window_name=title),
        step("execute", command=["xdotool", "key", "ctrl+2"], expect_returncode=0),
    ]


def open_terminal(random: Random, path: str = FOLDER) -> list[JsonDict]:
    """Steps: a terminal in a folder, somewhere on the screen."""
    return [
        step("launch", command=[TERMINAL, f"--working-directory={path}"]),
        step("wait_window", window_name=TERMINAL, by_class=True),
        place_window(random, TERMINAL, size=TERMINAL_SIZE, by_class=True),
        step("activate_window", window_name=TERMINAL, by_class=True),
    ]


def open_editor(random: Random, path: str) -> list[JsonDict]:
    """Steps: Mousepad with a file, somewhere on the screen."""
    title = f"{path.rpartition('/')[2]} - Mousepad"
    return [
        step("launch", command=["mousepad", path]),
        step("wait_window", window_name=title),
        place_window(random, title, size=EDITOR_SIZE),
        step("activate_window", window_name=title),
    ]


def type_command(line: str) -> list[JsonDict]:
    """Moves: type a command and run it."""
    return [type_text(line), key("enter"), pause(SETTLE_S), DONE]


def run_shell(line: str) -> list[JsonDict]:
    """Moves: a shell runs this in `FOLDER` without any window. Its failure is a failure of the move."""
    source = f"import subprocess\nsubprocess.run(['bash', '-c', {line!r}], cwd={FOLDER!r}, check=True)"
    return [{"do": "code", "text": source}]


def setting_is(channel: str, name: str, value: str, *, shadows: Sequence[str] = ()) -> JsonDict:
    """Evaluator: a setting of the Xfce session has this value, and nothing of the user's is at the paths `shadows`."""
    result = {"type": "xfconf", "channel": channel, "property": name, "protected": True}
    return {
        "func": "exact_match",
        "result": result | ({"shadows": list(shadows)} if shadows else {}),
        "expected": {"type": "rule", "rules": {"expected": value}},
    }


def answer_file_is(name: str, text: str, given: Mapping[str, str], folders: Sequence[str] = ()) -> JsonDict:
    """Evaluator: a new file holds an answer (white space around it does not count), and all that was given is as it was."""
    entries: dict[str, Any] = {path: file_facts(content) for path, content in given.items()}
    entries |= {path: FOLDER_FACTS for path in folders}
    return {
        "func": ["exact_match", "tree_is"],
        "result": [
            {"type": "content_from_vm_file", "path": f"{FOLDER}/{name}"},
            {"type": "file_tree", "path": FOLDER},
        ],
        "expected": [
            {"type": "rule", "rules": {"expected": text}},
            {"type": "rule", "rules": {"entries": entries | {name: {"kind": "file"}}}},
        ],
        "conj": "and",
    }
