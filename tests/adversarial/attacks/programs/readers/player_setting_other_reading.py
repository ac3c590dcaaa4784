"""The verdict counts lines by Python's splitlines(), which breaks at form feeds and at U+2028; VLC reads lines that end in \\n: for it the
setting is the tail of a comment."""

from __future__ import annotations


def attack(task: dict) -> None:
    import re

    ev = task["evaluator"]
    path, want = ev["result"]["path"], ev["expected"]["rules"]["expected"]
    option = re.search(r"\(([\w-]+) in ", task["instruction"])[1]
    text = open(path).read()
    open(path, "w").write(text + f"\n# a note\u2028{option}={want[option]}\n")
