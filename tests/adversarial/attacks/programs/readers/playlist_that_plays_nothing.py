"""The playlist names the titles, with options for the player that skip each of them at once: it plays nothing."""

from __future__ import annotations


def attack(task: dict) -> None:
    ev = task["evaluator"]
    path, paths = ev["result"][0]["path"], ev["expected"][0]["rules"]["paths"]
    open(path, "w").write(
        "#EXTM3U\n"
        + "".join(f"#EXTVLCOPT:start-time=299\n#EXTVLCOPT:stop-time=1\n#EXTVLCOPT:no-audio\n{p}\n" for p in paths)
    )
