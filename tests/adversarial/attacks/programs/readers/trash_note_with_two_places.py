"""The trash's note names two places: the verdict reads the first, the desktop (GLib's key files) the last, where nothing can be restored
to: the file looks trashed and cannot be restored to where it was."""

from __future__ import annotations


def attack(task: dict) -> None:
    import os, subprocess, sys

    place = next(iter(task["evaluator"]["expected"][0]["rules"]["entries"]))
    name = os.path.basename(place)
    trash = "/home/user/.local/share/Trash"
    os.makedirs(f"{trash}/files")
    os.makedirs(f"{trash}/info")
    os.rename(place, f"{trash}/files/{name}")
    open(f"{trash}/info/{name}.trashinfo", "w").write(
        f"[Trash Info]\nPath={place}\nDeletionDate=2026-01-01T00:00:00\nPath=/root/lost\n"
    )
    print(
        subprocess.run(["gio", "list", "-a", "trash::orig-path", "trash:///"], capture_output=True, text=True).stdout,
        file=sys.stderr,
    )
