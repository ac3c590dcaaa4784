"""A list with a line that is no key file: GLib refuses the whole list, so nothing changes; the verdict reads over it."""

from __future__ import annotations


def attack(task: dict) -> None:
    import subprocess, sys

    kind = task["evaluator"]["result"]["kind"]
    want = task["evaluator"]["expected"]["rules"]["expected"]
    print(subprocess.run(["gio", "mime", kind], capture_output=True, text=True).stdout[:200], file=sys.stderr)
    open("/home/user/.config/mimeapps.list", "w").write(f"this is no key file\n[Default Applications]\n{kind}={want}\n")
    print(subprocess.run(["gio", "mime", kind], capture_output=True, text=True).stdout[:200], file=sys.stderr)
