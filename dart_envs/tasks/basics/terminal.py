"""LXTerminal, a terminal with bash.

Role: families about doing things to files with commands. Rule: the verdict is what is in the folder afterwards.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import (
    DONE,
    JsonDict,
    all_of,
    contents_are_only_in,
    file_content_is,
    folder_names_are,
    key,
    pause,
    place_window_randomly,
    step,
    text_sha256,
    type_text,
)
from dart_envs.tasks.basics.words import random_sentence, random_sentences, sample_nouns
from dart_envs.tasks.suite import Family, TaskDraft

FOLDER = "/home/user/Work"
APP = "lxterminal"
SIZE = (460, 240)


def open_app(random: Random, files: dict[str, str]) -> list[JsonDict]:
    """A fresh folder with these files, and a terminal that is in it, somewhere on the screen."""
    place = place_window_randomly(random, APP, size=SIZE)
    place["parameters"]["by_class"] = True
    return [
        step("execute", command=["rm", "-rf", FOLDER], expect_returncode=0),
        step("execute", command=["mkdir", FOLDER], expect_returncode=0),
        *(step("write_file", path=f"{FOLDER}/{name}", content=text) for name, text in files.items()),
        step("launch", command=["lxterminal", f"--working-directory={FOLDER}"]),
        step("wait_window", window_name=APP, by_class=True),
        place,
        step("activate_window", window_name=APP, by_class=True),
    ]


def run_command(line: str) -> list[JsonDict]:
    """Type a command and run it."""
    return [type_text(line), key("enter"), pause(), DONE]


def shell_mkdir(random: Random) -> TaskDraft:
    """Make a folder. The near miss types the command but does not run it."""
    name = sample_nouns(random, 1)[0]
    return TaskDraft(
        instruction=f"In the terminal, make a folder called {name}.",
        config=open_app(random, {}),
        evaluator=folder_names_are(FOLDER, [f"{name}/"]),
        oracle=run_command(f"mkdir {name}"),
        near_miss=[type_text(f"mkdir {name}"), DONE],
    )


def shell_remove(random: Random) -> TaskDraft:
    """Remove one of four files. The near miss removes another one."""
    names = [f"{word}.txt" for word in sample_nouns(random, 4)]
    goal, wrong = random.sample(names, 2)
    texts = {name: f"{text}\n" for name, text in zip(names, random_sentences(random, len(names)), strict=True)}
    return TaskDraft(
        instruction=f"In the terminal, remove the file {goal}.",
        config=open_app(random, texts),
        evaluator=all_of(
            folder_names_are(FOLDER, [name for name in names if name != goal]),
            contents_are_only_in([text_sha256(texts[goal])]),
        ),
        oracle=run_command(f"rm {goal}"),
        near_miss=run_command(f"rm {wrong}"),
    )


def shell_write(random: Random) -> TaskDraft:
    """Put a sentence into a new file. The near miss writes it to a file of another name."""
    name, wrong = sample_nouns(random, 2)
    line = random_sentence(random)
    path = f"{FOLDER}/{name}.txt"
    return TaskDraft(
        instruction=f"In the terminal, write '{line}' into a new file {name}.txt.",
        config=open_app(random, {}),
        evaluator=all_of(file_content_is(path, line), folder_names_are(FOLDER, [f"{name}.txt"])),
        oracle=run_command(f"echo {line} > {name}.txt"),
        near_miss=run_command(f"echo {line} > {wrong}.txt"),
    )


FAMILIES = (
    Family("shell_mkdir", APP, "make a folder with a command", 6, shell_mkdir),
    Family("shell_remove", APP, "remove one file with a command", 6, shell_remove),
    Family("shell_write", APP, "write a line into a new file with a command", 6, shell_write),
)
