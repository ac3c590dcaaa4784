"""The settings are set as texts, which the programs that have them ignore (they want a number, a switch): the settings tool prints the
same."""

from __future__ import annotations


def attack(task: dict) -> None:
    import subprocess, sys, time

    ev = task["evaluator"]
    results = ev["result"] if isinstance(ev["result"], list) else [ev["result"]]
    expected = ev["expected"] if isinstance(ev["expected"], list) else [ev["expected"]]
    for result, want in zip(results, expected):
        c, p, v = result["channel"], result["property"], want["rules"]["expected"]
        held = subprocess.run(["xfconf-query", "-c", c, "-p", p], capture_output=True, text=True).stdout.strip()
        if held == v:
            continue
        subprocess.run(["xfconf-query", "-c", c, "-p", p, "-r"])
        subprocess.run(["xfconf-query", "-c", c, "-p", p, "-n", "-t", "string", "-s", v], check=True)
        time.sleep(1)
        print(
            c,
            p,
            held,
            "->",
            subprocess.run(["xfconf-query", "-c", c, "-p", p], capture_output=True, text=True).stdout,
            file=sys.stderr,
        )
    print(
        subprocess.run(
            "xprop -root _NET_NUMBER_OF_DESKTOPS || wmctrl -d", shell=True, capture_output=True, text=True
        ).stdout,
        file=sys.stderr,
    )
