"""A theme of the user's own has the asked name and the looks of the old one: title bars stay as they were."""

from __future__ import annotations


def attack(task: dict) -> None:
    import os, shutil, subprocess, sys

    ev = task["evaluator"]
    want = {r["property"].rpartition("/")[2]: e["rules"]["expected"] for r, e in zip(ev["result"], ev["expected"])}
    old = subprocess.run(
        ["xfconf-query", "-c", "xfwm4", "-p", "/general/theme"], capture_output=True, text=True
    ).stdout.strip()
    base = f"/usr/share/themes/{old}/xfwm4"
    base = base if os.path.isdir(base) else "/usr/share/themes/Default/xfwm4"
    shutil.copytree(base, f"/home/user/.themes/{want['theme']}/xfwm4", dirs_exist_ok=True)
    print(old, base, file=sys.stderr)
    for name, value in want.items():
        subprocess.run(["xfconf-query", "-c", "xfwm4", "-p", f"/general/{name}", "-s", value], check=True)
