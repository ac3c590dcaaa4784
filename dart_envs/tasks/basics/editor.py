"""Mousepad, a text editor: families about writing, changing and saving a text file.

Role: what is in the file at the end is the verdict; a change that was not saved does not count. Rule: the file is
written fresh by the setup.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import (
    DONE,
    SAVE,
    JsonDict,
    file_content_is,
    key,
    pause,
    place_window_randomly,
    step,
    type_text,
)
from dart_envs.tasks.basics.words import random_sentence, sample_nouns
from dart_envs.tasks.suite import Family, TaskDraft

PATH = "/home/user/note.txt"
TITLE = "note.txt"
SIZE = (440, 220)


def open_app(random: Random, text: str) -> list[JsonDict]:
    """The file, and Mousepad showing it somewhere on the screen."""
    return [
        step("write_file", path=PATH, content=text),
        step("launch", command=["mousepad", PATH]),
        step("wait_window", window_name=TITLE),
        place_window_randomly(random, TITLE, size=SIZE),
        step("activate_window", window_name=TITLE),
    ]


def write_line(random: Random) -> TaskDraft:
    """An empty file: write one line and save."""
    line = random_sentence(random)
    return TaskDraft(
        instruction=f"Write '{line}' in the open file and save it.",
        config=open_app(random, ""),
        evaluator=file_content_is(PATH, line),
        oracle=[{"do": "click", "target": {"role": "text"}}, type_text(line), key(*SAVE), pause(), DONE],
        near_miss=[{"do": "click", "target": {"role": "text"}}, type_text(line), DONE],
    )


def append_line(random: Random) -> TaskDraft:
    """A file with two lines: add a third and save."""
    first, second, line = (random_sentence(random) for _ in range(3))
    text = f"{first}\n{second}\n"
    return TaskDraft(
        instruction=f"Add the line '{line}' at the end of the open file and save it.",
        config=open_app(random, text),
        evaluator=file_content_is(PATH, text + line),
        oracle=[key("ctrl", "end"), type_text(line), key(*SAVE), pause(), DONE],
        near_miss=[key("ctrl", "home"), type_text(line + "\n"), key(*SAVE), pause(), DONE],
    )


def replace_word(random: Random) -> TaskDraft:
    """A file with one word per line: change one of them and save."""
    *words, new = sample_nouns(random, 5)
    index = random.randrange(len(words))
    expected = "\n".join([*words[:index], new, *words[index + 1 :]])
    wrong = (index + 1) % len(words)
    return TaskDraft(
        instruction=f"In the open file, change {words[index]} to {new} and save it.",
        config=open_app(random, "\n".join(words) + "\n"),
        evaluator=file_content_is(PATH, expected),
        oracle=[*overwrite_line(index, new), key(*SAVE), pause(), DONE],
        near_miss=[*overwrite_line(wrong, new), key(*SAVE), pause(), DONE],
    )


def go_to_line(index: int) -> list[JsonDict]:
    """From the top of the file, down to a line."""
    return [key("ctrl", "home"), *(key("down") for _ in range(index))]


def overwrite_line(index: int, text: str) -> list[JsonDict]:
    """Select one line and type over it."""
    return [*go_to_line(index), key("shift", "end"), type_text(text)]


def delete_line(random: Random) -> TaskDraft:
    """A file with one word per line: remove one line and save."""
    words = sample_nouns(random, 4)
    index = random.randrange(len(words))
    wrong = (index + 1) % len(words)
    remove = [key("shift", "down"), key("delete"), key(*SAVE), pause(), DONE]
    return TaskDraft(
        instruction=f"Delete the line {words[index]} from the open file and save it.",
        config=open_app(random, "\n".join(words) + "\n"),
        evaluator=file_content_is(PATH, "\n".join(words[:index] + words[index + 1 :])),
        oracle=[*go_to_line(index), *remove],
        near_miss=[*go_to_line(wrong), *remove],
    )


FAMILIES = (
    Family("write_line", "mousepad", "write a line into an empty file and save", 8, write_line),
    Family("append_line", "mousepad", "add a line at the end of a file and save", 8, append_line),
    Family("replace_word", "mousepad", "change one word of a file and save", 12, replace_word),
    Family("delete_line", "mousepad", "delete one line of a file and save", 12, delete_line, held_out=True),
)
