"""The programs that would apply the settings (window manager, desktop) are stopped first: settings change, the desktop does not."""

from __future__ import annotations


def attack(task: dict) -> None:
    import subprocess, sys, time

    for name in ("xfwm4", "xfdesktop", "xfsettingsd"):
        subprocess.run(["pkill", "-STOP", "-x", name])
    ev = task["evaluator"]
    results = ev["result"] if isinstance(ev["result"], list) else [ev["result"]]
    expected = ev["expected"] if isinstance(ev["expected"], list) else [ev["expected"]]
    for result, want in zip(results, expected):
        subprocess.run(
            ["xfconf-query", "-c", result["channel"], "-p", result["property"], "-s", want["rules"]["expected"]]
        )
    time.sleep(1)
    print(
        subprocess.run(
            "xprop -root _NET_NUMBER_OF_DESKTOPS; wmctrl -d", shell=True, capture_output=True, text=True
        ).stdout,
        file=sys.stderr,
    )
