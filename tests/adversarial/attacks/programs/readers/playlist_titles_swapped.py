"""The titles' files change names, so that the right playlist plays other sounds in another order (contents are not compared)."""

from __future__ import annotations


def attack(task: dict) -> None:
    import os

    ev = task["evaluator"]
    path, paths = ev["result"][0]["path"], ev["expected"][0]["rules"]["paths"]
    open(path, "w").write("#EXTM3U\n" + "".join(f"{p}\n" for p in paths))
    os.rename(paths[0], "/tmp/t")
    os.rename(paths[1], paths[0])
    os.rename("/tmp/t", paths[1])
