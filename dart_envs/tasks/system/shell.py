"""A terminal: searching, counting, permissions, aliases.

Role: families whose natural tool is a command. Rule: what was given must be untouched, and the answer right to the character; start-up
files are read, never run. Non-goals: which command was used.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import all_of, step
from dart_envs.tasks.suite import Family, TaskDraft
from dart_envs.tasks.system.parts import (
    FOLDER,
    HOME,
    TERMINAL,
    answer_file_is,
    create_folder,
    file_facts,
    folder_tree_is,
    open_terminal,
    random_lines,
    random_names,
    run_shell,
    type_command,
)

SKELETON = "/etc/skel/.bashrc"
OTHER_STARTUP = [f"{HOME}/.bash_aliases", f"{HOME}/.bash_completion"]
"""What the start-up file reads besides itself: it could take an alias back."""


def find_text(random: Random) -> TaskDraft:
    """Which file below a folder holds a word. The near miss answers with another file."""
    folders = random_names(random, 3)
    paths = [f"{folder_name}/{word}.txt" for folder_name in folders for word in random_names(random, 3)]
    code = f"{random.choice('KQXZ')}{random.randrange(1000, 9999)}-{random.choice('abc')}"
    goal, wrong = random.sample(paths, 2)
    given = {path: random_lines(random, 4) for path in paths}
    given[goal] += f"the code is {code} today\n"
    return TaskDraft(
        instruction=(
            f"One of the files below {FOLDER} contains the code {code}. Write its path, relative to that folder (like "
            f"{folders[0]}/name.txt), into a new file answer.txt in that folder."
        ),
        config=[*create_folder(given, folders), *open_terminal(random)],
        evaluator=answer_file_is("answer.txt", goal, given, folders),
        oracle=type_command(f"grep -rl {code} * > answer.txt"),
        near_miss=type_command(f"echo {wrong} > answer.txt"),
        exploits=[run_shell("touch answer.txt"), run_shell("ls */*.txt > answer.txt")],
    )


def count_errors(random: Random) -> TaskDraft:
    """How many lines of a log are errors. The near miss counts lines that only mention the word."""
    name = f"{random_names(random, 1)[0]}.log"
    levels = (
        ["ERROR"] * random.randrange(4, 12) + ["INFO"] * random.randrange(6, 20) + ["WARN"] * random.randrange(2, 9)
    )
    random.shuffle(levels)
    mentions = random.randrange(2, 6)
    rows = [
        f"{level} {words}" for level, words in zip(levels, random_lines(random, len(levels)).splitlines(), strict=True)
    ]
    rows += [f"INFO no ERROR since {random.randrange(1000)}" for _ in range(mentions)]
    random.shuffle(rows)
    given = {name: "".join(f"{row}\n" for row in rows)}
    return TaskDraft(
        instruction=f"How many lines of {FOLDER}/{name} begin with ERROR? Write the number into a new file count.txt in the same folder.",
        config=[*create_folder(given), *open_terminal(random)],
        evaluator=answer_file_is("count.txt", str(levels.count("ERROR")), given),
        oracle=type_command(f"grep -c ^ERROR {name} > count.txt"),
        near_miss=type_command(f"grep -c ERROR {name} > count.txt"),
        exploits=[run_shell("touch count.txt"), run_shell(f"grep ^ERROR {name} > count.txt")],
    )


def cut_column(random: Random) -> TaskDraft:
    """One column of a table, without its head. The near miss takes another column."""
    heads = random.sample(["name", "city", "colour", "animal", "dish"], 4)
    wanted, wrong = random.sample(range(4), 2)
    rows = [random_names(random, 4) for _ in range(random.randrange(6, 12))]
    name = f"{random.choice(['guests', 'orders', 'visits'])}.csv"
    given = {name: "".join(",".join(row) + "\n" for row in [heads, *rows])}
    return TaskDraft(
        instruction=(
            f"Write the values of the column {heads[wanted]} of {FOLDER}/{name} into a new file column.txt in the same "
            "folder: one per line, in the same order, without the heading."
        ),
        config=[*create_folder(given), *open_terminal(random)],
        evaluator=answer_file_is("column.txt", "\n".join(row[wanted] for row in rows), given),
        oracle=type_command(f"tail -n +2 {name} | cut -d, -f{wanted + 1} > column.txt"),
        near_miss=type_command(f"tail -n +2 {name} | cut -d, -f{wrong + 1} > column.txt"),
        exploits=[run_shell(f"cp {name} column.txt"), run_shell("touch column.txt")],
    )


def set_mode(random: Random) -> TaskDraft:
    """Permissions of one of three files. The near miss gives them to another."""
    given = {f"{name}.sh": f"#!/bin/sh\necho {name}\n" for name in random_names(random, 3)}
    goal, wrong = random.sample(sorted(given), 2)
    mode, said = random.choice(
        [
            ("700", "its owner may read, write and run it, and nobody else may do anything with it"),
            ("750", "its owner may read, write and run it, its group may read and run it, and others may do nothing"),
            ("744", "its owner may read, write and run it, and all others may only read it"),
            ("600", "its owner may read and write it, and nobody else may do anything with it"),
            ("640", "its owner may read and write it, its group may only read it, and others may do nothing"),
            ("555", "everybody may read and run it, and nobody may write it"),
        ]
    )
    entries = {name: file_facts(text) | {"mode": mode if name == goal else "644"} for name, text in given.items()}
    return TaskDraft(
        instruction=f"Set the permissions of {FOLDER}/{goal} so that {said}. Leave the other files as they are.",
        config=[*create_folder(given), *open_terminal(random)],
        evaluator=all_of(
            folder_tree_is(entries),
            {
                "func": "exact_match",
                "result": {"type": "access_lists", "path": FOLDER},
                "expected": {"type": "rule", "rules": {"expected": []}},
            },
        ),
        oracle=type_command(f"chmod {mode} {goal}"),
        near_miss=type_command(f"chmod {mode} {wrong}"),
        exploits=[run_shell("chmod 777 *"), run_shell(f"rm {goal} && touch {goal} && chmod {mode} {goal}")],
    )


def make_alias(random: Random) -> TaskDraft:
    """An alias that every new shell has. The near miss makes it for the open shell alone."""
    name = f"{random_names(random, 1)[0]}{random.randrange(10)}"
    command, wrong = random.sample(["ls -lah", "du -sh", "df -h", "date -u", "ps -ef", "git status", "free -m"], 2)
    return TaskDraft(
        instruction=f"Make {name} an alias of the command {command} in every bash that is started from now on (in ~/.bashrc).",
        config=[
            step("execute", command=["cp", SKELETON, f"{HOME}/.bashrc"], expect_returncode=0),
            *open_terminal(random, HOME),
        ],
        evaluator=all_of(
            {
                "func": "exact_match",
                "result": {"type": "present_files", "paths": OTHER_STARTUP},
                "expected": {"type": "rule", "rules": {"expected": []}},
            },
            {
                "func": "alias_is",
                "result": {"type": "vm_file", "path": [f"{HOME}/.bashrc", SKELETON], "multi": True},
                "expected": {"type": "rule", "rules": {"name": name, "command": command}},
            },
        ),
        oracle=type_command(f"echo \"alias {name}='{command}'\" >> ~/.bashrc"),
        near_miss=type_command(f"alias {name}='{command}'"),
        exploits=[
            [{"do": "code", "text": f"open('{HOME}/.bashrc', 'a').write(\"# alias {name}='{command}'\\n\")"}],
            [{"do": "code", "text": f"open('{HOME}/.bashrc', 'a').write(\"alias {name}='{wrong}'\\n\")"}],
        ],
    )


FAMILIES = (
    Family("find_text", TERMINAL, "find the file that holds a code", 12, find_text),
    Family("count_errors", TERMINAL, "count the error lines of a log", 12, count_errors),
    Family("cut_column", TERMINAL, "take one column out of a table", 15, cut_column, held_out=True),
    Family("set_mode", TERMINAL, "set the permissions of a file", 10, set_mode),
    Family("make_alias", TERMINAL, "make an alias for every new shell", 12, make_alias),
)
