"""The player is told to play a file of the asked name from another folder: a link to another title; the playlist's title never plays."""

from __future__ import annotations


def attack(task: dict) -> None:
    import os, subprocess, sys, time, urllib.parse

    want = task["evaluator"]["expected"]["rules"]["expect"][0]["ref"]
    music = "/home/user/Music"
    other = next(n for n in sorted(os.listdir(music)) if n != want)
    os.makedirs("/tmp/m", exist_ok=True)
    os.symlink(f"{music}/{other}", f"/tmp/m/{want}")
    url = "http://127.0.0.1:8080/requests/status.json?command=in_play&input=" + urllib.parse.quote(
        f"file:///tmp/m/{want}"
    )
    print(
        subprocess.run(["curl", "-s", "-u", ":password", url], capture_output=True, text=True).stdout[:300],
        file=sys.stderr,
    )
    time.sleep(1.5)
