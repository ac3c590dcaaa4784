"""LXTerminal, a terminal with bash.

Role: families about doing things to files with commands. Rule: the verdict is what is in the folder afterwards.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import (
    DONE,
    Data,
    all_of,
    file_holds,
    folder_holds,
    key,
    pause,
    random_place,
    step,
    type_text,
)
from dart_envs.tasks.basics.words import pick, sentence
from dart_envs.tasks.suite import Draft, Family

FOLDER = "/home/user/Work"
APP = "lxterminal"
SIZE = (460, 240)


def opened(random: Random, files: dict[str, str]) -> list[Data]:
    """A fresh folder with these files, and a terminal that is in it, somewhere on the screen."""
    place = random_place(random, APP, size=SIZE)
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


def command(line: str) -> list[Data]:
    """Type a command and run it."""
    return [type_text(line), key("enter"), pause(), DONE]


def shell_mkdir(random: Random) -> Draft:
    """Make a folder. The near miss types the command but does not run it."""
    name = pick(random, 1)[0]
    return Draft(
        instruction=f"In the terminal, make a folder called {name}.",
        config=opened(random, {}),
        evaluator=folder_holds(FOLDER, [f"{name}/"]),
        oracle=command(f"mkdir {name}"),
        near_miss=[type_text(f"mkdir {name}"), DONE],
    )


def shell_remove(random: Random) -> Draft:
    """Remove one of four files. The near miss removes another one."""
    names = [f"{word}.txt" for word in pick(random, 4)]
    goal, wrong = random.sample(names, 2)
    return Draft(
        instruction=f"In the terminal, remove the file {goal}.",
        config=opened(random, {name: "" for name in names}),
        evaluator=folder_holds(FOLDER, [name for name in names if name != goal]),
        oracle=command(f"rm {goal}"),
        near_miss=command(f"rm {wrong}"),
    )


def shell_write(random: Random) -> Draft:
    """Put a sentence into a new file. The near miss writes it to a file of another name."""
    name, wrong = pick(random, 2)
    line = sentence(random)
    path = f"{FOLDER}/{name}.txt"
    return Draft(
        instruction=f"In the terminal, write '{line}' into a new file {name}.txt.",
        config=opened(random, {}),
        evaluator=all_of(file_holds(path, line), folder_holds(FOLDER, [f"{name}.txt"])),
        oracle=command(f"echo {line} > {name}.txt"),
        near_miss=command(f"echo {line} > {wrong}.txt"),
    )


FAMILIES = (
    Family("shell_mkdir", APP, "make a folder with a command", 6, shell_mkdir),
    Family("shell_remove", APP, "remove one file with a command", 6, shell_remove),
    Family("shell_write", APP, "write a line into a new file with a command", 6, shell_write),
)
