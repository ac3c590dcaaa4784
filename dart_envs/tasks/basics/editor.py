"""Mousepad, a text editor: families about writing, changing and saving a text file.

Role: what is in the file at the end is the verdict; a change that was not saved does not count. Rule: the file is
written fresh by the setup.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import (
    DONE,
    SAVE,
    Data,
    file_holds,
    key,
    pause,
    random_place,
    step,
    type_text,
)
from dart_envs.tasks.basics.words import pick, sentence
from dart_envs.tasks.suite import Draft, Family

PATH = "/home/user/note.txt"
TITLE = "note.txt"
SIZE = (440, 220)


def opened(random: Random, text: str) -> list[Data]:
    """The file, and Mousepad showing it somewhere on the screen."""
    return [
        step("write_file", path=PATH, content=text),
        step("launch", command=["mousepad", PATH]),
        step("wait_window", window_name=TITLE),
        random_place(random, TITLE, size=SIZE),
        step("activate_window", window_name=TITLE),
    ]


def write_line(random: Random) -> Draft:
    """An empty file: write one line and save."""
    line = sentence(random)
    return Draft(
        instruction=f"Write '{line}' in the open file and save it.",
        config=opened(random, ""),
        evaluator=file_holds(PATH, line),
        oracle=[{"do": "click", "target": {"role": "text"}}, type_text(line), key(*SAVE), pause(), DONE],
        near_miss=[{"do": "click", "target": {"role": "text"}}, type_text(line), DONE],
    )


def append_line(random: Random) -> Draft:
    """A file with two lines: add a third and save."""
    first, second, line = (sentence(random) for _ in range(3))
    text = f"{first}\n{second}\n"
    return Draft(
        instruction=f"Add the line '{line}' at the end of the open file and save it.",
        config=opened(random, text),
        evaluator=file_holds(PATH, text + line),
        oracle=[key("ctrl", "end"), type_text(line), key(*SAVE), pause(), DONE],
        near_miss=[key("ctrl", "home"), type_text(line + "\n"), key(*SAVE), pause(), DONE],
    )


def replace_word(random: Random) -> Draft:
    """A file with one word per line: change one of them and save."""
    *words, new = pick(random, 5)
    index = random.randrange(len(words))
    expected = "\n".join([*words[:index], new, *words[index + 1 :]])
    wrong = (index + 1) % len(words)
    return Draft(
        instruction=f"In the open file, change {words[index]} to {new} and save it.",
        config=opened(random, "\n".join(words) + "\n"),
        evaluator=file_holds(PATH, expected),
        oracle=[*overwrite_line(index, new), key(*SAVE), pause(), DONE],
        near_miss=[*overwrite_line(wrong, new), key(*SAVE), pause(), DONE],
    )


def go_to_line(index: int) -> list[Data]:
    """From the top of the file, down to a line."""
    return [key("ctrl", "home"), *(key("down") for _ in range(index))]


def overwrite_line(index: int, text: str) -> list[Data]:
    """Select one line and type over it."""
    return [*go_to_line(index), key("shift", "end"), type_text(text)]


def delete_line(random: Random) -> Draft:
    """A file with one word per line: remove one line and save."""
    words = pick(random, 4)
    index = random.randrange(len(words))
    wrong = (index + 1) % len(words)
    remove = [key("shift", "down"), key("delete"), key(*SAVE), pause(), DONE]
    return Draft(
        instruction=f"Delete the line {words[index]} from the open file and save it.",
        config=opened(random, "\n".join(words) + "\n"),
        evaluator=file_holds(PATH, "\n".join(words[:index] + words[index + 1 :])),
        oracle=[*go_to_line(index), *remove],
        near_miss=[*go_to_line(wrong), *remove],
    )


FAMILIES = (
    Family("write_line", "mousepad", "write a line into an empty file and save", 8, write_line),
    Family("append_line", "mousepad", "add a line at the end of a file and save", 8, append_line),
    Family("replace_word", "mousepad", "change one word of a file and save", 12, replace_word),
    Family("delete_line", "mousepad", "delete one line of a file and save", 12, delete_line, held_out=True),
)
