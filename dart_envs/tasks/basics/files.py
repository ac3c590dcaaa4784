"""Thunar, a file manager.

Role: families about opening, renaming, removing and making files and folders. Rule: the verdict is what is in the folder afterwards, or
which folder a window shows: its title says it, and the program watches that folder for changes. Files are listed in detail, one per line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from dart_envs.tasks.basics.parts import (
    DONE,
    JsonDict,
    all_of,
    click,
    contents_are_only_in,
    folder_names_are,
    key,
    pause,
    place_window_randomly,
    step,
    text_sha256,
    type_text,
)
from dart_envs.tasks.basics.words import random_sentences, sample_nouns
from dart_envs.tasks.suite import Family, TaskDraft

FOLDER = "/home/user/Work"
TITLE = "Work"
PROGRAM = "/usr/bin/thunar"
SIZE = (560, 300)
END_FILE_MANAGERS = "pkill -i -x thunar; while pgrep -i -x thunar; do sleep 0.05; done; true"
"""One that runs already would open the window itself, and would not be the task's own."""
HIDE_PLUGINS = "chmod 700 /usr/lib/*/thunarx-3"
"""Thunar ends where it finds plugins that its seal does not let it load."""


def open_app(
    random: Random, files: Sequence[str] = (), folders: Sequence[str] = (), texts: Mapping[str, str] | None = None
) -> list[JsonDict]:
    """A fresh folder with these files and folders, and Thunar showing it somewhere on the screen; files hold `texts`, else nothing."""
    return [
        step("execute", command=["rm", "-rf", FOLDER], expect_returncode=0),
        step(
            "execute", command=["mkdir", "-p", *(f"{FOLDER}/{name}" for name in folders), FOLDER], expect_returncode=0
        ),
        *(step("write_file", path=f"{FOLDER}/{name}", content=(texts or {}).get(name, "")) for name in files),
        step("execute", command=["/bin/sh", "-c", END_FILE_MANAGERS]),
        step("execute", command=["/bin/sh", "-c", HIDE_PLUGINS], user="root", expect_returncode=0),
        step("launch", command=["thunar", FOLDER], protected=True, sealed="code"),
        step("wait_window", window_name=TITLE),
        place_window_randomly(random, TITLE, size=SIZE),
        step("activate_window", window_name=TITLE),
        step("execute", command=["xdotool", "key", "ctrl+2"], expect_returncode=0),
    ]


def row(name: str, *, do: str = "click") -> JsonDict:
    """Click the line of a file."""
    return click("table cell", name, do=do)


def open_folder(random: Random) -> TaskDraft:
    """Four folders: open one. The near miss opens another."""
    names = sample_nouns(random, 4)
    goal, wrong = random.sample(names, 2)
    return TaskDraft(
        instruction=f"Open the folder {goal}.",
        config=open_app(random, folders=names),
        evaluator=all_of(
            {
                "func": "check_list",
                "result": {"type": "window_titles", "by_class": "thunar"},
                "expected": {"type": "rule", "rules": {"expect": [f"^{goal} "]}},
            },
            {
                "func": "contains_names",
                "result": {"type": "watched_folders", "path": FOLDER, "executable": PROGRAM, "protected": True},
                "expected": {"type": "rule", "rules": {"exactly": [goal]}},
            },
        ),
        oracle=[row(goal, do="double_click"), DONE],
        near_miss=[row(wrong, do="double_click"), DONE],
    )


def rename_file(random: Random) -> TaskDraft:
    """Four files: give one another name. The near miss does it to another file."""
    *words, new = sample_nouns(random, 5)
    names = [f"{word}.txt" for word in words]
    goal, wrong = random.sample(names, 2)
    rename = [key("f2"), key("ctrl", "a"), type_text(f"{new}.txt"), key("enter"), pause(), DONE]
    return TaskDraft(
        instruction=f"Rename the file {goal} to {new}.txt.",
        config=open_app(random, files=names),
        evaluator=folder_names_are(FOLDER, [f"{new}.txt", *(name for name in names if name != goal)]),
        oracle=[row(goal), *rename],
        near_miss=[row(wrong), *rename],
    )


def delete_file(random: Random) -> TaskDraft:
    """Four files: delete one for good. The near miss deletes another."""
    names = [f"{word}.txt" for word in sample_nouns(random, 4)]
    goal, wrong = random.sample(names, 2)
    delete = [key("shift", "delete"), key("enter"), pause(), DONE]
    texts = {name: f"{text}\n" for name, text in zip(names, random_sentences(random, len(names)), strict=True)}
    return TaskDraft(
        instruction=f"Delete the file {goal}.",
        config=open_app(random, files=names, texts=texts),
        evaluator=all_of(
            folder_names_are(FOLDER, [name for name in names if name != goal]),
            contents_are_only_in([text_sha256(texts[goal])]),
        ),
        oracle=[row(goal), *delete],
        near_miss=[row(wrong), *delete],
    )


def make_folder(random: Random) -> TaskDraft:
    """Make a folder beside two others. The near miss leaves the name that Thunar proposes."""
    *words, new = sample_nouns(random, 3)
    make = key("ctrl", "shift", "n")
    return TaskDraft(
        instruction=f"Make a new folder called {new}.",
        config=open_app(random, folders=words),
        evaluator=folder_names_are(FOLDER, [f"{name}/" for name in (*words, new)]),
        oracle=[make, key("ctrl", "a"), type_text(new), key("enter"), pause(), DONE],
        near_miss=[make, key("enter"), pause(), DONE],
    )


FAMILIES = (
    Family("open_folder", "thunar", "open the named folder", 4, open_folder),
    Family("rename_file", "thunar", "rename one of four files", 10, rename_file),
    Family("delete_file", "thunar", "delete one of four files", 8, delete_file),
    Family("make_folder", "thunar", "make a folder with a given name", 10, make_folder),
)
