"""Mousepad, a text editor: changing settings files and lists.

Role: families about a text that is open in an editor. Rule: the verdict is the whole text of the file, and that nothing else was made.
Non-goals: commands.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import DONE, SAVE, Data, key, pause, type_text
from dart_envs.tasks.basics.words import NOUNS
from dart_envs.tasks.suite import Draft, Family
from dart_envs.tasks.system.parts import FOLDER, editor, folder, folder_is, holding, names, ran


def rewritten(text: str) -> list[Data]:
    """Moves: all that is in the editor gives way to this, which is saved."""
    return [key("ctrl", "a"), type_text(text), key(*SAVE), pause(), DONE]


def edit_setting(random: Random) -> Draft:
    """Change one value of one section. The near miss changes the key of the same name in the other section."""
    first, second, *others = names(random, 6)
    key_name, free = random.choice(["port", "limit", "width", "timeout"]), random.choice(["colour", "owner", "group"])
    old, new = random.sample(range(1000, 9999), 2)

    def text(in_first: int, in_second: int) -> str:
        return (
            f"[{first}]\n{free} = {others[0]}\n{key_name} = {in_first}\n{others[1]} = yes\n"
            f"[{second}]\n{key_name} = {in_second}\n{free} = {others[2]}\n{others[3]} = no\n"
        )

    name = f"{random.choice(['server', 'session', 'printer'])}.ini"
    return Draft(
        instruction=f"In the file {name}, set {key_name} of the section {second} to {new}. Change nothing else, and save it.",
        config=[*folder({name: text(old, old)}), *editor(random, f"{FOLDER}/{name}")],
        evaluator=folder_is({name: holding(text(old, new))}),
        oracle=rewritten(text(old, new)),
        near_miss=rewritten(text(new, old)),
        exploits=[ran(f"sed -i 's/{old}/{new}/' {name}"), ran(f"printf '[{second}]\\n{key_name} = {new}\\n' > {name}")],
    )


def replace_word(random: Random) -> Draft:
    """Replace a word wherever it stands by itself. The near miss replaces it inside longer words too."""
    old, new, *others = names(random, 6)
    patterns = [f"{old} {{}}", f"{{}} and {old}", f"{old}s {{}}", f"{{}} {old} {{}}", f"my{old} {{}}", "{} {}"]
    random.shuffle(patterns)
    rows = [pattern.format(*random.sample(others, 2)) for pattern in patterns]

    def whole(row: str) -> str:
        return " ".join(new if word == old else word for word in row.split(" "))

    name = f"{random.choice(NOUNS).lower()}-notes.txt"
    given, wanted = "\n".join(rows) + "\n", "\n".join(map(whole, rows)) + "\n"
    return Draft(
        instruction=(
            f"In the file {name}, replace the word {old} by {new} wherever it is a whole word. Leave longer words "
            "that contain it as they are. Save the file."
        ),
        config=[*folder({name: given}), *editor(random, f"{FOLDER}/{name}")],
        evaluator=folder_is({name: holding(wanted)}),
        oracle=rewritten(wanted),
        near_miss=rewritten(given.replace(old, new)),
        exploits=[ran(f"sed -i 's/{old}/{new}/g' {name}"), ran(f"echo {new} > {name}")],
    )


def sort_list(random: Random) -> Draft:
    """Sort the lines of a list by the number at their end. The near miss sorts them as text."""
    words = names(random, 7)
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
    return Draft(
        instruction=f"Sort the lines of {name} by the number at the end of each, the {order} first, and save the file.",
        config=[*folder({name: text(rows)}), *editor(random, f"{FOLDER}/{name}")],
        evaluator=folder_is({name: holding(text(wanted))}),
        oracle=rewritten(text(wanted)),
        near_miss=rewritten(text(wanted[::-1])),
        exploits=[ran(f"sort -k2 -o {name} {name} && sed -i 1d {name}"), ran(f"sort -o {name}.sorted {name}")],
    )


APP = "mousepad"
FAMILIES = (
    Family("edit_setting", APP, "change one value of a settings file", 20, edit_setting),
    Family("replace_word", APP, "replace a whole word in a text", 30, replace_word),
    Family("sort_list", APP, "sort lines by a number", 30, sort_list),
)
