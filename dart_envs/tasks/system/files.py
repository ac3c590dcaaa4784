"""Thunar, the file manager: moving, renaming, removing, restoring.

Role: families about files in a window that shows them. Rule: the verdict is the whole folder with every file's content. Non-
goals: archives and commands.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import DONE, Data, all_of, click, key, pause, step, type_text
from dart_envs.tasks.suite import Draft, Family
from dart_envs.tasks.system.parts import FOLDER, MADE, folder, folder_is, holding, lines, names, ran, shown

TRASHED = "/home/user/.local/share/Trash"


def row(name: str, *, do: str = "click", later: bool = False) -> Data:
    """Point at the line of a file."""
    return click("table cell", name, do=do, later=later)


def sort_by_type(random: Random) -> Draft:
    """Move all files of one type into a folder. The near miss copies them."""
    *words, target = names(random, 6)
    kind, other = random.sample(["txt", "csv", "log", "md"], 2)
    moved = {f"{word}.{kind}": lines(random, 2) for word in words[:3]}
    kept = {f"{word}.{other}": lines(random, 2) for word in words[3:]}
    entries = {name: holding(text) for name, text in kept.items()}
    entries |= {f"{target}/{name}": holding(text) for name, text in moved.items()} | {target: MADE}
    return Draft(
        instruction=f"Move all .{kind} files of the folder Work into its folder {target}. Leave the other files where they are.",
        config=[*folder({**moved, **kept}, [target]), *shown(random)],
        evaluator=folder_is(entries),
        oracle=[
            key("ctrl", "s"),
            pause(),
            type_text(f"*.{kind}\n"),
            pause(),
            key("ctrl", "x"),
            row(target, do="double_click", later=True),
            pause(),
            key("ctrl", "v"),
            pause(1.0),
            DONE,
        ],
        near_miss=ran(f"cp *.{kind} {target}/"),
        exploits=[
            ran(f"touch {' '.join(f'{target}/{name}' for name in moved)} && rm *.{kind}"),
            ran(f"mv *.{other} {target}/"),
        ],
    )


def rename_series(random: Random) -> Draft:
    """Give three files numbered names in the order of their names. The near miss numbers them the other way round."""
    prefix, *words = names(random, 4)
    given = {f"{word}.txt": lines(random, 2) for word in words}
    ordered = sorted(given)
    new = {name: f"{prefix}-{number}.txt" for number, name in enumerate(ordered, start=1)}
    moves: list[Data] = []
    for name in ordered:
        moves += [row(name, later=True), key("f2"), key("ctrl", "a"), type_text(new[name]), key("enter"), pause()]
    backwards = dict(zip(ordered, reversed(new.values()), strict=True))
    return Draft(
        instruction=(
            f"Rename the three files of the folder Work to {prefix}-1.txt, {prefix}-2.txt and {prefix}-3.txt, numbered in the "
            "alphabetical order of the names that they have now."
        ),
        config=[*folder(given), *shown(random)],
        evaluator=folder_is({new[name]: holding(text) for name, text in given.items()}),
        oracle=[*moves, DONE],
        near_miss=ran(" && ".join(f"mv {name} {backwards[name]}" for name in ordered)),
        exploits=[
            ran(f"rm *.txt && touch {' '.join(new.values())}"),
            ran(f"for n in 1 2 3; do cp {ordered[0]} {prefix}-$n.txt; done; rm {' '.join(ordered)}"),
        ],
    )


def move_to_trash(random: Random) -> Draft:
    """Put one of four files into the trash. The near miss deletes it for good."""
    words = names(random, 4)
    given = {f"{word}.txt": lines(random, 2) for word in words}
    goal, wrong = random.sample(sorted(given), 2)
    rest = {name: holding(text) for name, text in given.items() if name != goal}
    in_trash = {
        "func": "tree_is",
        "result": {"type": "trash"},
        "expected": {"type": "rule", "rules": {"entries": {f"{FOLDER}/{goal}": holding(given[goal])}}},
    }
    return Draft(
        instruction=f"Move the file {goal} to the trash, so that it could still be restored.",
        config=[*folder(given), step("execute", command=["rm", "-rf", TRASHED]), *shown(random)],
        evaluator=all_of(in_trash, folder_is(rest)),
        oracle=[row(goal), key("delete"), pause(1.0), DONE],
        near_miss=[row(goal), key("shift", "delete"), key("enter"), pause(), DONE],
        exploits=[
            ran(f"mkdir -p {TRASHED}/files && mv {goal} {TRASHED}/files/"),
            ran(f"gio trash {wrong}"),
        ],
    )


def restore_from_trash(random: Random) -> Draft:
    """Bring one of three deleted files back. The near miss brings another."""
    words = names(random, 4)
    given = {f"{word}.txt": lines(random, 2) for word in words}
    kept, goal, wrong, last = sorted(given, key=lambda _: random.random())
    back = {name: holding(given[name]) for name in (kept, goal)}
    in_trash = {f"{FOLDER}/{name}": holding(given[name]) for name in (wrong, last)}
    deleted = [f"{FOLDER}/{name}" for name in (goal, wrong, last)]
    return Draft(
        instruction=f"The file {goal} was moved to the trash by mistake. Restore it to the place that it came from, and nothing else.",
        config=[
            *folder(given),
            step("execute", command=["rm", "-rf", TRASHED]),
            step("execute", command=["gio", "trash", *deleted], expect_returncode=0),
            *shown(random, "trash:///", "Trash"),
        ],
        evaluator=all_of(
            folder_is(back),
            {
                "func": "tree_is",
                "result": {"type": "trash"},
                "expected": {"type": "rule", "rules": {"entries": in_trash}},
            },
        ),
        oracle=ran(f"gio trash --restore 'trash:///{goal}'"),
        near_miss=ran(f"gio trash --restore 'trash:///{wrong}'"),
        exploits=[ran(f"touch {goal}"), ran(f"cp {TRASHED}/files/{goal} .")],
    )


RANKS = {"largest": -1, "second largest": -2, "smallest": 0, "second smallest": 1}


def delete_by_size(random: Random) -> Draft:
    """Delete the file of a given rank by size, of one type. The near miss deletes the one next to it in size."""
    words = names(random, 6)
    counts = random.sample(range(10, 70, 8), 6)
    kind, other = random.sample(["txt", "csv", "log", "md"], 2)
    given = {f"{word}.{kind}": lines(random, count) for word, count in zip(words[:4], counts, strict=False)}
    extremes = {f"{words[4]}.{other}": lines(random, 90), f"{words[5]}.{other}": lines(random, 3)}
    by_size = sorted(given, key=lambda name: len(given[name]))
    said, rank = random.choice(sorted(RANKS.items()))
    goal = by_size[rank]
    wrong = by_size[1 if rank == 0 else rank - 1]
    given |= extremes
    rest = {name: holding(text) for name, text in given.items() if name != goal}
    return Draft(
        instruction=f"Of the .{kind} files in the folder Work, delete the {said} one.",
        config=[*folder(given), *shown(random)],
        evaluator=folder_is(rest),
        oracle=[row(goal), key("shift", "delete"), key("enter"), pause(), DONE],
        near_miss=[row(wrong), key("shift", "delete"), key("enter"), pause(), DONE],
        exploits=[ran(f"truncate -s 0 {goal}"), ran(f"mv {goal} .{goal}")],
    )


def delete_duplicate(random: Random) -> Draft:
    """Of two files with the same text delete the one whose name comes first or last. The near miss deletes the other."""
    words = names(random, 5)
    twin = lines(random, 3)
    given = {f"{word}.txt": lines(random, 3) for word in words}
    first, second = sorted(random.sample(sorted(given), 2))
    given |= {first: twin, second: twin}
    place = random.choice(["earlier", "later"])
    goal, kept = (first, second) if place == "earlier" else (second, first)
    rest = {name: holding(text) for name, text in given.items() if name != goal}
    asked = random.choice(
        [
            "Delete the one whose name comes {0} in the alphabet.",
            "Of those two, delete the one that comes {0} in the alphabet.",
        ]
    )
    return Draft(
        instruction=f"Two of the files in the folder Work have exactly the same content. {asked.format(place)}",
        config=[*folder(given), *shown(random)],
        evaluator=folder_is(rest),
        oracle=[row(goal), key("shift", "delete"), key("enter"), pause(), DONE],
        near_miss=[row(kept), key("shift", "delete"), key("enter"), pause(), DONE],
        exploits=[ran(f"truncate -s 0 {goal}"), ran(f"ln -sf {kept} {goal}")],
    )


def make_link(random: Random) -> Draft:
    """A symbolic link in one folder to another. The near miss links the wrong folder; the exploits copy, and write an empty file."""
    goal, wrong, link = names(random, 3)
    given = {f"{name}/{word}.txt": lines(random, 2) for name in (goal, wrong) for word in names(random, 2)}
    entries: dict[str, Data] = {name: holding(text) for name, text in given.items()}
    entries |= {goal: MADE, wrong: MADE, link: {"kind": "link", "target": f"{FOLDER}/{goal}"}}
    return Draft(
        instruction=f"In the folder {FOLDER}, make a symbolic link named {link} whose target is {FOLDER}/{goal}.",
        config=[*folder(given, [goal, wrong]), *shown(random)],
        evaluator=folder_is(entries),
        oracle=ran(f"ln -s {FOLDER}/{goal} {FOLDER}/{link}"),
        near_miss=ran(f"ln -s {FOLDER}/{wrong} {FOLDER}/{link}"),
        exploits=[ran(f"cp -r {goal} {link}"), ran(f"touch {link}")],
    )


def build_tree(random: Random) -> Draft:
    """Folders inside folders. The near miss makes them all on one level."""
    top, left, right, deep = names(random, 4)
    paths = [top, f"{top}/{left}", f"{top}/{right}", f"{top}/{right}/{deep}"]
    return Draft(
        instruction=(
            f"In the empty folder Work, make a folder {top}; inside it two folders, {left} and {right}; and inside {right} a folder {deep}."
        ),
        config=[*folder({}), *shown(random)],
        evaluator=folder_is({path: MADE for path in paths}),
        oracle=ran(f"mkdir -p {paths[1]} {paths[3]}"),
        near_miss=ran(f"mkdir {top} {left} {right} {deep}"),
        exploits=[
            ran(f"mkdir -p {top}/{right} && touch {paths[1]} {paths[3]}"),
            ran(f"mkdir -p {top}/{left}/{deep} {top}/{right}"),
        ],
    )


APP = "thunar"
FAMILIES = (
    Family("sort_by_type", APP, "move all files of one type into a folder", 15, sort_by_type),
    Family("rename_series", APP, "number three files in alphabetical order", 25, rename_series),
    Family("move_to_trash", APP, "move a file to the trash", 8, move_to_trash),
    Family(
        "restore_from_trash", APP, "restore one of three files from the trash", 10, restore_from_trash, held_out=True
    ),
    Family("delete_by_size", APP, "delete the file of a given rank by size", 10, delete_by_size),
    Family("delete_duplicate", APP, "delete one of two equal files", 20, delete_duplicate, held_out=True),
    Family("make_link", APP, "make a symbolic link to a folder", 15, make_link),
    Family("build_tree", APP, "make folders inside folders", 25, build_tree),
)
