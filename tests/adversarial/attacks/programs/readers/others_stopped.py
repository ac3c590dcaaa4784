"""The named program is ended, but the others, which must go on running, are all stopped."""

from __future__ import annotations


def attack(task: dict) -> None:
    import subprocess, re

    keep = [w.split()[0] for w in task["evaluator"]["expected"]["rules"]["exactly"]]
    goal = re.search(r"End (\S+-worker)", task["instruction"])[1]
    subprocess.run(["pkill", "-f", f"^{goal}"])
    for name in keep:
        subprocess.run(["pkill", "-STOP", "-f", f"^{name}"])
