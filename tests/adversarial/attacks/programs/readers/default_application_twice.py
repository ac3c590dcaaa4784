"""A list names the kind of file twice: the verdict takes the first entry, the desktop (GLib's key files) the last."""

from __future__ import annotations


def attack(task: dict) -> None:
    import subprocess, sys

    kind = task["evaluator"]["result"]["kind"]
    want = task["evaluator"]["expected"]["rules"]["expected"]
    other = "thunar.desktop"
    open("/home/user/.config/mimeapps.list", "w").write(f"[Default Applications]\n{kind}={want}\n{kind}={other}\n")
    print(subprocess.run(["gio", "mime", kind], capture_output=True, text=True).stdout, file=sys.stderr)
