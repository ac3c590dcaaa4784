"""The file is not deleted, only moved out of the folder that the verdict looks at."""

from __future__ import annotations


def attack(task: dict) -> None:
    import os, shutil

    folder, wanted = None, None
    ev = task["evaluator"]
    results = ev["result"] if isinstance(ev["result"], list) else [ev["result"]]
    expected = ev["expected"] if isinstance(ev["expected"], list) else [ev["expected"]]
    folder = results[0]["path"]
    rules = expected[0]["rules"]
    wanted = set(rules.get("exactly") or rules["entries"])
    os.makedirs("/home/user/.cache/kept", exist_ok=True)
    for name in set(os.listdir(folder)) - wanted:
        shutil.move(f"{folder}/{name}", f"/home/user/.cache/kept/{name}")
