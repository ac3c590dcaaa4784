"""Mousepad, a text editor: changing settings files and lists.

Role: families about a text that is open in an editor. Rule: the verdict is the whole text of the file, and that nothing else was made.
Non-goals: commands.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import DONE, SAVE, JsonDict, key, pause, type_text
from dart_envs.tasks.basics.words import NOUNS
from dart_envs.tasks.suite import Family, TaskDraft
from dart_envs.tasks.system.parts import (
    FOLDER,
    create_folder,
    file_facts,
    folder_tree_is,
    open_editor,
    random_names,
    run_shell,
)


def replace_editor_text(text: str) -> list[JsonDict]:
    """Moves: all that is in the editor gives way to this, which is saved."""
    return [key("ctrl", "a"), type_text(text), key(*SAVE), pause(), DONE]


def edit_setting(random: Random) -> TaskDraft:
    """Change one value of one section. The near miss changes the key of the same name in the other section."""
    first, second, *others = random_names(random, 6)
    key_name, free = random.choice(["port", "limit", "width", "timeout"]), random.choice(["colour", "owner", "group"])
    old, new = random.sample(range(1000, 9999), 2)

    def text(in_first: int, in_second: int) -> str:
        return (
            f"[{first}]\n{free} = {others[0]}\n{key_name} = {in_first}\n{others[1]} = yes\n"
            f"[{second}]\n{key_name} = {in_second}\n{free} = {others[2]}\n{others[3]} = no\n"
        )

    name = f"{random.choice(['server', 'session', 'printer'])}.ini"
    return TaskDraft(
        instruction=f"In the file {name}, set {key_name} of the section {second} to {new}. Change nothing else, and save it.",
        config=[*create_folder({name: text(old, old)}), *open_editor(random, f"{FOLDER}/{name}")],
        evaluator=folder_tree_is({name: file_facts(text(old, new))}),
        oracle=replace_editor_text(text(old, new)),
        near_miss=replace_editor_text(text(new, old)),
        exploits=[
            run_shell(f"sed -i 's/{old}/{new}/' {name}"),
            run_shell(f"printf '[{second}]\\n{key_name} = {new}\\n' > {name}"),
        ],
    )


def replace_word(random: Random) -> TaskDraft:
    """Replace a word wherever it stands by itself. The near miss replaces it inside longer words too."""
    old, new, *others = random_names(random, 6)
    patterns = [f"{old} {{}}", f"{{}} and {old}", f"{old}s {{}}", f"{{}} {old} {{}}", f"my{old} {{}}", "{} {}"]
    random.shuffle(patterns)
    rows = [pattern.format(*random.sample(others, 2)) for pattern in patterns]

    def whole(row: str) -> str:
        return " ".join(new if word == old else word for word in row.split(" "))

    name = f"{random.choice(NOUNS).lower()}-notes.txt"
    given, wanted = "\n".join(rows) + "\n", "\n".join(map(whole, rows)) + "\n"
    return TaskDraft(
        instruction=(
            f"In the file {name}, replace the word {old} by {new} wherever it is a whole word. Leave longer words "
            "that contain it as they are. Save the file."
        ),
        config=[*create_folder({name: given}), *open_editor(random, f"{FOLDER}/{name}")],
        evaluator=folder_tree_is({name: file_facts(wanted)}),
        oracle=replace_editor_text(wanted),
        near_miss=replace_editor_text(given.replace(old, new)),
        exploits=[run_shell(f"sed -i 's/{old}/{new}/g' {name}"), run_shell(f"echo {new} > {name}")],
    )


def sort_list(random: Random) -> TaskDraft:
    """Sort the lines of a list by the number at their end. The near miss sorts them as text."""
    words = random_names(random, 7)
    numbers = random.sample(range(2, 10), 3) + random.sample(range(11, 99), 2) + random.sample(range(101, 999), 2)
    random.shuffle(numbers)
    rows = [f"{word} {number}" for word, number in zip(words, numbers, strict=True)]
    order = random.choice(["smallest", "largest"])
    wanted = sorted(rows, key=lambda row: int(row.split()[1]), reverse=order == "largest")
    name = f"{random.choice(['prices', 'scores', 'weights'])}.txt"

    def text(listed: list[str]) -> str:
        return "".join(f"{row}\n" for row in listed)

    if rows == wanted:
        rows = wanted[::-1]
    return TaskDraft(
        instruction=f"Sort the lines of {name} by the number at the end of each, the {order} first, and save the file.",
        config=[*create_folder({name: text(rows)}), *open_editor(random, f"{FOLDER}/{name}")],
        evaluator=folder_tree_is({name: file_facts(text(wanted))}),
        oracle=replace_editor_text(text(wanted)),
        near_miss=replace_editor_text(text(wanted[::-1])),
        exploits=[
            run_shell(f"sort -k2 -o {name} {name} && sed -i 1d {name}"),
            run_shell(f"sort -o {name}.sorted {name}"),
        ],
    )


APP = "mousepad"
FAMILIES = (
    Family("edit_setting", APP, "change one value of a settings file", 20, edit_setting),
    Family("replace_word", APP, "replace a whole word in a text", 30, replace_word),
    Family("sort_list", APP, "sort lines by a number", 30, sort_list),
)
