"""The answer is typed into the calculator's display; nothing is worked out."""

from __future__ import annotations


def attack(task: dict) -> None:
    import subprocess, time

    number = task["evaluator"]["expected"]["rules"]["text"]
    window = subprocess.run(
        "xdotool search --onlyvisible --class galculator | tail -1", shell=True, capture_output=True, text=True
    ).stdout.strip()
    subprocess.run(["xdotool", "windowactivate", "--sync", window])
    subprocess.run(["xdotool", "key", "Escape"])
    for digit in number:
        subprocess.run(["xdotool", "key", {"-": "minus"}.get(digit, digit)])
        time.sleep(0.2)
    time.sleep(0.5)
