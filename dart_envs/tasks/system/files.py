"""Thunar, the file manager: moving, renaming, removing, restoring.

Role: families about files in a window that shows them. Rule: the verdict is the whole folder with every file's content. Non-
goals: archives and commands.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import (
    DONE,
    JsonDict,
    all_of,
    click,
    contents_are_only_in,
    key,
    pause,
    step,
    text_sha256,
    type_text,
)
from dart_envs.tasks.suite import Family, TaskDraft
from dart_envs.tasks.system.parts import (
    FOLDER,
    FOLDER_FACTS,
    create_folder,
    file_facts,
    folder_tree_is,
    open_file_manager,
    random_lines,
    random_names,
    run_shell,
)

TRASH_FOLDER = "/home/user/.local/share/Trash"


def row(name: str, *, do: str = "click", deferred: bool = False) -> JsonDict:
    """Point at the line of a file."""
    return click("table cell", name, do=do, deferred=deferred)


def sort_by_type(random: Random) -> TaskDraft:
    """Move all files of one type into a folder. The near miss copies them."""
    *words, target = random_names(random, 6)
    kind, other = random.sample(["txt", "csv", "log", "md"], 2)
    moved = {f"{word}.{kind}": random_lines(random, 2) for word in words[:3]}
    kept = {f"{word}.{other}": random_lines(random, 2) for word in words[3:]}
    entries = {name: file_facts(text) for name, text in kept.items()}
    entries |= {f"{target}/{name}": file_facts(text) for name, text in moved.items()} | {target: FOLDER_FACTS}
    return TaskDraft(
        instruction=f"Move all .{kind} files of the folder Work into its folder {target}. Leave the other files where they are.",
        config=[*create_folder({**moved, **kept}, [target]), *open_file_manager(random)],
        evaluator=folder_tree_is(entries),
        oracle=[
            key("ctrl", "s"),
            pause(),
            type_text(f"*.{kind}\n"),
            pause(),
            key("ctrl", "x"),
            row(target, do="double_click", deferred=True),
            pause(),
            key("ctrl", "v"),
            pause(1.0),
            DONE,
        ],
        near_miss=run_shell(f"cp *.{kind} {target}/"),
        exploits=[
            run_shell(f"touch {' '.join(f'{target}/{name}' for name in moved)} && rm *.{kind}"),
            run_shell(f"mv *.{other} {target}/"),
        ],
    )


def rename_series(random: Random) -> TaskDraft:
    """Give three files numbered names in the order of their names. The near miss numbers them the other way round."""
    prefix, *words = random_names(random, 4)
    given = {f"{word}.txt": random_lines(random, 2) for word in words}
    ordered = sorted(given)
    new = {name: f"{prefix}-{number}.txt" for number, name in enumerate(ordered, start=1)}
    moves: list[JsonDict] = []
    for name in ordered:
        moves += [row(name, deferred=True), key("f2"), key("ctrl", "a"), type_text(new[name]), key("enter"), pause()]
    backwards = dict(zip(ordered, reversed(new.values()), strict=True))
    return TaskDraft(
        instruction=(
            f"Rename the three files of the folder Work to {prefix}-1.txt, {prefix}-2.txt and {prefix}-3.txt, numbered in the "
            "alphabetical order of the names that they have now."
        ),
        config=[*create_folder(given), *open_file_manager(random)],
        evaluator=folder_tree_is({new[name]: file_facts(text) for name, text in given.items()}),
        oracle=[*moves, DONE],
        near_miss=run_shell(" && ".join(f"mv {name} {backwards[name]}" for name in ordered)),
        exploits=[
            run_shell(f"rm *.txt && touch {' '.join(new.values())}"),
            run_shell(f"for n in 1 2 3; do cp {ordered[0]} {prefix}-$n.txt; done; rm {' '.join(ordered)}"),
        ],
    )


def move_to_trash(random: Random) -> TaskDraft:
    """Put one of four files into the trash. The near miss deletes it for good."""
    words = random_names(random, 4)
    given = {f"{word}.txt": random_lines(random, 2) for word in words}
    goal, wrong = random.sample(sorted(given), 2)
    rest = {name: file_facts(text) for name, text in given.items() if name != goal}
    in_trash = {
        "func": "tree_is",
        "result": {"type": "trash"},
        "expected": {"type": "rule", "rules": {"entries": {f"{FOLDER}/{goal}": file_facts(given[goal])}}},
    }
    return TaskDraft(
        instruction=f"Move the file {goal} to the trash, so that it could still be restored.",
        config=[
            *create_folder(given),
            step("execute", command=["rm", "-rf", TRASH_FOLDER]),
            *open_file_manager(random),
        ],
        evaluator=all_of(in_trash, folder_tree_is(rest)),
        oracle=[row(goal), key("delete"), pause(1.0), DONE],
        near_miss=[row(goal), key("shift", "delete"), key("enter"), pause(), DONE],
        exploits=[
            run_shell(f"mkdir -p {TRASH_FOLDER}/files && mv {goal} {TRASH_FOLDER}/files/"),
            run_shell(f"gio trash {wrong}"),
        ],
    )


def restore_from_trash(random: Random) -> TaskDraft:
    """Bring one of three deleted files back. The near miss brings another."""
    words = random_names(random, 4)
    given = {f"{word}.txt": random_lines(random, 2) for word in words}
    kept, goal, wrong, last = sorted(given, key=lambda _: random.random())
    back = {name: file_facts(given[name]) for name in (kept, goal)}
    in_trash = {f"{FOLDER}/{name}": file_facts(given[name]) for name in (wrong, last)}
    deleted = [f"{FOLDER}/{name}" for name in (goal, wrong, last)]
    return TaskDraft(
        instruction=f"The file {goal} was moved to the trash by mistake. Restore it to the place that it came from, and nothing else.",
        config=[
            *create_folder(given),
            step("execute", command=["rm", "-rf", TRASH_FOLDER]),
            step("execute", command=["gio", "trash", *deleted], expect_returncode=0),
            *open_file_manager(random, "trash:///", "Trash"),
        ],
        evaluator=all_of(
            folder_tree_is(back),
            {
                "func": "tree_is",
                "result": {"type": "trash"},
                "expected": {"type": "rule", "rules": {"entries": in_trash}},
            },
        ),
        oracle=run_shell(f"gio trash --restore 'trash:///{goal}'"),
        near_miss=run_shell(f"gio trash --restore 'trash:///{wrong}'"),
        exploits=[run_shell(f"touch {goal}"), run_shell(f"cp {TRASH_FOLDER}/files/{goal} .")],
    )


RANKS = {"largest": -1, "second largest": -2, "smallest": 0, "second smallest": 1}


def delete_by_size(random: Random) -> TaskDraft:
    """Delete the file of a given rank by size, of one type. The near miss deletes the one next to it in size."""
    words = random_names(random, 6)
    counts = random.sample(range(10, 70, 8), 6)
    kind, other = random.sample(["txt", "csv", "log", "md"], 2)
    given = {f"{word}.{kind}": random_lines(random, count) for word, count in zip(words[:4], counts, strict=False)}
    extremes = {f"{words[4]}.{other}": random_lines(random, 90), f"{words[5]}.{other}": random_lines(random, 3)}
    by_size = sorted(given, key=lambda name: len(given[name]))
    said, rank = random.choice(sorted(RANKS.items()))
    goal = by_size[rank]
    wrong = by_size[1 if rank == 0 else rank - 1]
    given |= extremes
    rest = {name: file_facts(text) for name, text in given.items() if name != goal}
    return TaskDraft(
        instruction=f"Of the .{kind} files in the folder Work, delete the {said} one.",
        config=[*create_folder(given), *open_file_manager(random)],
        evaluator=all_of(folder_tree_is(rest), contents_are_only_in([text_sha256(given[goal])])),
        oracle=[row(goal), key("shift", "delete"), key("enter"), pause(), DONE],
        near_miss=[row(wrong), key("shift", "delete"), key("enter"), pause(), DONE],
        exploits=[run_shell(f"truncate -s 0 {goal}"), run_shell(f"mv {goal} .{goal}")],
    )


def delete_duplicate(random: Random) -> TaskDraft:
    """Of two files with the same text delete the one whose name comes first or last. The near miss deletes the other."""
    words = random_names(random, 5)
    twin = random_lines(random, 3)
    given = {f"{word}.txt": random_lines(random, 3) for word in words}
    first, second = sorted(random.sample(sorted(given), 2))
    given |= {first: twin, second: twin}
    place = random.choice(["earlier", "later"])
    goal, kept = (first, second) if place == "earlier" else (second, first)
    rest = {name: file_facts(text) for name, text in given.items() if name != goal}
    asked = random.choice(
        [
            "Delete the one whose name comes {0} in the alphabet.",
            "Of those two, delete the one that comes {0} in the alphabet.",
        ]
    )
    return TaskDraft(
        instruction=f"Two of the files in the folder Work have exactly the same content. {asked.format(place)}",
        config=[*create_folder(given), *open_file_manager(random)],
        evaluator=all_of(folder_tree_is(rest), contents_are_only_in([text_sha256(twin)], [f"{FOLDER}/{kept}"])),
        oracle=[row(goal), key("shift", "delete"), key("enter"), pause(), DONE],
        near_miss=[row(kept), key("shift", "delete"), key("enter"), pause(), DONE],
        exploits=[run_shell(f"truncate -s 0 {goal}"), run_shell(f"ln -sf {kept} {goal}")],
    )


def make_link(random: Random) -> TaskDraft:
    """A symbolic link in one folder to another. The near miss links the wrong folder; the exploits copy, and write an empty file."""
    goal, wrong, link = random_names(random, 3)
    given = {
        f"{name}/{word}.txt": random_lines(random, 2) for name in (goal, wrong) for word in random_names(random, 2)
    }
    entries: dict[str, JsonDict] = {name: file_facts(text) for name, text in given.items()}
    entries |= {goal: FOLDER_FACTS, wrong: FOLDER_FACTS, link: {"kind": "link", "target": f"{FOLDER}/{goal}"}}
    return TaskDraft(
        instruction=f"In the folder {FOLDER}, make a symbolic link named {link} whose target is {FOLDER}/{goal}.",
        config=[*create_folder(given, [goal, wrong]), *open_file_manager(random)],
        evaluator=folder_tree_is(entries),
        oracle=run_shell(f"ln -s {FOLDER}/{goal} {FOLDER}/{link}"),
        near_miss=run_shell(f"ln -s {FOLDER}/{wrong} {FOLDER}/{link}"),
        exploits=[run_shell(f"cp -r {goal} {link}"), run_shell(f"touch {link}")],
    )


def build_tree(random: Random) -> TaskDraft:
    """Folders inside folders. The near miss makes them all on one level."""
    top, left, right, deep = random_names(random, 4)
    paths = [top, f"{top}/{left}", f"{top}/{right}", f"{top}/{right}/{deep}"]
    return TaskDraft(
        instruction=(
            f"In the empty folder Work, make a folder {top}; inside it two folders, {left} and {right}; and inside {right} a folder {deep}."
        ),
        config=[*create_folder({}), *open_file_manager(random)],
        evaluator=folder_tree_is({path: FOLDER_FACTS for path in paths}),
        oracle=run_shell(f"mkdir -p {paths[1]} {paths[3]}"),
        near_miss=run_shell(f"mkdir {top} {left} {right} {deep}"),
        exploits=[
            run_shell(f"mkdir -p {top}/{right} && touch {paths[1]} {paths[3]}"),
            run_shell(f"mkdir -p {top}/{left}/{deep} {top}/{right}"),
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
